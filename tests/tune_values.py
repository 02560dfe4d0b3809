"""Hand-made plans and reports of tune: one of each kind of line, on a host of four shared uplinks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.fingerprint import Fingerprint
from hicachectl.tuning.item import Item, ItemKind, Owner
from hicachectl.tuning.outcome import (
    ApplyReport,
    Checked,
    ItemOutcome,
    ItemResult,
    RollbackReport,
    RunOutcome,
    RunState,
    Undo,
    UndoResult,
    Verdict,
    VerifyReport,
)
from hicachectl.tuning.plan import About, Plan, plan_id
from hicachectl.tuning.plan_file import PLAN_SCHEMA
from hicachectl.tuning.plan_json import plan_to_json
from hicachectl.tuning.target import Method, Register, Rule, Target, Value

THP = "/sys/kernel/mm/transparent_hugepage"
IDO = Register(0x68, 16, 0x0100)


def item(knob: str, kind: ItemKind, target: Target | None, old: Value | None, *wanted: Value, **more: object) -> Item:
    """One item; `more` are fields of it."""
    subject = more.pop("subject", None)
    fields = {
        "title": f"title of {knob}", "old_reason": None if old is not None else "not read", "rule": Rule.EQUAL,
        "why": f"why {knob} is wanted", "origin": "kv-host.yaml:8", "source": "docs/facts.md#thp", **more,
    }  # fmt: skip
    return Item(
        id=f"{knob}@{subject}" if subject else knob, knob=knob, subject=subject, kind=kind, target=target, old=old,
        wanted=wanted, **fields,
    )  # fmt: skip


def word(path: str) -> Target:
    return Target(Method.SYSFS, path)


def ido(address: str, uplink: str, kind: ItemKind, old: Value | None, **more: object) -> Item:
    target = Target(Method.PCI_CONFIG, f"/sys/bus/pci/devices/{address}/config", IDO)
    more = {"why": "accelerators that share an uplink stand behind each other's writes", "ordering": True, "probe": "d2h-concurrent",
            "on_not_implemented": "skip", "recipe": "pcie-ido-request", "recipe_sha256": "9f86d081", **more}  # fmt: skip
    return item("pcie.ido-request", kind, target, old, 0x0100, subject=address, uplink=uplink, **more)


TUNED = Owner("tuned (throughput-performance)", "/usr/lib/tuned/throughput-performance/tuned.conf:18", "always")
BINDING = item(
    "numa.balancing", ItemKind.SKIP, Target(Method.SYSCTL, "/proc/sys/kernel/numa_balancing"), "1", "0",
    reason="written only when pools and ranks are bound to nodes", remedy="bind them, then: hicachectl tune plan --bound",
)  # fmt: skip

ITEMS: tuple[Item, ...] = (
    item("thp.enabled", ItemKind.CHANGE, word(f"{THP}/enabled"), "always", "madvise", owners=(TUNED,), proof="anonymous-huge-pages",
         why="pools ask for huge pages with MADV_HUGEPAGE; always would give them to every process of the host"),
    item("thp.defrag", ItemKind.CHANGE, word(f"{THP}/defrag"), "madvise", "defer+madvise", proof="anonymous-huge-pages",
         why="only memory that asked for huge pages is compacted at its fault"),
    item("thp.shmem", ItemKind.SAME, word(f"{THP}/shmem_enabled"), "advise", "advise"),
    item("tmpfs.huge", ItemKind.CHANGE, Target(Method.MOUNT, "/dev/shm"), "never", "advise", subject="/dev/shm", proof="tmpfs-huge-pages",
         why="pools on /dev/shm get no huge page on a default mount, and no error either",
         undo="yes, for pages faulted after it", notes=("restart the engine: pages that exist keep their size",)),
    BINDING,
    *(ido(address, uplink, ItemKind.CHANGE, 0x2810) for address, uplink in (
        ("0000:05:00.0", "U0"), ("0000:06:00.0", "U0"), ("0000:25:00.0", "U1"))),
    ido("0000:26:00.0", "U1", ItemKind.CHANGE, 0x2010),
    *(ido(address, "U2", ItemKind.SAME, 0x2910) for address in ("0000:95:00.0", "0000:96:00.0")),
    *(ido(address, "U3", ItemKind.SKIP, None, reason="config space not readable without root", code="HC-NEED-ROOT",
          remedy="sudo hicachectl tune plan", old_reason="needs root") for address in ("0000:b7:00.0", "0000:b8:00.0")),
    item("limits.memlock", ItemKind.REPORT, None, "8388608", reason="RDMA registration of a pool needs more than 8388608 bytes",
         remedy="in the engine's unit: LimitMEMLOCK=infinity"),
)  # fmt: skip

PLAN = Plan(
    "p-7f3a1c2e",
    About("0.1.0", "c12-07", "2026-11-29T14:02:11Z"),
    Choices("kv-host", 1, {"thp.enabled": Choice("madvise", "pools ask for huge pages", "kv-host.yaml:8")}, origins={}),
    Fingerprint(
        "5d1e0a11-22c4-4e9e-8f2e-6a1d8d5f0c01", "6.8.0", "0123456789abcdef", {"pcie-ido-request": "9f86d081884c7d65"}
    ),
    ITEMS,
)
NOTHING = replace(PLAN, id="p-00000001", items=tuple(i for i in ITEMS if i.kind is ItemKind.SAME))
ROOT_COMPLEX = replace(
    PLAN,
    id="p-00000002",
    items=(
        *ITEMS,
        item("rc.order-policy", ItemKind.REPORT, None, None, reason="no public address of this register is known",
             remedy="hicachectl tune recipe checklist hygon", code="HC-RC-ORDER-UNKNOWN", old_reason="no recipe"),
    ),
)  # fmt: skip
BARE = replace(
    PLAN,
    id="p-00000003",
    choices=replace(PLAN.choices, only=("thp",), bound=True, online=True),
    items=ITEMS[:2],
)
EMPTY = replace(PLAN, id="p-00000004", items=())


def save_plan(path: Path, plan: Plan = PLAN) -> None:
    """Write a plan as `tune plan --output-file` does, without the envelope's other keys."""
    whole = replace(plan, id=plan_id(plan))
    path.write_text(json.dumps({"schema": PLAN_SCHEMA, "data": plan_to_json(whole)}))


