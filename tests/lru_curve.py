"""The exact leaf-first LRU curve of a trace, every capacity in one pass: the oracle of the replay tests.

The extent method: a request touches its whole path tail to head, so what an earlier request still owns is a suffix of
its own path, and a path splits into few runs of equal owner. Order of blocks in the LRU list: newest request first,
inside a request head first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.replay.request import TraceRequest

__all__ = ["Curve", "lru_curve"]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """`hit_blocks[C]`, `hit_tokens[C]` for C = 0..largest finite stack distance; beyond that nothing changes."""

    hit_blocks: Counts
    hit_tokens: Counts
    total_blocks: int
    total_tokens: int
    distinct_blocks: int
    reuse: list[tuple[float, int]]  # (seconds since the last touch, blocks)
    new_blocks: list[int]  # cold blocks of each request

    def hits(self, capacity: int) -> tuple[int, int]:
        """Return blocks and tokens hit with `capacity` blocks."""
        at = min(capacity, len(self.hit_blocks) - 1)
        return int(self.hit_blocks[at]), int(self.hit_tokens[at])

    def rate(self, capacity: int | None = None) -> float:
        """Return the hit rate of blocks in percent; None: with unlimited capacity."""
        hits = self.hit_blocks[-1] if capacity is None else self.hits(capacity)[0]
        return 100 * float(hits) / max(1, self.total_blocks)

    def plateau(self, points: float = 1.0) -> int:
        """Return the smallest capacity within `points` of the rate with unlimited capacity."""
        rates = 100 * self.hit_blocks / max(1, self.total_blocks)
        return int(np.argmax(rates >= rates[-1] - points))

    def distance_percentile(self, share: float) -> int:
        """Return the stack distance below which `share` of the finite ones lie."""
        return int(np.searchsorted(self.hit_blocks, share * self.hit_blocks[-1]))

    def reuse_percentile(self, share: float) -> float:
        """Return the reuse time in seconds below which `share` of the reused blocks lie."""
        ordered = sorted(self.reuse)
        weights = np.cumsum([n for _, n in ordered])
        return ordered[int(np.searchsorted(weights, share * weights[-1]))][0]


def lru_curve(requests: Iterable[TraceRequest], block_tokens: int, *, full_blocks_only: bool = False) -> Curve:
    """Return the curve. A block costs 1, also an incomplete last one, unless only full blocks are counted."""
    owners: dict[int, Counts] = {}
    owned = _Fenwick()
    live = total_blocks = total_tokens = distinct = 0
    starts: list[tuple[int, int, int]] = []  # (distance, blocks, tokens of the last block - block_tokens)
    times: list[float] = []
    reuse: list[tuple[float, int]] = []
    new_blocks: list[int] = []
    for q, request in enumerate(requests):
        ids = request.blocks
        if full_blocks_only:
            ids = ids[: request.input_tokens // block_tokens]
        n = len(ids)
        last = min(block_tokens, request.input_tokens - block_tokens * (n - 1)) if n else 0
        total_blocks += n
        total_tokens += block_tokens * (n - 1) + last if n else 0
        times.append(request.time_s)
        owned.append()
        if not n:
            new_blocks.append(0)
            continue
        table = _grown(owners, request.scope, int(ids.max()) + 1)
        own = table[ids]
        edges = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), n]
        runs = [(i, j, int(own[i])) for i, j in pairwise(edges) if own[i] >= 0]
        warm = runs[-1][1] if runs else 0
        assert sum(j - i for i, j, _ in runs) == warm, "cold ids are a suffix"
        for i, j, o in runs:
            starts.append((1 + live - owned.prefix_sum(o), j - i, last - block_tokens if j == n else 0))
            reuse.append((request.time_s - times[o], j - i))
        for i, j, o in runs:
            owned.add(o, i - j)
        live += n - warm
        owned.add(q, n)
        table[ids] = q
        distinct += n - warm
        new_blocks.append(n - warm)
    return Curve(*_curve(starts, block_tokens), total_blocks, total_tokens, distinct, reuse, new_blocks)


def _curve(starts: list[tuple[int, int, int]], block_tokens: int) -> tuple[Counts, Counts]:
    size = max((d + n for d, n, _ in starts), default=1)
    slope, short = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    for distance, n, shortfall in starts:
        slope[distance] += 1
        slope[distance + n] -= 1
        short[distance + n - 1] += shortfall
    at_distance = np.cumsum(slope)[:size]
    return np.cumsum(at_distance), np.cumsum(at_distance * block_tokens + short[:size])


def _grown(owners: dict[int, Counts], scope: int, needed: int) -> Counts:
    table = owners.get(scope)
    if table is None or len(table) < needed:
        grown = np.full(max(1024, 2 * needed), -1, np.int64)
        if table is not None:
            grown[: len(table)] = table
        owners[scope] = table = grown
    return table


class _Fenwick:
    """Sums over request indices; grows by one request at a time."""

    def __init__(self) -> None:
        self._tree = [0]

    def append(self) -> None:
        at = len(self._tree)
        child, total = at - 1, 0
        while child > at - (at & -at):
            total += self._tree[child]
            child -= child & -child
        self._tree.append(total)

    def add(self, index: int, amount: int) -> None:
        at = index + 1
        while at < len(self._tree):
            self._tree[at] += amount
            at += at & -at

    def prefix_sum(self, index: int) -> int:
        """Return the sum over requests 0..index inclusive."""
        at, total = index + 1, 0
        while at:
            total += self._tree[at]
            at -= at & -at
        return total
