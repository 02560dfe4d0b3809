"""A bounded set of 64-bit key prefixes in preallocated arrays: what the ghost list and the seen keys are made of.

Entries sit in flat arrays (prefix, flags, links to the older and newer entry); an open-addressed table of int32 cells
finds them. Every operation takes a batch and is vectorised; its expected cost is O(1) a key, because the table is at most a
quarter full and deleting re-inserts only the rest of the probe run (no tombstones, no rehash, no allocation that stays).

A page key's prefix is already uniform, so its low bits are the home cell. Two keys with one prefix are one entry: users
must stand a false positive. Pure. Not safe for two threads at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicachectl.errors import InvariantBroken, UsageError

__all__ = ["KeyTable", "table_bytes"]

_MAX_CAPACITY = 1 << 28
_FREE, _FIRST = np.int32(0), 1  # a cell holds entry number + 1
_WINDOW, _WALK, _LONGEST_WALK = 256, 64, 4096
"""Entries that a look for numbers in a row takes in at first, and links followed one by one after one that found few: a look costs
about as much as 64 of them."""


def table_bytes(capacity: int) -> int:
    """Return the bytes of a table of `capacity` entries, however many are in it. Pure.

    >>> table_bytes(1000) == KeyTable(1000).nbytes
    True
    """
    return 4 * _n_cells(capacity) + 21 * capacity


def _n_cells(capacity: int) -> int:
    return 1 << (4 * capacity - 1).bit_length()


class KeyTable:
    """At most `capacity` key prefixes with a byte of flags each; the first ones in are the first ones out.

    Memory: 21 bytes an entry and 4 bytes a cell with 4 to 8 cells an entry, 37 to 53 bytes in all (`nbytes`).

    >>> table = KeyTable(2)
    >>> table.add(np.array([7, 8, 9], dtype=np.uint64))
    1
    >>> table.find(np.array([7, 9], dtype=np.uint64)) >= 0
    array([False,  True])
    """

    __slots__ = (
        "_cells",
        "_flags",
        "_free",
        "_keys",
        "_mask",
        "_n",
        "_newer",
        "_newest",
        "_older",
        "_oldest",
        "capacity",
    )

    def __init__(self, capacity: int) -> None:
        if not 1 <= capacity <= _MAX_CAPACITY:
            raise UsageError(f"a key table of {capacity} entries", hint=f"give 1 to {_MAX_CAPACITY} entries")
        n_cells = _n_cells(capacity)
        self.capacity = capacity
        self._mask = np.uint64(n_cells - 1)
        self._cells = np.zeros(n_cells, dtype=np.int32)
        self._keys = np.zeros(capacity, dtype=np.uint64)
        self._flags = np.zeros(capacity, dtype=np.uint8)
        self._older = np.full(capacity, -1, dtype=np.int32)
        self._newer = np.full(capacity, -1, dtype=np.int32)
        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)  # a stack, top at index capacity - n - 1
        self._n = 0
        self._oldest = self._newest = -1

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, for any number of entries."""
        arrays = (self._cells, self._keys, self._flags, self._older, self._newer, self._free)
        return sum(array.nbytes for array in arrays)

    def find(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Look prefixes up; returns their entry numbers, -1 where absent (an array has no None). Changes nothing."""
        found = np.full(len(keys), -1, dtype=np.int32)
        if self._n == 0 or len(keys) == 0:
            return found
        waiting = np.arange(len(keys))
        cells = (keys & self._mask).astype(np.int64)
        mask = int(self._mask)
        while len(waiting):
            entries = self._cells[cells] - _FIRST
            equal = (entries >= 0) & (self._keys[entries] == keys[waiting])
            found[waiting[equal]] = entries[equal]
            onward = (entries >= 0) & ~equal
            waiting, cells = waiting[onward], (cells[onward] + 1) & mask
        return found

    def flags(self, entries: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        """Read the flags of entries; 0 for entry -1. Changes nothing."""
        return np.where(entries >= 0, self._flags[entries], np.uint8(0))

    def add(self, keys: npt.NDArray[np.uint64], flags: int = 1) -> int:
        """Remember prefixes, or-ing `flags` (1-255) into those already here; returns how many old ones were dropped.

        What is already here keeps its place in the queue. New ones are appended in the order given, then the oldest
        leave until `capacity` holds: of a batch longer than that, its last ones stay.
        """
        if not 1 <= flags <= 255:
            raise UsageError(f"flags {flags} do not fit a byte or say nothing", hint="give 1 to 255")
        entries = self.find(keys)
        here = entries >= 0
        self._flags[entries[here]] |= np.uint8(flags)
        if here.all():
            return 0
        new = _first_occurrences(keys[~here])
        surplus = len(new) - self.capacity
        if surplus >= 0:
            dropped = self._n + surplus
            self.clear()
            new = new[surplus:]
        else:
            dropped = max(0, self._n + len(new) - self.capacity)
            self._drop_oldest(dropped)
        self._append(new, flags)
        return dropped

    def discard(self, keys: npt.NDArray[np.uint64]) -> int:
        """Forget prefixes; those not here are ignored. Returns how many were here."""
        entries = np.unique(self.find(keys))
        entries = entries[entries >= 0]
        for entry in entries.tolist():
            self._unlink(entry)
        self._remove(entries)
        return len(entries)

    def clear(self) -> None:
        """Forget everything."""
        self._cells[:] = 0
        self._free[:] = np.arange(self.capacity - 1, -1, -1, dtype=np.int32)
        self._n = 0
        self._oldest = self._newest = -1

    def keys(self) -> npt.NDArray[np.uint64]:
        """Copy the prefixes out, oldest first."""
        return self._keys[self._oldest_entries(self._n)]

    def check(self) -> None:
        """Raise InvariantBroken unless every entry is linked once, findable, and used + free = capacity."""
        order = self._oldest_entries(self._n)
        free = self._free[: self.capacity - self._n]
        both = np.sort(np.concatenate((order, free)))
        if not np.array_equal(both, np.arange(self.capacity)):
            raise InvariantBroken(
                f"key table: {len(order)} linked + {len(free)} free entries are not the {self.capacity}"
            )
        if not np.array_equal(self.find(self._keys[order]), order):
            raise InvariantBroken("key table: an entry in the queue is not the one its prefix finds")
        if (used := int(np.count_nonzero(self._cells))) != self._n:
            raise InvariantBroken(f"key table: {used} cells used for {self._n} entries")

    def _append(self, keys: npt.NDArray[np.uint64], flags: int) -> None:
        top = self.capacity - self._n
        entries = self._free[top - len(keys) : top][::-1].copy()
        self._keys[entries] = keys
        self._flags[entries] = flags
        self._older[entries[1:]] = entries[:-1]
        self._newer[entries[:-1]] = entries[1:]
        self._older[entries[0]] = self._newest
        self._newer[entries[-1]] = -1
        if self._newest >= 0:
            self._newer[self._newest] = entries[0]
        else:
            self._oldest = int(entries[0])
        self._newest = int(entries[-1])
        self._n += len(keys)
        self._place(entries)

    def _place(self, entries: npt.NDArray[np.int32]) -> None:
        """Give each entry the first free cell from its home on. Each step settles one entry a free cell."""
        mask = int(self._mask)
        cells = (self._keys[entries] & self._mask).astype(np.int64)
        while len(entries):
            free = self._cells[cells] == _FREE
            wanted = cells[free]
            self._cells[wanted] = entries[free] + _FIRST  # of several entries wanting one cell, one is written
            settled = self._cells[cells] == entries + _FIRST
            entries, cells = entries[~settled], (cells[~settled] + 1) & mask

    def _drop_oldest(self, count: int) -> None:
        if count == 0:
            return
        entries = self._oldest_entries(count)
        self._oldest = int(self._newer[entries[-1]])
        if self._oldest >= 0:
            self._older[self._oldest] = -1
        else:
            self._newest = -1
        self._remove(entries)

    def _remove(self, entries: npt.NDArray[np.int32]) -> None:
        """Take unlinked entries out of the cells and give them back."""
        if len(entries) == 0:
            return
        # Empty the cells, then lift what follows each of them up to the next empty cell and place it again: a later
        # cell of the same run is empty already, so no two of these walks meet.
        cells = self._cells_of(entries)
        self._cells[cells] = _FREE
        mask, lifted = int(self._mask), []
        cells = (cells + 1) & mask
        while len(cells):
            numbers = self._cells[cells]
            used = numbers != _FREE
            cells = cells[used]
            lifted.append(numbers[used] - _FIRST)
            self._cells[cells] = _FREE
            cells = (cells + 1) & mask
        self._place(np.concatenate(lifted))
        top = self.capacity - self._n
        self._free[top : top + len(entries)] = entries
        self._n -= len(entries)

    def _unlink(self, entry: int) -> None:
        older, newer = int(self._older[entry]), int(self._newer[entry])
        if older >= 0:
            self._newer[older] = newer
        else:
            self._oldest = newer
        if newer >= 0:
            self._older[newer] = older
        else:
            self._newest = older

    def _cells_of(self, entries: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        mask = int(self._mask)
        result = np.empty(len(entries), dtype=np.int64)
        waiting = np.arange(len(entries))
        cells = (self._keys[entries] & self._mask).astype(np.int64)
        while len(waiting):
            here = self._cells[cells] == entries[waiting] + _FIRST
            result[waiting[here]] = cells[here]
            waiting, cells = waiting[~here], (cells[~here] + 1) & mask
        return result

    def _oldest_entries(self, count: int) -> npt.NDArray[np.int32]:
        """Follow the links. A batch that came together has numbers in a row, up or down, which are followed all at once."""
        entries = np.empty(count, dtype=np.int32)
        newer, entry, done = self._newer.data, self._oldest, 0  # a memoryview reads one number 3x as fast
        window, walk = _WINDOW, 0
        while done < count:
            n = self._in_a_row(entry, min(window, count - done))
            if n:
                step = newer[entry] - entry
                entries[done : done + n] = np.arange(entry, entry + step * n, step)
                done += n
                entry = newer[entry + step * (n - 1)]
            if n == window:
                window *= 4
                continue
            # Where rows are short, looking for one costs more than following its links.
            window, walk = _WINDOW, 0 if n >= _WALK else min(max(_WALK, 2 * walk), _LONGEST_WALK)
            for at in range(done, min(count, done + walk)):
                entries[at] = entry
                entry = newer[entry]
            done = min(count, done + walk)
        return entries

    def _in_a_row(self, entry: int, most: int) -> int:
        """Return how many entries from `entry` on, `most` at most, have numbers that follow each other; 0 where not even two do."""
        if most < 2:
            return 0
        step = int(self._newer[entry]) - entry
        if step not in (1, -1):
            return 0
        here = (
            self._newer[entry : entry + most] if step > 0 else self._newer[max(0, entry - most + 1) : entry + 1][::-1]
        )
        follows = here[:-1] == np.arange(entry + step, entry + step * len(here), step)
        return 1 + (int(np.argmin(follows)) if not follows.all() else len(follows))


def _first_occurrences(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    ordered = np.sort(keys)  # a fourth of the time that the order itself takes
    if not (ordered[1:] == ordered[:-1]).any():
        return keys
    _, first = np.unique(keys, return_index=True)
    return keys[np.sort(first)]
