"""From a trace to its curve with everything a reader wants beside it: plateau, band, growth. What `trace curve` shows.

Exact up to a billion references, above that sampled with the band widened (`sampling`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import Trace
from hicachectl.tuning.sizing.confidence import Confidence, Grown, Jackknife, confidence_of
from hicachectl.tuning.sizing.curve import HitCurve, curve_from_runs
from hicachectl.tuning.sizing.extents import Runs, runs_of
from hicachectl.tuning.sizing.fifo import fifo_hits
from hicachectl.tuning.sizing.opt import opt_hits
from hicachectl.tuning.sizing.sampling import Sampled
from hicachectl.tuning.sizing.sampling import sample as sample_curve
from hicachectl.tuning.sizing.session_band import SessionBand
from hicachectl.tuning.sizing.window import Definition, Window, window_of

__all__ = ["CurveRow", "Measured", "Order", "capacities_for", "measure"]

SAMPLED_ONE_IN = 10


class Order(str, Enum):
    """Which block leaves a full cache."""

    LRU = "lru"
    FIFO = "fifo"
    OPT = "opt"


@dataclass(frozen=True, slots=True)
class CurveRow:
    """One capacity: hits of total, their ratio, and its standard error over sessions where it is known."""

    capacity_pages: int
    hits: int
    total: int
    hit_rate: float
    hit_rate_error: float | None
    to_ceiling: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A curve at chosen capacities. `unit` is what hits and total count; capacities are pages of `page_tokens` tokens.

    The plateau is the smallest capacity within `points` of the ceiling, low and high one standard error around it. A
    None has its reason.
    """

    definition: Definition
    policy: Order
    counted: str
    unit: str
    page_tokens: int
    requests: int
    total: int
    distinct_pages: int
    longest_request_pages: int
    points: float
    ceiling: float
    ceiling_error: float | None
    plateau_pages: int | None
    plateau_low_pages: int | None
    plateau_high_pages: int | None
    largest_useful_pages: int | None
    window_too_short: bool | None
    growth: tuple[Grown, ...]
    sampled_one_in: int | None
    curve: tuple[CurveRow, ...]
    reasons: dict[str, str]


def measure(
    trace: Trace,
    definition: Definition = Definition.D1,
    policy: Order = Order.LRU,
    *,
    capacities: Sequence[int] | None = None,
    warm_half: bool = False,
    points: float = 1.0,
    sample: bool = False,
) -> Measured:
    """Measure the curve of a trace. Reads it once, twice when it is to be sampled.

    `warm_half` counts the last half of the requests only; `capacities` default to round ones up to the distinct pages.
    Raises UsageError for a trace that has no prefix curve (`window_of`), and for capacities below 1.
    """
    if capacities is not None and (not capacities or min(capacities) < 1):
        raise UsageError("a capacity is at least one page", where="--capacities", hint="such as 8000,32000,64000")
    if sample:
        return _sampled(trace, definition, policy, capacities, warm_half, points)
    window = window_of(trace, trace.block_tokens)
    window = window.full_blocks() if definition is Definition.D3 else window
    plain = Definition.D1 if definition is Definition.D3 else definition
    runs = runs_of(window)
    first = window.n_requests // 2 if warm_half else 0
    curve = curve_from_runs(runs, window, definition, first=first)
    if policy is not Order.LRU:
        return _stepped(policy, window, runs, curve, plain, capacities, first, points)
    sure = confidence_of(window, plain, points, first=first, runs=runs)
    return _measured(
        curve, sure, policy, window.block_tokens, window.n_requests, window.longest, capacities, first, points
    )


