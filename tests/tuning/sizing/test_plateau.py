from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from shared_data import shared_path

from hicachectl.errors import CapacityError, UsageError
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.size_choice import _choice
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.economics import Costs, payback_h, saved_s_per_h, worth_of
from hicachectl.tuning.sizing.extents import runs_of
from hicachectl.tuning.sizing.levels import Levels
from hicachectl.tuning.sizing.plateau import Bound, Limits, Rule, choose
from hicachectl.tuning.sizing.restorable import paying_hits
from hicachectl.tuning.sizing.window import window_of
from hicachectl.units import GIB

MIB = 1 << 20
# a hot prompt, a desert, sessions that come back, and a long flat end: percent of 10,000 references, at every page
S_SHAPED = np.interp(np.arange(1001), [0, 10, 300, 500, 1000], [0, 2000, 2100, 6800, 7000]).astype(np.int64)


def levels(device_pages: int = 20, exclusive: bool = False) -> Levels:
    return Levels(S_SHAPED, 10_000, device_pages, exclusive)


def kneedle(hits: np.ndarray, *, sensitivity: float = 1.0, log: bool = False, points: int = 1000) -> int:
    """Kneedle (Satopaa et al. 2011) for a concave rising curve, on `points` samples of it."""
    at = np.unique(np.linspace(1, len(hits) - 1, points).astype(int))
    x = np.log2(at) if log else at.astype(float)
    y = hits[at].astype(float)
    x, y = (x - x[0]) / (x[-1] - x[0]), (y - y[0]) / max(1.0, y[-1] - y[0])
    above = y - x
    step = sensitivity * float(np.diff(x).mean())
    for i in range(1, len(at) - 1):
        if above[i] > above[i - 1] and above[i] >= above[i + 1]:
            for j in range(i + 1, len(at)):
                if above[j] < above[i] - step:
                    return int(at[i])
                if above[j] > above[i]:
                    break
    return int(at[-1])


def first_small_step(hits: np.ndarray, total: int, start: int) -> int:
    """The first size whose doubling gains less than a point."""
    size = start
    while size * 2 < len(hits) and (hits[size * 2] - hits[size]) / total >= 0.01:
        size *= 2
    return size


def test_the_smallest_pool_within_a_point_is_found_from_the_right() -> None:
    found = choose(levels(), MIB)
    assert (found.bound, found.rule) == (Bound.PLATEAU, Rule.POINTS)
    assert found.host_pages == found.plateau_pages == int(np.argmax(S_SHAPED >= 6900))
    assert found.rate >= found.ceiling - 0.01 > levels().rate(found.host_pages - 1)


def test_knees_and_first_small_steps_stop_in_the_desert_of_an_s_shaped_curve() -> None:
    assert first_small_step(S_SHAPED, 10_000, 10) == 10
    assert kneedle(S_SHAPED) <= 20
    assert kneedle(S_SHAPED, log=True) <= 20
    assert choose(levels(), MIB).rate - levels().rate(20) > 0.45


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "log_loses", "linear_loses", "within_a_point", "first_small"),
    [
        ("mooncake-fast25/conversation_trace.jsonl.gz", 30.0, 3.5, 52_882, 500),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", 50.0, 20.0, 32_887, None),
        ("kv-cache-tester/sessions_first100.jsonl.xz", 3.0, 3.5, 109_677, 128_000),
    ],
)
def test_knees_lose_points_on_recorded_traces_and_the_rule_loses_one(
    trace: str, log_loses: float, linear_loses: float, within_a_point: int, first_small: int | None
) -> None:
    opened = open_trace(shared_path(f"traces/{trace}"))
    curve = curve_of(window_of(opened, opened.block_tokens))
    lost = {
        "log knee": 100 * (curve.rate() - curve.rate(kneedle(curve.hits, log=True))),
        "linear knee": 100 * (curve.rate() - curve.rate(kneedle(curve.hits))),
        "one point": 100 * (curve.rate() - curve.rate(curve.smallest_within(1.0))),
    }
    assert lost["log knee"] > log_loses
    assert lost["linear knee"] > linear_loses
    assert lost["one point"] <= 1.0
    assert curve.smallest_within(1.0) == within_a_point
    if first_small is not None:
        assert first_small_step(curve.hits, curve.total, 500) == first_small


