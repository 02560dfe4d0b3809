"""The exact leaf-first LRU hit-rate curve, every capacity in one pass: the extent method.

A request touches its whole path, tail to head, so the last toucher ("owner") of an id never gets newer with depth: what
an earlier request still owns is a suffix of its own path, and a request splits into few runs of equal owner. A run of n
ids whose owner o is followed by k ids owned by newer requests has the stack distances k + 1 .. k + n. So the cost is by
runs, not by ids: conversation has 16,708 runs for 288,500 ids, agent100 5,497 for 11.5 million (docs/facts.md#plateau).

    hits(C) = number of stack distances <= C
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicachectl.tuning.sizing.window import Counts, Definition, Window

__all__ = ["HitCurve", "Runs", "curve_of", "runs_of"]

_SHORT = 96
"""Mean ids a request below which plain lists are faster than numpy's calls of a few microseconds each."""


@dataclass(frozen=True)
class Runs:
    """Every run of every request: its first stack distance, its ids, the tokens its last id lacks of a whole block, its request."""

    distance: Counts
    length: Counts
    short: Counts
    request: Counts


@dataclass(frozen=True)
class HitCurve:
    """`hits[C]` for C = 0 .. the largest finite stack distance; past it nothing changes. In blocks, or in tokens for D2.

    `total` are the ids, or tokens, the rate is over; capacities are always in blocks.
    """

    definition: Definition
    hits: Counts
    total: int
    n_distinct: int

    def at(self, capacity: int) -> int:
        """Return the hits with a capacity of so many blocks. Pure."""
        return int(self.hits[min(max(capacity, 0), len(self.hits) - 1)])

    def rate(self, capacity: int | None = None) -> float:
        """Return the hit rate, 0 to 1; None: without a limit. Pure."""
        hits = int(self.hits[-1]) if capacity is None else self.at(capacity)
        return hits / self.total if self.total else 0.0

    @property
    def largest_distance(self) -> int:
        """The capacity from which on nothing more is gained. Pure."""
        return int(np.argmax(self.hits == self.hits[-1]))

    def smallest_within(self, points: float) -> int:
        """Return the smallest capacity whose rate is within `points` (of 100) of the ceiling, read from the right. Pure.

        From the right because the curve is S-shaped: a first small step says nothing about what follows it.
        """
        wanted = (int(self.hits[-1]) / self.total if self.total else 0.0) - points / 100
        enough = self.hits >= np.ceil(wanted * self.total - 1e-9)
        return int(np.argmax(enough))


def runs_of(window: Window) -> Runs:
    """Find every run and its stack distance in one pass over the requests. Pure; memory: 4 bytes a distinct id and a request."""
    short = len(window.ids) < _SHORT * window.n_requests
    return _runs_in_lists(window) if short else _runs_in_arrays(window)


def curve_of(window: Window, definition: Definition = Definition.D1, *, runs: Runs | None = None, first: int = 0) -> HitCurve:
    """Return the curve by a definition; `first` counts from that request on, after the ones before it warmed the cache. Pure.

    `runs` are those of this window (of `window.full_blocks()` for D3), where they are known already.
    """
    if definition is Definition.D3:
        window = window.full_blocks()
    found = runs_of(window) if runs is None else runs
    counted = found.request >= first
    distance, length = found.distance[counted], found.length[counted]
    size = int((distance + length).max(initial=1))
    slope = np.bincount(distance, minlength=size + 1) - np.bincount(distance + length, minlength=size + 1)
    at_distance = np.cumsum(slope)[:size]
    lengths = np.diff(window.starts)[first:]
    if definition is Definition.D2:
        lack = np.bincount(distance + length - 1, weights=found.short[counted], minlength=size + 1)[:size].astype(np.int64)
        hits = np.cumsum(at_distance * window.block_tokens - lack)
        whole = int(np.maximum(lengths - 1, 0).sum()) * window.block_tokens
        total = whole + int(window.last_tokens[first:].sum())
    else:
        hits, total = np.cumsum(at_distance), int(lengths.sum())
    return HitCurve(definition, hits, total, window.n_distinct)


def _runs_in_arrays(window: Window) -> Runs:
    """Long requests: owners in one numpy array, edges found by comparing neighbours."""
    owner: npt.NDArray[np.int32] = np.full(window.n_distinct, -1, np.int32)
    tree, live = _Fenwick(window.n_requests), 0
    found: list[tuple[int, int, int, int]] = []
    starts, lasts, ids = window.starts.tolist(), window.last_tokens.tolist(), window.ids
    for q in range(window.n_requests):
        a, b = starts[q], starts[q + 1]
        if a == b:
            continue
        row = ids[a:b]
        own = owner[row]
        n = b - a
        edges = (np.flatnonzero(own[1:] != own[:-1]) + 1).tolist()
        lack = window.block_tokens - lasts[q]
        i = 0
        owned = []
        for j in (*edges, n):
            o = int(own[i])
            if o < 0:
                break  # cold ids are a suffix
            found.append((1 + live - tree.sum_to(o), j - i, lack if j == n else 0, q))
            owned.append((o, j - i))
            i = j
        for o, length in owned:
            tree.add(o, -length)
        live += n - i
        tree.add(q, n)
        owner[row] = q
    return _as_runs(found)


def _runs_in_lists(window: Window) -> Runs:
    """Short requests: owners in a plain list, ids one by one."""
    owner = [-1] * window.n_distinct
    tree, live = _Fenwick(window.n_requests), 0
    found: list[tuple[int, int, int, int]] = []
    starts, lasts, ids = window.starts.tolist(), window.last_tokens.tolist(), window.ids.tolist()
    for q in range(window.n_requests):
        a, b = starts[q], starts[q + 1]
        if a == b:
            continue
        owned = []
        i, o = a, owner[ids[a]]
        while o >= 0:
            j = i + 1
            while j < b and owner[ids[j]] == o:
                j += 1
            found.append((1 + live - tree.sum_to(o), j - i, window.block_tokens - lasts[q] if j == b else 0, q))
            owned.append((o, j - i))
            i = j
            o = owner[ids[j]] if j < b else -1
        for o, length in owned:
            tree.add(o, -length)
        live += b - i
        tree.add(q, b - a)
        for one in ids[a:b]:
            owner[one] = q
    return _as_runs(found)


def _as_runs(found: list[tuple[int, int, int, int]]) -> Runs:
    table = np.array(found, np.int64).reshape(-1, 4)
    return Runs(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


class _Fenwick:
    """How many ids each request owns; prefix sums in O(log n) (Fenwick 1994)."""

    def __init__(self, n: int) -> None:
        self._tree = [0] * (n + 1)

    def add(self, index: int, amount: int) -> None:
        tree, at = self._tree, index + 1
        while at < len(tree):
            tree[at] += amount
            at += at & -at

    def sum_to(self, index: int) -> int:
        """The sum over requests 0 .. index."""
        tree, at, total = self._tree, index + 1, 0
        while at:
            total += tree[at]
            at &= at - 1
        return total