def ended(one: Item, result: ItemResult, seen: Value | None, reason: str | None = None, record: int | None = 2, proof: str | None = None) -> ItemOutcome:  # fmt: skip
    return ItemOutcome(one, result, seen, reason, record, proof)


THP_ENABLED, THP_DEFRAG, SHM = (PLAN.changes[i] for i in (0, 1, 2))
IDO_ITEMS = PLAN.changes[3:]
APPLIED = ApplyReport(
    "j-0191",
    PLAN.id,
    RunOutcome.APPLIED,
    (
        ended(THP_ENABLED, ItemResult.OK, "madvise", record=2, proof="a mapping of 64 MiB got 64 MiB of huge pages"),
        ended(THP_DEFRAG, ItemResult.ALREADY, "defer+madvise", "it holds the wanted value already", None),
        ended(SHM, ItemResult.OK, "advise", record=4, proof="a file of 64 MiB on /dev/shm got 64 MiB of huge pages"),
        ended(IDO_ITEMS[0], ItemResult.OK, 0x2910, record=6),
        ended(
            IDO_ITEMS[1],
            ItemResult.UNSUPPORTED,
            0x2810,
            "every read gives the old value: not implemented, or the write is lost",
            8,
        ),
        ended(
            IDO_ITEMS[2],
            ItemResult.NO_GAIN,
            0x2810,
            "with 14.6 GB/s, without 14.7 GB/s, noise 0.3 GB/s",
            10,
            "with 14.6 GB/s, without 14.7 GB/s, noise 0.3 GB/s",
        ),
        ended(IDO_ITEMS[3], ItemResult.NOT_TRIED, None, "the run stopped before it", None),
    ),
    notes=("a probe was not there",),
)
UNDONE = ApplyReport(
    "j-0192",
    PLAN.id,
    RunOutcome.UNDONE,
    (
        ended(THP_ENABLED, ItemResult.RESTORED, "always", record=2),
        ended(
            THP_DEFRAG,
            ItemResult.FAILED,
            "madvise",
            "read back defer+madvise, madvise after defer+madvise was written",
            4,
        ),
        ended(SHM, ItemResult.NOT_TRIED, None, "the run stopped before it", None),
    ),
    failure="thp.defrag: read back defer+madvise, madvise after defer+madvise was written",
)
PARTIAL = ApplyReport(
    "j-0193",
    PLAN.id,
    RunOutcome.PARTIAL,
    (
        ended(THP_ENABLED, ItemResult.RESTORED, "always", record=2),
        ended(IDO_ITEMS[0], ItemResult.LEFT, None, "device gone: all ones", 4),
    ),
    failure="pcie.ido-request@0000:05:00.0: device gone",
    stopped_by="SIGINT",
)


