"""An estimate of the curve for traces too long for an exact pass: hot blocks exact, the others sampled, rates as a ratio.

Blocks of more than 0.1 % of the references are kept with weight 1, of the others one in `one_in` by a hash of its number,
with weight `one_in`. Sampling everything alike (SHARDS) fails where a prompt is shared: conversation is off by 3.6
points then, by 0.2 this way at 10 % and by 0.6 at 1 % (docs/facts.md#sampling).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.tuning.sizing.curve import HitCurve
from hicachectl.tuning.sizing.numbering import Ids, Numbering
from hicachectl.tuning.sizing.session_band import SessionBand
from hicachectl.tuning.sizing.weighted_pass import WeightedPass
from hicachectl.tuning.sizing.window import Counts, Definition, last_tokens

__all__ = ["SAMPLE_ABOVE", "WIDENED", "Sampled", "sample"]

SAMPLE_ABOVE = 1_000_000_000
"""References from which on the curve is sampled."""
WIDENED = 1.5
"""Times an interval is widened when the curve is sampled."""
HOT = 1e-3


@dataclass(frozen=True, slots=True)
class Sampled:
    """An estimate and its band over sessions, widened; `band` None, with `reason`, where there are too few."""

    curve: HitCurve
    band: SessionBand | None
    reason: str | None


def sample(
    requests: Iterable[TraceRequest],
    block_tokens: int,
    one_in: int,
    definition: Definition = Definition.D1,
    *,
    first: int = 0,
    seed: int = 0,
) -> Sampled:
    """Estimate the curve and its band; `requests` are read twice. `one_in` is 1 (exact) to 100. Keeps about 20 bytes a distinct block.

    Its counts are those of the weighted sample, so only its rates speak of the trace. Sessions are told apart as `window_of` does: by
    name where every request has one, else by root. Raises UsageError as `window_of` does, and for `one_in` out of range.
    """
    if not 1 <= one_in <= 100:
        raise UsageError(f"one in {one_in} sampled, not 1 to 100", hint="below 1 % the estimate is no longer of use")
    counts, n_references, n_requests, named = _counted(requests)
    numbers = np.arange(len(counts), dtype=np.uint64)
    picked = _mixed(numbers + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)) % np.uint64(one_in) == 0
    hot = counts > HOT * n_references
    weights = np.where(hot, 1, np.where(picked, one_in, 0)).astype(np.int32)
    band = SessionBand(int((weights > 0).sum()), WIDENED)
    shared = None if named else counts * 2 > n_requests
    curve = _weighted_pass(requests, block_tokens, definition, first, weights, shared, band)
    if not band.is_known:
        return Sampled(curve, None, "not every tenth has a session: no interval")
    return Sampled(curve, band, None)


def _counted(requests: Iterable[TraceRequest]) -> tuple[Counts, int, int, bool]:
    """References of each block, by number; all references; requests; whether every request names its session."""
    numbering = Numbering()
    counts: Counts = np.zeros(1024, np.int64)
    n = n_requests = 0
    named = True
    for request in requests:
        n_requests += 1
        named = named and request.session is not None
        row = numbering.add_one(request.scope, request.blocks)
        if numbering.n_distinct > len(counts):
            counts = np.concatenate([counts, np.zeros(numbering.n_distinct, np.int64)])
        counts[row] += 1  # no block comes twice in a request
        n += len(row)
    return counts[: numbering.n_distinct], n, n_requests, named


def _weighted_pass(
    requests: Iterable[TraceRequest], block_tokens: int, definition: Definition, first: int, weights: Ids,
    shared: npt.NDArray[np.bool_] | None, band: SessionBand,
) -> HitCurve:  # fmt: skip
    """As `ExtentPass`, each kept block as large as its weight; a session is its root, past what is `shared`; None: its name."""
    kept = weights > 0
    place = (np.cumsum(kept) - 1).astype(np.int32)
    cache, numbering = WeightedPass(int(kept.sum())), Numbering()
    gained: Counts = np.zeros(1024, np.int64)
    total = 0
    for q, request in enumerate(requests):
        row = numbering.add_one(request.scope, request.blocks)
        last = last_tokens(request.input_tokens, len(row), block_tokens)
        session = _root(row, shared) if shared is not None else str(request.session)
        if definition is Definition.D3 and last < block_tokens:
            row = row[:-1]
        value: Counts = np.full(len(row), block_tokens if definition is Definition.D2 else 1, np.int64)
        if definition is Definition.D2 and len(row):
            value[-1] = last
        sampled = kept[row]
        row, value = row[sampled], value[sampled]
        size = weights[row].astype(np.int64)
        value *= size
        row = place[row]
        distance = cache.add(row, size)
        band.add(session, row, size, value, counted=q >= first)
        if q >= first:
            total += int(value.sum())
            if len(distance):
                gained = _longer(gained, int(distance.max()) + 1)
                np.add.at(gained, distance, value[: len(distance)])
    used = np.flatnonzero(gained)
    return HitCurve(definition, np.cumsum(gained[: int(used[-1]) + 1 if len(used) else 1]), total, len(weights))


def _root(row: Ids, shared: npt.NDArray[np.bool_]) -> int:
    """The first block that is not `shared`, as `window_of` tells sessions apart."""
    if not len(row):
        return 0
    return int(row[np.argmin(shared[row])])  # the first block where all are


def _longer(counts: Counts, size: int) -> Counts:
    return counts if size <= len(counts) else np.concatenate([counts, np.zeros(max(size, len(counts)), np.int64)])


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
