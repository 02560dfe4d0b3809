"""What the kernel says a pool's mapping holds: resident bytes and huge pages, from /proc/self/smaps; and this process as a whole.

A mapping is up to 4 MiB larger than the pool in it (alignment, never touched). Where it is larger still, because the kernel
joined neighbours, /proc/self/pagemap says which of the pool's own pages are present (of a large pool: of evenly spaced
stretches), and how many of them are huge is not known. Pages of the hugetlb pool are in no Rss, so they are added. Sources: Linux Documentation/filesystems/proc.rst, "smaps";
Documentation/admin-guide/mm/pagemap.rst, bit 63.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hicachectl.tuning.host.kernel_text import status_fields
from hicachectl.tuning.host.root import HostRoot

__all__ = ["PoolMemory", "pool_memory", "read_pool_memory", "read_process_bytes"]

_HIDDEN = "/proc/self/smaps leaves out pages that are present (docs/facts.md#hidden-pages)"
_SLACK_BYTES = 4 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STRETCH = 4096
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ", re.ASCII)
_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.ASCII)


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Bytes of a pool that are resident, and of them in huge pages; None with the reason where it could not be read."""

    resident_bytes: int | None
    huge_bytes: int | None
    reason: str | None = None


def read_pool_memory(root: HostRoot, address: int, n_bytes: int) -> PoolMemory:
    """Read what the mapping at `address` holds of `n_bytes`. Reads two files of /proc/self, changes nothing.

    Where pages are present that smaps leaves out (docs/facts.md#hidden-pages), how many are huge is not known.
    """
    text = root.text("/proc/self/smaps")
    found = PoolMemory(None, None, f"{text.source}: {text.reason}")
    if text.value is not None:
        found = pool_memory(text.value, address, n_bytes)
    if found.resident_bytes is not None and found.resident_bytes >= n_bytes:
        return found
    share = _present_share(root.at("/proc/self/pagemap"), address, n_bytes)
    if share is None:
        return found
    if found.resident_bytes is None:
        return PoolMemory(round(share * n_bytes), None, found.reason)
    swapped = 0 if text.value is None else _swapped(text.value, address, n_bytes)
    if share < 1.0 or found.resident_bytes + swapped >= n_bytes:
        return found
    return PoolMemory(n_bytes - swapped, None, _HIDDEN)


def read_process_bytes(root: HostRoot) -> int | None:
    """Read the resident bytes of this process, shared memory and pages of the hugetlb pool in them; None where they cannot be read."""
    status = root.text("/proc/self/status").then(status_fields).value or {}
    sizes = [status[name].removesuffix(" kB") for name in ("VmRSS", "HugetlbPages") if name in status]
    return sum(int(size) << 10 for size in sizes) if "VmRSS" in status else None


def _present_share(path: Path, address: int, n_bytes: int) -> float | None:
    """Share of the small pages that are present, None where the file cannot be read."""
    first, end = address // _PAGE_BYTES, -(-(address + n_bytes) // _PAGE_BYTES)
    n_stretches = max(1, min(64, (end - first) // _STRETCH))
    seen = present = 0
    try:
        with open(path, "rb", buffering=0) as file:
            for k in range(n_stretches):
                start = first + (end - first) * k // n_stretches
                stop = min(end, first + (end - first) * (k + 1) // n_stretches, start + _STRETCH)
                entries = os.pread(file.fileno(), 8 * (stop - start), 8 * start)
                seen += len(entries) // 8
                present += sum(byte >> 7 for byte in entries[7::8])
    except OSError:
        return None
    return present / seen if seen else None


def _swapped(smaps: str, address: int, n_bytes: int) -> int:
    """Sum what is swapped out of the mappings that hold `[address, address + n_bytes)`, of which up to 4 MiB are beside the pool. Pure."""
    total, inside = 0, False
    for line in smaps.splitlines():
        head, found = _HEAD.match(line), _FIELD.match(line)
        if head:
            inside = max(int(head[1], 16), address) < min(int(head[2], 16), address + n_bytes)
        elif found and inside and found[1] == "Swap":
            total += int(found[2]) << 10
    return min(n_bytes, total)


def pool_memory(smaps: str, address: int, n_bytes: int) -> PoolMemory:
    """Sum the mappings that hold `[address, address + n_bytes)`. Pure."""
    end = address + n_bytes
    extra = resident = huge = 0
    covered = inside = 0
    for line in smaps.splitlines():
        head = _HEAD.match(line)
        if head:
            low, high = int(head[1], 16), int(head[2], 16)
            inside = max(0, min(high, end) - max(low, address))
            covered += inside
            extra += high - low - inside if inside else 0
            continue
        field = _FIELD.match(line) if inside else None
        if field and field[1] == "Rss":
            resident += int(field[2]) << 10
        elif field and field[1] in ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"):
            huge += int(field[2]) << 10
        elif field and field[1] in ("Private_Hugetlb", "Shared_Hugetlb"):
            huge += int(field[2]) << 10
            resident += int(field[2]) << 10
    if not covered:
        return PoolMemory(None, None, f"no mapping at {address:#x}")
    if extra > _SLACK_BYTES:
        return PoolMemory(None, None, f"the kernel joined the pool's mapping with {extra} bytes of others")
    return PoolMemory(min(n_bytes, resident), min(n_bytes, huge))
