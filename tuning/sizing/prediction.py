"""From a trace and a machine to a size and the steps that will prove it: everything that is known before memory is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf

import numpy as np

from hicachectl.errors import CapacityError, UsageError
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.request import Trace, TraceInfo, TraceRequest
from hicachectl.runtime.write_policy import WritePolicy
from hicachectl.tuning.sizing.budget import Budget
from hicachectl.tuning.sizing.confidence import Confidence, confidence_of
from hicachectl.tuning.sizing.curve import HitCurve, curve_from_runs, curve_of
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.extents import Runs, runs_of
from hicachectl.tuning.sizing.levels import Levels
from hicachectl.tuning.sizing.paged import paged
from hicachectl.tuning.sizing.plateau import Choice, Limits, choose
from hicachectl.tuning.sizing.restorable import paying_hits
from hicachectl.tuning.sizing.sampling import SAMPLE_ABOVE
from hicachectl.tuning.sizing.step_rules import Reach, sizes_to_try
from hicachectl.tuning.sizing.window import Definition, window_of

__all__ = ["Prediction", "assumption_of", "predict", "remedy_of"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The curve of full pages (D3, what the pool keeps), how sure it is, the limits, the choice, and the sizes to try.

    `plateau_d1_pages` is the plateau of the host pool when incomplete last pages count too; `busy_pages` are those of L1 that the
    `concurrency` running requests hold; `storage_pages` is the size of L3, 0: there is none, None: without a limit; `reach` says which pools can be tried.
    `input_tokens` are all of the window, `span_s` the time from its earliest to its latest. `window_sha256` is the digest of what was read.
    """

    curve: HitCurve
    sure: Confidence
    levels: Levels
    limits: Limits
    choice: Choice
    sizes: tuple[int, ...]
    device_pages: int
    longest_pages: int
    n_requests: int
    input_tokens: int
    span_s: float
    plateau_d1_pages: int
    busy_pages: int
    concurrency: int
    storage_pages: int | None
    runs: Runs
    page_tokens: int
    reach: Reach
    window_sha256: str

    @property
    def whole_page_tokens(self) -> int:
        """The input tokens in whole pages: what can be hit. Pure."""
        return self.curve.total * self.page_tokens

    def hits(self, host_pages: int) -> int:
        """Return the pages that the runtime will hit in L1 and L2 with a host pool of this size, one request at a time. Pure.

        Its tiers are inclusive, whatever `levels` are, and nothing runs beside the request, so that all of L1 is there.
        """
        return self.curve.at(max(self.device_pages, host_pages))

    def storage_hits(self, host_pages: int) -> int:
        """Return the pages that will hit in L3 below a host pool of this size, one request at a time. Pure."""
        if not host_pages:
            return 0
        reach = max(self.device_pages, host_pages)
        return self.curve.at(max(reach, self.levels.storage_pages)) - self.curve.at(reach)

    def levels_for(self, costs: Costs) -> Levels:
        """Return the levels with the hits in restores too short to pay left out. Pure."""
        crossover = costs.crossover_tokens
        if crossover is None or crossover <= self.page_tokens:
            return self.levels
        pages = -(-crossover // self.page_tokens)
        paying = paying_hits(self.runs, self.levels.device_pages, pages, len(self.levels.hits))
        return replace(self.levels, paying=paying)

    @property
    def device_rate_idle(self) -> float:
        """The hit rate of L1 alone when nothing runs beside a request, 0 to 1. Pure."""
        return self.curve.rate(self.device_pages)

    def error(self, host_pages: int | None) -> float | None:
        """Return the standard error of the hit rate at a size, 0 to 1; None where there is none. Pure."""
        return None if self.sure.jackknife is None else self.sure.jackknife.rate_error(host_pages)


def predict(
    trace: Trace,
    info: TraceInfo,
    base: ReplayConfig,
    budget: Budget,
    *,
    device_pages: int,
    longest_pages: int,
    points: float = 1.0,
    concurrency: int = 0,
    exclusive: bool = False,
    storage_pages: int | None = 0,
    costs: Costs | None = None,
    steps: tuple[int, ...] | None = None,
    only_bytes: int | None = None,
    predict_only: bool = False,
) -> Prediction:
    """Read the trace once in the pages of `base` and choose. Takes no pool memory.

    `concurrency` requests running at a time hold their pages in L1, which is as much smaller for the others; `exclusive`:
    L2 holds nothing that L1 holds; `storage_pages` of L3 below (None: without a limit) need host pages to read into.
    `steps` None: half the chosen size, it, and twice it. `predict_only`: nothing is made, so another host may be meant: `only_bytes` is
    then the limit of memory, else what `budget` allows, and no limit at all where that does not hold one request. Raises UsageError as `window_of` does and for more references than can be kept, CapacityError when one request does not fit.
    """
    geometry = base.geometry
    _require_holdable(info, geometry.page_tokens, base.limit)
    passed = _Passed()
    requests = paged(passed.count(islice(trace, base.limit)), info, geometry.page_tokens)
    try:
        whole = window_of(requests, geometry.page_tokens)
    except UsageError as error:
        error.where = error.where or info.path
        raise
    plateau_d1 = curve_of(whole).smallest_within(points)
    window = whole.full_blocks()
    runs = runs_of(window)
    curve = curve_from_runs(runs, window, Definition.D3)
    sure = confidence_of(window, Definition.D1, points, runs=runs)
    tokens = int(np.maximum(np.diff(whole.starts) - 1, 0).sum()) * geometry.page_tokens + int(whole.last_tokens.sum())
    request_tokens = tokens / window.n_requests
    busy = min(
        device_pages,
        _pages(concurrency * (request_tokens + passed.output_tokens / window.n_requests), geometry.page_tokens),
    )
    everything = len(curve.hits) - 1
    levels = Levels(
        curve.hits, curve.total, device_pages - busy, exclusive, everything if storage_pages is None else storage_pages
    )
    if exclusive or plateau_d1 <= levels.device_pages:
        plateau_d1 = max(0, plateau_d1 - levels.device_pages)
    bounce = max(1, concurrency) * _pages(request_tokens, geometry.page_tokens) if storage_pages != 0 else 0
    limits = Limits(longest_pages, bounce, budget.can_use_bytes // geometry.page_bytes)
    if predict_only:
        elsewhere = None if limits.least_pages > (limits.most_pages or 0) else limits.most_pages
        limits = replace(limits, most_pages=elsewhere if only_bytes is None else only_bytes // geometry.page_bytes)
    half = sure.jackknife.rate_error() if sure.jackknife is not None else 0.0
    try:
        choice = choose(
            levels, geometry.page_bytes, points=points, costs=costs, limits=limits, half_interval=half, too_short=sure.too_short
        )  # fmt: skip
    except CapacityError as error:
        error.terms += tuple((term.name, term.n_bytes) for term in budget.terms if term.n_bytes is not None)
        error.terms += (("can use", budget.can_use_bytes),)
        error.why = f"bound by {budget.bound}"
        raise
    in_trial = budget.can_use_bytes if budget.trial_bytes is None else budget.trial_bytes
    most = limits.most_pages if predict_only else in_trial // geometry.page_bytes
    reach = Reach(limits.least_pages, most, everything)
    if steps is not None:
        too_large = [size for size in steps if limits.most_pages is not None and size > limits.most_pages]
        if too_large:
            raise UsageError(
                f"a step of {too_large[0]} pages, the memory holds {limits.most_pages}",
                where="--steps",
                why=f"bound by {budget.bound}",
                hint="give smaller steps, or raise --max-bytes",
            )
        sizes: tuple[int, ...] = tuple(sorted(set(steps)))
    else:
        sizes = sizes_to_try(choice.host_pages, least=limits.least_pages, most=most)
    return Prediction(
        curve, sure, levels, limits, choice, sizes, device_pages, longest_pages, window.n_requests, tokens,
        passed.span_s, plateau_d1, busy, concurrency, storage_pages, runs, geometry.page_tokens, reach, whole.sha256(),
    )  # fmt: skip


class _Passed:
    """What only the requests themselves tell: their output tokens, and the time from the earliest to the latest."""

    def __init__(self) -> None:
        self.output_tokens = 0
        self._first_s, self._last_s = inf, -inf

    def count(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """Yield the requests."""
        for request in requests:
            self.output_tokens += request.output_tokens
            self._first_s, self._last_s = min(self._first_s, request.time_s), max(self._last_s, request.time_s)
            yield request

    @property
    def span_s(self) -> float:
        """Seconds from the earliest to the latest of them, in whatever order they came."""
        return max(0.0, self._last_s - self._first_s)


def _require_holdable(info: TraceInfo, page_tokens: int, limit: int | None) -> None:
    """Refuse a trace whose page references are too many to keep; a curve alone could be sampled, steps cannot."""
    n = info.total_input_tokens // page_tokens
    if limit is None and n > SAMPLE_ABOVE:
        raise UsageError(
            f"{n} page references, at most {SAMPLE_ABOVE} are kept",
            where=info.path,
            why="every step replays all of them and is held to the exact curve",
            hint="give --limit or a larger --page-tokens; trace curve samples a trace of any length",
        )


def _pages(tokens: float, page_tokens: int) -> int:
    return ceil(tokens / page_tokens)


_EXCLUDES, _ORDER, _POLICY, _SMALLER = (
    "L2 is to exclude L1", "eviction order", "write policy", "the host tier is smaller than L1"
)  # fmt: skip
_REMEDIES = {
    _EXCLUDES: "take the size as predicted; steps can prove the one of --l2 inclusive",
    _ORDER: "size with --eviction lru, and compare the orders at that size with --policies",
    _POLICY: "size with --write-policy write_through, and compare the policies at that size with --policies",
    _SMALLER: "name --steps of pools larger than L1, or give fewer --device-slots",
}
"""What to do where an assumption, which begins so, explains what a step hit."""


def assumption_of(base: ReplayConfig, device_pages: int, host_pages: int, *, exclusive: bool = False) -> str | None:
    """Name what keeps a step from hitting exactly what the curve says; None: nothing does. Pure."""
    if exclusive and host_pages:
        return (
            f"{_EXCLUDES}; the runtime keeps in L2 what L1 holds too, so the step is held to the inclusive curve "
            f"({max(device_pages, host_pages)} pages in all, not {device_pages + host_pages})"
        )
    if base.cache.eviction is not Eviction.LRU:
        return f"{_ORDER} {base.cache.eviction.value}, the curve is LRU"
    if base.cache.write_policy is not WritePolicy.WRITE_THROUGH:
        return f"{_POLICY} {base.cache.write_policy.value}, the curve is write_through"
    if 0 < host_pages < device_pages:
        return f"{_SMALLER} ({device_pages} pages): they overlap in part"
    return None


def remedy_of(reason: str) -> str | None:
    """Say what to do where an assumption (`assumption_of`), told in `reason`, keeps a step from the curve; None: it tells none. Pure."""
    return next((remedy for words, remedy in _REMEDIES.items() if words in reason), None)
