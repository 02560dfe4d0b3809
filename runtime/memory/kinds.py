"""The kinds of host memory: what each is made of, which setting governs its huge pages, and when it is refused beforehand.

    anonymous   private memory of this process               transparent_hugepage/enabled
    memfd       shared by handing its descriptor on          transparent_hugepage/shmem_enabled
    tmpfs       a file on a tmpfs mount, with or without name  the mount's huge= option (and shmem_enabled deny, force)
    hugetlb     pages of the reserved pool, only when asked  none: vm.nr_hugepages says how many there are

Source: docs/facts.md#dev-shm, Linux Documentation/admin-guide/mm/transhuge.rst and hugetlbpage.rst.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hicachectl.errors import CapacityError, UsageError
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.units import format_bytes

__all__ = [
    "HugetlbPool",
    "Kind",
    "base_page_bytes",
    "huge_page_bytes",
    "huge_setting",
    "read_hugetlb",
    "require_hugetlb",
    "require_tmpfs",
    "small_pages_reason",
    "tmpfs_folder",
]

_THP = "/sys/kernel/mm/transparent_hugepage"
_ENTRY_BYTES = 8
"""Bytes of a page-table entry on every 64-bit architecture: a PMD spans a page full of them."""


class Kind(Enum):
    """What a mapping is made of."""

    ANONYMOUS = "anonymous"
    MEMFD = "memfd"
    TMPFS = "tmpfs"
    HUGETLB = "hugetlb"

    @property
    def is_shared(self) -> bool:
        """Whether another process can map the same memory."""
        return self in (Kind.MEMFD, Kind.TMPFS)

    @property
    def smaps_field(self) -> str:
        """The field of smaps that counts its huge pages (Linux Documentation/filesystems/proc.rst)."""
        if self is Kind.HUGETLB:
            return "Private_Hugetlb"
        return "ShmemPmdMapped" if self.is_shared else "AnonHugePages"


def base_page_bytes() -> int:
    """Return the kernel's page size."""
    return mmap.PAGESIZE


def huge_page_bytes(calls: MemoryCalls) -> int:
    """Return the size of a transparent huge page as the kernel says; where it does not, what a PMD spans at this page size.

    2 MiB with pages of 4 KiB, 32 MiB with 16 KiB, 512 MiB with 64 KiB.
    """
    try:
        return int(calls.read(f"{_THP}/hpage_pmd_size"))
    except (OSError, ValueError):
        return base_page_bytes() ** 2 // _ENTRY_BYTES


def huge_setting(calls: MemoryCalls, kind: Kind, path: str | None) -> str:
    """Name the setting that governs the huge pages of a kind, with its value: the reason when there are none."""
    if kind is Kind.TMPFS and path is not None:
        found = _mount_to_be(calls, path)
        options = "" if found is None else found.options
        word = next((o for o in options.split(",") if o.startswith("huge=")), "no huge= option (never)")
        return f"the mount of {path} has {word}"
    name = "shmem_enabled" if kind.is_shared else "enabled"
    try:
        text = calls.read(f"{_THP}/{name}")
    except OSError as error:
        return f"transparent_hugepage/{name} cannot be read: {error.strerror}"
    chosen = re.search(r"\[(\w+)\]", text)
    return f"transparent_hugepage/{name} is {chosen[1] if chosen else text.strip()}"


def small_pages_reason(calls: MemoryCalls, kind: Kind, path: str | None) -> str | None:
    """Say which setting will leave a shared mapping with small pages although huge ones are asked for; None where none does or it cannot be read.

    shmem_enabled does not reach a mount, except deny and force (docs/facts.md#dev-shm).
    """
    try:
        found = re.search(r"\[(\w+)\]", calls.read(f"{_THP}/shmem_enabled"))
    except OSError:
        found = None
    word = None if found is None else found[1]
    if kind is Kind.MEMFD or word == "deny":
        return f"transparent_hugepage/shmem_enabled is {word}" if word in ("never", "deny") else None
    if kind is not Kind.TMPFS or path is None or word == "force":
        return None
    mount = _mount_to_be(calls, path)
    if mount is None or any(
        f"huge={given}" in mount.options.split(",") for given in ("always", "within_size", "advise")
    ):
        return None
    return huge_setting(calls, kind, path)


@dataclass(frozen=True, slots=True)
class HugetlbPool:
    """The reserved pool of one page size: pages in all, free, promised to others, and free by node."""

    page_bytes: int
    total: int
    free: int
    promised: int
    free_by_node: dict[int, int]

    @property
    def usable(self) -> int:
        """Pages a new mapping can have: the free ones that nobody else was promised."""
        return max(0, self.free - self.promised)


