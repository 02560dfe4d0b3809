"""From a trace and a machine to a size and the steps that will prove it: everything that is known before memory is taken."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from hicachectl.errors import UsageError
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.request import Trace, TraceInfo
from hicachectl.runtime.write_policy import WritePolicy
from hicachectl.tuning.sizing.budget import Budget
from hicachectl.tuning.sizing.confidence import Confidence, confidence_of
from hicachectl.tuning.sizing.curve import HitCurve, curve_from_runs, curve_of
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.extents import runs_of
from hicachectl.tuning.sizing.levels import Levels
from hicachectl.tuning.sizing.paged import paged
from hicachectl.tuning.sizing.plateau import Choice, Limits, choose
from hicachectl.tuning.sizing.step_rules import sizes_to_try
from hicachectl.tuning.sizing.window import Definition, window_of

__all__ = ["Prediction", "assumption_of", "predict"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The curve of full pages (D3, what the pool keeps), how sure it is, the limits, the choice, and the sizes to try.

    `plateau_d1_pages` is the plateau when incomplete last pages count too; `span_s` the seconds the requests cover.
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
    plateau_d1_pages: int
    busy_pages: int

    def hits(self, host_pages: int) -> int:
        """Return the pages that will hit with a host pool of this size. Pure."""
        if host_pages == 0:
            return self.curve.at(self.device_pages)
        return self.curve.at(max(self.device_pages, host_pages))

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
    costs: Costs | None = None,
    steps: tuple[int, ...] | None = None,
) -> Prediction:
    """Read the trace once in the pages of `base` and choose. Takes no pool memory.

    `concurrency` requests running at a time hold their pages in L1, which is as much smaller for the others. `steps` None:
    half the chosen size, it, and twice it. Raises UsageError as `window_of` does, CapacityError when one request does
    not fit.
    """
    geometry = base.geometry
    requests = paged(islice(trace, base.limit), info, geometry.page_tokens)
    whole = window_of(requests, geometry.page_tokens)
    plateau_d1 = curve_of(whole).smallest_within(points)
    window = whole.full_blocks()
    runs = runs_of(window)
    curve = curve_from_runs(runs, window, Definition.D3)
    sure = confidence_of(window, Definition.D1, points, runs=runs)
    lengths = np.diff(window.starts)
    busy = min(device_pages, concurrency * int(np.median(lengths)))
    levels = Levels(curve.hits, curve.total, device_pages - busy)
    limits = Limits(longest_pages, 0, budget.can_use_bytes // geometry.page_bytes)
    half = sure.jackknife.rate_error() if sure.jackknife is not None else 0.0
    choice = choose(
        levels, geometry.page_bytes, points=points, costs=costs, limits=limits, half_interval=half, too_short=sure.too_short
    )  # fmt: skip
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
        sizes = sizes_to_try(choice.host_pages, least=limits.least_pages, most=limits.most_pages)
    tokens = int(np.maximum(np.diff(whole.starts) - 1, 0).sum()) * geometry.page_tokens + int(whole.last_tokens.sum())
    return Prediction(
        curve, sure, levels, limits, choice, sizes, device_pages, longest_pages, window.n_requests, tokens, plateau_d1, busy
    )  # fmt: skip


def assumption_of(base: ReplayConfig, device_pages: int, host_pages: int) -> str | None:
    """Name what keeps a step from hitting exactly what the curve says; None: nothing does. Pure."""
    if base.cache.eviction is not Eviction.LRU:
        return f"eviction order {base.cache.eviction.value}, the curve is LRU"
    if base.cache.write_policy is not WritePolicy.WRITE_THROUGH:
        return f"write policy {base.cache.write_policy.value}, the curve is write_through"
    if 0 < host_pages < device_pages:
        return f"the host tier is smaller than L1 ({device_pages} pages): they overlap in part"
    return None