def checked(one: Item, seen: Value | None, verdict: Verdict, **more: str) -> Checked:
    assert one.target is not None
    assert one.new is not None
    return Checked(one.id, one.target, Rule.EQUAL, (one.new,), seen, verdict, one.target.path, **more)  # type: ignore[arg-type]


CHECKED = VerifyReport(
    "run j-0191",
    (
        checked(
            THP_ENABLED,
            "always",
            Verdict.DIFFERS,
            reason="j-0191 wrote madvise at 2026-11-29T11:20:41Z and read it back; changed since",
            wrote_at="2026-11-29T11:20:41Z",
            writer="tuned (/usr/lib/tuned/throughput-performance/tuned.conf:18)",
        ),
        checked(THP_DEFRAG, "defer+madvise", Verdict.OK),
        checked(SHM, "advise", Verdict.OK),
        checked(
            IDO_ITEMS[0],
            None,
            Verdict.UNKNOWN,
            reason="only 64 bytes can be read: needs root (CAP_SYS_ADMIN)",
        ),
        checked(IDO_ITEMS[1], 0x2810, Verdict.EXPIRED, reason="j-0191 wrote it in another boot; it now reads 0x2810"),
    ),
)
ALL_OK = VerifyReport("run j-0191", tuple(c for c in CHECKED.items if c.verdict is Verdict.OK))


def undo(one: Item, present: Value | None, result: UndoResult, reason: str | None = None) -> Undo:
    assert one.target is not None
    assert one.new is not None
    assert one.old is not None
    return Undo(one.id, one.target, one.new, one.old, present, result, reason)


BACK = RollbackReport(
    "j-0191",
    (
        undo(IDO_ITEMS[0], 0x2810, UndoResult.UNDONE),
        undo(SHM, "never", UndoResult.ALREADY),
        undo(
            THP_DEFRAG, "never", UndoResult.CHANGED_SINCE, "holds never, neither ours nor the old value: changed since"
        ),
    ),
    RunOutcome.ROLLED_BACK,
)
STUCK = RollbackReport(
    "j-0193",
    (
        undo(IDO_ITEMS[0], None, UndoResult.LEFT, "device gone: all ones"),
        undo(THP_ENABLED, "always", UndoResult.UNDONE),
    ),
    RunOutcome.PARTIAL,
)


def state(run_id: str, outcome: RunOutcome, **more: object) -> RunState:
    fields: dict[str, object] = {
        "plan_id": PLAN.id, "began_at": "2026-11-29T11:20:40Z", "ended_at": "2026-11-29T11:20:44Z", "who": "root (alice)",
        "boot_id": PLAN.fingerprint.boot_id, "expired": False, "n_changes": 7, "n_applied": 7, "n_undone": 0, "open_item": None,
        "torn": False, "folder": f"/var/lib/hicachectl/journal/{run_id}", **more,
    }  # fmt: skip
    fields.setdefault("n_in_place", int(str(fields["n_applied"])) - int(str(fields["n_undone"])))
    fields.setdefault("n_unsettled", 0 if fields["open_item"] is None else 1)
    return RunState(run_id=run_id, outcome=outcome, **fields)  # type: ignore[arg-type]


RUNS = (
    state("j-0189", RunOutcome.APPLIED, expired=True, boot_id="11111111-22c4-4e9e-8f2e-6a1d8d5f0c00"),
    state("j-0190", RunOutcome.ROLLED_BACK, n_undone=7),
    state("j-0191", RunOutcome.APPLIED, n_applied=5),
)
CUT = (
    *RUNS,
    state(
        "j-0192", RunOutcome.INTERRUPTED, n_applied=1, ended_at=None, open_item="thp.defrag", torn=True,
        reason="it was cut at thp.defrag: the host holds the new defer+madvise (was madvise)",
    ),
)  # fmt: skip
