"""Costs from steps: which trial they are of, what is not known and why, and restores too short to pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_trials import made_trial
from made_trials import restores as slower

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import ComputeSource, ReplayConfig
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.measured_costs import Traffic, costs_of
from hicachectl.tuning.sizing.pool_costs import pool_costs
from hicachectl.tuning.sizing.restores import Restores
from hicachectl.tuning.sizing.trial import Trial

GEOMETRY = preset("tiny-4k", 512)
BASE = ReplayConfig(
    GEOMETRY, CacheConfig(), Layout.PAGE_FIRST_DIRECT, Backend.CPU, None, 0, CostModel(RecomputeCost(0.01, 28.4e-6, 0.0)),
    compute=ComputeSource(GEOMETRY, "made up"),
)  # fmt: skip
TRAFFIC = Traffic(n_requests=100, input_tokens=1_000_000, whole_page_tokens=1_000_000, span_s=3600.0)


def found(*trials: Trial, base: ReplayConfig = BASE, traffic: Traffic = TRAFFIC) -> tuple[Costs | None, str | None]:
    return costs_of(trials, base, traffic, pool_costs(trials, traffic.span_s, "not made"))


def restores(fixed_s: float, per_token_s: float) -> Restores:
    pages = tuple(1 + n % 20 for n in range(200))
    return Restores(tuple(range(200)), pages, tuple(fixed_s + per_token_s * 512 * n for n in pages))


def test_restores_too_short_to_pay_come_from_the_line_through_the_measured_ones() -> None:
    costs, why = found(made_trial(0), made_trial(100, restores=restores(0.0441, 13.539e-6)))
    assert (costs is not None, why) == (True, None)
    assert costs is not None
    assert costs.crossover_tokens == pytest.approx(2968, abs=2)
    assert costs.source == "the step of 100 pages"
    assert costs.prefill_s == pytest.approx(28.4e-6 + 0.01 / 10_000)
    dear, _ = found(made_trial(100, restores=restores(0.0, 30e-6)))
    assert dear is not None
    assert dear.crossover_tokens is None
    few, _ = found(made_trial(100))
    assert few is not None
    assert few.crossover_tokens == 0


def test_storage_costs_what_the_last_step_that_read_from_it_waited() -> None:
    small, large = made_trial(100, storage_restore_s_per_token=5e-6), made_trial(200)
    costs, _ = found(small, large)
    assert costs is not None
    assert costs.storage_restore_s == 5e-6
    without, _ = found(large)
    assert without is not None
    assert without.storage_restore_s is None


@pytest.mark.parametrize(
    ("trials", "base", "traffic", "why"),
    [
        ((made_trial(100),), replace(BASE, compute=ComputeSource(None, None)), TRAFFIC, "not named"),
        ((made_trial(100),), replace(BASE, compute=ComputeSource(preset("qwen3-8b", 512), "x")), TRAFFIC, "qwen3-8b"),
        ((made_trial(0),), BASE, TRAFFIC, "no step made a pool"),
        ((made_trial(100),), BASE, replace(TRAFFIC, span_s=0.0), "spans no time"),
    ],
)
def test_costs_that_are_not_known_say_why(
    trials: tuple[Trial, ...], base: ReplayConfig, traffic: Traffic, why: str
) -> None:
    costs, reason = found(*trials, base=base, traffic=traffic)
    assert costs is None
    assert why in (reason or "")


def test_a_carry_that_no_step_measured_is_not_known_and_counts_as_none() -> None:
    steps = made_trial(100), made_trial(200)
    costs, _ = found(*steps)
    assert costs is not None
    assert costs.carry_s_per_gib_h is None
    assert costs.pool_s_per_gib_h == costs.make_s_per_gib / costs.lives_h
    twice = pool_costs(
        [replace(one, restores=slower(1000, 1e-3)) for one in steps], 3600.0, replace(steps[0], restores=slower(1000, 1e-3))
    )  # fmt: skip
    measured, _ = costs_of(steps, BASE, TRAFFIC, twice)
    assert measured is not None
    assert measured.carry_s_per_gib_h == 0.0
