"""An estimate of the curve for traces too long for an exact pass: hot blocks exact, the others sampled, rates as a ratio.

Blocks of more than 0.1 % of the references are kept with weight 1, of the others one in `one_in` by a hash of its number,
with weight `one_in`. Sampling everything alike (SHARDS) fails where a prompt is shared: conversation is off by 3.6
points then, by 0.2 this way at 10 % and by 0.6 at 1 % (docs/facts.md#sampling).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.tuning.sizing.curve import HitCurve
from hicachectl.tuning.sizing.extents import Fenwick
from hicachectl.tuning.sizing.numbering import Ids, Numbering
from hicachectl.tuning.sizing.window import Counts, Definition, last_tokens

__all__ = ["SAMPLE_ABOVE", "WIDENED", "sampled_curve"]

SAMPLE_ABOVE = 1_000_000_000
"""References from which on the curve is sampled."""
WIDENED = 1.5
"""Times an interval is widened when the curve is sampled."""
HOT = 1e-3


def sampled_curve(
    requests: Iterable[TraceRequest],
    block_tokens: int,
    one_in: int,
    definition: Definition = Definition.D1,
    *,
    first: int = 0,
    seed: int = 0,
) -> HitCurve:
    """Estimate the curve; `requests` are read twice. `one_in` is 1 (exact) to 100. Keeps about 20 bytes a distinct block.

    Its counts are those of the weighted sample, so only its rates speak of the trace. Raises UsageError as `window_of`
    does, and for `one_in` out of range.
    """
    if not 1 <= one_in <= 100:
        raise UsageError(f"one in {one_in} sampled, not 1 to 100", hint="below 1 % the estimate is no longer of use")
    counts, n_references = _counted(requests)
    numbers = np.arange(len(counts), dtype=np.uint64)
    picked = _mixed(numbers + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)) % np.uint64(one_in) == 0
    hot = counts > HOT * n_references
    weights = np.where(hot, 1, np.where(picked, one_in, 0)).astype(np.int32)
    return _weighted_pass(requests, block_tokens, definition, first, weights)


def _counted(requests: Iterable[TraceRequest]) -> tuple[Counts, int]:
    """References of each block, by number."""
    numbering = Numbering()
    counts: Counts = np.zeros(1024, np.int64)
    n = 0
    for request in requests:
        row = numbering.add_one(request.scope, request.blocks)
        if numbering.n_distinct > len(counts):
            counts = np.concatenate([counts, np.zeros(numbering.n_distinct, np.int64)])
        counts[row] += 1  # no block comes twice in a request
        n += len(row)
    return counts[: numbering.n_distinct], n


def _weighted_pass(
    requests: Iterable[TraceRequest], block_tokens: int, definition: Definition, first: int, weights: Ids
) -> HitCurve:
    """As `ExtentPass`, each kept block as large as its weight."""
    numbering, tree = Numbering(), Fenwick()
    owner: Ids = np.full(len(weights), -1, np.int32)
    gained: Counts = np.zeros(1024, np.int64)
    live = total = 0
    for q, request in enumerate(requests):
        row = numbering.add_one(request.scope, request.blocks)
        last = last_tokens(request.input_tokens, len(row), block_tokens)
        if definition is Definition.D3 and last < block_tokens:
            row = row[:-1]
        value: Counts = np.full(len(row), block_tokens if definition is Definition.D2 else 1, np.int64)
        if definition is Definition.D2 and len(row):
            value[-1] = last
        kept = weights[row] > 0
        row, value = row[kept], value[kept]
        size = weights[row].astype(np.int64)
        value *= size
        tree.append()
        if q >= first:
            total += int(value.sum())
        own = owner[row]
        n_warm = int((own >= 0).sum())
        reached = np.cumsum(size[:n_warm])
        distance = reached.copy()
        edges = [0, *(np.flatnonzero(own[1:n_warm] != own[: max(0, n_warm - 1)]) + 1).tolist(), n_warm]
        owned = []
        for i, j in pairwise(edges):
            if i == j:
                continue
            before = int(reached[i - 1]) if i else 0
            weight = int(reached[j - 1]) - before
            owned.append((int(own[i]), weight))
            distance[i:j] += live - tree.sum_to(int(own[i])) - before
        if n_warm and q >= first:
            gained = _longer(gained, int(distance.max()) + 1)
            np.add.at(gained, distance, value[:n_warm])
        for o, weight in owned:
            tree.add(o, -weight)
            live -= weight
        tree.add(q, int(size.sum()))
        live += int(size.sum())
        owner[row] = q
    used = np.flatnonzero(gained)
    return HitCurve(definition, np.cumsum(gained[: int(used[-1]) + 1 if len(used) else 1]), total, len(weights))


def _longer(counts: Counts, size: int) -> Counts:
    return counts if size <= len(counts) else np.concatenate([counts, np.zeros(max(size, len(counts)), np.int64)])


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
