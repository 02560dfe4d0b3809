"""Bounded memory of page keys seen before, and how far down each page got: what tells one kind of miss from another. Pure."""

from __future__ import annotations

from enum import IntFlag

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.keytable import KeyTable
from hicachectl.runtime.reasons import MissReason

__all__ = ["SeenFlag", "SeenKeys", "classify_missed"]


class SeenFlag(IntFlag):
    """How far down a page got; flags of one page add up."""

    PUBLISHED = 1
    BACKED_UP = 2
    STORED = 4


class SeenKeys:
    """The last `capacity` distinct key prefixes with their flags; the first ones in leave first.

    At most 53 bytes an entry, preallocated (`nbytes`). Not knowing a key means "never seen" only while `forgot_any` is
    False.

    >>> seen = SeenKeys(100)
    >>> seen.add(np.array([11, 12], dtype=np.uint64), SeenFlag.PUBLISHED)
    >>> seen.add(np.array([12], dtype=np.uint64), SeenFlag.BACKED_UP)
    >>> seen.get(np.array([10, 11, 12], dtype=np.uint64)).tolist()
    [0, 1, 3]
    """

    __slots__ = ("_forgot_any", "_table")

    def __init__(self, capacity: int) -> None:
        self._table = KeyTable(capacity)
        self._forgot_any = False

    def __len__(self) -> int:
        return len(self._table)

    @property
    def capacity(self) -> int:
        """The most keys it remembers: the bound a report prints."""
        return self._table.capacity

    @property
    def forgot_any(self) -> bool:
        """Whether a key was dropped for the bound since the start."""
        return self._forgot_any

    @property
    def nbytes(self) -> int:
        """Bytes it holds, however full."""
        return self._table.nbytes

    def add(self, keys: npt.NDArray[np.uint64], flags: SeenFlag) -> None:
        """Remember keys (`key64`), adding `flags` to what is known of them; raises UsageError for no flags."""
        if self._table.add(keys, int(flags)):
            self._forgot_any = True

    def get(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
        """Read the flags of keys, 0 where a key is not known. Changes nothing."""
        return self._table.flags(self._table.find(keys))

    def check(self) -> None:
        """Raise InvariantBroken when the table does not hold together."""
        self._table.check()


def classify_missed(
    flags: npt.NDArray[np.uint8], *, host_tier: bool, storage_tier: bool, forgot_any: bool
) -> npt.NDArray[np.object_]:
    """Name the reason each missed page is not in any tier. Pure.

    `flags` are the `SeenFlag` bytes of the missed pages; the deepest tier that exists and had the page is the one that
    dropped it. Returns a MissReason each.

    >>> [r.value for r in classify_missed(np.array([0, 1, 3], dtype=np.uint8), host_tier=True, storage_tier=False, forgot_any=False)]
    ['never_seen', 'not_backed_up', 'evicted_host']
    """
    by_flags = np.empty(8, dtype=object)
    by_flags[:] = MissReason.NOT_BACKED_UP if host_tier else MissReason.EVICTED_DEVICE
    for value in range(1, 8):
        if value & SeenFlag.STORED and storage_tier:
            by_flags[value] = MissReason.EVICTED_STORAGE
        elif value & SeenFlag.BACKED_UP and host_tier:
            by_flags[value] = MissReason.EVICTED_HOST
    by_flags[0] = MissReason.FORGOTTEN if forgot_any else MissReason.NEVER_SEEN
    result: npt.NDArray[np.object_] = by_flags[flags]
    return result
