"""Restores long enough to pay, in one pass against stepping, and where computing becomes dearer than restoring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lru_model import BLOCK, Path, hits_of, paths, traced
from shared_data import shared_path

from hicachectl.runtime.cost import RecomputeCost
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.extents import runs_of
from hicachectl.tuning.sizing.restorable import crossover_tokens, paying_hits, restore_line
from hicachectl.tuning.sizing.window import window_of


@settings(max_examples=200, deadline=None)
@given(paths(), st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_one_pass_counts_the_restores_that_stepping_counts_at_every_capacity(
    requests: list[Path], device: int, crossover: int, warm: bool
) -> None:
    window = window_of(traced(requests), BLOCK)
    first = len(requests) // 2 if warm else 0
    found = paying_hits(runs_of(window).between(first, len(requests)), device, crossover, window.n_distinct + 2)
    in_device = [len(hit) for hit in hits_of(requests, device)]
    for capacity in range(window.n_distinct + 2):
        hits = [len(hit) for hit in hits_of(requests, capacity)]
        restored = [max(0, n - above) for n, above in zip(hits, in_device, strict=True)][first:]
        assert found[capacity] == sum(n for n in restored if n >= max(1, crossover))


def test_two_sessions_one_short_and_one_long_count_as_by_hand() -> None:
    # L1 of 1 page; [1,2,3] and [7,8] come back: distances 3,4,5 and 4,5
    requests = [((1, 2, 3), 4), ((7, 8), 4), ((1, 2, 3), 4), ((7, 8), 4)]
    runs = runs_of(window_of(traced(requests), BLOCK))
    assert paying_hits(runs, 1, 1, 7).tolist() == [0, 0, 0, 1, 3, 5, 5]
    assert paying_hits(runs, 1, 2, 7).tolist() == [0, 0, 0, 0, 2, 5, 5]
    assert paying_hits(runs, 1, 3, 7).tolist() == [0, 0, 0, 0, 0, 3, 3]
    assert paying_hits(runs, 1, 4, 7).tolist() == [0] * 7


@pytest.mark.parametrize("c_s", [0.0, 5.12e-10])
@pytest.mark.parametrize("fixed_s", [0.0, 1e-6, 0.0441, 0.735])
def test_from_the_crossover_on_a_restore_is_cheaper_and_below_it_is_not(c_s: float, fixed_s: float) -> None:
    recompute, per_token_s = RecomputeCost(0.1, 28.4e-6, c_s), 13.539e-6
    n = crossover_tokens(recompute, fixed_s, per_token_s)
    assert n is not None
    assert recompute.skipped_s(0, n) > fixed_s + per_token_s * n
    assert n == 1 or recompute.skipped_s(0, n - 1) <= fixed_s + per_token_s * (n - 1)


def test_a_restore_that_is_dearer_a_token_pays_only_where_attention_makes_computing_dearer_still() -> None:
    assert crossover_tokens(RecomputeCost(0.0, 1e-6, 0.0), 0.0, 2e-6) is None
    assert crossover_tokens(RecomputeCost(0.0, 1e-6, 0.0), 1e-3, 1e-6) is None
    assert crossover_tokens(RecomputeCost(0.0, 0.0, 2**-20), 0.0, 2**-10) == 1025


def test_the_published_restore_breaks_even_at_about_three_thousand_tokens() -> None:
    # 44 ms of the L2 path's own and 13.539 us a token, against 28.4 us a token to compute
    assert crossover_tokens(RecomputeCost(0.0, 28.4e-6, 0.0), 0.0441, 13.539e-6) == pytest.approx(3_000, rel=0.03)


@pytest.mark.shared
def test_on_the_recorded_conversation_a_crossover_of_one_page_changes_nothing_and_six_pages_cost_hits() -> None:
    opened = open_trace(shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz"))
    window = window_of(opened, opened.block_tokens)
    runs = runs_of(window)
    curve = curve_of(window, runs=runs)
    every = paying_hits(runs, 246, 1, len(curve.hits))
    assert np.array_equal(every, np.maximum(curve.hits - curve.at(246), 0))
    long = paying_hits(runs, 246, 6, len(curve.hits))
    assert (long <= every).all()
    assert 0.8 < long[-1] / every[-1] < 0.999


def test_a_line_is_fitted_to_measured_restores_and_few_or_equal_ones_give_none() -> None:
    tokens = [512 * n for n in range(1, 41)]
    noisy = [(0.0441 + 13.539e-6 * n) * (1.05 if n // 512 % 2 else 0.95) for n in tokens]
    line = restore_line(tokens, noisy)
    assert line is not None
    assert line == (pytest.approx(0.0441, rel=0.1), pytest.approx(13.539e-6, rel=0.1))
    assert restore_line(tokens[:9], noisy[:9]) is None
    assert restore_line([512] * 40, noisy) is None
    assert restore_line(tokens, [0.0] * 40) is None
    falling = restore_line(tokens, [0.1 - 1e-6 * n for n in tokens])
    assert falling is not None
    assert falling[1] == 0.0  # a restore of more tokens is not cheaper
