"""One mapping that starts on a huge page and is given back whatever happens, and what /proc/self/smaps says of it alone."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from hicachectl.linux_calls import MADV_HUGEPAGE, MADV_POPULATE_WRITE
from hicachectl.tuning.proofs.calls import Calls
from hicachectl.tuning.proofs.huge_share import Pages

__all__ = ["advise_huge", "aligned", "populate", "smaps_of"]

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) [r-][w-][x-][ps] ", re.ASCII)
_FIELD = re.compile(r"(\w+):\s+(\d{1,18}) kB", re.ASCII)


@contextmanager
def aligned(calls: Calls, n_bytes: int, align_bytes: int, fd: int | None = None) -> Iterator[int]:
    """Map `n_bytes` at a multiple of `align_bytes` and unmap them at the end, also on errors. Raises OSError.

        base      start                    start + n_bytes      base + n_bytes + 2 align_bytes
        |  no access  |  the mapping  |  no access  |

    Unusable addresses stay on both sides, so that the kernel merges the mapping with no neighbour and smaps shows it alone.
    """
    whole = n_bytes + 2 * align_bytes
    base = calls.reserve(whole)
    try:
        start = (base // align_bytes + 1) * align_bytes
        calls.place(start, n_bytes, fd)
        yield start
    finally:
        calls.release(base, whole)


def advise_huge(calls: Calls, address: int, n_bytes: int) -> None:
    """Ask for huge pages (MADV_HUGEPAGE). Raises OSError; success says nothing about what the mapping will get."""
    calls.advise(address, n_bytes, MADV_HUGEPAGE)


def populate(calls: Calls, address: int, n_bytes: int) -> None:
    """Fault every page in: MADV_POPULATE_WRITE, or a touch on kernels before 5.14. Raises OSError."""
    try:
        calls.advise(address, n_bytes, MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        calls.touch(address, n_bytes)


def smaps_of(text: str, start: int, n_bytes: int, field: str) -> Pages | None:
    """Add up Rss and `field` of the entries of smaps inside a mapping; None where it is not there or has no such field. Pure.

    Source of the fields: Linux Documentation/filesystems/proc.rst.
    """
    resident = huge = 0
    seen = inside = False
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            inside = start <= int(head[1], 16) and int(head[2], 16) <= start + n_bytes
            continue
        found = _FIELD.match(line) if inside else None
        if found is not None and found[1] == "Rss":
            resident += int(found[2]) << 10
        elif found is not None and found[1] == field:
            huge += int(found[2]) << 10
            seen = True
    return Pages(resident, huge) if seen else None
