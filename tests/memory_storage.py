"""A storage in memory that proves what it is given, forgets, and loses pages on demand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from hicachectl.runtime.storage.base import PageBytes, StorageStats, Stored

__all__ = ["MemoryStorage"]


class MemoryStorage:
    """Holds `capacity` pages, least recently used out first. A page in `corrupt` is found wrong at its next read: a miss.

    Every page written is compared with what `must_be(key)` says: a host slot given away too early shows here.
    """

    def __init__(self, page_bytes: int, capacity: int, must_be: Callable[[bytes], bytes] | None = None) -> None:
        self.page_bytes = page_bytes
        self.objects: OrderedDict[bytes, bytes] = OrderedDict()
        self.corrupt: set[bytes] = set()
        self._capacity = capacity
        self._must_be = must_be
        self.corrupt_removed = 0

    def exists_prefix(self, keys: Sequence[bytes]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.objects), len(keys))

    def read(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> int:
        for i, (key, page) in enumerate(zip(keys, pages, strict=True)):
            if key in self.corrupt:
                self.corrupt.discard(key)
                self.objects.pop(key, None)
                self.corrupt_removed += 1
            if key not in self.objects:
                return i
            page[:] = np.frombuffer(self.objects[key], np.uint8)
            self.objects.move_to_end(key)
        return len(keys)

    def write(
        self, keys: Sequence[bytes], pages: Sequence[PageBytes], *, before_page: Callable[[], bool] | None = None
    ) -> Stored:
        n_new = 0
        for i, (key, page) in enumerate(zip(keys, pages, strict=True)):
            if before_page is not None and not before_page():
                return Stored(i, n_new)
            if self._must_be is not None:
                assert bytes(page) == self._must_be(key), f"page {i} of a write is not what its key names"
            n_new += key not in self.objects
            self.objects[key] = bytes(page)
            self.corrupt.discard(key)
            self.objects.move_to_end(key)
            while len(self.objects) > self._capacity:
                self.corrupt.discard(self.objects.popitem(last=False)[0])
        return Stored(len(keys), n_new)

    def touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self.objects:
                self.objects.move_to_end(key)

    def stats(self) -> StorageStats:
        raise AssertionError("no test asks this storage for its counters")

    def close(self) -> None:
        pass
