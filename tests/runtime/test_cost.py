"""The cost model on samples whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.runtime.cost import CostModel, FitMethod, LinearCost, Path, PathCost, RecomputeCost

MB = 1_000_000
PRIOR = LinearCost(1e-3, 1e-9)


def fed(samples: list[tuple[int, float]], prior: LinearCost = PRIOR) -> PathCost:
    cost = PathCost(prior)
    for n_bytes, wall_s in samples:
        cost.observe(n_bytes, wall_s)
    return cost


def relative_error(cost: PathCost, samples: list[tuple[int, float]], fixed: float, slope: float) -> float:
    return sum(((fixed + slope * n - wall) / wall) ** 2 for n, wall in samples)


def test_before_the_first_sample_the_prior_rules() -> None:
    cost = PathCost(PRIOR)
    assert cost.predict(MB) == pytest.approx(2e-3)
    assert cost.state(Path.HOST_READ).method is FitMethod.PRIOR


def test_moving_nothing_costs_nothing() -> None:
    assert PathCost(PRIOR).predict(0) == 0
    assert fed([(MB, 1.0)]).predict(0) == 0


@settings(deadline=None)
@given(st.floats(0, 1e-2), st.floats(1e-12, 1e-8), st.lists(st.integers(1, 1000), min_size=4, max_size=40, unique=True))
def test_exact_samples_of_varied_sizes_give_their_line(fixed: float, slope: float, sizes: list[int]) -> None:
    window = sizes[-32:]
    if np.std(window) < 0.1 * np.mean(window):
        return
    cost = fed([(n * MB, fixed + slope * n * MB) for n in sizes])
    for n_bytes in (MB, 50 * MB, 1000 * MB):
        assert cost.predict(n_bytes) == pytest.approx(fixed + slope * n_bytes, rel=1e-6)


def test_noisy_samples_give_the_line_within_the_noise() -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 200, 32) * MB
    walls = (4e-4 + 2e-10 * sizes) * rng.normal(1, 0.05, 32)
    cost = fed(list(zip(sizes.tolist(), walls.tolist(), strict=True)))
    assert cost.fixed_s == pytest.approx(4e-4, rel=0.2)
    assert cost.per_byte_s == pytest.approx(2e-10, rel=0.1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 100), st.floats(1e-4, 1.0)), min_size=4, max_size=32))
def test_no_line_with_both_numbers_at_least_0_fits_better(samples: list[tuple[int, float]]) -> None:
    cost = fed(samples)
    if cost.state(Path.HOST_READ).method is not FitMethod.FITTED:
        return
    assert cost.fixed_s >= 0
    assert cost.per_byte_s >= 0
    error = relative_error(cost, samples, cost.fixed_s, cost.per_byte_s)
    step_fixed, step_slope = 0.01 * (cost.fixed_s + 1e-4), 0.01 * (cost.per_byte_s + 1e-5)
    for fixed in (max(0.0, cost.fixed_s - step_fixed), cost.fixed_s, cost.fixed_s + step_fixed):
        for slope in (max(0.0, cost.per_byte_s - step_slope), cost.per_byte_s, cost.per_byte_s + step_slope):
            assert error <= relative_error(cost, samples, fixed, slope) + 1e-9


def test_a_rate_that_falls_with_size_does_not_give_a_negative_fixed_cost() -> None:
    cost = fed([(n * MB, 1e-9 * (n * MB) ** 1.2) for n in (1, 2, 4, 8, 16)])
    assert cost.fixed_s == 0
    assert cost.per_byte_s > 0


def test_a_transfer_that_gets_faster_with_size_does_not_give_a_negative_slope() -> None:
    cost = fed([(n * MB, 0.01 - n * 1e-4) for n in (1, 2, 4, 8, 16)])
    assert cost.per_byte_s == 0
    assert cost.fixed_s > 0


def test_sizes_that_do_not_vary_scale_the_prior_by_a_moving_average() -> None:
    cost = fed([(MB, 4e-3)])
    assert cost.predict(MB) == pytest.approx(4e-3)
    cost.observe(MB, 8e-3)
    assert cost.predict(MB) == pytest.approx(0.8 * 4e-3 + 0.2 * 8e-3)
    assert cost.fixed_s / cost.per_byte_s == pytest.approx(PRIOR.fixed_s / PRIOR.per_byte_s)
    assert cost.state(Path.HOST_READ).method is FitMethod.SCALED


def test_a_first_transfer_with_a_compilation_in_it_does_not_decide_for_good() -> None:
    cost = fed([(MB, 0.8)])
    assert cost.predict(MB) == pytest.approx(2e-3)
    state = cost.state(Path.HOST_READ)
    assert (state.method, state.n_observed, state.n_window) == (FitMethod.PRIOR, 1, 0)
    cost.observe(MB, 1e-3)
    assert cost.predict(MB) == pytest.approx(1e-3)
    assert cost.state(Path.HOST_READ).n_window == 2


def test_a_path_that_is_slow_twice_is_slow() -> None:
    cost = fed([(MB, 0.8), (MB, 0.6)])
    assert cost.predict(MB) == pytest.approx(0.6)
    assert cost.state(Path.HOST_READ).n_window == 2


def test_one_stalled_transfer_of_a_size_that_does_not_vary_moves_the_average_by_its_bound_alone() -> None:
    cost = fed([(MB, 2e-3), (MB, 2.0)])
    assert cost.predict(MB) == pytest.approx(2e-3 * (0.8 + 0.2 * 4))
    for _ in range(40):
        cost.observe(MB, 2.0)
    assert cost.predict(MB) == pytest.approx(2.0, rel=0.01)


def test_after_a_fit_sizes_that_stop_varying_scale_the_fitted_line() -> None:
    truth = LinearCost(5e-4, 3e-10)
    cost = fed([(n * MB, truth.seconds(n * MB)) for n in (1, 10, 50, 100)])
    assert cost.state(Path.HOST_READ).method is FitMethod.FITTED
    for _ in range(64):
        cost.observe(10 * MB, 2 * truth.seconds(10 * MB))
        cost.predict(MB)
    assert cost.state(Path.HOST_READ).method is FitMethod.SCALED
    assert cost.predict(10 * MB) == pytest.approx(2 * truth.seconds(10 * MB), rel=0.05)
    assert cost.fixed_s > 0


def test_a_clock_tick_among_real_times_still_gives_a_cost() -> None:
    cost = fed([(MB, 1e-9), (40 * MB, 1.0), (2 * MB, 0.1), (90 * MB, 2.0)])
    assert cost.fixed_s >= 0
    assert cost.per_byte_s > 0


def test_a_change_is_followed_within_a_window() -> None:
    sizes = [1, 5, 20, 60] * 8
    cost = fed([(n * MB, 1e-9 * n * MB) for n in sizes] + [(n * MB, 1e-4 + 4e-9 * n * MB) for n in sizes])
    assert cost.per_byte_s == pytest.approx(4e-9)
    assert cost.state(Path.HOST_READ).n_window == 32
    assert cost.state(Path.HOST_READ).n_observed == 64


def test_one_stalled_transfer_hardly_bends_the_line() -> None:
    samples = [(n * MB, 1e-4 + 1e-10 * n * MB) for n in range(1, 32)]
    cost = fed([*samples, (16 * MB, 1.0)])
    assert cost.predict(30 * MB) == pytest.approx(1e-4 + 1e-10 * 30 * MB, rel=0.05)


def test_a_prediction_does_not_modify() -> None:
    cost = fed([(MB, 1e-3), (9 * MB, 2e-3), (4 * MB, 1.5e-3), (2 * MB, 1.2e-3)])
    before = cost.state(Path.HOST_READ)
    assert [cost.predict(n) for n in (1, MB, 0)] == [cost.predict(n) for n in (1, MB, 0)]
    assert cost.state(Path.HOST_READ) == before


@pytest.mark.parametrize(
    ("n_bytes", "wall_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, float("nan")), (1, float("inf"))]
)
def test_what_is_not_a_transfer_is_not_a_sample(n_bytes: int, wall_s: float) -> None:
    cost = PathCost(PRIOR)
    with pytest.raises(UsageError):
        cost.observe(n_bytes, wall_s)
    assert cost.state(Path.HOST_READ).n_observed == 0


def test_impossible_settings_are_refused() -> None:
    for bad in ((-1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0)):
        with pytest.raises(UsageError):
            LinearCost(*bad)
    with pytest.raises(UsageError):
        RecomputeCost(0.0, -1e-9, 0.0)
    with pytest.raises(UsageError):
        CostModel(RecomputeCost(0, 1e-5, 0), margin=0.9)
    with pytest.raises(UsageError):
        PathCost(PRIOR, window=3)


recompute_costs = st.builds(RecomputeCost, st.floats(0, 0.1), st.floats(0, 1e-4), st.floats(0, 1e-9))


@settings(deadline=None)
@given(recompute_costs, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_recompute_of_two_ranges_is_that_of_one_plus_a_call(
    cost: RecomputeCost, start: int, first: int, second: int
) -> None:
    middle, end = start + first, start + first + second
    split = cost.skipped_s(start, middle) + cost.skipped_s(middle, end)
    assert split == pytest.approx(cost.skipped_s(start, end), rel=1e-9, abs=1e-15)
    if end > start:
        assert cost.seconds(start, end) == pytest.approx(cost.a_s + split, rel=1e-9, abs=1e-15)


def test_recomputing_nothing_costs_nothing_and_later_tokens_cost_more() -> None:
    cost = RecomputeCost(0.01, 3e-5, 4e-10)
    assert cost.seconds(500, 500) == 0
    assert cost.seconds(16384, 24576) > cost.seconds(0, 8192)


@pytest.mark.parametrize(
    "truth", [RecomputeCost(0.02, 3e-5, 4e-10), RecomputeCost(0.0, 3e-5, 0.0), RecomputeCost(0.05, 0.0, 4e-10)]
)
def test_exact_prefill_samples_give_their_cost(truth: RecomputeCost) -> None:
    ranges = [(0, 512), (0, 4096), (4096, 8192), (0, 32768), (30000, 32768)]
    fitted = RecomputeCost.fit([(start, end, truth.seconds(start, end)) for start, end in ranges])
    for start, end in ranges:
        assert fitted.seconds(start, end) == pytest.approx(truth.seconds(start, end), rel=1e-6)
    assert fitted.b_s == pytest.approx(truth.b_s, abs=1e-10)
    assert fitted.c_s == pytest.approx(truth.c_s, abs=1e-14)


def test_a_measured_prefill_is_fitted_within_a_few_percent() -> None:
    # docs/facts.md#h200-prefill: Qwen3-8B shapes, one H200, eager: 8,192, 16,384 and 32,768 tokens; 53 us a token from 16K on.
    samples = [(0, 8192, 0.273), (0, 16384, 0.619), (0, 32768, 1.481)]
    cost = RecomputeCost.fit(samples)
    for start, end, seconds in samples:
        assert cost.seconds(start, end) == pytest.approx(seconds, rel=0.05)
    assert cost.skipped_s(16384, 32768) / 16384 == pytest.approx(53e-6, rel=0.05)
    assert min(cost.a_s, cost.b_s, cost.c_s) >= 0


def test_samples_that_are_not_prefills_cannot_be_fitted() -> None:
    for bad in ([], [(5, 5, 1.0)], [(0, 5, 0.0)], [(0, 5, float("inf"))]):
        with pytest.raises(UsageError):
            RecomputeCost.fit(bad)


def test_each_path_learns_alone() -> None:
    model = CostModel(RecomputeCost(0, 1e-5, 0))
    before = {path: model.predict(path, MB) for path in Path}
    model.observe(Path.HOST_READ, MB, 3e-4)
    assert model.predict(Path.HOST_READ, MB) == pytest.approx(3e-4)
    assert all(model.predict(path, MB) == before[path] for path in Path if path is not Path.HOST_READ)
    assert [state.path for state in model.state().paths] == [path.value for path in Path]


def test_a_restore_from_storage_pays_both_ways() -> None:
    model = CostModel(
        RecomputeCost(0, 1e-5, 0),
        priors={Path.HOST_READ: LinearCost(1.0, 0.01), Path.STORAGE_READ: LinearCost(10.0, 0.1)},
    )
    assert model.restore_s(3, 0, 100) == pytest.approx(1 + 3)
    assert model.restore_s(0, 2, 100) == pytest.approx(1 + 2 + 10 + 20)
    assert model.restore_s(3, 2, 100) == pytest.approx(1 + 5 + 10 + 20)
    assert model.restore_s(0, 0, 100) == 0
