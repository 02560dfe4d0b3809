"""Findings about host memory: huge pages, /dev/shm, limits, reserved pages, registration. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hicachectl.tuning.finding import HOST, Finding, Severity, Sight, known_values, some
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Memory, Node
from hicachectl.units import GIB, format_bytes

__all__ = ["judge_memory"]

PIN_LIMIT_BYTES = 512 * GIB
"""One registration of this size fails with NVIDIA's driver (docs/facts.md#register-limit)."""
ROOMY_SHARE = 0.5
"""Free memory that should lie in huge blocks before a stall is unlikely. Our choice."""
HELD_SHARE = 0.01
"""Unused reserved pages above this share of memory are a warning. Our choice."""
GUP_KERNELS = ((6, 11), (6, 13))
"""First and last kernel with the long-term pin fault (docs/facts.md#gup)."""
_NO_LIMIT = "no limit"
"""Reason of a limit that is not there (`Cgroup.memory_max_bytes`), unlike one that could not be read."""
_NO_FILE = "no such file"
_THP = "/sys/kernel/mm/transparent_hugepage"


def judge_memory(sight: Sight) -> Iterator[Finding]:
    """Yield the findings of the memory area. Pure."""
    yield from _thp_off(sight)
    yield from _thp_stall(sight)
    yield from _shm(sight)
    yield from _cgroup(sight)
    yield from _memlock(sight)
    yield from _hugetlb(sight)
    yield from _pin(sight)
    yield from _gup(sight)


def _thp_off(sight: Sight) -> Iterator[Finding]:
    thp = sight.machine.memory.thp
    effective, size = thp.enabled, thp.huge_page_bytes.value
    own = thp.sizes.get(f"hugepages-{size // 1024}kB/enabled") if size else None
    if own is not None and own.value != "inherit":
        effective = own
    if effective.value == "never":
        yield Finding(
            "HC-THP-OFF",
            "warn",
            effective.source,
            "transparent huge pages are never used for anonymous memory, wanted: madvise; a pool gets small pages only",
            f"echo madvise | sudo tee {effective.source}",
            effective.source,
        )
    elif thp.process_enabled.value is False:
        yield Finding(
            "HC-THP-OFF",
            "warn",
            HOST,
            f"THP_enabled is 0 for this process (1 is usual) while the host says {effective.value or 'nothing readable'}: "
            "a launcher switched huge pages off for all it starts",
            "grep THP_enabled /proc/self/status",
            thp.process_enabled.source,
        )


def _thp_stall(sight: Sight) -> Iterator[Finding]:
    """Judge reclaim in the faulting thread by the room there is: a little free in huge blocks makes every fault search."""
    thp = sight.machine.memory.thp
    if thp.defrag.value not in ("always", "madvise", "defer+madvise") or not thp.huge_page_bytes.value:
        return
    shares = {}
    for node in sight.pool_nodes:
        blocks, free = node.free_huge_blocks.value, node.memory_free_bytes.value
        if blocks is not None and free:
            shares[node.id] = min(1.0, blocks * thp.huge_page_bytes.value / free)
    tight = min(shares, key=lambda node: shares[node]) if shares else None
    failed = thp.counters.get("compact_fail")
    told = f"; compact_fail {failed.value}" if failed is not None and failed.value else ""
    if tight is not None and shares[tight] < ROOMY_SHARE:
        severity: Severity = "warn"
        why = f"{shares[tight]:.0%} of node {tight}'s free memory lies in huge blocks, wanted {ROOMY_SHARE:.0%}"
    elif thp.defrag.value == "always":
        severity, why = "note", "every program that faults may reclaim and compact, not only those that ask"
    else:
        return
    yield Finding(
        "HC-THP-STALL",
        severity,
        thp.defrag.source,
        f"defrag is {thp.defrag.value} (defer does not stall) and {why}{told}: filling a pool reclaims in its own threads",
        f"echo defer | sudo tee {_THP}/defrag",
        thp.defrag.source,
    )


