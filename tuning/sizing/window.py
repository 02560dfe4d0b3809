"""A trace as arrays: the ids of every request in one row, ready for many passes. Reading and parsing cost more than a pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import Blocks, TraceRequest
from hicachectl.tuning.sizing.numbering import Ids, Numbering

__all__ = ["Counts", "Definition", "Window", "last_tokens", "window_of"]

Counts = npt.NDArray[np.int64]


class Definition(str, Enum):
    """What a hit rate counts; another one moves the figures by 1 to 20 points (docs/facts.md#hit-rate)."""

    D1 = "D1"
    """All blocks, the incomplete last one too: hits over ids."""
    D2 = "D2"
    """Tokens: each id weighs the tokens it stands for, over the sum of the input lengths."""
    D3 = "D3"
    """Full blocks alone, the incomplete last id dropped: what engines cache."""


@dataclass(frozen=True, slots=True)
class Window:
    """`ids[starts[q]:starts[q + 1]]` are the ids of request q, front to back, renumbered 0..n_distinct-1.

    `last_tokens[q]` are the tokens of its last id (`block_tokens` when it is complete, 0 for a request without ids);
    `session[q]` numbers the conversation it belongs to: by the trace's own names (`sessions_named`), else by its root.
    Order is the order of the trace.
    """

    ids: Ids
    starts: Counts
    last_tokens: Counts
    session: Counts
    block_tokens: int
    n_distinct: int
    sessions_named: bool = True

    @property
    def n_requests(self) -> int:
        """How many requests there are. Pure."""
        return len(self.starts) - 1

    @property
    def longest(self) -> int:
        """The ids of the longest request. Pure."""
        return int(np.diff(self.starts).max(initial=0))

    def sha256(self) -> str:
        """Return the digest of the arrays: the same one for the same requests, whatever their ids were called. Pure."""
        digest = hashlib.sha256(f"{self.block_tokens} {self.n_distinct}".encode())
        for array in (_by_appearance(self.ids), self.starts, self.last_tokens, _by_appearance(self.session)):
            digest.update(f" {len(array)} ".encode())
            digest.update(np.ascontiguousarray(array, dtype="<i8").data)
        return digest.hexdigest()

    def full_blocks(self) -> Window:
        """Return the window without incomplete last ids: D3. Pure."""
        lengths = np.diff(self.starts)
        cut = (self.last_tokens < self.block_tokens) & (lengths > 0)
        keep = np.ones(len(self.ids), bool)
        keep[self.starts[1:][cut] - 1] = False
        ids = self.ids[keep]
        starts = np.concatenate([[0], np.cumsum(lengths - cut)]).astype(np.int64)
        used, renumbered = np.unique(ids, return_inverse=True)
        last = np.where(np.diff(starts) > 0, self.block_tokens, 0)
        return replace(self, ids=renumbered.astype(np.int32), starts=starts, last_tokens=last, n_distinct=len(used))

    def first(self, n_requests: int) -> Window:
        """Return the first `n_requests` requests; ids keep their numbers. Pure."""
        end = int(self.starts[n_requests])
        return replace(
            self, ids=self.ids[:end], starts=self.starts[: n_requests + 1], last_tokens=self.last_tokens[:n_requests],
            session=self.session[:n_requests],
        )  # fmt: skip

    def without(self, sessions: Counts) -> Window:
        """Return the window without the requests of some sessions; ids keep their numbers. Pure."""
        keep = ~np.isin(self.session, sessions)
        lengths = np.diff(self.starts)
        return replace(
            self,
            ids=self.ids[np.repeat(keep, lengths)],
            starts=np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int64),
            last_tokens=self.last_tokens[keep],
            session=self.session[keep],
        )


def _by_appearance(numbers: Counts | Ids) -> Counts:
    """Renumber by where each number comes first. Pure."""
    size = int(numbers.max(initial=-1)) + 1
    first = np.full(size, len(numbers), np.int64)
    first[numbers[::-1]] = np.arange(
        len(numbers) - 1, -1, -1
    )  # of those that are equal the last assigned stays: the first one
    rank = np.empty(size, np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(size)
    found: Counts = rank[numbers]
    return found


_CHUNK = 1 << 20
"""Ids that are numbered together."""


def window_of(requests: Iterable[TraceRequest], block_tokens: int) -> Window:
    """Read a whole trace into arrays. Reads what `requests` reads, keeps 4 bytes an id.

    A request's session is its own where every request names one, else its root: its first block that half of the requests
    or fewer hold, past a system prompt that most share however many blocks that has; those that end within it are one
    session. Raises UsageError for a trace without requests, and for ids that do not
    name prefixes (`Numbering.add`).
    """
    numbering = Numbering()
    rows: list[Ids] = []
    waiting: list[tuple[int, Blocks]] = []
    n_waiting = 0
    last: list[int] = []
    names: list[str | None] = []
    for request in requests:
        waiting.append((request.scope, request.blocks))
        n = len(request.blocks)
        n_waiting += n
        last.append(last_tokens(request.input_tokens, n, block_tokens))
        names.append(request.session)
        if n_waiting >= _CHUNK:
            rows += numbering.add(waiting)
            waiting, n_waiting = [], 0
    rows += numbering.add(waiting)
    if not rows:
        raise UsageError("the trace has no requests", hint="give a trace with at least one request line")
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    ids = np.concatenate(rows)
    named = all(name is not None for name in names)
    session = _by_name(names) if named else _by_root(ids, starts)
    return Window(ids, starts, np.array(last, np.int64), session, block_tokens, numbering.n_distinct, named)


def last_tokens(input_tokens: int, n_blocks: int, block_tokens: int) -> int:
    """Return the tokens of a request's last block; 0 without blocks. Pure.

    >>> last_tokens(1000, 2, 512), last_tokens(1024, 2, 512)
    (488, 512)
    """
    return min(block_tokens, input_tokens - block_tokens * (n_blocks - 1)) if n_blocks else 0


def _by_name(names: Sequence[str | None]) -> Counts:
    table: dict[str | None, int] = {}
    return np.array([table.setdefault(name, len(table)) for name in names], np.int64)


def _by_root(ids: Ids, starts: Counts) -> Counts:
    lengths = np.diff(starts)
    shared = np.bincount(ids) * 2 > len(lengths)  # no block comes twice in a request
    n_before = np.concatenate([[0], np.cumsum(shared[ids], dtype=np.int32)])
    n_shared = n_before[starts[1:]] - n_before[starts[:-1]]  # from the front: who holds a block holds those before it
    root = np.full(len(lengths), -1, np.int64)
    some = lengths > 0
    root[some] = ids[(starts[:-1] + np.where(n_shared < lengths, n_shared, 0))[some]]
    return np.asarray(np.unique(root, return_inverse=True)[1], np.int64)
