"""The exact leaf-first LRU hit-rate curve of a trace: every capacity from the runs of one pass (`extents`).

hits(C) = number of stack distances <= C
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import Blocks, TraceRequest
from hicachectl.tuning.sizing.extents import ExtentPass, Runs, runs_of
from hicachectl.tuning.sizing.numbering import Numbering
from hicachectl.tuning.sizing.window import Counts, Definition, Window, last_tokens

__all__ = ["HitCurve", "curve_from_runs", "curve_of", "curve_of_stream"]


@dataclass(frozen=True, slots=True)
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


def curve_of(
    window: Window, definition: Definition = Definition.D1, *, runs: Runs | None = None, first: int = 0
) -> HitCurve:
    """Return the curve by a definition; `first` counts from that request on, after the ones before it warmed the cache. Pure.

    `runs` are those of this window (of `window.full_blocks()` for D3), where they are known already.

    >>> curve_of(window_of(open_trace("conversation_trace.jsonl.gz"), 512)).smallest_within(1.0)  # doctest: +SKIP
    52882
    """
    if definition is Definition.D3:
        window = window.full_blocks()
    found = runs_of(window) if runs is None else runs
    return curve_from_runs(found, window, definition, first=first)


def curve_from_runs(
    runs: Runs, window: Window, definition: Definition, *, first: int = 0, end: int | None = None
) -> HitCurve:
    """Return the curve of requests `[first, end)` of a window whose runs are known; for D3 both are of its full blocks. Pure."""
    end = window.n_requests if end is None else end
    lengths = np.diff(window.starts)[first:end]
    if definition is Definition.D2:
        whole = int(np.maximum(lengths - 1, 0).sum()) * window.block_tokens
        total = whole + int(window.last_tokens[first:end].sum())
    else:
        total = int(lengths.sum())
    return _curve(runs.between(first, end), definition, window.block_tokens, total, window.n_distinct)


def curve_of_stream(
    requests: Iterable[TraceRequest], block_tokens: int, definition: Definition = Definition.D1, *, first: int = 0
) -> HitCurve:
    """Return the curve of requests that are read once and not kept: memory follows distinct ids and requests. Reads `requests`.

    `first` as in `curve_of`. Raises UsageError as `window_of` does.
    """
    numbering, passed, total = Numbering(), ExtentPass(), 0
    for request in requests:
        ids: Blocks = request.blocks
        last = last_tokens(request.input_tokens, len(ids), block_tokens)
        if definition is Definition.D3 and len(ids) and last < block_tokens:
            ids, last = ids[:-1], block_tokens
        row = numbering.add_one(request.scope, ids)
        if passed.n_requests >= first:
            tokens = block_tokens * (len(ids) - 1) + last if len(ids) else 0
            total += tokens if definition is Definition.D2 else len(ids)
        passed.add(row, block_tokens - last)
    if not passed.n_requests:
        raise UsageError("the trace has no requests", hint="give a trace with at least one request line")
    runs = passed.runs().between(first, passed.n_requests)
    return _curve(runs, definition, block_tokens, total, numbering.n_distinct)


def _curve(runs: Runs, definition: Definition, block_tokens: int, total: int, n_distinct: int) -> HitCurve:
    ends = runs.distance + runs.length
    size = int(ends.max(initial=1))
    at_distance = np.cumsum(np.bincount(runs.distance, minlength=size + 1) - np.bincount(ends, minlength=size + 1))
    hits = np.cumsum(at_distance[:size])
    if definition is Definition.D2:
        lack = np.bincount(ends - 1, weights=runs.short, minlength=size + 1)[:size].astype(np.int64)
        hits = hits * block_tokens - np.cumsum(lack)
    return HitCurve(definition, hits, total, n_distinct)
