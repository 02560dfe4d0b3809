"""Pages of the host pool as storage wants them: 1-D buffers, made one by one in the thread that moves their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots

__all__ = ["HostPages"]

PageBytes = npt.NDArray[np.uint8]


class HostPages(Sequence[PageBytes]):
    """Pages in `slots` of `pool`. Making one copies nothing; whoever takes a page copies it then, and only if it must.

    Where the layout keeps a page together, a page is the pool's own memory. Elsewhere a page taken is a copy gathered at
    that moment, and a page read is put back with `arrived`.
    """

    __slots__ = ("_pool", "_slots", "page_bytes")

    def __init__(self, pool: HostPool, slots: Slots) -> None:
        self._pool = pool
        self._slots = slots
        self.page_bytes = pool.geometry.page_bytes

    def __len__(self) -> int:
        return len(self._slots)

    @overload
    def __getitem__(self, at: int) -> PageBytes: ...
    @overload
    def __getitem__(self, at: slice) -> HostPages: ...
    def __getitem__(self, at: int | slice) -> PageBytes | HostPages:
        if isinstance(at, slice):
            return HostPages(self._pool, self._slots[at])
        slot = int(self._slots[at])
        if self._pool.page_is_contiguous:
            return self._pool.page_bytes_view(slot)
        return self._pool.read_page(slot).reshape(-1)

    def buffers(self) -> list[PageBytes]:
        """Return one buffer a page to read into: the pool's own memory, or staging as large as these pages together."""
        if self._pool.page_is_contiguous:
            return list(self)
        return [np.empty(self.page_bytes, dtype=np.uint8) for _ in range(len(self))]

    def arrived(self, buffers: Sequence[PageBytes]) -> None:
        """Put what was read into the first of `buffers()` where it belongs."""
        if not self._pool.page_is_contiguous:
            for slot, buffer in zip(self._slots.tolist(), buffers, strict=False):
                self._pool.write_page(slot, buffer)
