"""Reserve the memory of a pool and say what it got.

This is the place of the whole order (reserve, bind, advise, populate, verify, register); today it reserves a private
anonymous range that starts on a huge page and advises huge pages.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hicachectl.errors import CapacityError

__all__ = ["Mapping", "Step", "reserve"]

# x86-64's PMD size; other kernels use another one, which costs alignment, never correctness: docs/facts.md#huge-pages.
_ALIGN_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """One step of making a mapping: what it was, whether the kernel took it, and why not."""

    name: str
    ok: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Mapping:
    """A range of memory, 1-D uint8, zeroed, with the steps that made it. It lives as long as a view of it does."""

    buffer: NDArray[np.uint8]
    steps: tuple[Step, ...]


def reserve(n_bytes: int) -> Mapping:
    """Reserve `n_bytes` of private anonymous memory, aligned to 2 MiB, and advise huge pages.

    Nothing is populated: pages come when they are touched. Raises CapacityError when the kernel refuses the range.
    """
    try:
        area = mmap.mmap(-1, n_bytes + _ALIGN_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise CapacityError(
            f"no address range of {n_bytes} bytes for a pool",
            terms=(("pool bytes", n_bytes),),
            why=str(error),
            hint="make the pool smaller, or raise the address-space limit (ulimit -v)",
        ) from error
    whole = np.frombuffer(area, dtype=np.uint8)
    skip = -whole.ctypes.data % _ALIGN_BYTES
    return Mapping(whole[skip : skip + n_bytes], (Step("reserve", True), _advise(area)))


def _advise(area: mmap.mmap) -> Step:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return Step("advise", False, "this platform has no MADV_HUGEPAGE")
    try:
        area.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        return Step("advise", False, f"MADV_HUGEPAGE: {error.strerror}")
    return Step("advise", True)
