"""Where restoring becomes cheaper: worked figures, both limits, and how sure the length is."""

from __future__ import annotations

import numpy as np
import pytest

from hicachectl.runtime.cost import RecomputeCost
from hicachectl.runtime.probes.break_even import Verdict, break_even, crossing, saved_s
from hicachectl.runtime.probes.fits import LINE, QUADRATIC, Fit, Timing, fit, resampled

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
H200 = RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)
"""docs/facts.md#h200-prefill"""


def line(a_s: float, b_s: float) -> Fit:
    return fit([Timing(n, a_s + b_s * n) for n in LENGTHS], LINE)


def prefill(cost: RecomputeCost) -> Fit:
    return fit([Timing(n, cost.seconds(0, n)) for n in LENGTHS], QUADRATIC)


def test_the_published_restore_of_eight_cards_breaks_even_at_about_3000_tokens() -> None:
    """docs/facts.md#kunlun-break-even: T(n) = 779.1 ms + 13.539 us n, 735 ms of it a floor that a recompute pays too."""
    found = break_even(line(0.7791 - 0.735, 13.539e-6), prefill(RecomputeCost(0.735, 2.82e-5, 0.0)), 64)
    assert found.verdict is Verdict.FROM
    assert found.n_tokens == pytest.approx(3000, rel=0.01)
    assert not found.beyond_measured


def test_on_one_h200_the_fixed_cost_of_a_suffix_decides_not_the_bandwidth() -> None:
    """docs/facts.md#h200-prefill: a 64-token suffix costs 41 to 77 ms, moving a token 2.7 us; the speed-up passes 1 at 2,000 tokens."""
    at = [crossing(fixed_s - H200.a_s, 147_456 / 54.7e9, H200.b_s, H200.c_s) for fixed_s in (0.041, 0.0608, 0.077)]
    assert at == sorted(at, key=lambda n: n or 0)
    assert at[1] == pytest.approx(2000, rel=0.05)
    assert at[0] is not None
    assert at[2] is not None
    assert 1000 < at[0] < at[2] < 3500
    half = crossing(0.0608 - H200.a_s, 2 * 147_456 / 54.7e9, H200.b_s, H200.c_s)
    assert half == pytest.approx(at[1], rel=0.15)


def test_the_crossing_is_where_both_cost_the_same() -> None:
    for restore, compute in (
        ((0.05, 1e-6), (3e-5, 5e-10)),
        ((0.02, 4e-5), (3e-5, 5e-10)),
        ((0.0, 4e-5), (3e-5, 5e-10)),
    ):
        at = crossing(*restore, *compute)
        assert at is not None
        assert restore[0] + restore[1] * at == pytest.approx(compute[0] * at + compute[1] * at * at)


def test_never_where_a_restored_token_costs_as_much_and_attention_adds_nothing() -> None:
    found = break_even(line(1e-3, 4e-5), prefill(RecomputeCost(0.0, 3e-5, 0.0)), 64)
    assert (found.verdict, found.n_tokens) == (Verdict.NEVER, None)
    assert "as much" in found.reason
    assert crossing(0.0, 1e-5, 1e-5, 0.0) is None


def test_always_where_the_first_page_is_cheaper_already() -> None:
    found = break_even(line(1e-6, 1e-6), prefill(H200), 64)
    assert (found.verdict, found.n_tokens) == (Verdict.ALWAYS, 0)
    assert "64 tokens" in found.reason


