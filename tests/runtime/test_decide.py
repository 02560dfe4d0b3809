"""The restore decision against trying every length."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.runtime.cost import CostModel, LinearCost, Path, RecomputeCost
from hicachectl.runtime.decide import RestoreReason, restore

PAGE_TOKENS, PAGE_BYTES = 4, 100


def model(
    host: tuple[float, float], storage: tuple[float, float], recompute: tuple[float, float, float], margin: float = 1.1
) -> CostModel:
    priors = {Path.HOST_READ: LinearCost(*host), Path.STORAGE_READ: LinearCost(*storage)}
    return CostModel(RecomputeCost(*recompute), priors=priors, margin=margin)


def benefit(device: int, host: int, n: int, costs: CostModel) -> float:
    """The definition: tokens not computed, less the margin times the bytes moved."""
    if n == 0:
        return 0.0
    a, b, c = costs.recompute.a_s, costs.recompute.b_s, costs.recompute.c_s
    end_of_request = (device + n) * PAGE_TOKENS + 1

    def prefill(start: int) -> float:
        return a + b * (end_of_request - start) + c * (end_of_request**2 - start**2)

    moved = costs.predict(Path.HOST_READ, n * PAGE_BYTES)
    if n > host:
        moved += costs.predict(Path.STORAGE_READ, (n - host) * PAGE_BYTES)
    return prefill(device * PAGE_TOKENS) - prefill((device + n) * PAGE_TOKENS) - costs.margin * moved


rates = st.floats(0, 1.0, allow_subnormal=False)
lines = st.tuples(rates.map(lambda x: x * 20), rates.map(lambda x: x / 20 + 1e-6))
models = st.builds(model, lines, lines, st.tuples(rates, rates, rates.map(lambda x: x / 100)), st.floats(1, 2))
pages = st.integers(0, 12)


@settings(max_examples=400, deadline=None)
@given(pages, pages, pages, pages, models, st.none() | st.integers(0, 30))
def test_no_allowed_length_has_a_better_benefit(
    device: int, host: int, storage: int, more: int, costs: CostModel, budget: int | None
) -> None:
    chosen = restore(
        device, host, storage, device + host + storage + more, PAGE_TOKENS, PAGE_BYTES, costs, "cost", budget
    )
    allowed = host + storage if budget is None else min(host + storage, budget)
    every = [benefit(device, host, n, costs) for n in range(allowed + 1)]
    assert chosen.n_pages <= allowed
    assert chosen.benefit_s == pytest.approx(benefit(device, host, chosen.n_pages, costs), rel=1e-6, abs=1e-6)
    assert chosen.benefit_s >= max(every) - 1e-6
    assert chosen.benefit_s >= 0
    assert chosen.pages_host == min(chosen.n_pages, host)
    assert chosen.benefit_s == pytest.approx(chosen.saved_s - costs.margin * chosen.moved_s)


@settings(deadline=None)
@given(pages, pages, pages, models, st.integers(0, 30))
def test_always_restores_all_the_budget_allows(
    device: int, host: int, storage: int, costs: CostModel, budget: int
) -> None:
    chosen = restore(device, host, storage, device + host + storage, PAGE_TOKENS, PAGE_BYTES, costs, "always", budget)
    assert chosen.n_pages == min(host + storage, budget)
    assert chosen.pages_host == min(host, budget)


CHEAP = model((0.001, 1e-6), (0.001, 1e-6), (0.0, 1.0, 0.0))
DEAR = model((1000.0, 1.0), (1000.0, 1.0), (0.0, 1.0, 0.0))
SLOW_STORAGE = model((0.001, 1e-6), (1000.0, 1.0), (0.0, 1.0, 0.0))


@pytest.mark.parametrize(
    ("costs", "host", "storage", "budget", "mode", "pages_chosen", "reason"),
    [
        (CHEAP, 3, 2, None, "cost", (3, 2), RestoreReason.ALL),
        (CHEAP, 0, 0, None, "cost", (0, 0), RestoreReason.NOTHING),
        (CHEAP, 0, 0, 0, "always", (0, 0), RestoreReason.NOTHING),
        (DEAR, 3, 2, None, "cost", (0, 0), RestoreReason.RESTORE_DEARER),
        (DEAR, 3, 2, 1, "cost", (0, 0), RestoreReason.RESTORE_DEARER),
        (DEAR, 3, 2, None, "always", (3, 2), RestoreReason.ALL),
        (SLOW_STORAGE, 3, 2, None, "cost", (3, 0), RestoreReason.RESTORE_DEARER),
        (SLOW_STORAGE, 3, 2, 3, "cost", (3, 0), RestoreReason.RESTORE_DEARER),
        (SLOW_STORAGE, 3, 2, 2, "cost", (2, 0), RestoreReason.BUDGET),
        (CHEAP, 3, 2, 4, "cost", (3, 1), RestoreReason.BUDGET),
        (CHEAP, 3, 2, 0, "cost", (0, 0), RestoreReason.BUDGET),
        (CHEAP, 3, 2, 4, "always", (3, 1), RestoreReason.BUDGET),
        (CHEAP, 3, 2, 5, "cost", (3, 2), RestoreReason.ALL),
    ],
)
def test_the_reason_says_what_bounded_the_restore(costs, host, storage, budget, mode, pages_chosen, reason) -> None:  # type: ignore[no-untyped-def]
    chosen = restore(1, host, storage, 9, PAGE_TOKENS, PAGE_BYTES, costs, mode, budget)
    assert (chosen.pages_host, chosen.pages_storage) == pages_chosen
    assert chosen.reason is reason


def test_a_budget_too_small_to_pay_is_the_reason_and_not_the_cost() -> None:
    costs = model((10.0, 1e-6), (10.0, 1e-6), (0.0, 1.0, 0.0))  # 3 pages x 4 tokens pay for the fixed cost, 2 do not
    assert restore(0, 3, 0, 3, PAGE_TOKENS, PAGE_BYTES, costs).n_pages == 3
    chosen = restore(0, 3, 0, 3, PAGE_TOKENS, PAGE_BYTES, costs, "cost", 2)
    assert (chosen.n_pages, chosen.reason) == (0, RestoreReason.BUDGET)


def test_the_same_pages_pay_deep_in_a_request_and_not_at_its_start() -> None:
    costs = model((60.0, 1e-6), (1.0, 1e-6), (0.0, 1.0, 0.01))
    assert restore(0, 4, 0, 104, PAGE_TOKENS, PAGE_BYTES, costs).n_pages == 0
    assert restore(100, 4, 0, 104, PAGE_TOKENS, PAGE_BYTES, costs).n_pages == 4


def test_the_fixed_part_of_a_prefill_is_never_saved() -> None:
    costs = model((10.0, 1e-6), (1.0, 1e-6), (1000.0, 0.001, 0.0))
    assert restore(0, 4, 0, 4, PAGE_TOKENS, PAGE_BYTES, costs).n_pages == 0


def test_a_decision_over_100_000_pages_takes_under_a_millisecond() -> None:
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        restore(10, 60_000, 40_000, 100_010, PAGE_TOKENS, PAGE_BYTES, CHEAP, "cost", 99_999)
        best = min(best, time.perf_counter() - start)
    assert best < 1e-3


def test_segments_longer_than_the_request_are_refused() -> None:
    with pytest.raises(UsageError, match="the request has 5"):
        restore(2, 2, 2, 5, PAGE_TOKENS, PAGE_BYTES, CHEAP)
    with pytest.raises(UsageError, match="-1"):
        restore(0, -1, 2, 5, PAGE_TOKENS, PAGE_BYTES, CHEAP)