def capacities_for(curve: HitCurve, *also: int) -> list[int]:
    """Return round capacities over the whole curve (1, 2, 5 a decade, doublings where it bends), and `also`. Pure."""
    top = max(1, curve.n_distinct)
    found = {top, *(c for c in also if c >= 1)}
    size = top
    while size > max(1, top >> 10):
        size = -(-size // 2)
        found.add(_round(size))
    return sorted(found)


def _round(size: int) -> int:
    """Two leading digits."""
    unit = int(10 ** max(0, len(str(size)) - 2))
    return max(1, size // unit * unit)


def _measured(
    curve: HitCurve, sure: Confidence | None, policy: Order, block_tokens: int, n_requests: int, longest: int,
    capacities: Sequence[int] | None, first: int, points: float, *, sample: Sampled | None = None,
) -> Measured:  # fmt: skip
    plateau = curve.smallest_within(points)
    error_of: Jackknife | SessionBand | None = (
        sample.band if sample is not None else sure.jackknife if sure is not None else None
    )
    reasons: dict[str, str] = {}
    ceiling_error = low = high = None
    if error_of is not None:
        ceiling_error = error_of.rate_error()
        error = error_of.plateau_error(points)
        low, high = max(0, round(plateau - error)), min(curve.n_distinct, round(plateau + error))
    else:
        why = (sample.reason if sample is not None else sure.reason if sure is not None else None) or "no interval"
        reasons |= dict.fromkeys(("ceiling_error", "plateau_low_pages", "plateau_high_pages"), why)
        reasons["hit_rate_error"] = why
    if sample is None:
        reasons["sampled_one_in"] = "the pass is exact"
    if sure is None:
        reasons["window_too_short"] = "the curve is sampled, not held"
    at = capacities_for(curve, plateau, longest) if capacities is None else capacities
    return Measured(
        definition=curve.definition,
        policy=policy,
        counted="warm-half" if first else "all",
        unit=_unit(curve.definition),
        page_tokens=block_tokens,
        requests=n_requests - first,
        total=curve.total,
        distinct_pages=curve.n_distinct,
        longest_request_pages=longest,
        points=points,
        ceiling=curve.rate(),
        ceiling_error=ceiling_error,
        plateau_pages=plateau,
        plateau_low_pages=low,
        plateau_high_pages=high,
        largest_useful_pages=curve.largest_distance,
        window_too_short=sure.too_short if sure is not None else None,
        growth=sure.growth if sure is not None else (),
        sampled_one_in=None if sample is None else SAMPLED_ONE_IN,
        curve=tuple(_row(c, curve.at(c), curve, None if error_of is None else error_of.rate_error(c)) for c in at),
        reasons=reasons,
    )


def _stepped(
    policy: Order, window: Window, runs: Runs, curve: HitCurve, plain: Definition, capacities: Sequence[int] | None, first: int, points: float,
) -> Measured:  # fmt: skip
    """FIFO and the bound: capacity by capacity. Without a limit they hit what LRU hits."""

    def hits(capacity: int) -> int:
        if policy is Order.FIFO:
            return fifo_hits(window, capacity, plain, first=first)
        return opt_hits(runs, window, capacity, plain, first=first)

    base = _measured(
        curve, None, policy, window.block_tokens, window.n_requests, window.longest, capacities or [], first, points
    )
    why = f"{policy.value} is stepped at the capacities alone"
    reasons = dict.fromkeys(
        ("ceiling_error", "plateau_low_pages", "plateau_high_pages", "hit_rate_error", "window_too_short"), why
    )
    reasons |= {"largest_useful_pages": why, "sampled_one_in": "the steps are exact"}
    plateau = None
    if policy is Order.OPT:
        plateau = _first_reaching(hits, int(curve.hits[-1]) - points / 100 * curve.total, window.n_distinct)
    else:
        reasons["plateau_pages"] = "fifo may lose hits by growing: it has no smallest size within a point"
    at = capacities_for(curve, window.longest) if capacities is None else capacities
    return Measured(
        **{
            **{name: getattr(base, name) for name in Measured.__slots__},
            "plateau_pages": plateau,
            "largest_useful_pages": None,
            "window_too_short": None,
            "curve": tuple(_row(c, hits(c), curve, None) for c in at),
            "reasons": reasons,
        }
    )


def _first_reaching(hits: Callable[[int], int], wanted: float, top: int) -> int:
    """Bisect a rising count for the first capacity that reaches `wanted`."""
    low, high = 0, top
    while low < high:
        middle = (low + high) // 2
        if hits(middle) >= wanted - 1e-9:
            high = middle
        else:
            low = middle + 1
    return low


def _sampled(
    trace: Trace, definition: Definition, policy: Order, capacities: Sequence[int] | None, warm_half: bool, points: float
) -> Measured:  # fmt: skip
    if policy is not Order.LRU:
        raise UsageError(
            f"{policy.value} cannot be stepped over a trace that is sampled",
            where="--policy",
            hint="--policy lru, or a part of the trace",
        )
    info = trace.info()
    first = info.n_requests // 2 if warm_half else 0
    found = sample_curve(trace, trace.block_tokens, SAMPLED_ONE_IN, definition, first=first)
    longest = -(-info.max_input_tokens // trace.block_tokens)
    return _measured(
        found.curve, None, policy, trace.block_tokens, info.n_requests, longest, capacities, first, points, sample=found,
    )  # fmt: skip


def _row(capacity: int, hits: int, curve: HitCurve, error: float | None) -> CurveRow:
    rate = hits / curve.total if curve.total else 0.0
    return CurveRow(capacity, hits, curve.total, rate, error, curve.rate() - rate)


def _unit(definition: Definition) -> str:
    return "tokens" if definition is Definition.D2 else "blocks"