@pytest.mark.parametrize(
    ("latest", "verdict", "n_tokens", "ends"),
    [(0.0015, Verdict.ALWAYS, 0, (0, 0)), (0.003, Verdict.FROM, 64, (34, 102)), (None, Verdict.FROM, 64, (34, None))],
)
def test_always_is_said_where_the_refits_say_it_too(
    latest: float | None, verdict: Verdict, n_tokens: int, ends: tuple[int, int | None]
) -> None:
    compute = prefill(RecomputeCost(0.0, 3e-5, 0.0))
    theirs = np.array([[0.0, 3e-5, 0.0]])
    last = (0.0015, 4e-5) if latest is None else (latest, 5e-7)
    ours = np.array([(0.001, 5e-7), (0.0015, 5e-7), last])
    found = break_even(line(0.0015, 5e-7), compute, 64, restore_draws=ours, compute_draws=theirs)
    assert (found.verdict, found.n_tokens, (found.low_tokens, found.high_tokens)) == (verdict, n_tokens, ends)
    assert found.beyond_measured
    assert "the first page of 64 tokens" in found.reason
    assert "outside the lengths measured, 512 to 32768" in found.reason
    assert ("not by all refits" in found.reason) == (verdict is Verdict.FROM)


def test_a_length_past_what_was_measured_says_so() -> None:
    found = break_even(line(2.0, 2.5e-5), prefill(RecomputeCost(0.0, 3e-5, 0.0)), 64)
    assert found.n_tokens == pytest.approx(400_000, rel=1e-3)
    assert found.beyond_measured
    assert "512 to 32768" in found.reason


def test_what_is_saved_is_the_difference_and_equals_the_runtime_s_own_sum() -> None:
    restore = line(0.05, 2.7e-6)
    rows = saved_s(restore, prefill(H200), (1024, 4096, 16384, 32768))
    for row in rows:
        assert row.recompute_s == pytest.approx(H200.skipped_s(0, row.n_tokens), rel=1e-6)
        assert row.saved_s == pytest.approx(row.recompute_s - row.restore_s)
        assert row.interval_s is None
    assert rows[0].saved_s < 0 < rows[1].saved_s


def test_the_interval_holds_the_length_and_tells_how_often_it_is_never() -> None:
    wobble = (1.02, 0.97, 1.01, 0.99, 1.03, 0.98, 1.0)
    ours = [Timing(n, (0.05 + 2.7e-6 * n) * w) for n, w in zip(LENGTHS, wobble, strict=True)]
    theirs = [Timing(n, H200.seconds(0, n) * w) for n, w in zip(LENGTHS, reversed(wobble), strict=True)]
    draws = {"restore_draws": resampled(ours, LINE), "compute_draws": resampled(theirs, QUADRATIC)}
    found = break_even(fit(ours, LINE), fit(theirs, QUADRATIC), 64, **draws)
    assert found.low_tokens is not None
    assert found.high_tokens is not None
    assert found.n_tokens is not None
    assert found.low_tokens < found.n_tokens < found.high_tokens
    (row,) = saved_s(fit(ours, LINE), fit(theirs, QUADRATIC), (8192,), **draws)
    assert row.interval_s is not None
    assert row.interval_s.low < row.saved_s < row.interval_s.high

    dear = [Timing(n, (0.01 + 2.75e-5 * n) * w) for n, w in zip(LENGTHS, wobble, strict=True)]
    flat = [Timing(n, 2.8e-5 * n * w) for n, w in zip(LENGTHS, reversed(wobble), strict=True)]
    unsure = break_even(
        fit(dear, LINE), fit(flat, LINE), 64, restore_draws=resampled(dear, LINE), compute_draws=resampled(flat, LINE)
    )
    assert unsure.high_tokens is None
    assert "refits" in unsure.reason


def test_curves_that_share_no_length_say_so_with_both_ranges() -> None:
    restores = fit([Timing(n, 0.05 + 2.7e-6 * n) for n in (512, 1024, 2048)], LINE)
    prefills = fit([Timing(n, H200.seconds(0, n)) for n in (20000, 40000, 100000)], QUADRATIC)
    found = break_even(restores, prefills, 64)
    assert found.beyond_measured
    assert found.reason.startswith(
        "no length was measured both ways: restores of 512 to 2048 tokens, computing of 20000 to 100000"
    )
