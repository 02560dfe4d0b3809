"""Host-wide memory: totals, transparent huge pages, tmpfs mounts, hugetlb, the process's own limits."""

from __future__ import annotations

import re

from hicachectl.tuning.host.cgroup import read_cgroup
from hicachectl.tuning.host.facts import Confidence, Fact, derive, known, unknown
from hicachectl.tuning.host.kernel_text import choice, field, number, status_fields, table_bytes
from hicachectl.tuning.host.model import HugePool, Memory, Thp, TmpfsMount
from hicachectl.tuning.host.mounts import Mount, read_mounts
from hicachectl.tuning.host.pages import base_page_bytes, huge_page_bytes, hugetlb_pools
from hicachectl.tuning.host.root import HostRoot

__all__ = ["read_memory"]

_THP = "/sys/kernel/mm/transparent_hugepage"
_EXPECTED_COUNTERS = ("thp_fault_alloc", "thp_fault_fallback", "compact_stall", "compact_fail", "compact_success")
"""Named even where vmstat cannot be read, so that an unknown one is seen as unknown."""
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_memory(root: HostRoot) -> Memory:
    """Read the host's memory facts. Changes nothing; never raises for odd files."""
    meminfo = root.text("/proc/meminfo").then(table_bytes)
    pools, n_pools = hugetlb_pools(root, "/sys/kernel/mm/hugepages", None)
    mounts = read_mounts(root)
    tmpfs = tuple(_tmpfs(mount, mounts) for mount in _on_top(mounts.value or ()) if mount.kind == "tmpfs")
    return Memory(
        total_bytes=field(meminfo, "MemTotal"),
        free_bytes=field(meminfo, "MemFree"),
        available_bytes=field(meminfo, "MemAvailable"),
        shmem_bytes=field(meminfo, "Shmem"),
        hugetlb_bytes=_hugetlb_bytes(meminfo, pools, n_pools),
        hugetlb_free_bytes=_pool_bytes([(pool, pool.free) for pool in pools], n_pools),
        page_bytes=base_page_bytes(root),
        memlock_bytes=_memlock(root),
        thp=_thp(root),
        tmpfs=tmpfs,
        hugetlb=pools,
        cgroup=read_cgroup(root),
        listed={"tmpfs": mounts.then(lambda _: len(tmpfs)), "hugetlb": n_pools},
    )


def _thp(root: HostRoot) -> Thp:
    names = root.names(_THP)
    folders = [name for name in names.value or () if re.fullmatch(r"hugepages-\d{1,12}kB", name, re.ASCII)]
    folders.sort(key=lambda name: int(name[10:-2]))
    sizes: dict[str, Fact[str]] = {}
    for folder in folders:
        for knob in ("enabled", "shmem_enabled"):
            text = root.text(f"{_THP}/{folder}/{knob}")
            if text.reason != "no such file":  # sizes without the one or the other exist
                sizes[f"{folder}/{knob}"] = text.then(choice)
    counters, n_counters = _counters(root)
    status = root.text("/proc/self/status").then(status_fields)
    return Thp(
        enabled=root.text(f"{_THP}/enabled").then(choice),
        defrag=root.text(f"{_THP}/defrag").then(choice),
        shmem_enabled=root.text(f"{_THP}/shmem_enabled").then(choice),
        huge_page_bytes=huge_page_bytes(root),
        sizes=sizes,
        khugepaged_defrag=root.text(f"{_THP}/khugepaged/defrag").then(number),
        khugepaged_pages_to_scan=root.text(f"{_THP}/khugepaged/pages_to_scan").then(number),
        process_enabled=field(status, "THP_enabled").then(_flag),
        counters=counters,
        listed={"sizes": names.then(lambda _: len(sizes)), "counters": n_counters},
    )


def _counters(root: HostRoot) -> tuple[dict[str, Fact[int]], Fact[int]]:
    text = root.text("/proc/vmstat")
    none: Fact[dict[str, int]] = text.then(lambda _: {})
    found: dict[str, Fact[int]] = {name: field(none, name) for name in _EXPECTED_COUNTERS}
    for line in (text.value or "").splitlines():
        name, _, value = line.partition(" ")
        if re.fullmatch(r"(thp|compact)_\w{1,60}", name, re.ASCII):
            found[name] = known(value, text.source).then(number)
    return found, text.then(lambda _: sum(fact.is_known for fact in found.values()) or None, why_not="has no counters")


def _on_top(mounts: tuple[Mount, ...]) -> list[Mount]:
    """Keep the last mount of each path: it hides those below it."""
    return sorted({mount.path: mount for mount in mounts}.values(), key=lambda mount: mount.path)


def _tmpfs(mount: Mount, table: Fact[tuple[Mount, ...]]) -> TmpfsMount:
    """A mount shows `huge=` unless it is never, and `size=` unless it is the kernel's default (shmem_show_options, mm/shmem.c)."""
    source = f"{table.source} ({mount.path})"
    huge = mount.option("huge")
    size = mount.option("size")
    return TmpfsMount(
        path=mount.path,
        huge=known(huge, source) if huge else known("never", source, Confidence.DERIVED),
        size_bytes=_limit(size, source),
    )


def _limit(size: str | None, source: str) -> Fact[int]:
    """A size of 0 is no limit of the mount: the host's memory is (docs/facts.md#tmpfs-size)."""
    if not size:
        return unknown(source, "no size= option: the kernel's default")
    limit = known(size, source).then(_size)
    return unknown(source, "no limit: size=0") if limit.value == 0 else limit


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,20})([kmg]?)", text.lower(), re.ASCII)
    if match is None:
        raise ValueError("not a size")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def _hugetlb_bytes(meminfo: Fact[dict[str, int]], pools: tuple[HugePool, ...], n_pools: Fact[int]) -> Fact[int]:
    """Read the host's hugetlb bytes; kernels before 4.19 do not sum up the sizes, and then the pools do."""
    if meminfo.value is not None and "Hugetlb" not in meminfo.value:
        return _pool_bytes([(pool, pool.total) for pool in pools], n_pools)
    return field(meminfo, "Hugetlb")


def _pool_bytes(counts: list[tuple[HugePool, Fact[int]]], n_pools: Fact[int]) -> Fact[int]:
    if not counts:
        return derive(lambda _: 0, n_pools)
    return derive(
        lambda *found: sum(n * pool.page_bytes for n, (pool, _) in zip(found, counts, strict=True)),
        *(fact for _, fact in counts),
    )


def _memlock(root: HostRoot) -> Fact[int]:
    text = root.text("/proc/self/limits")

    def soft(found: str) -> str | None:
        match = re.search(r"^Max locked memory\s+(unlimited|\d{1,20})\s", found, re.MULTILINE | re.ASCII)
        return match[1] if match else None

    limit = text.then(soft, why_not="has no line of locked memory")
    return unknown(text.source, "unlimited") if limit.value == "unlimited" else limit.then(number)


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("neither 0 nor 1")
    return text == "1"
