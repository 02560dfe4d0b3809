"""Limits that a pool runs into: locked memory, reserved huge pages, the control group. Told with the exact lines, never set. Pure.

A choice is "report", or the bytes of all pools of this host together ("640GiB"), with which the sums are made. Limits are
read of this process: an engine's own are those of its unit or container, so none of them is ever called "same".
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from hicachectl.errors import UsageError
from hicachectl.tuning import finding
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Rule, Target
from hicachectl.units import GIB, format_bytes, parse_size

__all__ = ["CgroupLimit", "Hugetlb", "Memlock"]

NOTHING_TO_DO = "nothing to do"
_OWN = "read of this process: an engine started elsewhere has the limit of its own unit or container"
_LIMIT_WHY = {
    "limits.memlock": "RLIMIT_MEMLOCK bounds mlock and what can be registered for RDMA, not pinning by a GPU driver "
    "(systemd.exec(5), limits.conf(5); docs/facts.md#memlock)",
    "limits.hugetlb": "reserved pages are lost to everything but hugetlb, and MemAvailable leaves them out "
    "(Linux Documentation/admin-guide/mm/hugetlbpage.rst; docs/facts.md#hugetlb)",
    "limits.cgroup": "pools in shared memory count against the group of whoever touches them first, and past the limit the kernel "
    "kills (Linux Documentation/admin-guide/cgroup-v2.rst; docs/facts.md#cgroup-charge)",
}


class _Limit(ABC):
    """What the three have in common: nothing is read for them beyond the machine's own facts."""

    name = ""

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name nothing: the facts are the machine's. Pure."""
        return ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one report. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        try:
            pool_bytes = None if choice.value == "report" else parse_size(choice.value)
        except UsageError as error:
            remedy = "write report, or the bytes of all pools together, such as 640GiB"
            return (
                _item(self.name, choice, None, "", error.what, reason=error.what, remedy=remedy, kind=ItemKind.SKIP),
            )
        return (self.tell(sight.machine, choice, pool_bytes),)

    @abstractmethod
    def tell(self, machine: Machine, choice: Choice, pool_bytes: int | None) -> Item:
        """Return the report for pools of so many bytes. Pure."""


class Memlock(_Limit):
    """`limits.memlock`: report only."""

    name = "limits.memlock"

    def tell(self, machine: Machine, choice: Choice, pool_bytes: int | None) -> Item:
        """Compare the limit with the pools, else with the host's memory. Pure."""
        limit = machine.memory.memlock_bytes
        if limit.reason == "unlimited":
            return _item(
                self.name,
                choice,
                "unlimited",
                limit.source,
                None,
                reason="locked memory is unlimited here",
                remedy=NOTHING_TO_DO,
                notes=(_OWN,),
            )
        if limit.value is None:
            return _unread(self.name, choice, limit)
        free = any(name.upper().endswith("IPC_LOCK") for name in machine.host.capabilities.value or ())
        notes = (
            _OWN,
            *(("this process has CAP_IPC_LOCK, to which the kernel does not apply the limit",) if free else ()),
        )
        need, of = (
            (pool_bytes, "pools") if pool_bytes is not None else (machine.memory.total_bytes.value, "the host's memory")
        )
        return _item(
            self.name, choice, str(limit.value), limit.source, None, reason=_sum(f"{format_bytes(limit.value)} may be locked", limit.value, need, of),
            remedy=NOTHING_TO_DO if need is not None and need <= limit.value else _LINES[self.name], notes=notes,
        )  # fmt: skip


class Hugetlb(_Limit):
    """`limits.hugetlb`: report only. Our pools use transparent huge pages, so reserved ones are idle unless an engine takes them."""

    name = "limits.hugetlb"

    def tell(self, machine: Machine, choice: Choice, pool_bytes: int | None) -> Item:
        """Say what is reserved and idle, or what a pool of hugetlb pages would take on each node. Pure."""
        held, free = machine.memory.hugetlb_bytes, machine.memory.hugetlb_free_bytes
        if held.value is None or free.value is None:
            return _unread(self.name, choice, held if held.value is None else free)
        told = f"{format_bytes(held.value)} are reserved, {format_bytes(free.value)} of them idle"
        if pool_bytes is not None:
            reason, remedy, notes = _reserve(machine, told, pool_bytes)
        elif free.value:
            reason = f"{told}: nothing but hugetlb may have them, and pools here use transparent huge pages"
            remedy, notes = "; ".join(_give_back(machine)), ()
        else:
            reason, remedy, notes = f"{told}; pools here use transparent huge pages", "nothing to do", ()
        return _item(self.name, choice, str(held.value), held.source, None, reason=reason, remedy=remedy, notes=notes)


