"""Findings about host memory: huge pages, /dev/shm, limits, reserved pages, registration. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hicachectl.tuning.finding import HOST, Finding, Severity, Sight, known_values
from hicachectl.tuning.host.facts import Fact
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
            f"echo madvise > {effective.source}",
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
        f"echo defer > {_THP}/defrag",
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
                f"mount -o remount,huge=advise {mount.path}",
                by.source,
            )


def _cgroup(sight: Sight) -> Iterator[Finding]:
    memory = sight.machine.memory
    limit, total, used = memory.cgroup.memory_max_bytes, memory.total_bytes, memory.cgroup.memory_current_bytes
    if limit.value is None or total.value is None or limit.value >= total.value:
        return
    taken = f", {format_bytes(used.value)} of it used" if used.value is not None else ""
    where = memory.cgroup.memory_limited_by.value
    yield Finding(
        "HC-CGROUP-LIMIT",
        "warn" if sight.accelerators else "note",
        where or HOST,
        f"the control group allows {format_bytes(limit.value)} of the host's {format_bytes(total.value)}{taken}; pools in "
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
        "ulimit -l unlimited",
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
    memory = sight.machine.memory
    cards = [d for d in sight.accelerators if d.vendor.value == "10de"]
    if not cards or memory.total_bytes.value is None or memory.total_bytes.value < PIN_LIMIT_BYTES:
        return
    usable: Fact[int] = memory.available_bytes
    bounds = list(known_values((usable, memory.cgroup.memory_max_bytes)))
    reachable = usable.is_known and min(bounds) >= PIN_LIMIT_BYTES
    yield Finding(
        "HC-PIN-LARGE",
        "warn" if reachable else "note",
        cards[0].address,
        f"a pool of {format_bytes(PIN_LIMIT_BYTES)} or more fits here ({format_bytes(memory.total_bytes.value)} of memory), "
        f"and one cudaHostRegister call of {format_bytes(PIN_LIMIT_BYTES)} fails: register in chunks of at most 64 GiB",
        "hicachectl explain HC-PIN-LARGE",
        memory.total_bytes.source,
    )


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
