"""The real `hicachectl tune` inside a guest, without torch or numpy: what it says, what the devices' log says, what is left.

The log of the devices is the judge: every config write that reached one is in it, with the phase; no driver is bound to them, so
what comes in phase "job" is ours.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import LAB_DIR, Pieces, Result, run
from test_topo import FOLDERS, ROOT
from vfio_user_device import DEVICE_CONTROL_2

pytestmark = [pytest.mark.lab, pytest.mark.timeout(960)]

THP = "/sys/kernel/mm/transparent_hugepage"
ON, OFF = "0001", "0000"  # Device Control 2 with and without bit 8, in memory order


@dataclass(frozen=True)
class Told:
    """What one boot left: how each command ended, what the machine held at each moment, and the devices' log."""

    result: Result
    runs: dict[str, dict[str, Any]]
    seen: dict[str, dict[str, Any]]

    def code(self, name: str) -> int:
        return int(self.runs[name]["exit_code"])

    def document(self, name: str) -> dict[str, Any]:
        """The one JSON document a command printed."""
        return dict(json.loads(self.runs[name]["stdout"]))

    def items(self, name: str) -> dict[str, dict[str, Any]]:
        return {item["id"]: item for item in self.document(name)["data"]["items"]}

    def results(self, name: str) -> Counter[str]:
        return Counter(item["result"] for item in self.items(name).values())

    def diagnostics(self, name: str) -> str:
        return json.dumps(self.document(name)["diagnostics"])

    def registers(self, moment: str) -> dict[str, str]:
        return dict(self.seen[moment]["registers"])

    def files(self, moment: str) -> dict[str, str]:
        return dict(self.seen[moment]["files"])

    def writes(self) -> list[tuple[str, int, str]]:
        """Every config write since the job began: device, offset, bytes."""
        return [(w["device"], w["offset"], w["bytes"]) for w in self.result.config_writes if w["phase"] == "job"]


@pytest.fixture(scope="module")
def told(pieces: Pieces, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Told]:
    """Return a function that boots a machine for a scenario, once each."""
    known: dict[tuple[str, str], Told] = {}

    def boot(machine: str, scenario: str) -> Told:
        if (machine, scenario) not in known:
            folder = tmp_path_factory.mktemp(scenario)
            pack(pieces, folder / "job", scenario)
            result = run(description(machine, scenario), folder / "job", out_dir=folder / "out", timeout_s=900)
            assert result.exit_code == 0, result.stdout
            files = folder / "out" / "files"
            runs, seen = (json.loads((files / f"{name}.json").read_text()) for name in ("runs", "seen"))
            known[machine, scenario] = Told(result, runs, seen)
        return known[machine, scenario]

    return boot


