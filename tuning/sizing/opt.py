"""The bound no eviction order can pass: what a cache that knows the future would hit (Belady 1966, with the prefix rule).

After each request the blocks whose next use is farthest leave, of equal ones the deepest; blocks never used again leave
first. What is kept for a request is one range of its path, so a step costs by runs, as in `extents`: a run of request r
owned by request o says that after o those blocks are next used by r.
"""

from __future__ import annotations

import heapq

import numpy as np

from hicachectl.tuning.sizing.extents import Runs
from hicachectl.tuning.sizing.window import Definition, Window

__all__ = ["opt_hits"]


def opt_hits(
    runs: Runs, window: Window, capacity: int, definition: Definition = Definition.D1, *, first: int = 0
) -> int:
    """Return the most that a cache of `capacity` blocks can hit from request `first` on; for D3 of the full blocks' window. Pure.

    In blocks, in tokens for D2.
    """
    end = runs.start + runs.length
    by_owner = np.argsort(runs.owner, kind="stable")
    owners = runs.owner[by_owner]
    edges = np.searchsorted(owners, np.arange(window.n_requests + 1)).tolist()
    order, starts, ends, users = by_owner.tolist(), runs.start.tolist(), end.tolist(), runs.request.tolist()
    lasts, lengths = window.last_tokens.tolist(), np.diff(window.starts).tolist()
    kept: dict[int, tuple[int, int]] = {}  # request -> range of its path held for it
    farthest: list[int] = []
    n_held = hits = 0
    for q in range(window.n_requests):
        low, high = kept.pop(q, (0, 0))
        n_held -= high - low
        if q >= first:
            n_hit = high if low == 0 else 0
            hits += n_hit
            if definition is Definition.D2 and n_hit:
                lack = window.block_tokens - lasts[q] if n_hit == lengths[q] else 0
                hits += n_hit * (window.block_tokens - 1) - lack
        for at in order[edges[q] : edges[q + 1]]:
            user, a, b = users[at], starts[at], ends[at]
            before = kept.get(user)
            if before is None:
                heapq.heappush(farthest, -user)
                kept[user] = (a, b)
                n_held += b - a
            else:
                kept[user] = (a, before[1])
                n_held += before[0] - a
        while n_held > capacity:
            user = -farthest[0]
            if user not in kept:
                heapq.heappop(farthest)
                continue
            a, b = kept[user]
            b_new = max(a, b - (n_held - capacity))
            n_held -= b - b_new
            if b_new > a:
                kept[user] = (a, b_new)
            else:
                del kept[user]
                heapq.heappop(farthest)
    return hits