def _shm(sight: Sight) -> Iterator[Finding]:
    thp = sight.machine.memory.thp
    for mount in sight.machine.memory.tmpfs:
        if mount.path != "/dev/shm" or thp.shmem_enabled.value == "force":
            continue
        denied = thp.shmem_enabled.value == "deny"
        if mount.huge.value is not None and (mount.huge.value == "never" or denied):
            by = thp.shmem_enabled if denied else mount.huge
            yield Finding(
                "HC-SHM-4K",
                "warn" if sight.accelerators else "note",
                mount.path,
                f"files in {mount.path} get small pages ({'shmem_enabled=deny' if denied else f'huge={mount.huge.value}'}, "
                "wanted: huge=advise); MADV_HUGEPAGE there succeeds and does nothing",
                f"sudo mount -o remount,huge=advise {mount.path}",
                by.source,
            )


def _cgroup(sight: Sight) -> Iterator[Finding]:
    memory = sight.machine.memory
    limit, total, used = memory.cgroup.memory_max_bytes, memory.total_bytes, memory.cgroup.memory_used_bytes
    if limit.value is None or total.value is None or limit.value >= total.value:
        return
    taken = f", {format_bytes(used.value)} of it used" if used.value is not None else ""
    where = memory.cgroup.memory_limited_by.value
    yield Finding(
        "HC-CGROUP-LIMIT",
        "warn" if sight.accelerators else "note",
        where or HOST,
        f"the control group{memory.cgroup.memory_limit_words} allows {format_bytes(limit.value)} of the host's {format_bytes(total.value)}{taken}; pools in "
        "shared memory count",
        "hicachectl topo -o json | jq .data.memory",
        limit.source,
    )


def _memlock(sight: Sight) -> Iterator[Finding]:
    memory, capabilities = sight.machine.memory, sight.machine.host.capabilities
    limit, total = memory.memlock_bytes, memory.total_bytes
    if limit.value is None or total.value is None or limit.value >= total.value or capabilities.value is None:
        return
    if any(name.upper().endswith("IPC_LOCK") for name in capabilities.value):
        return  # the kernel does not apply the limit to it
    yield Finding(
        "HC-MEMLOCK-LOW",
        "warn" if sight.rdma_nics else "note",
        HOST,
        f"this process may lock {format_bytes(limit.value)} of {format_bytes(total.value)}: registering a larger pool for RDMA "
        "fails",
        "systemctl edit ENGINE.service, LimitMEMLOCK=infinity; for a container --ulimit memlock=-1",
        limit.source,
    )


def _hugetlb(sight: Sight) -> Iterator[Finding]:
    memory = sight.machine.memory
    held, free, total = memory.hugetlb_bytes, memory.hugetlb_free_bytes, memory.total_bytes
    if not free.value or total.value is None:
        return
    of = f" of {format_bytes(held.value)} reserved" if held.value is not None else ""
    yield Finding(
        "HC-HUGETLB-HELD",
        "warn" if free.value >= HELD_SHARE * total.value else "note",
        "/proc/sys/vm/nr_hugepages",
        f"{format_bytes(free.value)}{of} for hugetlb lie unused; nothing else may have them and MemAvailable leaves them out",
        "grep -i huge /proc/meminfo",
        free.source,
    )


def _pin(sight: Sight) -> Iterator[Finding]:
    """Warn where a pool could be registered in one piece of 512 GiB: only NVIDIA's driver was reported."""
    cards = [d for d in sight.accelerators if d.vendor.value == "10de"]
    room = _room(sight)
    if not cards or room is None or room.installed_bytes < PIN_LIMIT_BYTES:
        return
    size = format_bytes(PIN_LIMIT_BYTES)
    if room.unknown is not None:
        fits = f"whether a pool of {size} fits is not known ({room.unknown}; {room.terms})"
    elif room.fits_bytes < PIN_LIMIT_BYTES:
        fits = f"a pool of {size} does not fit now ({room.terms})"
    else:
        fits = f"a pool of {size} or more fits here ({room.terms})"
    yield Finding(
        "HC-PIN-LARGE",
        "warn" if room.unknown is None and room.fits_bytes >= PIN_LIMIT_BYTES else "note",
        HOST,
        f"{fits}; one cudaHostRegister call of {size} fails: register in chunks of at most 64 GiB",
        "hicachectl run --check",
        room.source,
    )


@dataclass(frozen=True, slots=True)
class _Room:
    """What one pool in host memory can have, and the terms it was worked out from."""

    installed_bytes: int
    fits_bytes: int
    """0 where a term is not known."""
    terms: str
    unknown: str | None
    source: str


