"""A trace as arrays: the ids of every request in one row, ready for many passes. Reading and parsing cost more than a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceRequest

__all__ = ["Definition", "Window", "window_of"]

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]


class Definition(str, Enum):
    """What a hit rate counts; another one moves the figures by 1 to 20 points (docs/facts.md#hit-rate)."""

    D1 = "D1"
    """All blocks, the incomplete last one too: hits over ids."""
    D2 = "D2"
    """Tokens: each id weighs the tokens it stands for, over the sum of the input lengths."""
    D3 = "D3"
    """Full blocks alone, the incomplete last id dropped: what engines cache."""


@dataclass(frozen=True)
class Window:
    """`ids[starts[q]:starts[q + 1]]` are the ids of request q, front to back, renumbered 0..n_distinct-1.

    `last_tokens[q]` are the tokens of its last id (`block_tokens` when it is complete, 0 for a request without ids);
    `session[q]` numbers the conversation it belongs to. Order is the order of the trace.
    """

    ids: Ids
    starts: Counts
    last_tokens: Counts
    session: Counts
    block_tokens: int
    n_distinct: int

    @property
    def n_requests(self) -> int:
        """How many requests there are. Pure."""
        return len(self.starts) - 1

    @property
    def longest(self) -> int:
        """The ids of the longest request. Pure."""
        return int(np.diff(self.starts).max(initial=0))

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
        return Window(renumbered.astype(np.int32), starts, last, self.session, self.block_tokens, len(used))

    def first(self, n_requests: int) -> Window:
        """Return the first `n_requests` requests; ids keep their numbers. Pure."""
        end = int(self.starts[n_requests])
        return Window(
            self.ids[:end], self.starts[: n_requests + 1], self.last_tokens[:n_requests], self.session[:n_requests],
            self.block_tokens, self.n_distinct,
        )  # fmt: skip

    def without(self, sessions: Counts) -> Window:
        """Return the window without the requests of some sessions; ids keep their numbers. Pure."""
        keep = ~np.isin(self.session, sessions)
        lengths = np.diff(self.starts)
        return Window(
            self.ids[np.repeat(keep, lengths)],
            np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int64),
            self.last_tokens[keep],
            self.session[keep],
            self.block_tokens,
            self.n_distinct,
        )


def window_of(requests: Iterable[TraceRequest], block_tokens: int) -> Window:
    """Read a whole trace into arrays. Reads what `requests` reads, keeps 4 bytes an id.

    A request's session is its own where the trace names one, else its root: its second block where most requests share
    the first (a system prompt), else its first. Raises UsageError for a trace without requests, and for an id that comes
    twice in a request or after two different ids: then it does not name a prefix, and no prefix curve can be told.
    """
    rows: list[npt.NDArray[np.int64]] = []
    lengths: list[int] = []
    last: list[int] = []
    names: list[str | None] = []
    scoped = False
    for request in requests:
        ids = request.blocks
        n = len(ids)
        if request.scope:
            scoped = True
            ids = ids | (np.int64(request.scope) << np.int64(36))
        rows.append(ids)
        lengths.append(n)
        last.append(min(block_tokens, request.input_tokens - block_tokens * (n - 1)) if n else 0)
        names.append(request.session)
    if not rows:
        raise UsageError("the trace has no requests", hint="hicachectl run --trace FILE names what it reads")
    raw = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    ids, n_distinct = _renumbered(raw, scoped)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    _check_prefixes(ids, starts, n_distinct)
    return Window(ids, starts, np.array(last, np.int64), _sessions(ids, starts, names), block_tokens, n_distinct)


def _renumbered(raw: npt.NDArray[np.int64], scoped: bool) -> tuple[Ids, int]:
    """Number ids in order of their value: by a table where they are dense, else by sorting."""
    if not scoped and len(raw) and int(raw.min()) >= 0 and int(raw.max()) < 4 * len(raw) + 1024:
        there = np.zeros(int(raw.max()) + 1, bool)
        there[raw] = True
        table = np.cumsum(there, dtype=np.int64) - 1
        return table[raw].astype(np.int32), int(there.sum())
    used, inverse = np.unique(raw, return_inverse=True)
    return inverse.astype(np.int32), len(used)


def _check_prefixes(ids: Ids, starts: Counts, n_distinct: int) -> None:
    """Every id has one predecessor, or is always first."""
    before = np.empty(len(ids), np.int32)
    before[1:] = ids[:-1]
    heads = starts[:-1][np.diff(starts) > 0]
    before[heads] = -1
    known = np.full(n_distinct, -2, np.int32)
    known[ids] = before
    wrong = np.flatnonzero(known[ids] != before)
    if len(wrong):
        at = int(wrong[0])
        q = int(np.searchsorted(starts, at, side="right")) - 1
        raise UsageError(
            f"block {at - int(starts[q])} of request {q} follows two different blocks in this trace",
            why="its ids name contents and not prefixes, or an id comes twice in a request; a prefix curve needs prefix ids",
            hint="hicachectl run --trace FILE replays it all the same",
        )


def _sessions(ids: Ids, starts: Counts, names: Sequence[str | None]) -> Counts:
    if all(name is not None for name in names):
        table: dict[str | None, int] = {}
        return np.array([table.setdefault(name, len(table)) for name in names], np.int64)
    lengths = np.diff(starts)
    first = np.where(lengths > 0, ids[np.minimum(starts[:-1], max(0, len(ids) - 1))] if len(ids) else 0, -1)
    values, counts = np.unique(first, return_counts=True)
    shared = counts.max() * 2 > len(first) and len(values) > 0
    second = np.where(lengths > 1, ids[np.minimum(starts[:-1] + 1, max(0, len(ids) - 1))] if len(ids) else 0, -1)
    root = np.where((first == values[counts.argmax()]) & (lengths > 1), second, first) if shared else first
    return np.asarray(np.unique(root, return_inverse=True)[1], np.int64)
