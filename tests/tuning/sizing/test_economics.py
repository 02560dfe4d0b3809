"""What a pool is worth over L1 alone, over storage, and with restores too short to pay left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hicachectl.tuning.sizing.economics import Costs, payback_h, saved_s_per_h, worth_of
from hicachectl.tuning.sizing.levels import Levels
from hicachectl.tuning.sizing.plateau import Bound, Limits, choose
from hicachectl.units import GIB

HITS = np.arange(0, 1001, 10)  # a point a page, up to 100 pages of 1,000 hits
LEVELS = Levels(HITS, 1000, device_pages=10)
COSTS = Costs(prefill_s=33e-6, restore_s=3e-6, make_s_per_gib=0.24, tokens_per_h=1e6, lives_h=24)


def test_a_pool_saves_what_its_hits_cost_less_and_spends_making_it() -> None:
    found = worth_of(LEVELS, COSTS, GIB, 60)
    assert found.saved_s_per_h == pytest.approx(1e6 * 0.5 * 30e-6)
    assert found.spent_s_per_h == pytest.approx(60 * 0.24 / 24)
    assert found.net_s_per_h == pytest.approx(found.saved_s_per_h - found.spent_s_per_h)
    carried = worth_of(LEVELS, replace(COSTS, carry_s_per_gib_h=0.01), GIB, 60)
    assert carried.spent_s_per_h == pytest.approx(60 * 0.02)
    assert worth_of(LEVELS, COSTS, GIB, 5000).saved_s_per_h == worth_of(LEVELS, COSTS, GIB, 100).saved_s_per_h


def test_over_storage_a_hit_is_worth_only_what_storage_takes_longer() -> None:
    levels = replace(LEVELS, storage_pages=50)
    costs = replace(COSTS, storage_restore_s=23e-6)
    saved = saved_s_per_h(levels, costs)
    assert saved[40] == pytest.approx(1e6 * 0.3 * (23e-6 - 3e-6))
    # past what storage holds a hit is worth a whole prefill again
    assert saved[70] - saved[50] == pytest.approx(1e6 * 0.2 * 30e-6)
    unlimited = saved_s_per_h(replace(LEVELS, storage_pages=1000), costs)
    assert unlimited[100] == pytest.approx(1e6 * 0.9 * 20e-6)
    dear = saved_s_per_h(levels, replace(costs, storage_restore_s=50e-6))
    assert dear == pytest.approx(
        saved_s_per_h(LEVELS, COSTS)
    )  # computing is cheaper than reading: storage saves nothing


def test_a_step_pays_back_later_where_storage_serves_the_same_hits() -> None:
    alone = payback_h(LEVELS, COSTS, GIB, 20, 40)
    below = payback_h(replace(LEVELS, storage_pages=1000), replace(COSTS, storage_restore_s=23e-6), GIB, 20, 40)
    assert alone is not None
    assert below == pytest.approx(alone * 30 / 20)


def test_storage_makes_the_chosen_pool_smaller_and_unmeasured_storage_is_said() -> None:
    bent = replace(LEVELS, hits=np.interp(np.arange(1001), [0, 50, 200, 1000], [0, 500, 700, 800]).astype(np.int64))
    costs = replace(COSTS, make_s_per_gib=1.2)
    alone = choose(bent, GIB, costs=costs)
    below = choose(replace(bent, storage_pages=1000), GIB, costs=replace(costs, storage_restore_s=13e-6))
    assert below.host_pages < alone.host_pages
    assert "over what storage would serve anyway" in below.reason
    unknown = choose(replace(bent, storage_pages=1000), GIB, costs=costs)
    assert unknown.host_pages == alone.host_pages
    assert "not taken off, its cost was not measured" in unknown.reason
    by_points = choose(replace(bent, storage_pages=1000), GIB).reason
    assert "not taken off, as economics was not used" in by_points
    assert "measured" not in by_points


def test_where_storage_is_as_fast_the_pool_is_no_larger_than_its_reads_need() -> None:
    found = choose(
        replace(LEVELS, storage_pages=1000), GIB, costs=replace(COSTS, storage_restore_s=3e-6),
        limits=Limits(longest_pages=7, bounce_pages=4),
    )  # fmt: skip
    assert (found.host_pages, found.bound) == (11, Bound.ECONOMICS)
    assert "longest request (7 pages) and 4 that reads from storage pass through" in found.reason


def test_short_restores_earn_nothing_and_none_at_all_means_do_not_grow() -> None:
    short = replace(LEVELS, paying=np.maximum(HITS - 500, 0))
    assert saved_s_per_h(short, COSTS)[50] == 0
    assert saved_s_per_h(short, COSTS)[100] == pytest.approx(1e6 * 0.5 * 30e-6)
    never = choose(LEVELS, GIB, costs=replace(COSTS, crossover_tokens=None))
    assert (never.host_pages, never.bound) == (0, Bound.ECONOMICS)
    assert "no restore of any length" in never.reason


def test_exclusive_tiers_count_paying_hits_from_the_end_of_l1() -> None:
    paying = np.maximum(HITS - HITS[10], 0)
    levels = replace(LEVELS, exclusive=True, paying=paying)
    assert saved_s_per_h(levels, COSTS) == pytest.approx(saved_s_per_h(replace(levels, paying=None), COSTS))


def test_a_gain_within_its_error_is_told_as_that_and_not_as_no_gain() -> None:
    dear = replace(COSTS, make_s_per_gib=5.0)  # most of what a pool saves
    found = choose(LEVELS, GIB, costs=dear, half_interval=0.5)
    assert (found.host_pages, found.bound) == (0, Bound.ECONOMICS)
    assert "do not grow the pool: the gain is within its error" in found.reason
    below = choose(
        replace(LEVELS, storage_pages=1000), GIB, costs=dear, half_interval=0.5, limits=Limits(longest_pages=7, bounce_pages=4)
    )  # fmt: skip
    assert below.host_pages == 11
    assert "the gain is within its error" in below.reason
    assert "earns its cost" not in below.reason