def pack(pieces: Pieces, job: Path, scenario: str) -> None:
    """Write the job folder: the lab's job, its situations, the packages, and the project as it is in this checkout."""
    shutil.copytree(LAB_DIR / "jobs" / "tune", job)
    shutil.copy(LAB_DIR / "jobs" / "locked-down" / "locked_down.py", job)
    (job / "scenario").write_text(scenario)
    shutil.copytree(pieces.site, job / "site", ignore=shutil.ignore_patterns("bin"))
    for folder, place in FOLDERS.items():
        into = job / "site" / "hicachectl" / place
        shutil.copytree(ROOT / folder, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def description(machine: str, scenario: str) -> dict[str, Any]:
    """Return a machine that does not say it is virtual: in a guest, tune only reports registers."""
    found: dict[str, Any] = json.loads((LAB_DIR / "machines" / f"{machine}.json").read_text())
    return found if scenario == "virtual" else {**found, "cpu": f"{found['cpu']},-hypervisor"}


Boot = Callable[[str, str], Told]

# -- packet order, eight good devices ---------------------------------------------------------------------------------------


def test_apply_marks_requests_of_all_eight_and_rollback_restores_them(told: Boot) -> None:
    seen = told("hygon-8n8x", "ordering")
    assert seen.code("plan") == seen.code("apply") == seen.code("verify") == seen.code("rollback") == 0
    assert seen.results("apply") == {"ok": 8}
    assert set(seen.registers("before").values()) == {"0000"}
    assert set(seen.registers("applied").values()) == {"0100"}
    assert seen.registers("rolled back") == seen.registers("before")


def test_the_devices_saw_eight_two_byte_writes_of_apply_eight_of_rollback_and_no_other(told: Boot) -> None:
    writes = told("hygon-8n8x", "ordering").writes()
    names = [f"accel-{number}" for number in range(8)]
    assert sorted(writes[:8]) == [(name, DEVICE_CONTROL_2, ON) for name in names]
    assert sorted(writes[8:]) == [(name, DEVICE_CONTROL_2, OFF) for name in names]


def test_rollback_goes_backwards(told: Boot) -> None:
    writes = told("hygon-8n8x", "ordering").writes()
    assert [name for name, *_ in writes[8:]] == [name for name, *_ in writes[:8]][::-1]


def test_verify_checks_all_eight_and_status_names_the_run(told: Boot) -> None:
    seen = told("hygon-8n8x", "ordering")
    assert Counter(item["verdict"] for item in seen.items("verify").values()) == {"ok": 8}
    (state,) = seen.document("status")["data"]["runs"]
    assert (state["outcome"], state["n_applied"]) == ("applied", 8)


def test_a_plan_that_was_applied_writes_nothing_the_second_time(told: Boot) -> None:
    seen = told("hygon-8n8x", "ordering")
    assert seen.code("again") == 0
    assert seen.results("again") == {"already": 8}
    assert len(seen.writes()) == 16


def test_packet_order_waits_for_whoever_holds_an_accelerator_unless_told_that_it_need_not(told: Boot) -> None:
    seen = told("hygon-8n8x", "held")
    assert seen.code("held") == 8
    assert "HC-IN-USE" in seen.diagnostics("held") and "/dev/xpu0" in seen.diagnostics("held")
    assert seen.code("online") == seen.code("rollback") == 0
    assert len(seen.writes()) == 16


def test_under_prove_without_a_load_nothing_is_applied_and_each_item_says_why(told: Boot) -> None:
    seen = told("hygon-8n8x", "held")
    assert seen.results("prove") == {"not-tried": 8}
    assert all("d2h-concurrent" in item["reason"] for item in seen.items("prove").values())
    assert len(seen.writes()) == 16  # those of --online and its rollback


def test_in_a_virtual_machine_registers_are_only_reported(told: Boot) -> None:
    seen = told("hygon-8n8x", "virtual")
    kinds = {(item["kind"], item["reason"] is not None) for item in seen.items("plan").values()}
    assert kinds == {("report-only", True)}
    assert seen.code("apply") == 0
    assert seen.writes() == []


# -- devices that mistreat the bit --------------------------------------------------------------------------------------------


def test_a_device_that_refuses_is_unsupported_and_the_others_stay(told: Boot) -> None:
    seen = told("stubborn", "odd-devices")
    assert seen.code("refuser") == 0
    assert seen.results("refuser") == {"ok": 5, "unsupported": 1}
    held = list(seen.registers("refuser").values())
    assert [word for number, word in enumerate(held) if number not in (1, 3, 5)] == ["0100"] * 5
    assert held[1] == "0000"
    assert set(seen.registers("rolled back").values()) == {"0000"}


def test_a_device_that_loses_the_bit_undoes_the_run_and_all_are_restored(told: Boot) -> None:
    seen = told("stubborn", "odd-devices")
    assert seen.code("reverter") == 6
    assert set(seen.registers("reverter").values()) == {"0000"}
    results = seen.items("reverter")
    assert {item["result"] for item in results.values()} <= {"failed", "restored", "not-tried"}
    assert sum(item["result"] == "failed" for item in results.values()) == 1


def test_a_device_that_falls_off_leaves_the_run_partial_and_the_rest_is_restored(told: Boot) -> None:
    seen = told("stubborn", "odd-devices")
    assert seen.code("falling") == 7
    held = list(seen.registers("falling").values())
    assert held[5] == "ffff"
    assert {word for number, word in enumerate(held) if number != 5} == {"0000"}
    (left,) = [name for name, item in seen.items("falling").items() if item["result"] == "left"]
    assert left.endswith(list(seen.registers("falling"))[5])
    assert left in seen.diagnostics("falling")


def test_the_odd_devices_get_two_byte_writes_of_that_register_alone(told: Boot) -> None:
    writes = told("stubborn", "odd-devices").writes()
    assert {(offset, len(data)) for _, offset, data in writes} == {(DEVICE_CONTROL_2, 4)}
    assert {data for _, _, data in writes} == {ON, OFF}


# -- memory -------------------------------------------------------------------------------------------------------------------


def test_huge_pages_and_the_mount_are_set_proven_by_mappings_and_put_back(told: Boot) -> None:
    seen = told("hygon-8n8x", "memory")
    assert seen.code("apply") == seen.code("verify") == seen.code("rollback") == 0
    items = seen.items("apply")
    for name in ("thp.enabled", "thp.shmem", "tmpfs.huge@/dev/shm"):
        assert items[name]["result"] == "ok"
        assert "64 of 64 MiB in huge pages; without advice 0" in items[name]["proof"]
    assert "[madvise]" in seen.files("applied")[f"{THP}/enabled"]
    (mount,) = [line for line in seen.files("applied")["mounts"].splitlines() if " /dev/shm " in line]
    assert "huge=advise" in mount
    assert seen.files("rolled back") == seen.files("before")
    assert seen.writes() == []


def test_memory_bound_to_each_of_eight_nodes_lies_there_by_both_codes(told: Boot) -> None:
    bindings = told("hygon-8n8x", "memory").seen["bindings"]
    assert bindings["guest"] == {str(node): f"OK, 1024 of 1024 pages on node {node}" for node in range(8)}
    assert bindings["proof"]["held"] is True
    assert bindings["proof"]["observed"] == {
        f"node{node}_pages{what}": 1024 for node in range(8) for what in ("", "_there")
    }


def test_huge_pages_are_proven_although_numa_balancing_samples_them(told: Boot) -> None:
    """Linux 6.1 hides them from smaps meanwhile; a kernel that does not shows all of them all the time."""
    hidden = told("hygon-8n8x", "memory").seen["hidden"]
    assert hidden["held"] is True, hidden
    assert "64 of 64 MiB in huge pages; without advice 0" in hidden["text"]
    assert 64 << 10 in hidden["shown_kb"][:3], "the advised mapping, looked at up to three times"


def test_without_a_free_huge_block_the_setting_stays_and_is_not_called_proven(told: Boot) -> None:
    seen = told("hygon-8n8x", "fragmented")
    assert seen.seen["fragmented"]["n_huge_pages_taken"] > 0
    assert seen.code("apply") == seen.code("rollback") == 0
    item = seen.items("apply")["thp.enabled"]
    assert item["result"] == "ok"
    assert "none could be had" in item["proof"]


# -- locked down ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("situation", "code", "said"),
    [
        ("nobody, ordering", 4, "CAP_SYS_ADMIN"),
        ("nobody, memory", 4, "Permission denied"),
        ("without CAP_SYS_ADMIN, ordering", 4, "CAP_SYS_ADMIN"),
        ("read-only /sys, ordering", 5, "read-only"),
        ("read-only /sys, memory", 5, "read-only"),
        ("hidden /sys/kernel/mm, memory", 8, "is not there"),
        ("lockdown, ordering", 5, "integrity"),
    ],
)
def test_a_locked_down_host_gets_the_right_code_and_reason(situation: str, code: int, said: str, told: Boot) -> None:
    seen = told("hygon-8n8x", "locked-down")
    assert seen.code(situation) == code, seen.runs[situation]
    assert said in seen.diagnostics(situation)
    assert seen.document(situation)["exit_code"] == code


