"""Block ids of a trace, however large or scoped, numbered 0, 1, 2, ... while they stream by, and checked to name prefixes.

Memory follows the distinct ids (4 bytes each for the number, 4 for the predecessor), never the references.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import Blocks

__all__ = ["Ids", "Numbering"]

Ids = npt.NDArray[np.int32]

_SPARSE = 1 << 26
"""Largest id a table is made for; ids above it (hashes) are found in a dictionary."""


class Numbering:
    """Numbers ids by scope. `n_distinct` are the numbers given so far."""

    def __init__(self) -> None:
        self.n_distinct = 0
        self._tables: dict[int, Ids] = {}
        self._sparse: dict[tuple[int, int], int] = {}
        self._before: Ids = np.full(1024, -2, np.int32)
        self._n_requests = 0

    def add(self, rows: Sequence[tuple[int, Blocks]]) -> list[Ids]:
        """Number the ids of consecutive requests, each a scope and its ids. Changes the tables.

        Raises UsageError for an id that follows two different ids, or comes twice in a request: it does not name a
        prefix then, and no prefix curve can be told.
        """
        if any(scope for scope, _ in rows):
            return [self.add_one(scope, ids) for scope, ids in rows]
        flat = self._number(0, np.concatenate([ids for _, ids in rows]) if rows else np.zeros(0, np.int64))
        found = np.split(flat, np.cumsum([len(ids) for _, ids in rows])[:-1]) if rows else []
        self._check(flat, np.array([len(row) for row in found], np.int64))
        self._n_requests += len(rows)
        return found

    def add_one(self, scope: int, ids: Blocks) -> Ids:
        """Number the ids of the next request: as `add` of one, faster where it is long. Changes the tables."""
        n = len(ids)
        if not n or int(ids[-1]) >= _SPARSE:
            return self._add_slowly(scope, ids)
        table = self._tables.get(scope)
        try:
            found = self._table(scope, 1).take(ids) if table is None else table.take(ids)
        except IndexError:
            top = int(ids.max())
            if top >= _SPARSE:
                return self._add_slowly(scope, ids)
            found = self._table(scope, top + 1).take(ids)
        n_warm = n if found[-1] >= 0 else int(np.argmax(found < 0))
        if n_warm < n:
            new = np.arange(self.n_distinct, self.n_distinct + n - n_warm, dtype=np.int32)
            cold = ids[n_warm:]
            if int(found[n_warm:].max()) >= 0:
                return self._add_slowly(scope, ids)  # a known id after an unknown one: refused there, with its place
            table = self._tables[scope]
            table[cold] = new
            if not np.array_equal(table.take(cold), new):  # one of them twice
                table[cold] = -1
                return self._add_slowly(scope, ids)
            found[n_warm:] = new
            self.n_distinct += len(new)
            self._grow_before()
            self._before[new[1:]] = new[:-1]
            self._before[new[0]] = found[n_warm - 1] if n_warm else -1
        known = self._before.take(found[:n_warm])
        if n_warm and (known[0] != -1 or not np.array_equal(known[1:], found[: n_warm - 1])):
            self._check(found, np.array([n], np.int64))
        self._n_requests += 1
        return found

    def _add_slowly(self, scope: int, ids: Blocks) -> Ids:
        found = self._number(scope, ids)
        self._check(found, np.array([len(found)], np.int64))
        self._n_requests += 1
        return found

    def _number(self, scope: int, raw: Blocks) -> Ids:
        if not len(raw):
            return np.zeros(0, np.int32)
        if int(raw.max()) >= _SPARSE:
            return self._number_sparse(scope, raw)
        table = self._table(scope, int(raw.max()) + 1)
        found = table[raw]
        unknown = found < 0
        if not unknown.any():
            return found
        fresh = np.unique(raw[unknown])
        table[fresh] = np.arange(self.n_distinct, self.n_distinct + len(fresh), dtype=np.int32)
        self.n_distinct += len(fresh)
        return table[raw]

    def _number_sparse(self, scope: int, raw: Blocks) -> Ids:
        table = self._tables.get(scope, np.zeros(0, np.int32))
        found = np.empty(len(raw), np.int32)
        for at, one in enumerate(raw.tolist()):
            number = int(table[one]) if one < len(table) else -1
            if number < 0:
                number = self._sparse.setdefault((scope, one), self.n_distinct)
                self.n_distinct += number == self.n_distinct
                if one < len(table):
                    table[one] = number
            found[at] = number
        return found

    def _table(self, scope: int, size: int) -> Ids:
        table = self._tables.get(scope)
        if table is None or len(table) < size:
            grown = np.full(max(1024, 2 * size), -1, np.int32)
            known = table if table is not None else np.zeros(0, np.int32)
            grown[: len(known)] = known
            for (of, one), number in self._sparse.items():
                if of == scope and one < len(grown):
                    grown[one] = number
            self._tables[scope] = table = grown
        return table

    def _grow_before(self) -> None:
        if self.n_distinct > len(self._before):
            grown = np.full(2 * self.n_distinct, -2, np.int32)
            grown[: len(self._before)] = self._before
            self._before = grown

    def _check(self, ids: Ids, lengths: npt.NDArray[np.int64]) -> None:
        """Every id has one predecessor, or is always first."""
        self._grow_before()
        before = np.empty(len(ids), np.int32)
        before[1:] = ids[:-1]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        before[starts[starts < ends]] = -1
        known = self._before[ids]
        unset = known == -2
        if unset.any():
            self._before[ids[unset][::-1]] = before[unset][::-1]  # the first of several stays
            known = self._before[ids]
        wrong = np.flatnonzero(known != before)
        if len(wrong):
            at = int(wrong[0])
            q = int(np.searchsorted(ends, at, side="right"))
            block = at - int(starts[q])
            here = f"block {block - 1}" if before[at] >= 0 else "none, it begins the request"
            there = "another one" if known[at] >= 0 else "none, it began a request"
            raise UsageError(
                f"block {block} of request {self._n_requests + q} (counted from 0) follows two different blocks in this trace: "
                f"here {here}; before, {there}",
                why="its ids name contents and not prefixes, or an id comes twice in a request; a prefix curve needs prefix ids",
                hint="hicachectl run --trace FILE replays it all the same",
            )
