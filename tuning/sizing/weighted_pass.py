"""The extent pass over blocks that count more than once: a block of weight w takes the room of w blocks (`extents`)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hicachectl.tuning.sizing.extents import Fenwick
from hicachectl.tuning.sizing.numbering import Ids
from hicachectl.tuning.sizing.window import Counts

__all__ = ["WeightedPass"]


class WeightedPass:
    """Takes requests one by one and keeps 4 bytes for each of `n_blocks` blocks."""

    def __init__(self, n_blocks: int) -> None:
        self._owner: Ids = np.full(n_blocks, -1, np.int32)
        self._tree = Fenwick()
        self._live = 0
        self._n_requests = 0

    def add(self, row: Ids, size: Counts) -> Counts:
        """Take the next request: its blocks front to back and the weight of each. Returns the stack distances of those seen before."""
        tree, q = self._tree, self._n_requests
        self._n_requests += 1
        tree.append()
        own = self._owner[row]
        n_warm = int((own >= 0).sum())
        reached = np.cumsum(size[:n_warm])
        distance = reached.copy()
        edges = [0, *(np.flatnonzero(own[1:n_warm] != own[: max(0, n_warm - 1)]) + 1).tolist(), n_warm]
        owned = []
        for i, j in pairwise(edges):
            if i == j:
                continue
            before = int(reached[i - 1]) if i else 0
            owned.append((int(own[i]), int(reached[j - 1]) - before))
            distance[i:j] += self._live - tree.sum_to(int(own[i])) - before
        for o, weight in owned:
            tree.add(o, -weight)
            self._live -= weight
        tree.add(q, int(size.sum()))
        self._live += int(size.sum())
        self._owner[row] = q
        return distance
