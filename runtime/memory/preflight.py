"""Whether a kind of memory can be had at all: looked at before a mapping is made, and before a run starts. Changes nothing."""

from __future__ import annotations

from hicachectl.errors import CapacityError, UsageError
from hicachectl.runtime.memory.binding import usable_nodes
from hicachectl.runtime.memory.kinds import (
    Kind,
    base_page_bytes,
    huge_page_bytes,
    read_hugetlb,
    require_hugetlb,
    require_tmpfs,
    tmpfs_folder,
)
from hicachectl.runtime.memory.refusals import name_taken, not_obtained
from hicachectl.runtime.memory.shared_file import LABEL_BYTES, Standing, look_at_file
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.units import format_bytes

__all__ = ["mapped_bytes_of", "mapped_size", "require_kind", "require_mount_room", "require_pool"]

_MOST_PADDING = 8
"""A range is rounded up to whole huge pages when that adds at most one part in this many."""


def mapped_size(n_bytes: int, page_bytes: int, huge_bytes: int, *, whole_huge: bool) -> int:
    """Return how much is mapped for a pool: rounded up to huge pages where that costs little or must be, else to base pages. Pure.

    >>> mapped_size(33 << 20, 4096, 2 << 20, whole_huge=False) >> 20, mapped_size(5000, 4096, 2 << 20, whole_huge=False)
    (34, 8192)
    """
    up = -(-n_bytes // huge_bytes) * huge_bytes
    if whole_huge or (up - n_bytes) * _MOST_PADDING <= n_bytes:
        return up
    return -(-n_bytes // page_bytes) * page_bytes


def mapped_bytes_of(calls: MemoryCalls, n_bytes: int, spec: MappingSpec, hugetlb_bytes: int | None) -> int:
    """Return how much is mapped for a pool as `spec` says; `hugetlb_bytes`: what `require_kind` returned. A shared one's label comes on top."""
    page = base_page_bytes()
    if hugetlb_bytes is None and not spec.huge:
        return -(-n_bytes // page) * page
    huge = huge_page_bytes(calls) if hugetlb_bytes is None else hugetlb_bytes
    return mapped_size(n_bytes, page, huge, whole_huge=hugetlb_bytes is not None)


def require_kind(calls: MemoryCalls, n_bytes: int, spec: MappingSpec) -> int | None:
    """Refuse what cannot be: a pool of hugetlb pages that is too small, a place that is no tmpfs.

    Returns the page size of kind hugetlb, None for the others. Raises CapacityError with the arithmetic, UsageError for a place.
    """
    if spec.kind is Kind.HUGETLB:
        bound = () if spec.placed is None else spec.placed.nodes
        pool = read_hugetlb(calls, spec.hugetlb_bytes, bound or usable_nodes(calls))
        require_hugetlb(pool, n_bytes, bound)
        return pool.page_bytes
    if spec.kind is Kind.TMPFS:
        if spec.path is None:
            raise UsageError("a mapping of kind tmpfs without a path", hint="name a file or a folder on a tmpfs mount")
        require_tmpfs(calls, spec.path, named=spec.named)
    return None


def require_pool(calls: MemoryCalls, n_bytes: int, spec: MappingSpec) -> None:
    """Do the checks of `require_kind`, and refuse a mount without room for a file: what can be known before anything is made.

    Raises what they raise, and `refusals.not_obtained` of a mount that cannot be looked at.
    """
    hugetlb = require_kind(calls, n_bytes, spec)
    if spec.kind is not Kind.TMPFS or spec.path is None:
        return
    folder = tmpfs_folder(spec.path, named=spec.named)
    if spec.named:
        found = look_at_file(spec.path)
        if found.standing in (Standing.IN_USE, Standing.FOREIGN):
            raise name_taken(spec.path, found)
    try:
        whole = mapped_bytes_of(calls, n_bytes, spec, hugetlb) + LABEL_BYTES  # what `making.obtain` will ask for
        require_mount_room(calls, folder, whole, spec.path)
    except OSError as error:
        raise not_obtained(error, n_bytes, spec) from error


def require_mount_room(calls: MemoryCalls, at: str | int, n_bytes: int, path: str | None) -> None:
    """Refuse a file its file system has no room for: later, a store into it would kill the process. Raises CapacityError.

    `at` is a descriptor of the file, or its folder. A mount without a limit (size=0) has what the host has.
    """
    free = calls.free_bytes(at)
    if free is not None and free < n_bytes:
        raise CapacityError(
            f"a file of {format_bytes(n_bytes)} on a tmpfs with {format_bytes(free)} left",
            terms=(("file bytes", n_bytes), ("bytes left on the mount", free)),
            where=path,
            hint="make the mount larger (remount with size=), remove what lies there, or use kind memfd",
        )
