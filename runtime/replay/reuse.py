"""Exact reuse distances of a replay, one pass: how many pages an LRU cache of any size would have hit. Pure.

The reuse (stack) distance of a page is the number of distinct pages touched since its last use, itself included; a cache
of C pages that evicts the least recent leaf first hits it when the distance is at most C. A request touches its whole path
from tail to head, so among the pages of one request the first is the most recent.

The extent method: a touch always covers the ancestors, so the last toucher ("owner") never gets newer with depth, and a
request falls into few runs of equal owner whose distances are consecutive numbers. The owner's place follows from a
Fenwick tree over requests that holds how many pages each still owns. The run ends are found by bisection.

After Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9 (1970), applied to paths.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError

__all__ = ["CurvePoint", "ReuseDistances", "ReuseHistogram"]

_BOUND_PAGES = 1 << 21
_POINTS_AN_OCTAVE = 4
_PLATEAU_POINTS = 1.0


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """An LRU cache of `capacity_pages` would have hit `hit_pages`."""

    capacity_pages: int
    hit_pages: int


@dataclass(frozen=True, slots=True)
class ReuseHistogram:
    """How far apart the uses of a page lie, in pages; whole pages only.

    `bins_log2[b]` pages came back at a distance in [2^b, 2^(b+1)). `first_touches` are all others: never seen before, or
    farther than `bound_pages` when `bound_reached` says that old pages had to be forgotten. `pages_for_all_hits` is the
    smallest LRU cache that hits all of them, `plateau_pages` the smallest within 1 % of all pages of that.
    """

    pages: int
    first_touches: int
    bins_log2: tuple[int, ...]
    curve: tuple[CurvePoint, ...]
    hit_pages_device_slots: int
    hit_pages_host_slots: int
    hit_pages_double_host_slots: int
    pages_for_all_hits: int
    plateau_pages: int
    bound_pages: int
    bound_reached: bool


class ReuseDistances:
    """Takes one request after the other; answers for every cache size up to `bound_pages`.

    Memory: about 100 bytes a distinct page, at most 1.25 x `bound_pages` of them, and 16 bytes a page of distance.

    >>> reuse = ReuseDistances()
    >>> for path in ([1, 2, 3], [1, 2, 4], [5], [1, 2, 3]):
    ...     reuse.add(np.array(path, dtype=np.uint64))
    >>> [reuse.hit_pages(capacity) for capacity in range(6)]
    [0, 1, 3, 4, 4, 5]
    """

    def __init__(self, bound_pages: int = _BOUND_PAGES) -> None:
        if bound_pages < 1:
            raise UsageError(f"reuse distances up to {bound_pages} pages", hint="give 1 or more")
        self.bound_pages = bound_pages
        self.bound_reached = False
        self.pages = 0
        self._owner: dict[int, int] = {}
        self._owned: list[int] = []
        """Pages each request still owns."""
        self._tree: list[int] = [0]
        """Fenwick sums of `_owned`."""
        self._live = 0
        self._slope = array("q", bytes(8 * 1024))
        """Second difference of `hit_pages` over the capacity."""
        self._sweep_at = bound_pages + max(1, bound_pages // 4)

    def add(self, keys: npt.NDArray[np.uint64]) -> int:
        """Count the whole pages of one request, in order, by the first 64 bits of their keys; remembers them.

        Returns how many leading ones were there before (within the bound).
        Keys are chained: a page's key names all pages before it, so equal keys mean equal paths.
        """
        path = keys.tolist()
        n, q = len(path), len(self._owned)
        self.pages += n
        runs = self._runs(path)
        for start, end, owner in runs:
            self._count(1 + self._live - self._sum_to(owner), end - start)
        for start, end, owner in runs:
            self._owned[owner] -= end - start
            self._update(owner, start - end)
        self._live += n - sum(end - start for start, end, _ in runs)
        self._append(n)
        self._owner.update(dict.fromkeys(path, q))
        if self._live > self._sweep_at:
            self._forget()
        return runs[-1][1] if runs else 0

    def hit_pages(self, capacity_pages: int) -> int:
        """Return how many pages an LRU cache of `capacity_pages` (<= `bound_pages`) would have hit so far."""
        hits = self._curve()
        return int(hits[min(capacity_pages, len(hits) - 1)])

    def histogram(self, device_slots: int, host_slots: int) -> ReuseHistogram:
        """Sum up, with the exact hits of caches of `device_slots`, `host_slots` and twice `host_slots` pages."""
        hits = self._curve()
        last = len(hits) - 1

        def at(capacity: int) -> int:
            return int(hits[min(capacity, last)])

        needed = int(np.searchsorted(hits, hits[-1]))
        enough = max(0.0, float(hits[-1]) - _PLATEAU_POINTS / 100 * self.pages)
        octaves = needed.bit_length()
        sizes = sorted({round(2 ** (k / _POINTS_AN_OCTAVE)) for k in range(_POINTS_AN_OCTAVE * octaves + 1)})
        return ReuseHistogram(
            pages=self.pages,
            first_touches=self.pages - int(hits[-1]),
            bins_log2=tuple(at((2 << b) - 1) - at((1 << b) - 1) for b in range(octaves)),
            curve=tuple(CurvePoint(size, at(size)) for size in sizes) if needed else (),
            hit_pages_device_slots=at(device_slots),
            hit_pages_host_slots=at(host_slots),
            hit_pages_double_host_slots=at(2 * host_slots),
            pages_for_all_hits=needed,
            plateau_pages=int(np.searchsorted(hits, enough)),
            bound_pages=self.bound_pages,
            bound_reached=self.bound_reached,
        )

    def _curve(self) -> npt.NDArray[np.int64]:
        slope = np.frombuffer(self._slope, dtype=np.int64)[: self.bound_pages + 1]
        return np.cumsum(np.cumsum(slope))

    def _runs(self, path: list[int]) -> list[tuple[int, int, int]]:
        """Ranges [start, end) of equal owner with the owner, front to back; ends where pages were never seen."""
        get, n = self._owner.get, len(path)
        runs: list[tuple[int, int, int]] = []
        start = 0
        while start < n and (owner := get(path[start])) is not None:
            low, high = start + 1, n  # the first page of another owner lies in [low, high]; owners only get older
            while low < high:
                middle = (low + high) // 2
                if get(path[middle]) == owner:
                    low = middle + 1
                else:
                    high = middle
            runs.append((start, low, owner))
            start = low
        return runs

    def _count(self, distance: int, n: int) -> None:
        """n pages at the distances distance, distance + 1, ..."""
        slope = self._slope
        if distance + n >= len(slope):
            slope.frombytes(bytes(8 * (distance + n + 1)))  # at least doubled over time: distances grow with the pages
        slope[distance] += 1
        slope[distance + n] -= 1

    def _append(self, n: int) -> None:
        at = len(self._tree)
        child, total = at - 1, n
        while child > at - (at & -at):
            total += self._tree[child]
            child -= child & -child
        self._tree.append(total)
        self._owned.append(n)

    def _update(self, request: int, amount: int) -> None:
        tree, at = self._tree, request + 1
        while at < len(tree):
            tree[at] += amount
            at += at & -at

    def _sum_to(self, request: int) -> int:
        """Pages owned by requests 0..request."""
        tree, at, total = self._tree, request + 1, 0
        while at:
            total += tree[at]
            at -= at & -at
        return total

    def _forget(self) -> None:
        """Drop the pages of the oldest owners: what is left still answers for `bound_pages` exactly.

        Owners only get older with depth, so what a path loses is its end, and distances count newer pages only.
        """
        kept, oldest = 0, len(self._owned)
        while kept < self.bound_pages:
            oldest -= 1
            kept += self._owned[oldest]
        self._owner = {key: owner for key, owner in self._owner.items() if owner >= oldest}
        for request in range(oldest):
            if self._owned[request]:
                self._update(request, -self._owned[request])
                self._owned[request] = 0
        self._live = kept
        self._sweep_at = kept + max(1, self.bound_pages // 4)
        self.bound_reached = True