def _room(sight: Sight) -> _Room | None:
    """Work out what a pool can have: MemAvailable without device memory under the control group, or reserved huge pages.

    None where the installed memory is not known. MemAvailable sums all nodes, an accelerator's memory included, and leaves
    reserved huge pages out (Linux Documentation/filesystems/proc.rst, MemAvailable).
    """
    memory, nodes = sight.machine.memory, sight.pool_nodes
    unread = [node for node in sight.online if node.memory_total_bytes.value is None or node.kind.value is None]
    free = [_free(node) for node in nodes]
    installed: Fact[int] = memory.total_bytes
    available, missing = memory.available_bytes, None
    listed = sight.machine.numa.listed.get("nodes")
    if listed is not None and listed.reason not in (None, _NO_FILE):
        missing = f"nodes: {listed.reason}"
    elif unread:
        fact = next(f for f in (unread[0].memory_total_bytes, unread[0].kind) if f.value is None)
        missing = f"node {unread[0].id}: {fact.reason}"
    elif nodes:
        installed = nodes[0].memory_total_bytes.then(lambda _: sum(known_values(n.memory_total_bytes for n in nodes)))
        lost = next(((n, fact) for n, fact in zip(nodes, free, strict=True) if fact.value is None), None)
        missing = f"node {lost[0].id}: {lost[1].reason}" if lost else None
        known_bytes = (sum(known_values(free)), available.value)
        available = Fact(min(n for n in known_bytes if n is not None), installed.source)
    elif sight.online:
        return None
    if installed.value is None:
        return None
    if missing is None and available.value is None:
        missing = available.reason
    where = f"on node{'s' if len(nodes) > 1 else ''} {some(str(n.id) for n in nodes)}" if nodes else "on the host"
    left, huge, lost_huge = available.value or 0, memory.hugetlb_free_bytes.value or 0, _lost_huge(memory)
    terms = [f"{'?' if missing else format_bytes(left)} available of {format_bytes(installed.value)} {where}"]
    limit, used = memory.cgroup.memory_max_bytes, memory.cgroup.memory_used_bytes
    if limit.value is not None and used.value is not None:
        left = min(left, max(0, limit.value - used.value))
        terms.append(f"{format_bytes(max(0, limit.value - used.value))} left in the control group")
    elif limit.reason != _NO_LIMIT:
        missing = missing or f"control group: {limit.reason or used.reason}"
    if huge or lost_huge:
        terms.append(f"{'?' if lost_huge else format_bytes(huge)} in free hugetlb pages")
    if huge >= PIN_LIMIT_BYTES:
        missing = None
    elif lost_huge and left < PIN_LIMIT_BYTES:
        missing = missing or f"free hugetlb pages: {lost_huge}"
    allowed = sight.machine.numa.allowed_nodes
    if allowed.value is None and len(sight.online) > 1 and max(left, huge) >= PIN_LIMIT_BYTES:
        missing = missing or f"nodes of this process: {allowed.reason}"
    fits = huge if missing else max(left, huge)
    return _Room(installed.value, fits, ", ".join(terms), missing, installed.source)


def _lost_huge(memory: Memory) -> str | None:
    """Say why the free hugetlb pages are not known, where they could hold a pool; a kernel without them has none."""
    free, held = memory.hugetlb_free_bytes, memory.hugetlb_bytes
    if free.value is not None or (held.value is not None and held.value < PIN_LIMIT_BYTES):
        return None
    pools = memory.listed.get("hugetlb")
    has_none = pools is not None and pools.reason == _NO_FILE and memory.total_bytes.is_known
    return None if has_none else free.reason


def _free(node: Node) -> Fact[int]:
    return node.memory_available_bytes if node.memory_available_bytes.is_known else node.memory_free_bytes


def _gup(sight: Sight) -> Iterator[Finding]:
    kernel = sight.machine.host.kernel
    match = re.match(r"(\d+)\.(\d+)", kernel.value or "")
    if match is None or not GUP_KERNELS[0] <= (int(match[1]), int(match[2])) <= GUP_KERNELS[1]:
        return
    yield Finding(
        "HC-KERNEL-GUP",
        "warn" if sight.accelerators else "note",
        HOST,
        f"kernel {kernel.value} is one of 6.11 to 6.13, in which long-term pins may fail; some builds carry the fix, which "
        "the version does not tell",
        "uname -rv",
        kernel.source,
    )
