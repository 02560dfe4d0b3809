"""The slots of one tier: handed out once, freed once.

    slots of a tier   [0, n_slots)
    free list         owned here; `alloc` moves slots to the caller, `free` takes them back
    everything else   owned by the caller (tree or transfer) until it frees them

A free list says in which order slots go out (4 bytes a free slot; slots never handed out take none under lifo), a bitmap
(1 byte a slot) who holds each. Allocation prefers
a run of consecutive slots, because runs move as one: it looks at the end of the free list where slots come from, a few
times the wanted count deep, and takes the wanted count in list order when there is no run.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hicachectl.errors import InvariantBroken, UsageError

__all__ = ["Order", "SlotAllocator", "Slots", "n_runs", "paired_runs", "runs"]

Slots = NDArray[np.int32]
Order = Literal["lifo", "fifo"]

# How far the search for a run looks: a few times the wanted count, with bounds, so that it stays cheap at any count.
_LOOK_TIMES = 4
_LOOK_LEAST_SLOTS = 256
_LOOK_BEYOND_SLOTS = 4096
_LEAST_LIST = 64  # entries the free list keeps room for


class SlotAllocator:
    """Hands out the slots of one tier and takes them back.

    `n_slots` is the capacity; `order` says which free slot goes out first: `lifo` the most recently freed (its memory is
    warm), `fifo` the longest free. `name` is the tier's name in errors. A new allocator hands out 0, 1, 2, ...

    >>> slots = SlotAllocator(8, name="host")
    >>> slots.alloc(3), slots.n_free
    (array([0, 1, 2], dtype=int32), 5)
    """

    def __init__(self, n_slots: int, *, order: Order = "lifo", name: str = "slots") -> None:
        if n_slots < 1 or n_slots >= 2**31:
            raise UsageError(f"{name} pool of {n_slots} slots", hint="give at least 1 slot and fewer than 2^31")
        if order not in ("lifo", "fifo"):
            raise UsageError(f"free-list order {order!r} is not known", where=f"{name} pool", hint="lifo or fifo")
        self.name = name
        self.order: Order = order
        self.n_slots = n_slots
        self._lifo = order == "lifo"
        # lifo: a stack, `_list[:_top]`, top last, over the slots never handed out, `[_fresh, n_slots)`, lowest first; it
        # grows and shrinks with what it holds. fifo: a ring, `_n_free` entries from `_head`, oldest first.
        self._top = 0
        self._fresh = 0 if self._lifo else n_slots
        self._list: Slots = np.empty(_LEAST_LIST, np.int32) if self._lifo else np.arange(n_slots, dtype=np.int32)
        self._head = 0
        self._n_free = n_slots
        self._used: NDArray[np.bool_] = np.zeros(n_slots, dtype=np.bool_)

    @property
    def n_free(self) -> int:
        return self._n_free

    @property
    def n_used(self) -> int:
        return self.n_slots - self._n_free

    @property
    def nbytes(self) -> int:
        """Bytes of the free list and the bitmap: at most 9 a slot under lifo (while the list grows), 1 when all are handed out."""
        return self._list.nbytes + self._used.nbytes

    def is_used(self, slots: Slots) -> NDArray[np.bool_]:
        """Say for each slot whether it is handed out. Pure. Slots must be in range."""
        return self._used[slots]

    def alloc(self, n: int) -> Slots | None:
        """Hand out `n` slots, in ascending order, or None when fewer are free; never a part of them.

        Moves the slots from the free list to the caller, who frees each once. Raises InvariantBroken when `n` is
        negative.
        """
        if n < 0:
            raise InvariantBroken(f"alloc({n})", where=f"{self.name} slots")
        if n > self._n_free:
            return None
        if n == 0:
            return np.empty(0, dtype=np.int32)
        if n == 1:  # the common case of paging one in, without the search
            slots = self._front(1)
            self._take(0, 1)
        else:
            slots = self._front(n)
            slots.sort()
            if int(slots[-1]) - int(slots[0]) == n - 1:
                self._take(0, n)
            else:
                slots = self._search(slots, n)
        self._used[slots] = True
        return slots

    def free(self, slots: Slots) -> None:
        """Take slots back; with `lifo` the last one listed goes out first.

        Raises InvariantBroken, naming the slots, when one is out of range, not handed out, or listed twice; nothing is
        freed then.
        """
        n = int(slots.size)
        if n == 0:
            return
        if slots.ndim != 1 or slots.dtype != np.int32:
            raise InvariantBroken(
                f"free() got shape {slots.shape} of {slots.dtype}, wants one dimension of int32",
                where=f"{self.name} slots",
            )
        if int(slots.min()) < 0 or int(slots.max()) >= self.n_slots:
            bad = slots[(slots < 0) | (slots >= self.n_slots)]
            raise InvariantBroken(f"free of slots {_name(bad)} outside [0, {self.n_slots})", where=f"{self.name} slots")
        used = self._used[slots]
        if not used.all():
            raise InvariantBroken(
                f"free of slots {_name(slots[~used])}: freed before, or never handed out", where=f"{self.name} slots"
            )
        if n > 1 and not bool((slots[1:] > slots[:-1]).all()):  # ascending slots cannot repeat
            in_order = np.sort(slots)
            twice = in_order[1:][in_order[1:] == in_order[:-1]]
            if twice.size:
                raise InvariantBroken(f"free lists slots {_name(twice)} twice", where=f"{self.name} slots")
        self._used[slots] = False
        self._put(slots, n)

    def check(self) -> None:
        """Prove that free slots and handed-out slots are disjoint and make up the capacity.

        Raises InvariantBroken with both sides. Costs a pass over all slots: for tests and idle moments.
        """
        free = self._front(self._n_free)
        listed = np.zeros(self.n_slots, dtype=np.bool_)
        listed[free] = True
        n_listed, n_marked = int(listed.sum()), int(self._used.sum())
        if n_listed != self._n_free:
            raise InvariantBroken(
                f"the free list has {self._n_free} entries but {n_listed} different slots", where=f"{self.name} slots"
            )
        if n_listed + n_marked != self.n_slots or bool((listed & self._used).any()):
            both = np.flatnonzero(listed & self._used).astype(np.int32)
            neither = np.flatnonzero(~(listed | self._used)).astype(np.int32)
            raise InvariantBroken(
                f"free {n_listed} + handed out {n_marked} = {n_listed + n_marked}, capacity {self.n_slots}; "
                f"in both {_name(both)}, in neither {_name(neither)}",
                where=f"{self.name} slots",
            )

    def _front(self, n: int) -> Slots:
        """Copy the next `n` slots to go out, first one first."""
        if self._lifo:
            if n <= self._top:
                return self._list[self._top - n : self._top][::-1].copy()
            fresh = np.arange(self._fresh, self._fresh + n - self._top, dtype=np.int32)
            return np.concatenate((self._list[: self._top][::-1], fresh)) if self._top else fresh
        end = self._head + n
        if end <= self.n_slots:
            return self._list[self._head : end].copy()
        return np.concatenate((self._list[self._head :], self._list[: end - self.n_slots]))

    def _take(self, skip: int, n: int) -> None:
        """Remove `n` entries of the free list, after the first `skip` to go out, which keep their order."""
        kept = self._front(skip) if skip else None
        if self._lifo:
            from_stack = min(skip + n, self._top)
            self._fresh += skip + n - from_stack
            self._top -= from_stack
            if kept is not None:
                self._push(kept[::-1])
            elif len(self._list) > max(_LEAST_LIST, 4 * self._top):
                self._list = self._list[: 2 * self._top + _LEAST_LIST].copy()
        else:
            if kept is not None:
                self._list[(self._head + n + np.arange(skip)) % self.n_slots] = kept
            self._head = (self._head + n) % self.n_slots
        self._n_free -= n

    def _push(self, slots: Slots) -> None:
        """Put slots on the stack, the last one on top."""
        end = self._top + len(slots)
        if end > len(self._list):
            grown = np.empty(min(self.n_slots, max(end, 2 * len(self._list))), np.int32)
            grown[: self._top] = self._list[: self._top]
            self._list = grown
        self._list[self._top : end] = slots
        self._top = end

    def _put(self, slots: Slots, n: int) -> None:
        if self._lifo:
            self._push(slots)
        else:
            tail = (self._head + self._n_free) % self.n_slots
            first = min(n, self.n_slots - tail)
            self._list[tail : tail + first] = slots[:first]
            self._list[: n - first] = slots[first:]
        self._n_free += n

    def _search(self, first: Slots, n: int) -> Slots:
        """Take a run of `n` consecutive slots near the front of the free list, else `first`, the next `n` sorted."""
        depth = min(self._n_free, max(_LOOK_LEAST_SLOTS, min(_LOOK_TIMES * n, n + _LOOK_BEYOND_SLOTS)))
        look = self._front(depth)
        step = look[1:] - look[:-1]
        for way in (1, -1):
            broken = step != way
            if depth - 1 - int(np.count_nonzero(broken)) < n - 1:
                continue
            starts = np.concatenate(([0], np.flatnonzero(broken) + 1, [depth]))
            long = np.flatnonzero(starts[1:] - starts[:-1] >= n)
            if long.size:
                at = int(starts[long[0]])
                self._take(at, n)
                found = look[at : at + n]
                return found.copy() if way == 1 else found[::-1].copy()
        self._take(0, n)
        return first


def runs(slots: Slots) -> NDArray[np.int64]:
    """Cut slots, in the order given, into runs of consecutive ascending ones. Pure.

    Returns shape [n_runs, 2], each row a half-open `[start, end)`.

    >>> runs(np.array([4, 5, 6, 9, 1], dtype=np.int32)).tolist()
    [[4, 7], [9, 10], [1, 2]]
    """
    starts = _run_starts(slots)
    first = slots[starts].astype(np.int64)
    lengths = np.diff(np.append(starts, slots.size))
    return np.stack((first, first + lengths), axis=1)


def n_runs(slots: Slots) -> int:
    """Count the runs of consecutive ascending slots. Pure.

    >>> n_runs(np.array([4, 5, 6, 9, 1], dtype=np.int32))
    3
    """
    return int(_run_starts(slots).size)


def paired_runs(a: Slots, b: Slots) -> NDArray[np.int64]:
    """Cut two lists of slots of equal length into stretches where both are consecutive: those can move as one. Pure.

    Returns shape [n_runs, 3], each row (start in `a`, start in `b`, length).

    >>> paired_runs(np.array([4, 5, 6], dtype=np.int32), np.array([0, 1, 7], dtype=np.int32)).tolist()
    [[4, 0, 2], [6, 7, 1]]
    """
    if a.size == 0:
        return np.empty((0, 3), dtype=np.int64)
    cut = (np.diff(a) != 1) | (np.diff(b) != 1)
    starts = np.concatenate(([0], np.flatnonzero(cut) + 1))
    lengths = np.diff(np.append(starts, a.size))
    return np.stack((a[starts].astype(np.int64), b[starts].astype(np.int64), lengths), axis=1)


def _run_starts(slots: Slots) -> NDArray[np.int64]:
    if slots.size == 0:
        return np.empty(0, dtype=np.int64)
    return np.concatenate(([0], np.flatnonzero(np.diff(slots) != 1) + 1))


def _name(slots: Slots, limit: int = 16) -> str:
    shown = ", ".join(str(slot) for slot in slots[:limit].tolist())
    return f"[{shown}, and {slots.size - limit} more]" if slots.size > limit else f"[{shown}]"