@pytest.mark.shared
def test_where_a_knee_lies_hangs_on_the_grid_the_curve_is_drawn_on_and_on_a_sensitivity() -> None:
    opened = open_trace(shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz"))
    curve = curve_of(window_of(opened, opened.block_tokens))
    assert 35_000 < kneedle(curve.hits, points=200) < 40_000
    assert kneedle(curve.hits, points=3200) < 1_000
    assert kneedle(curve.hits, sensitivity=5.0) > kneedle(curve.hits) + 5_000


def test_an_exclusive_host_pool_is_smaller_by_what_l1_holds_and_an_inclusive_one_is_not() -> None:
    inclusive, exclusive = choose(levels(200), MIB), choose(levels(200, exclusive=True), MIB)
    assert exclusive.host_pages == inclusive.host_pages - 200
    assert inclusive.rate == exclusive.rate
    assert levels(200).host_rate(150) == 0
    assert levels(200, exclusive=True).host_rate(150) > 0


def test_a_trace_that_comes_back_to_nothing_says_do_not_grow_the_pool() -> None:
    once = Levels(np.array([0, 50, 50, 50]), 10_000, device_pages=1)
    found = choose(once, MIB, limits=Limits(longest_pages=2, most_pages=10))
    assert (found.host_pages, found.bound, found.grows) == (0, Bound.NO_REUSE, False)
    assert "do not grow the pool" in found.reason
    assert choose(levels(device_pages=1000), MIB).bound is Bound.NO_REUSE
    short = choose(once, MIB, too_short=True)
    assert (short.bound, "too short to rule out" in short.reason) == (Bound.NO_REUSE, True)
    assert "too short" not in found.reason
    empty = choose(Levels(np.array([0]), 0, device_pages=1), MIB)
    assert (empty.bound, "no request fills a page" in empty.reason) == (Bound.NO_REUSE, True)


def test_too_little_memory_binds_and_says_what_it_costs() -> None:
    found = choose(levels(), MIB, limits=Limits(longest_pages=20, most_pages=400))
    assert (found.host_pages, found.bound) == (400, Bound.MEMORY)
    assert "points more" in found.reason
    with pytest.raises(CapacityError) as caught:
        choose(levels(), MIB, limits=Limits(longest_pages=20, bounce_pages=5, most_pages=24))
    assert dict(caught.value.terms) == {
        "longest request, pages": 20,
        "room that reads from storage pass through, pages": 5,
        "what the memory holds, pages": 24,
    }


def test_a_pool_holds_at_least_the_longest_request_and_room_to_bounce() -> None:
    found = choose(levels(), MIB, limits=Limits(longest_pages=990, bounce_pages=20))
    assert found.host_pages == 1010
    assert "raised" in found.reason


def test_a_plateau_that_still_grows_is_a_lower_bound_unless_memory_ends_first() -> None:
    assert choose(levels(), MIB, too_short=True).bound is Bound.TOO_SHORT
    assert choose(levels(), MIB, too_short=True, limits=Limits(most_pages=100)).bound is Bound.MEMORY
    cut = choose(levels(), MIB, too_short=True, limits=Limits(most_pages=100)).reason
    assert "lower bound" in cut
    assert "lower bound" not in choose(levels(), MIB, limits=Limits(most_pages=100)).reason


def test_dear_memory_makes_a_smaller_pool_and_cheap_memory_a_larger_one() -> None:
    def chosen(make_s_per_gib: float, half_interval: float = 0.0) -> int:
        costs = Costs(33e-6, 3e-6, make_s_per_gib, tokens_per_h=1e6, lives_h=24)
        found = choose(levels(), GIB, costs=costs, half_interval=half_interval)
        assert (found.rule, found.bound) == (Rule.ECONOMICS, Bound.ECONOMICS)
        return found.host_pages

    assert chosen(0.0) > chosen(0.5) > 300
    assert chosen(1000.0) == 0
    assert chosen(0.0, half_interval=0.05) < chosen(0.0)


def test_economics_takes_the_smallest_size_within_one_percent_of_the_best_net_gain() -> None:
    costs = Costs(33e-6, 3e-6, 0.2, tokens_per_h=1e6, lives_h=24, carry_s_per_gib_h=0.01)

    def net(pages: int) -> float:
        return 30.0 * levels().host_rate(pages) - pages * (0.2 / 24 + 0.01)

    nets = [net(pages) for pages in range(1001)]
    slack = 0.01 * 30.0 * levels().host_rate(1000)
    wanted = next(pages for pages, value in enumerate(nets) if value >= max(nets) - slack)
    assert choose(levels(), GIB, costs=costs).host_pages == wanted


def test_a_restore_that_costs_as_much_as_computing_earns_nothing() -> None:
    found = choose(levels(), GIB, costs=Costs(3e-6, 3e-6, 0.2, 1e6, 24))
    assert (found.host_pages, found.bound) == (0, Bound.ECONOMICS)
    assert "restored token" in found.reason


@pytest.mark.shared
def test_payback_of_each_doubling_is_the_one_worked_by_hand() -> None:
    opened = open_trace(shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz"))
    window = window_of(opened, opened.block_tokens)
    runs = runs_of(window)
    curve = curve_of(window, runs=runs)
    held = Levels(curve.hits, curve.total, device_pages=0)
    page_bytes = 512 * 128 * 1024  # 128 KiB a token
    tokens_per_h = 144_793_823 / 3537 * 3600
    costs = Costs(1 / 20_000, 128 * 1024 / 50e9, 0.25, tokens_per_h, lives_h=24)
    steps = [8_000, 16_000, 32_000, 64_000, 128_000]
    gains = [costs.gain_s_per_h * (held.host_rate(b) - held.host_rate(a)) for a, b in itertools.pairwise(steps)]
    hours = [payback_h(held, costs, page_bytes, a, b) for a, b in itertools.pairwise(steps)]
    assert gains == pytest.approx([591, 484, 190, 42], rel=0.03)
    assert hours == pytest.approx([0.21, 0.52, 2.6, 24], rel=0.05)
    # weighted by the length of restores: one page changes nothing, 3,072 tokens leave out the shared first pages
    for crossover, share in ((1, pytest.approx(1.0)), (6, pytest.approx(0.889, abs=0.001))):
        long = replace(held, paying=paying_hits(runs, 0, crossover, len(curve.hits)))
        assert saved_s_per_h(long, costs)[64_000] / saved_s_per_h(held, costs)[64_000] == share
    assert payback_h(long, costs, page_bytes, 8_000, 16_000) == pytest.approx(0.21, rel=0.05)


def test_a_step_that_gains_nothing_never_pays_back() -> None:
    costs = Costs(33e-6, 3e-6, 0.2, 1e6, 24, carry_s_per_gib_h=0.1)
    assert payback_h(levels(), costs, GIB, 500, 1000) is None
    assert payback_h(levels(), Costs(33e-6, 3e-6, 0.2, 1e6, 24), GIB, 300, 500) == pytest.approx(
        200 * 0.2 / (30 * 0.47)
    )


def test_points_outside_a_hundred_are_refused() -> None:
    with pytest.raises(UsageError):
        choose(levels(), MIB, points=0)


def test_a_pool_cut_short_by_memory_is_not_chosen_where_it_hits_nothing_more_or_loses() -> None:
    desert = np.array([0] + [1000] * 100 + [1001] * 900 + [600_000] * 10)
    costs = Costs(1e-4, 1e-5, 0.01, 1e6, 1.0)
    for most, words in ((40, "hit nothing that L1's 50 do not (they hold copies of them)"), (80, "L1's 50 do not;")):
        found = choose(Levels(desert, 10**6, 50), GIB, limits=Limits(5, 0, most))
        assert (found.host_pages, found.bound) == (0, Bound.MEMORY) and words in found.reason
    found = choose(Levels(desert, 10**6, 50), GIB, costs=costs, limits=Limits(5, 0, 500))
    assert (found.host_pages, found.bound, found.rule) == (0, Bound.MEMORY, Rule.ECONOMICS)
    assert "cost more than they save (-5 s/h)" in found.reason
    assert choose(Levels(desert, 10**6, 50), GIB, limits=Limits(5, 0, 500)).host_pages == 500, "by points it hits more"
    exclusive = choose(
        Levels(np.array([0] + [10] * 200 + [60] * 10), 100, 50, exclusive=True), MIB, limits=Limits(5, 0, 20)
    )
    assert exclusive.host_pages == 0 and "copies" not in exclusive.reason


def test_a_size_that_was_tried_is_kept_with_what_it_gains_by_the_costs_that_are_shown() -> None:
    curve = np.array([0] + [int(900_000 * (1 - np.exp(-i / 300))) for i in range(1, 2000)])
    levels_, first, now = Levels(curve, 10**6, 5), Costs(1e-4, 1e-5, 0.01, 1e6, 1.0), Costs(1e-4, 6e-5, 0.01, 1e6, 1.0)
    before = choose(levels_, MIB, costs=first, limits=Limits(5))
    prediction = SimpleNamespace(
        levels_for=lambda costs: levels_, error=lambda points: 0.0, limits=Limits(5), sure=SimpleNamespace(too_short=False),
        choice=before,
    )  # fmt: skip
    run = SimpleNamespace(base=SimpleNamespace(geometry=SimpleNamespace(page_bytes=MIB)), points=1.0)
    tried = SimpleNamespace(steps=[SimpleNamespace(pages=before.host_pages, trial=object())])
    kept = _choice(run, prediction, tried, now)  # type: ignore[arg-type]
    assert kept.host_pages == before.host_pages
    own = worth_of(levels_, now, MIB, kept.host_pages).net_s_per_h
    assert kept.reason.startswith(f"a size that was tried, within its slack: {own:.3g} of ")
    prediction.limits = Limits(5, 0, 100)
    prediction.choice = choose(levels_, MIB, costs=first, limits=prediction.limits)
    tried.steps[0].pages = 100
    bounded = _choice(run, prediction, tried, now)  # type: ignore[arg-type]
    assert (bounded.host_pages, bounded.bound) == (100, Bound.MEMORY)
    assert "the memory ends before the curve" in bounded.reason
