"""Page keys numbered 0, 1, 2, ... as they first come, in arrays that grow: 64-bit ids of a running engine made small."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicachectl.errors import CapacityError
from hicachectl.runtime.keytable import KeyTable
from hicachectl.runtime.replay.request import Blocks

__all__ = ["KeyNumbers"]

_FIRST_CAPACITY = 1024
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads ids that are no hashes (Knuth, TAOCP 6.4)
_HALF = np.uint64(32)


class KeyNumbers:
    """Numbers non-negative 64-bit keys; at most `most` different ones. 37 to 53 bytes a key. Not thread-safe.

    >>> numbers = KeyNumbers(most=10)
    >>> numbers.number(np.array([7, 9, 7])).tolist(), numbers.number(np.array([9, 8])).tolist()
    ([0, 1, 0], [1, 2])
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._table = KeyTable(min(most, _FIRST_CAPACITY))

    def __len__(self) -> int:
        return len(self._table)

    def number(self, keys: Blocks) -> Blocks:
        """Return the numbers of keys, int64, new ones numbered in the order given. Raises CapacityError past `most`."""
        mixed = _mixed(keys)
        found = self._table.find(mixed)
        if len(found) and int(found.min()) < 0:
            self._add(mixed[found < 0])
            found = self._table.find(mixed)
        return found.astype(np.int64)

    def find(self, keys: Blocks) -> Blocks:
        """Return the numbers of keys, int64, -1 where one was never numbered. Changes nothing."""
        return self._table.find(_mixed(keys)).astype(np.int64)

    def _add(self, new: npt.NDArray[np.uint64]) -> None:
        wanted = len(self._table) + len(new)
        if wanted > self._table.capacity:
            if wanted > self.most and len(self._table) + len(np.unique(new)) > self.most:
                raise CapacityError(
                    f"more than {self.most} different pages",
                    terms=(("pages kept", len(self._table)), ("new ones", len(np.unique(new))), ("the most", self.most)),
                    why="each is kept by its key, so that it is known again",
                    hint="a shorter window, or larger pages",
                )  # fmt: skip
            grown = KeyTable(min(self.most, max(2 * self._table.capacity, wanted)))
            grown.add(self._table.keys())
            self._table = grown
        self._table.add(new)


def _mixed(keys: Blocks) -> npt.NDArray[np.uint64]:
    """One to one on 64 bits, so that the low ones are spread whatever the keys are."""
    spread = keys.view(np.uint64) * _ODD
    mixed: npt.NDArray[np.uint64] = spread ^ (spread >> _HALF)
    return mixed
