"""Page sizes, free blocks of huge pages, hugetlb pools: what both the host's and the nodes' facts are made of."""

from __future__ import annotations

import re
import struct

from hicachectl.tuning.host.facts import Confidence, Fact, derive
from hicachectl.tuning.host.kernel_text import number
from hicachectl.tuning.host.model import HugePool
from hicachectl.tuning.host.root import HostRoot

__all__ = ["base_page_bytes", "free_huge_blocks", "huge_page_bytes", "hugetlb_pools", "page_size_entry", "reserves"]

_AT_PAGESZ = 6  # include/uapi/linux/auxvec.h
_X86_VENDORS = ("GenuineIntel", "AuthenticAMD", "HygonGenuine", "CentaurHauls")
_BUDDY_LINE = re.compile(r"Node (\d{1,5}), zone\s+(\S+)((?:\s+\d{1,20})+)", re.ASCII)
_POOL_FOLDER = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)
_ZONE_HEAD = re.compile(r"Node (\d{1,5}), zone\s+\S+", re.ASCII)


def base_page_bytes(root: HostRoot) -> Fact[int]:
    """Read the kernel's page size from this process's auxiliary vector; x86 without one has 4096 whatever the kernel.

    Kernels with 16 KiB and 64 KiB pages exist (arm64, ppc64le), so 4096 is never assumed elsewhere.
    """
    vector = root.data("/proc/self/auxv", 4096).then(_auxv_page_bytes, why_not="no page size in it")
    if vector.is_known:
        return vector
    head = root.data("/proc/cpuinfo", 8192).then(lambda found: found.decode("utf-8", "backslashreplace"))
    if head.value is not None and re.search(rf"^vendor_id\s*:\s*({'|'.join(_X86_VENDORS)})", head.value, re.MULTILINE):
        return Fact(4096, f"{head.source} (an x86 CPU)", Confidence.DERIVED)
    return vector


def huge_page_bytes(root: HostRoot) -> Fact[int]:
    """Read the size of a transparent huge page (2 MiB on x86, 512 MiB on arm64 with 64 KiB pages)."""
    path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
    return root.text(path).then(_power_of_two, why_not="not a page size")


def free_huge_blocks(root: HostRoot, page_bytes: Fact[int], huge_bytes: Fact[int]) -> Fact[dict[int, int]]:
    """Count, by node, how many huge pages the free blocks of a huge page's order or more hold now (/proc/buddyinfo)."""
    return derive(_blocks_by_node, root.text("/proc/buddyinfo"), page_bytes, huge_bytes, source="/proc/buddyinfo")


def hugetlb_pools(root: HostRoot, folder: str, node: int | None) -> tuple[tuple[HugePool, ...], Fact[int]]:
    """Read the pools below `folder`, smallest pages first, and how many they are or why they could not be listed."""
    names = root.names(folder)
    sizes = sorted(int(match[1]) * 1024 for name in names.value or () if (match := _POOL_FOLDER.fullmatch(name)))
    pools = []
    for size in sizes:
        pool = f"{folder}/hugepages-{size // 1024}kB"
        total = root.text(f"{pool}/nr_hugepages").then(number)
        pools.append(HugePool(node, size, total, root.text(f"{pool}/free_hugepages").then(number)))
    return tuple(pools), names.then(lambda _: len(pools))


def reserves(root: HostRoot) -> Fact[dict[int, tuple[int, int]]]:
    """Read, by node and in pages, what the kernel keeps back for itself and the sum of the low watermarks (/proc/zoneinfo).

    A zone keeps back its largest lowmem reserve plus its high watermark, at most what it manages (kernel
    calculate_totalreserve_pages, mm/page_alloc.c).
    """
    return root.text("/proc/zoneinfo").then(_zone_reserves, why_not="has no zones")


def page_size_entry(vector: bytes) -> bytes:
    """Return the entry of an auxiliary vector that holds the page size, alone; the others are addresses and ids. Pure."""
    for order in "<>":  # a recording may come from a machine of the other byte order
        for at in range(0, len(vector) // 8 * 8 - 8, 16):
            if struct.unpack_from(f"{order}Q", vector, at)[0] == _AT_PAGESZ:
                return vector[at : at + 16]
    return b""


def _auxv_page_bytes(vector: bytes) -> int | None:
    entry = page_size_entry(vector)
    for order in "<>":
        kind, value = struct.unpack(f"{order}2Q", entry) if entry else (None, None)
        if kind == _AT_PAGESZ:
            return _power_of_two(str(value))
    return None


def _power_of_two(text: str) -> int:
    found = number(text)
    if found < 4096 or found & (found - 1):
        raise ValueError(f"not a page size: {found}")
    return found


def _blocks_by_node(text: str, page_bytes: int, huge_bytes: int) -> dict[int, int]:
    if huge_bytes < page_bytes:
        raise ValueError(f"a huge page of {huge_bytes} bytes is smaller than a page of {page_bytes}")
    order = (huge_bytes // page_bytes).bit_length() - 1
    found: dict[int, int] = {}
    for line in text.splitlines():
        match = _BUDDY_LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"a line is not about a zone: {line[:60]!r}")
        counts = [int(word) for word in match[3].split()]
        blocks = sum(count << (at - order) for at, count in enumerate(counts) if at >= order)
        found[int(match[1])] = found.get(int(match[1]), 0) + blocks
    if not found:
        raise ValueError("has no zones")
    return found


def _zone_reserves(text: str) -> dict[int, tuple[int, int]] | None:
    found: dict[int, tuple[int, int]] = {}
    for zone in re.split(r"^(?=Node )", text, flags=re.MULTILINE):
        head = _ZONE_HEAD.match(zone)
        if head is None:
            continue
        marks = dict(re.findall(r"^\s+(low|high|managed)\s+(\d{1,20})$", zone, re.MULTILINE | re.ASCII))
        protection = re.search(r"protection: \(([\d, ]+)\)", zone, re.ASCII)
        if protection is None or len(marks) < 3:
            raise ValueError(f"zone without watermarks: {head[0]!r}")
        kept = max(int(word) for word in protection[1].split(",")) + int(marks["high"])
        before = found.get(int(head[1]), (0, 0))
        found[int(head[1])] = (before[0] + min(kept, int(marks["managed"])), before[1] + int(marks["low"]))
    return found or None