def read_hugetlb(calls: MemoryCalls, page_bytes: int | None, nodes: Sequence[int]) -> HugetlbPool:
    """Read the pool of a page size (None: the kernel's default) and what is free of it on `nodes`. Raises CapacityError without one."""
    size = page_bytes if page_bytes is not None else _default_hugetlb_bytes(calls)
    name = f"hugepages-{size >> 10}kB"
    try:
        total, free, promised = (
            int(calls.read(f"/sys/kernel/mm/hugepages/{name}/{file}"))
            for file in ("nr_hugepages", "free_hugepages", "resv_hugepages")
        )
    except (OSError, ValueError) as error:
        whole = 1 << (size - 1).bit_length()
        meant = (
            ""
            if size == whole
            else f"a page is a power of two of bytes, such as {format_bytes(whole)} (1GB is 10^9 bytes, 1GiB 2^30); "
        )
        raise CapacityError(
            f"no hugetlb pool of {size >> 10} kB pages",
            terms=(("page bytes", size),),
            where=f"/sys/kernel/mm/hugepages/{name}",
            why=str(error),
            hint=f"{meant}choose a page size listed in /sys/kernel/mm/hugepages, or kind anonymous",
        ) from error
    by_node: dict[int, int] = {}
    for node in nodes:
        try:
            by_node[node] = int(calls.read(f"/sys/devices/system/node/node{node}/hugepages/{name}/free_hugepages"))
        except (OSError, ValueError):
            continue
    return HugetlbPool(size, total, free, promised, by_node)


def require_hugetlb(pool: HugetlbPool, n_bytes: int, bound_to: Sequence[int] = ()) -> None:
    """Refuse a mapping that the reserved pool cannot hold, before it is made. Pure. `bound_to` are the only nodes it may use.

    A mapping is granted by the free pages of the whole host and then killed where its own nodes have none, so both sums are
    looked at. Raises CapacityError with pages wanted, free and promised, and the free ones of each node.
    """
    wanted = -(-n_bytes // pool.page_bytes)
    on_nodes = sum(pool.free_by_node.get(node, 0) for node in bound_to)
    short_of_nodes = bool(bound_to) and on_nodes < wanted
    if wanted <= pool.usable and not short_of_nodes:
        return
    nodes = ", ".join(f"node {node} {free}" for node, free in sorted(pool.free_by_node.items())) or "by node: not known"
    where = f" on nodes {', '.join(map(str, bound_to))}" if short_of_nodes else ""
    have = on_nodes if short_of_nodes else pool.usable
    raise CapacityError(
        f"{wanted} hugetlb pages of {pool.page_bytes >> 10} kB are wanted{where}, {have} can be had",
        terms=(
            ("pages wanted", wanted),
            ("pages of the pool", pool.total),
            ("pages free", pool.free),
            ("pages promised to others", pool.promised),
            *((f"pages free on node {node}", free) for node, free in sorted(pool.free_by_node.items())),
        ),
        where="hugetlb pool",
        why=f"{pool.free} free - {pool.promised} promised = {pool.usable}; {nodes}",
        hint=f"reserve {wanted - have} pages more{where}, early after boot (vm.nr_hugepages), or use kind anonymous",
    )


def tmpfs_folder(path: str, *, named: bool) -> str:
    """Return the folder of a pool's file: that of its name, or the path itself for a file without one. Pure.

    >>> tmpfs_folder("/dev/shm/pool", named=True), tmpfs_folder("/dev/shm", named=False)
    ('/dev/shm', '/dev/shm')
    """
    return (os.path.dirname(path) or ".") if named else path


def require_tmpfs(calls: MemoryCalls, path: str, *, named: bool) -> None:
    """Refuse a file that would not lie on a tmpfs: a pool on a disk would be written back to it. Raises UsageError."""
    folder = tmpfs_folder(path, named=named)
    found = _mount_of(calls, folder)
    if found is None or found.type != "tmpfs":
        raise UsageError(
            f"{folder} is on {'an unknown file system' if found is None else found.type}, not on tmpfs",
            where=path,
            why="pages of a file elsewhere are written back to its disk",
            hint="name a place under /dev/shm or another tmpfs mount, or use kind memfd",
        )


@dataclass(frozen=True, slots=True)
class _Mount:
    type: str
    options: str


def _mount_of(calls: MemoryCalls, path: str) -> _Mount | None:
    """Find the file system of a path in mountinfo, by device number (proc(5))."""
    try:
        device = "{}:{}".format(*calls.device_of(path))
        lines = calls.read("/proc/self/mountinfo").splitlines()
    except OSError:
        return None
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if separator and len(fields) > 2 and fields[2] == device and len(rest) > 2:
            return _Mount(rest[0], rest[2])
    return None


def _mount_to_be(calls: MemoryCalls, path: str) -> _Mount | None:
    """Find the file system of a path, or of the folder of a file that is not made yet."""
    return _mount_of(calls, path) or _mount_of(calls, tmpfs_folder(path, named=True))


def _default_hugetlb_bytes(calls: MemoryCalls) -> int:
    try:
        found = re.search(r"^Hugepagesize:\s+(\d+) kB", calls.read("/proc/meminfo"), re.MULTILINE)
    except OSError:
        found = None
    return huge_page_bytes(calls) if found is None else int(found[1]) << 10
