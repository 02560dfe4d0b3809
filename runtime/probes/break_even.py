"""From which length on restoring a prefix is cheaper than computing it again, and what it saves. Pure.

    computing n tokens that start a prompt costs     b n + c n^2       above the call's fixed part, which is paid either way:
    restoring them costs                             a' + b' n         the last token of a request is always computed

so restoring pays where  c n^2 + (b - b') n - a' > 0.  All coefficients are >= 0, so this happens from one length on, or always,
or never.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.probes.fits import Fit, Interval

__all__ = ["BreakEven", "Saved", "Verdict", "break_even", "crossing", "saved_s"]

Draws = npt.NDArray[np.float64]
_NO_REFITS = "no interval: nothing to refit"


class Verdict(str, Enum):
    """When a restore is cheaper than computing again."""

    ALWAYS = "always"
    """From the first page on."""
    FROM = "from"
    """From a length on."""
    NEVER = "never"
    """At no length: a restored token costs as much as a computed one, or more."""
    OPEN = "open"
    """Not told: what it would rest on is no answer."""
    DEMO = "demo"
    """Not claimed: the restore and the recompute are of two models."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The length, in tokens, and how sure it is; 0 for ALWAYS, None for NEVER, OPEN and DEMO.

    [low_tokens, high_tokens] holds 95 of 100 refits; a None there has its reason. `beyond_measured`: outside the lengths
    that both curves were fitted to, so it rests on their shape.
    """

    verdict: Verdict
    n_tokens: int | None
    low_tokens: int | None
    high_tokens: int | None
    beyond_measured: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Saved:
    """What restoring `n_tokens` saves: seconds, negative where computing again is cheaper, and where 95 of 100 refits end up."""

    n_tokens: int
    restore_s: float
    recompute_s: float
    saved_s: float
    interval_s: Interval | None
    beyond_measured: bool


def crossing(restore_a_s: float, restore_b_s: float, compute_b_s: float, compute_c_s: float) -> float | None:
    """Return the length in tokens from which restoring is cheaper; 0.0: always, None: never. Pure.

    Published for GLM-5-class serving on eight cards: 779.1 ms + 13.539 us a token restoring, of which 735 ms are paid by a
    recompute too, even at about 3,000 tokens (docs/facts.md#kunlun-break-even):

    >>> round(crossing(0.0441, 13.539e-6, 2.82e-5, 0.0))
    3008
    """
    gap_s = compute_b_s - restore_b_s
    if compute_c_s <= 0:
        if gap_s <= 0:
            return None
        return restore_a_s / gap_s
    root = math.sqrt(gap_s * gap_s + 4 * compute_c_s * restore_a_s)
    # the form without cancellation: both terms of the sum have the sign of the gap
    return 2 * restore_a_s / (gap_s + root) if gap_s > 0 else (root - gap_s) / (2 * compute_c_s)


def break_even(
    restore: Fit,
    recompute: Fit,
    page_tokens: int,
    *,
    restore_draws: Draws | None = None,
    compute_draws: Draws | None = None,
) -> BreakEven:
    """Compare two fitted curves. Pure.

    The draws are refits of each (`fits.resampled`), [draw, coefficient]; without them, or with one row, there is no interval.
    A restore moves whole pages, so a crossing within the first page is ALWAYS, where the interval of the refits lies there too or there
    is none; else it is FROM that page, or from where the interval begins.
    """
    at = crossing(restore.a_s, restore.b_s, recompute.b_s, recompute.c_s)
    low_high, why = _interval(restore_draws, compute_draws)
    known = _measured(restore, recompute)
    if at is None:
        word = "a restored token costs as much as a computed one or more, at every position"
        return BreakEven(Verdict.NEVER, None, *low_high, False, _joined(word, why))
    if at <= page_tokens:
        beyond = not known[0] <= page_tokens <= known[1]
        far = _outside(restore, recompute, known) if beyond else None
        word = f"the first page of {page_tokens} tokens is cheaper to restore already"
        low, high = low_high
        if why == _NO_REFITS or (high is not None and high <= page_tokens):
            end = None if high is None else 0
            return BreakEven(Verdict.ALWAYS, 0, end, end, beyond, _joined(word, far, why))
        return BreakEven(
            Verdict.FROM,
            max(page_tokens, low or 0),
            low,
            high,
            beyond,
            _joined(f"{word}, but not by all refits", far, why),
        )
    beyond = not known[0] <= at <= known[1]
    word = _outside(restore, recompute, known) if beyond else "within the lengths measured"
    return BreakEven(Verdict.FROM, math.ceil(at), *low_high, beyond, _joined(word, why))


def _joined(*words: str | None) -> str:
    return "; ".join(filter(None, words))


def saved_s(
    restore: Fit,
    recompute: Fit,
    lengths: Sequence[int],
    *,
    restore_draws: Draws | None = None,
    compute_draws: Draws | None = None,
) -> tuple[Saved, ...]:
    """Return what restoring the first `n` tokens of a prompt saves, for each length. Pure."""
    known = _measured(restore, recompute)
    found = []
    for n in lengths:
        down, up = restore.seconds(n), recompute.b_s * n + recompute.c_s * n * n
        interval = None
        if restore_draws is not None and compute_draws is not None and max(len(restore_draws), len(compute_draws)) > 1:
            ours, theirs = _paired(restore_draws, compute_draws)
            draws = theirs[:, 1] * n + theirs[:, 2] * n * n - ours[:, 0] - ours[:, 1] * n
            low, high = np.percentile(draws, (2.5, 97.5))
            interval = Interval(float(low), float(high))
        found.append(Saved(n, down, up, up - down, interval, not known[0] <= n <= known[1]))
    return tuple(found)


def _interval(
    restore_draws: Draws | None, compute_draws: Draws | None
) -> tuple[tuple[int | None, int | None], str | None]:
    """Return low and high, None where they are not known or not finite, and the reason."""
    if restore_draws is None or compute_draws is None or max(len(restore_draws), len(compute_draws)) < 2:
        return (None, None), _NO_REFITS
    ours, theirs = _paired(restore_draws, compute_draws)
    lengths = [crossing(float(r[0]), float(r[1]), float(c[1]), float(c[2])) for r, c in zip(ours, theirs, strict=True)]
    ends = np.sort(np.array([math.inf if at is None else at for at in lengths]))
    low, high = (float(ends[round(share * (len(ends) - 1))]) for share in (0.025, 0.975))
    n_never = int(np.sum(np.isinf(ends)))
    why = f"never in {n_never} of {len(ends)} refits" if n_never else None
    return (math.ceil(low) if math.isfinite(low) else None, math.ceil(high) if math.isfinite(high) else None), why


def _paired(restore_draws: Draws, compute_draws: Draws) -> tuple[Draws, Draws]:
    """Repeat the shorter of both, so that every refit of one meets one of the other; a recompute without c gets 0."""
    n = max(len(restore_draws), len(compute_draws))
    if compute_draws.shape[1] == 2:
        compute_draws = np.pad(compute_draws, ((0, 0), (0, 1)))
    return restore_draws[np.arange(n) % len(restore_draws)], compute_draws[np.arange(n) % len(compute_draws)]


def _outside(restore: Fit, recompute: Fit, known: tuple[int, int]) -> str:
    if known[0] <= known[1]:
        return f"outside the lengths measured, {known[0]} to {known[1]} tokens"
    ours, theirs = (f"{one.from_tokens} to {one.to_tokens}" for one in (restore, recompute))
    return f"no length was measured both ways: restores of {ours} tokens, computing of {theirs}"


def _measured(restore: Fit, recompute: Fit) -> tuple[int, int]:
    """Return the lengths that both curves were fitted to, [first, last]; first > last where there is none. One that was given adds none."""
    firsts = [fitted.from_tokens for fitted in (restore, recompute) if fitted.from_tokens is not None]
    lasts = [fitted.to_tokens for fitted in (restore, recompute) if fitted.to_tokens is not None]
    return max(firsts, default=0), min(lasts, default=0)
