"""Seconds by number of tokens: a + b n for a restore, a + b n + c n^2 for a prefill, fitted to measured times. Pure.

Least squares of relative errors, since timing noise grows with the time, and no coefficient below 0: as the online cost model
fits (`runtime/cost.py`). The intervals come from fitting again with the residuals dealt out anew (residual bootstrap, residuals
widened by the degrees of freedom): they cover timing noise around the curve, not a curve of another shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.least_squares import nonnegative_least_squares

__all__ = ["LINE", "QUADRATIC", "Fit", "Interval", "Timing", "fit", "resampled"]

Floats = npt.NDArray[np.float64]
LINE, QUADRATIC = 2, 3
"""How many coefficients: a + b n, or a + b n + c n^2."""
_DRAWS = 400
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured call: tokens, and the seconds they took."""

    n_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Where 95 of 100 refits end up: [low, high], in the unit of what it belongs to."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted curve: `a_s` seconds a call, `b_s` a token, `c_s` a token squared (0 for a line).

    `residual` is the root mean square of the relative errors, corrected by the degrees of freedom; None, as the intervals are,
    where there are as many samples as coefficients (`reason`). [from_tokens, to_tokens] is what was measured, None where the
    coefficients were given.
    """

    a_s: float
    b_s: float
    c_s: float
    residual: float | None
    a_interval_s: Interval | None
    b_interval_s: Interval | None
    c_interval_s: Interval | None
    n_samples: int
    from_tokens: int | None
    to_tokens: int | None
    reason: str | None = None

    @classmethod
    def given(cls, a_s: float, b_s: float, c_s: float, reason: str) -> Fit:
        """Return a curve whose coefficients were not fitted here; `reason` says where they are from. Pure."""
        return cls(a_s, b_s, c_s, None, None, None, None, 0, None, None, reason)

    def seconds(self, n_tokens: float) -> float:
        """Return the fitted seconds of `n_tokens` in one call. Pure."""
        return self.a_s + self.b_s * n_tokens + self.c_s * n_tokens**2


def fit(timings: Sequence[Timing], n_coefficients: int, *, seed: int = 0) -> Fit:
    """Fit `LINE` or `QUADRATIC` coefficients. Pure; `seed` deals the residuals of the intervals.

    Raises UsageError for a time or a length that is not positive, and for fewer different lengths than coefficients.

    >>> found = fit([Timing(n, 0.7791 + 13.539e-6 * n) for n in (1000, 4000, 16000)], LINE)
    >>> round(found.a_s, 6), round(found.b_s * 1e6, 3)
    (0.7791, 13.539)
    """
    tokens, seconds = _arrays(timings, n_coefficients)
    found = _solve(tokens, seconds, n_coefficients)
    spare = len(timings) - n_coefficients
    residual = reason = None
    a_interval = b_interval = c_interval = None
    if spare > 0:
        errors = _columns(tokens, n_coefficients) @ found / seconds - 1.0
        residual = math.sqrt(float(np.sum(errors**2)) / spare)
        draws = resampled(timings, n_coefficients, seed=seed)
        bounds = np.percentile(draws, _PERCENTILES, axis=0)
        a_interval, b_interval, *rest = (Interval(float(low), float(high)) for low, high in bounds.T)
        c_interval = rest[0] if rest else None
    else:
        reason = f"{len(timings)} samples for {n_coefficients} coefficients: nothing left to tell the error from"
    a_s, b_s, c_s = (*(float(x) for x in found), 0.0)[:3]
    return Fit(
        a_s, b_s, c_s, residual, a_interval, b_interval, c_interval, len(timings), int(tokens.min()), int(tokens.max()), reason
    )  # fmt: skip


def resampled(timings: Sequence[Timing], n_coefficients: int, *, n_draws: int = _DRAWS, seed: int = 0) -> Floats:
    """Return the coefficients of refits with the residuals dealt out anew, [draw, coefficient]; one row where none are left. Pure."""
    tokens, seconds = _arrays(timings, n_coefficients)
    found = _solve(tokens, seconds, n_coefficients)
    spare = len(timings) - n_coefficients
    if spare <= 0:
        return found[None, :]
    on_curve = _columns(tokens, n_coefficients) @ found
    errors = (seconds / on_curve - 1.0) * math.sqrt(len(timings) / spare)
    rng = np.random.default_rng(seed)
    dealt = rng.choice(errors, size=(n_draws, len(timings)))
    again = on_curve * np.maximum(1.0 + dealt, 1e-3)  # a time stays positive, however far one sample was off
    return np.stack([_solve(tokens, row, n_coefficients) for row in again])


def _solve(tokens: Floats, seconds: Floats, n_coefficients: int) -> Floats:
    return nonnegative_least_squares(_columns(tokens, n_coefficients) / seconds[:, None], np.ones_like(seconds))


def _columns(tokens: Floats, n_coefficients: int) -> Floats:
    return np.stack([tokens**power for power in range(n_coefficients)], axis=1)


def _arrays(timings: Sequence[Timing], n_coefficients: int) -> tuple[Floats, Floats]:
    for one in timings:
        if one.n_tokens < 1 or not (math.isfinite(one.seconds) and one.seconds > 0):
            raise UsageError(f"{one.n_tokens} tokens in {one.seconds} s is not a sample", hint="both must be above 0")
    lengths = {one.n_tokens for one in timings}
    if len(lengths) < n_coefficients:
        raise UsageError(
            f"{len(lengths)} different lengths for a curve of {n_coefficients} coefficients",
            why="as many lengths as coefficients are needed, more to tell how sure they are",
            hint=f"give {n_coefficients + 2} lengths or more",
        )
    return (
        np.array([one.n_tokens for one in timings], dtype=np.float64),
        np.array([one.seconds for one in timings], dtype=np.float64),
    )
