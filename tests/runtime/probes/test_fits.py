"""Curves from measured seconds: exact data gives back what made it, noisy data gives an interval that holds it."""

from __future__ import annotations

import numpy as np
import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.probes.fits import LINE, QUADRATIC, Timing, fit, resampled

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def test_exact_times_of_a_line_give_its_coefficients_and_no_residual() -> None:
    found = fit([Timing(n, 0.7791 + 13.539e-6 * n) for n in LENGTHS], LINE)
    assert found.a_s == pytest.approx(0.7791, rel=1e-9)
    assert found.b_s == pytest.approx(13.539e-6, rel=1e-9)
    assert found.c_s == 0.0
    assert found.residual == pytest.approx(0.0, abs=1e-9)
    assert (found.from_tokens, found.to_tokens, found.n_samples) == (512, 16384, 6)


def test_the_prefill_measured_on_one_h200_gives_the_coefficients_of_the_configuration() -> None:
    """docs/facts.md#h200-prefill, from 2,000 tokens up; the fit of `run.compute` is within 1.4 %."""
    measured = [(2000, 66.7), (3500, 113), (8192, 273), (16384, 619), (32768, 1481)]
    found = fit([Timing(n, ms / 1e3) for n, ms in measured], QUADRATIC)
    assert found.a_s == pytest.approx(7.65e-3, rel=0.02)
    assert found.b_s == pytest.approx(2.84e-5, rel=0.01)
    assert found.c_s == pytest.approx(5.12e-10, rel=0.01)
    assert found.residual is not None
    assert found.residual < 0.02


def test_a_coefficient_that_would_be_negative_is_zero() -> None:
    found = fit([Timing(n, 1e-5 * n - 1e-3) for n in LENGTHS], LINE)
    assert found.a_s == 0.0
    assert found.b_s > 0


def test_the_intervals_hold_what_made_noisy_times_and_shrink_with_the_noise() -> None:
    rng = np.random.default_rng(3)

    def noisy(scale: float) -> list[Timing]:
        return [Timing(n, (0.05 + 2e-5 * n) * (1 + scale * float(rng.standard_normal()))) for n in LENGTHS * 5]

    wide, narrow = fit(noisy(0.05), LINE), fit(noisy(0.005), LINE)
    for found in (wide, narrow):
        assert found.b_interval_s is not None
        assert found.b_interval_s.low <= 2e-5 <= found.b_interval_s.high
        assert found.c_interval_s is None
    assert wide.b_interval_s is not None
    assert narrow.b_interval_s is not None
    assert wide.b_interval_s.high - wide.b_interval_s.low > 4 * (narrow.b_interval_s.high - narrow.b_interval_s.low)


def test_the_same_samples_give_the_same_interval() -> None:
    timings = [Timing(n, 0.01 + 1e-5 * n + 1e-4 * (n % 7)) for n in LENGTHS]
    assert fit(timings, LINE) == fit(timings, LINE)


def test_as_many_samples_as_coefficients_give_no_interval_and_say_so() -> None:
    found = fit([Timing(100, 1.0), Timing(200, 2.0)], LINE)
    assert (found.residual, found.a_interval_s, found.b_interval_s) == (None, None, None)
    assert found.reason is not None
    assert "2 samples for 2 coefficients" in found.reason
    assert resampled([Timing(100, 1.0), Timing(200, 2.0)], LINE).shape == (1, 2)


@pytest.mark.parametrize("bad", [Timing(0, 1.0), Timing(1, 0.0), Timing(1, float("nan"))])
def test_what_is_no_sample_is_refused(bad: Timing) -> None:
    with pytest.raises(UsageError, match="is not a sample"):
        fit([Timing(1, 1.0), Timing(2, 1.0), bad], LINE)


def test_one_length_measured_often_is_no_line() -> None:
    with pytest.raises(UsageError, match="1 different lengths for a curve of 2"):
        fit([Timing(512, 1.0)] * 5, LINE)
