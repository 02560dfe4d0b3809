"""Costs that a file gives stand in for those of the steps, each by itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_trials import made_trial

from hicachectl.runtime.cost import CostModel, LinearCost, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.given_costs import GivenCosts, refuted, with_given
from hicachectl.tuning.sizing.measured_costs import Traffic
from hicachectl.tuning.sizing.pool_costs import pool_costs

QWEN = preset("qwen3-8b", 64)
TRAFFIC = Traffic(n_requests=10, input_tokens=80_000, whole_page_tokens=75_000, span_s=60.0)
NO_POOL, A_POOL = pool_costs([], 60.0), pool_costs([made_trial(1024)], 60.0)
MEASURED = Costs(3e-5, 9e-6, 0.5, 4_800_000, 24.0, storage_restore_s=2e-5)
HOST = LinearCost(0.04, 1 / 20e9)
RECOMPUTE = RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)


def base(model: Any = QWEN) -> Any:
    """As much of a replay's configuration as the costs read."""
    return SimpleNamespace(geometry=QWEN, compute=SimpleNamespace(model=model), costs=CostModel(RECOMPUTE))


def test_a_given_restore_is_that_of_the_mean_input_and_has_its_crossover() -> None:
    costs, why = with_given(GivenCosts(HOST, None, 0.25), None, "no step restored anything", base(), TRAFFIC, NO_POOL)
    assert why is None
    assert costs is not None
    per_token = QWEN.bytes_per_token / 20e9
    assert costs.restore_s == pytest.approx(0.04 / 8000 + per_token)
    assert costs.prefill_s == pytest.approx(RECOMPUTE.request_s(0, 8000) / 8000)
    assert (costs.make_s_per_gib, costs.tokens_per_h, costs.storage_restore_s) == (0.25, 4_500_000, None)
    assert costs.carry_s_per_gib_h is None
    n = costs.crossover_tokens
    assert n is not None
    assert RECOMPUTE.skipped_s(0, n) > 0.04 + per_token * n
    assert RECOMPUTE.skipped_s(0, n - 1) <= 0.04 + per_token * (n - 1)


def test_a_given_storage_read_is_added_to_the_restore_and_without_it_the_steps_know() -> None:
    given = GivenCosts(HOST, LinearCost(0.1, 1e-9), 0.25)
    costs, _ = with_given(given, MEASURED, None, base(), TRAFFIC, A_POOL)
    assert costs is not None
    assert costs.storage_restore_s == pytest.approx(costs.restore_s + 0.1 / 8000 + QWEN.bytes_per_token * 1e-9)
    costs, _ = with_given(replace(given, storage_read=None), MEASURED, None, base(), TRAFFIC, A_POOL)
    assert costs is not None
    assert costs.storage_restore_s == MEASURED.storage_restore_s


def test_a_given_storage_read_alone_goes_on_top_of_the_restore_that_the_steps_measured() -> None:
    costs, _ = with_given(GivenCosts(storage_read=LinearCost(0.1, 1e-9)), MEASURED, None, base(), TRAFFIC, A_POOL)
    assert costs is not None
    assert costs.storage_restore_s == pytest.approx(9e-6 + 0.1 / 8000 + QWEN.bytes_per_token * 1e-9)
    assert costs.restore_s == MEASURED.restore_s


def test_a_given_gib_alone_replaces_that_of_the_steps_alone() -> None:
    assert with_given(GivenCosts(make_s_per_gib=0.25), MEASURED, None, base(), TRAFFIC, A_POOL) == (
        replace(MEASURED, make_s_per_gib=0.25), None,
    )  # fmt: skip
    assert with_given(GivenCosts(make_s_per_gib=0.25), None, "why", base(), TRAFFIC, NO_POOL) == (None, "why")
    assert with_given(GivenCosts(), None, "why", base(), TRAFFIC, NO_POOL) == (None, "why")


def test_what_a_gib_costs_comes_from_a_step_where_no_file_says_it_and_must_be_known() -> None:
    costs, _ = with_given(GivenCosts(HOST), None, "why", base(), TRAFFIC, A_POOL)
    assert costs is not None
    assert costs.make_s_per_gib == A_POOL.make_s_per_gib
    costs, why = with_given(GivenCosts(HOST), None, "why", base(), TRAFFIC, NO_POOL)
    assert costs is None
    assert why is not None
    assert "bench pool" in why


def test_the_prefill_must_be_that_of_the_pages_and_the_trace_must_span_time() -> None:
    given = GivenCosts(HOST, None, 0.25)
    assert with_given(given, None, "why", base(model=None), TRAFFIC, A_POOL) == (None, "why")
    assert with_given(given, None, "why", base(model=preset("mla-78", 64)), TRAFFIC, A_POOL) == (None, "why")
    assert with_given(given, None, "why", base(), replace(TRAFFIC, span_s=0.0), A_POOL) == (None, "why")


def test_a_given_restore_is_refuted_by_those_of_the_steps_alone_that_do_not_pay() -> None:
    given, dear = GivenCosts(HOST, LinearCost(0.1, 1e-9), 0.25), replace(MEASURED, restore_s=4e-5, source="the step")
    left, measured = refuted(given, dear)
    assert left == replace(given, host_read=None)
    assert measured == replace(dear, source="the step, where every pool lost time, not by --costs")
    for restores in (MEASURED, None):
        assert refuted(given, restores) == (given, restores)
    assert refuted(left, dear) == (left, dear)