class CgroupLimit(_Limit):
    """`limits.cgroup`: report only."""

    name = "limits.cgroup"

    def tell(self, machine: Machine, choice: Choice, pool_bytes: int | None) -> Item:
        """Compare the tightest limit up the tree with what is used and the pools, counted once for the host. Pure."""
        group = machine.memory.cgroup
        limit, used = group.memory_max_bytes, group.memory_used_bytes
        notes = (
            _OWN,
            "count each shared pool once for the host, not once a rank; without swap shared memory cannot be reclaimed",
        )
        if limit.reason == "no limit":
            reason = "no control group above this process limits its memory"
            return _item(
                self.name, choice, "no limit", limit.source, None, reason=reason, remedy=NOTHING_TO_DO, notes=notes
            )
        if limit.value is None:
            return _unread(self.name, choice, limit)
        need = (pool_bytes or 0) + (used.value or 0)
        what = (
            f"pools {format_bytes(pool_bytes)} + used {format_bytes(used.value or 0)}"
            if pool_bytes is not None
            else "use today"
        )
        where = group.memory_limited_by.value or "unknown"
        reason = _sum(
            f"group {where}{group.memory_limit_words} allows {format_bytes(limit.value)}", limit.value, need, what
        )
        if used.value is None:
            reason += f"; what is used is not known ({used.reason})"
        enough = need <= limit.value and pool_bytes is not None and used.value is not None
        line = (
            (NOTHING_TO_DO if enough else _LINES[self.name])
            if need <= limit.value
            else _LINES[self.name].replace("infinity", f"{-(-need // GIB)}G or more")
        )
        return _item(self.name, choice, str(limit.value), limit.source, None, reason=reason, remedy=line, notes=notes)


_LINES = {
    "limits.memlock": "systemctl edit ENGINE.service: [Service] LimitMEMLOCK=infinity; for logins /etc/security/limits.d/90-memlock.conf: "
    "'* soft memlock unlimited' and '* hard memlock unlimited'; Docker: --ulimit memlock=-1:-1; Kubernetes has no field for it",
    "limits.cgroup": "systemctl edit ENGINE.service: [Service] MemoryMax=infinity (and no MemoryHigh= below it); Docker: --memory; "
    "Kubernetes: resources.limits.memory",
}


def _sum(have: str, have_bytes: int, need_bytes: int | None, what: str) -> str:
    if need_bytes is None:
        return have
    left = have_bytes - need_bytes
    return f"{have}, {what} = {format_bytes(need_bytes)}: {f'{format_bytes(left)} left' if left >= 0 else f'{format_bytes(-left)} short'}"


def _reserve(machine: Machine, told: str, pool_bytes: int) -> tuple[str, str, tuple[str, ...]]:
    """Return reason, remedy and the tmpfiles.d lines that reserve a pool evenly over the nodes."""
    nodes, size = finding.Sight(machine).pool_nodes, machine.memory.thp.huge_page_bytes.value
    if not nodes or size is None:
        return f"{told}; pages by node cannot be worked out: nodes or page size are not known", "hicachectl topo", ()
    pages = -(-pool_bytes // (size * len(nodes)))
    free_bytes = sum(size * (pool.free.value or 0) for pool in machine.memory.hugetlb if pool.page_bytes == size)
    reason = f"{told}; pools {format_bytes(pool_bytes)} = {pages} pages of {format_bytes(size)} on each of {len(nodes)} nodes, {'enough is' if free_bytes >= pool_bytes else 'not enough is'} idle"
    lines = tuple(
        f"w /sys/devices/system/node/node{node.id}/hugepages/hugepages-{size // 1024}kB/nr_hugepages - - - - {pages}"
        for node in nodes
    )
    return reason, "reserve early, at boot, with the lines of /etc/tmpfiles.d/hugetlb.conf in the notes", lines


def _give_back(machine: Machine) -> list[str]:
    """Return a command a page size that gives idle pages back and keeps those in use."""
    found = []
    for pool in machine.memory.hugetlb:
        if pool.total.value is not None and pool.free.value:
            path = f"/sys/kernel/mm/hugepages/hugepages-{pool.page_bytes // 1024}kB/nr_hugepages"
            found.append(f"echo {pool.total.value - pool.free.value} > {path}")
    return found or ["grep -i huge /proc/meminfo"]


def _unread(knob: str, choice: Choice, fact: Fact[int]) -> Item:
    reason = f"{fact.source} cannot be judged: {fact.reason}"
    code = (
        "HC-NEED-ROOT"
        if fact.reason == "permission denied"
        else "HC-UNSUPPORTED"
        if fact.reason == "no such file"
        else "HC-HOST"
    )
    return _item(
        knob,
        choice,
        None,
        fact.source,
        fact.reason,
        reason=reason,
        remedy=f"look at it: cat {fact.source}",
        kind=ItemKind.SKIP,
        code=code,
    )


def _item(
    knob: str, choice: Choice, old: str | None, source: str, old_reason: str | None, *, reason: str, remedy: str,
    kind: ItemKind = ItemKind.REPORT, code: str | None = None, notes: tuple[str, ...] = (),
) -> Item:  # fmt: skip
    titles = {
        "limits.memlock": "memory a process may lock",
        "limits.hugetlb": "memory reserved for hugetlb",
        "limits.cgroup": "memory a control group allows",
    }
    return Item(
        id=knob, knob=knob, subject=None, title=titles[knob], kind=kind, target=None, old=old, old_reason=old_reason, wanted=(),
        rule=Rule.AT_LEAST, why=_LIMIT_WHY[knob], origin=choice.origin, source=source, reason=reason, remedy=remedy, code=code,
        undo="nothing is written", notes=notes,
    )  # fmt: skip