@pytest.mark.parametrize(
    ("situation", "n_nodes", "said"),
    [("seccomp", 0, "node 0: mbind: EPERM"), ("cpuset", 2, "node 7: outside the cpuset of this process")],
)
def test_a_binding_that_cannot_be_made_here_is_not_called_proven_or_disproven(
    situation: str, n_nodes: int, said: str, told: Boot
) -> None:
    proof = told("hygon-8n8x", "locked-down").seen["bindings"][situation]
    assert proof["held"] is None
    assert proof["text"].startswith(f"{n_nodes} of 8 nodes hold every page bound to them: ")
    assert said in proof["text"]


def test_no_locked_down_run_wrote_anything(told: Boot) -> None:
    seen = told("hygon-8n8x", "locked-down")
    assert seen.writes() == []
    assert seen.registers("after") == seen.registers("before")
    changed = {path for path, text in seen.files("after").items() if seen.files("before").get(path) != text}
    assert changed <= {f"{THP}/enabled", "mounts"}  # what the job itself set and mounted
    assert "[never]" in seen.files("after")[f"{THP}/enabled"]


# -- guided ---------------------------------------------------------------------------------------------------------------------


def test_a_guided_run_shows_asks_applies_and_verifies(told: Boot) -> None:
    seen = told("hygon-8n8x", "guided")
    shown = seen.runs["guided"]["stdout"]
    assert seen.code("guided") == 0, shown
    order = [shown.index(words) for words in ("PLAN p-", "Make these", "read back", "VERIFY")]
    assert order == sorted(order)
    assert set(seen.registers("applied").values()) == {"0100"}
    assert [(offset, data) for _, offset, data in seen.writes()] == [(DEVICE_CONTROL_2, ON)] * 8 + [
        (DEVICE_CONTROL_2, OFF)
    ] * 8
    assert seen.registers("rolled back") == seen.registers("before")
    assert seen.files("rolled back") == seen.files("before")


def test_the_guided_run_in_the_documentation_is_what_a_terminal_shows(told: Boot) -> None:
    """When a screen has changed: copy what OUT/files/guided.txt holds into the page."""
    page = (ROOT / "docs" / "guided-run.md").read_text()
    log = page.partition("$ sudo hicachectl tune\n")[2].rpartition("```")[0]
    assert without_ids(log) == without_ids(told("hygon-8n8x", "guided").runs["guided"]["stdout"])


def without_ids(text: str) -> list[str]:
    """Return the words without what differs from run to run: ids of plan and boot, the time, and how much memory is free where.

    Words and not lines, for a longer number breaks a line elsewhere.
    """
    text = re.sub(r"p-[0-9a-f]{8}|boot [0-9a-f]{8}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "...", text)
    words = " ".join(text.split())
    return re.sub(
        r"node \d+ has [\d.]+ [KMG]iB in free huge blocks and [\d.]+ [KMG]iB", "node ... has ...", words
    ).split()
