"""Which objects a folder holds, oldest first, and who has claimed which of its bytes; no files, no clock.

    capacity = used (indexed objects) + leaving (being removed) + reserved (being written) + free

An object being removed keeps its bytes until its file is gone, and a write takes its bytes before it starts, so the
folder is never over capacity by our doing. Files others put there are observed facts and may push `free` below zero;
the next reservation then has to make room first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hicachectl.errors import InvariantBroken

__all__ = ["FileIndex", "IndexEntry", "ObjectId"]

ObjectId = bytes | str
"""A page key for objects of our own namespace, a path below the root for objects of others."""


@dataclass(slots=True)
class IndexEntry:
    """One object: the disk bytes it occupies and when it was last seen on disk (seconds of the caller's clock)."""

    n_bytes: int
    seen_s: float


class FileIndex:
    """LRU by bytes with reserve, commit and abort; not locked, the owner of the folder locks it."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.limit_bytes = capacity_bytes  # lower while the disk is full below our capacity
        self.used_bytes = 0
        self.leaving_bytes = 0
        self.reserved_bytes = 0
        self._entries: OrderedDict[ObjectId, IndexEntry] = OrderedDict()  # oldest first
        self._leaving: dict[ObjectId, IndexEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def free_bytes(self) -> int:
        """Bytes a reservation can take now; negative when others filled the folder."""
        return self.limit_bytes - self.used_bytes - self.leaving_bytes - self.reserved_bytes

    def get(self, object_id: ObjectId) -> IndexEntry | None:
        """Return the entry, its recency untouched."""
        return self._entries.get(object_id)

    def add(self, object_id: ObjectId, n_bytes: int, seen_s: float) -> None:
        """Index an object that is on disk, as the most recent one; a known one is only refreshed."""
        self.forget(object_id)
        self._entries[object_id] = IndexEntry(n_bytes, seen_s)
        self.used_bytes += n_bytes

    def forget(self, object_id: ObjectId) -> bool:
        """Drop an object whose file is gone; return whether it was indexed."""
        entry = self._entries.pop(object_id, None)
        if entry is None:
            return False
        self.used_bytes -= entry.n_bytes
        return True

    def touch(self, object_ids: Iterable[ObjectId]) -> None:
        """Make the indexed ones of `object_ids` most recent, the last of them most of all."""
        for object_id in object_ids:
            if object_id in self._entries:
                self._entries.move_to_end(object_id)

    def reserve(self, n_bytes: int) -> bool:
        """Claim bytes for a write; False when they are not free. Each claim ends in commit() or abort()."""
        if n_bytes > self.free_bytes:
            return False
        self.reserved_bytes += n_bytes
        return True

    def commit(self, object_id: ObjectId, n_bytes: int, seen_s: float) -> None:
        """Turn a claim into an indexed object."""
        self.abort(n_bytes)
        self.add(object_id, n_bytes, seen_s)

    def abort(self, n_bytes: int) -> None:
        """Give a claim back."""
        if n_bytes > self.reserved_bytes:
            raise InvariantBroken(f"{n_bytes} bytes given back of {self.reserved_bytes} reserved", where="file index")
        self.reserved_bytes -= n_bytes

    def begin_evict(self, keep: Collection[ObjectId] = ()) -> ObjectId | None:
        """Take the oldest object outside `keep` out of matching, bytes still counted; None when none is left outside `keep`.

        Ends in end_evict().
        """
        object_id = next((found for found in self._entries if found not in keep), None)
        if object_id is None:
            return None
        entry = self._entries.pop(object_id)
        self.used_bytes -= entry.n_bytes
        self.leaving_bytes += entry.n_bytes
        self._leaving[object_id] = entry
        return object_id

    def end_evict(self, object_id: ObjectId, *, removed: bool) -> None:
        """Free the bytes of an object whose file is gone; one that could not be removed becomes the most recent."""
        entry = self._leaving.pop(object_id)
        self.leaving_bytes -= entry.n_bytes
        if not removed:
            self.add(object_id, entry.n_bytes, entry.seen_s)

    def check(self) -> None:
        """Raise InvariantBroken unless the counted bytes equal the entries' bytes."""
        used = sum(entry.n_bytes for entry in self._entries.values())
        leaving = sum(entry.n_bytes for entry in self._leaving.values())
        if (used, leaving) != (self.used_bytes, self.leaving_bytes):
            raise InvariantBroken(
                f"entries hold {used} + {leaving} leaving bytes, counted are {self.used_bytes} + {self.leaving_bytes}",
                where="file index",
            )
