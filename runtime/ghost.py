"""Bounded memory of pages evicted from device memory before they were backed up.

A request whose keys are found here comes back for pages that were thrown away: the deepest one found says how far its
pages are worth writing down. Only a hint: with 64-bit prefixes a false positive may cost a needless backup, never a
byte. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.keytable import KeyTable

__all__ = ["GhostList"]


class GhostList:
    """The last `capacity` distinct key prefixes given to it; the first ones in leave first.

    At most 53 bytes an entry, preallocated (`nbytes`). Adding one that is here changes nothing: the place of a page is
    the time of the eviction it was first noted for.

    >>> ghost = GhostList(100)
    >>> ghost.add(np.array([11, 12], dtype=np.uint64))
    >>> ghost.deepest(np.array([10, 11, 12, 13], dtype=np.uint64))
    2
    """

    __slots__ = ("_table",)

    def __init__(self, capacity: int) -> None:
        self._table = KeyTable(capacity)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def capacity(self) -> int:
        """The most entries it keeps."""
        return self._table.capacity

    @property
    def nbytes(self) -> int:
        """Bytes it holds, however full."""
        return self._table.nbytes

    def add(self, keys: npt.NDArray[np.uint64]) -> None:
        """Note evicted pages by `key64`, oldest first."""
        self._table.add(keys)

    def deepest(self, keys: npt.NDArray[np.uint64]) -> int | None:
        """Return the index of the last of a request's keys that is here, None when none is. Changes nothing."""
        here = np.flatnonzero(self._table.find(keys) >= 0)
        return int(here[-1]) if len(here) else None

    def discard(self, keys: npt.NDArray[np.uint64]) -> int:
        """Forget pages, as when they have been backed up; returns how many were here."""
        return self._table.discard(keys)

    def check(self) -> None:
        """Raise InvariantBroken when the table does not hold together."""
        self._table.check()
