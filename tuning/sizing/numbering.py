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
        if all(scope == 0 for scope, _ in rows):  # one look-up for all of them
            lengths = [len(ids) for _, ids in rows]
            flat = self._number(0, np.concatenate([ids for _, ids in rows]) if rows else np.zeros(0, np.int64))
            found = np.split(flat, np.cumsum(lengths)[:-1]) if rows else []
        else:
            found = [self._number(scope, ids) for scope, ids in rows]
        self._check(found)
        self._n_requests += len(rows)
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

    def _check(self, rows: Sequence[Ids]) -> None:
        """Every id has one predecessor, or is always first."""
        if self.n_distinct > len(self._before):
            grown = np.full(2 * self.n_distinct, -2, np.int32)
            grown[: len(self._before)] = self._before
            self._before = grown
        ids = np.concatenate(rows) if len(rows) > 1 else rows[0] if rows else np.zeros(0, np.int32)
        before = np.empty(len(ids), np.int32)
        before[1:] = ids[:-1]
        lengths = np.array([len(row) for row in rows], np.int64)
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
            raise UsageError(
                f"block {at - int(starts[q])} of request {self._n_requests + q} follows two different blocks in this trace",
                why="its ids name contents and not prefixes, or an id comes twice in a request; a prefix curve needs prefix ids",
                hint="hicachectl run --trace FILE replays it all the same",
            )
