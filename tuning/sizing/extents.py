"""One pass over the requests of a trace: every run of equal owner and its stack distance. The extent method.

A request touches its whole path, tail to head, so the last toucher ("owner") of an id never gets newer with depth: what
an earlier request still owns is a suffix of its own path, and a request splits into few runs of equal owner. A run of n
ids whose owner o is followed by k ids owned by newer requests has the stack distances k + 1 .. k + n. So the cost is by
runs, not by ids: conversation has 16,708 runs for 288,500 ids, agent100 5,497 for 11.5 million (docs/facts.md#plateau).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicachectl.tuning.sizing.numbering import Ids
from hicachectl.tuning.sizing.window import Counts, Window

__all__ = ["ExtentPass", "Fenwick", "Runs", "runs_in_arrays", "runs_in_lists", "runs_of"]

_SHORT = 96
"""Mean ids a request below which plain lists are faster than numpy's calls of a few microseconds each."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Every run of every request, in order: ids `[start, start + length)` of `request`, last touched by `owner`.

    Its stack distances are `distance .. distance + length - 1`; `short` are the tokens its last id lacks of a whole block.
    """

    distance: Counts
    length: Counts
    short: Counts
    request: Counts
    start: Counts
    owner: Counts

    def between(self, first: int, end: int) -> Runs:
        """Return the runs of requests `[first, end)`. Pure."""
        a, b = np.searchsorted(self.request, [first, end])
        return Runs(
            self.distance[a:b], self.length[a:b], self.short[a:b], self.request[a:b], self.start[a:b], self.owner[a:b]
        )


class ExtentPass:
    """Takes requests one by one and keeps 4 bytes a distinct id and a request: for traces too long to hold."""

    def __init__(self) -> None:
        self.n_requests = 0
        self._owner: Ids = np.full(1024, -1, np.int32)
        self._tree = Fenwick()
        self._live = 0
        self._found: list[tuple[int, int, int, int, int, int]] = []

    def add(self, row: Ids, lack: int) -> None:
        """Take the next request: its ids, numbered from 0, and the tokens its last id lacks of a whole block."""
        q, n = self.n_requests, len(row)
        self.n_requests += 1
        tree = self._tree
        tree.append()
        if not n:
            return
        owner = self._owner
        try:
            own = owner[row]
        except IndexError:
            self._owner = owner = np.concatenate([owner, np.full(int(row.max()) + 1, -1, np.int32)])
            own = owner[row]
        edges = (np.flatnonzero(own[1:] != own[:-1]) + 1).tolist()
        i = 0
        owned = []
        for j in (*edges, n):
            o = int(own[i])
            if o < 0:
                break  # cold ids are a suffix
            self._found.append((1 + self._live - tree.sum_to(o), j - i, lack if j == n else 0, q, i, o))
            owned.append((o, j - i))
            i = j
        for o, length in owned:
            tree.add(o, -length)
        self._live += n - i
        tree.add(q, n)
        owner[row] = q

    def runs(self) -> Runs:
        """Return the runs of all requests so far."""
        return _as_runs(self._found)


def runs_of(window: Window) -> Runs:
    """Find every run and its stack distance in one pass over the requests. Pure."""
    short = len(window.ids) < _SHORT * window.n_requests
    return runs_in_lists(window) if short else runs_in_arrays(window)


def runs_in_arrays(window: Window) -> Runs:
    """Long requests: edges of runs found by comparing neighbours in numpy arrays."""
    found = ExtentPass()
    starts, lasts, ids = window.starts.tolist(), window.last_tokens.tolist(), window.ids
    for q in range(window.n_requests):
        found.add(ids[starts[q] : starts[q + 1]], window.block_tokens - lasts[q])
    return found.runs()


def runs_in_lists(window: Window) -> Runs:
    """Short requests: owners in a plain list, ids one by one."""
    owner = [-1] * window.n_distinct
    tree, live = Fenwick(window.n_requests), 0
    found: list[tuple[int, int, int, int, int, int]] = []
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
            lack = window.block_tokens - lasts[q] if j == b else 0
            found.append((1 + live - tree.sum_to(o), j - i, lack, q, i - a, o))
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


def _as_runs(found: list[tuple[int, int, int, int, int, int]]) -> Runs:
    table = np.array(found, np.int64).reshape(-1, 6)
    return Runs(*(table[:, column] for column in range(6)))


class Fenwick:
    """How many ids each request owns; prefix sums in O(log n) (Fenwick 1994). Grows by one request at a time."""

    def __init__(self, n: int = 0) -> None:
        self._tree = [0] * (n + 1)

    def append(self) -> None:
        tree, at = self._tree, len(self._tree)
        child, total = at - 1, 0
        while child > at - (at & -at):
            total += tree[child]
            child &= child - 1
        tree.append(total)

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
