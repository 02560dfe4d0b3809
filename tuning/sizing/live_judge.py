"""Judges a step on live requests: what the window said they would hit, what their own exact curve says, what was hit. Pure.

The window's second half, after its first warmed the cache, stands for requests that come later. Its error is one standard
error over sessions; a step's own requests are fewer or more, so the difference of both has error x sqrt(1 + half / new).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import sqrt

from hicachectl.tuning.sizing.steps import Step
from hicachectl.tuning.sizing.trial import Trial

__all__ = ["LiveStep", "Replayed", "Told", "Verdict", "judge", "step_of"]

_POINT = 0.01


class Replayed(str, Enum):
    """What a step was measured on."""

    NEW = "new requests"
    SAVED = "saved requests"
    """No new one came in the step's time, or the source ended: the newest of the window and after."""


class Verdict(str, Enum):
    """How measured and predicted hits go together."""

    HOLDS = "holds"
    DRIFT = "traffic drifted"
    REPLAY = "replay differs"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Told:
    """What the window tells of later requests at one size: rate and standard error, 0 to 1; its pages counted."""

    rate: float
    error: float | None
    n_pages: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LiveStep:
    """One step: pages hit of `total_pages`, and of them what the exact curve of the same requests says.

    `predicted_rate` and `slack` are 0 to 1; None where nothing was predicted, or no interval is known. `gain` is the share of
    these pages that it hit and the chosen size, a smaller one, would not have hit; None where it is no larger than that.
    """

    pages: int
    replayed: Replayed
    requests: int
    too_long_requests: int
    total_pages: int
    hit_pages: int
    exact_hit_pages: int
    predicted_rate: float | None
    slack: float | None
    verdict: Verdict
    reason: str
    gain: float | None = None
    gain_over: int | None = None
    """The chosen size, in pages, that `gain` is over."""

    @property
    def rate(self) -> float:
        """Measured hits over pages, 0 to 1. Pure."""
        return self.hit_pages / self.total_pages if self.total_pages else 0.0

    @property
    def exact_rate(self) -> float:
        """What the exact curve of the same requests says, 0 to 1. Pure."""
        return self.exact_hit_pages / self.total_pages if self.total_pages else 0.0


def judge(step: LiveStep, told: Told | None, assumption: str | None) -> LiveStep:
    """Return the step with its slack and verdict. Pure.

    `told` None: saved requests were replayed, which their own curve predicts to the page. `assumption` names what may keep
    a replay from its exact curve, None: nothing may.
    """
    off = step.hit_pages - step.exact_hit_pages
    if off and assumption is None:
        return replace(
            step, verdict=Verdict.REPLAY,
            reason=f"{abs(off)} pages {'more' if off > 0 else 'fewer'} than the exact curve of the same requests; none of the known assumptions is broken",
        )  # fmt: skip
    if told is None:
        held = "to the page" if assumption is None else f"not held to the page: {assumption}"
        return replace(step, verdict=Verdict.HOLDS, reason=f"no new request came: saved ones, {held}")
    step = replace(step, predicted_rate=told.rate)
    if told.error is None:
        return replace(step, verdict=Verdict.NOT_COMPARED, reason=told.reason or "no interval")
    slack = _POINT + 2 * told.error * sqrt(1 + told.n_pages / max(1, step.total_pages))
    step = replace(step, slack=slack)
    if abs(step.rate - told.rate) <= slack:
        return replace(
            step, verdict=Verdict.HOLDS, reason="within two standard errors and a point of the window's second half"
        )
    if abs(step.exact_rate - told.rate) > slack:
        return replace(
            step, verdict=Verdict.DRIFT,
            reason=f"the traffic drifted: new requests hit {100 * step.exact_rate:.2f} % by their own exact curve, the window said "
            f"{100 * told.rate:.2f} +- {100 * slack:.2f} %",
        )  # fmt: skip
    return replace(step, verdict=Verdict.REPLAY, reason=f"the replay differs from the exact curve: {assumption}")


def step_of(live: LiveStep, trial: Trial, assumption: str | None, *, resumed: bool = False) -> Step:
    """Return the step as every sizing shows it, hits of its live requests alone. Pure."""
    must_equal = live.replayed is Replayed.SAVED and assumption is None
    predicted: int | None
    if must_equal or (live.verdict is Verdict.REPLAY and assumption is None):
        predicted, exact, slack = live.exact_hit_pages, True, 0
    elif live.slack is None or live.predicted_rate is None:
        predicted, exact, slack = None, False, 0
    else:
        predicted, exact = round(live.predicted_rate * live.total_pages), False
        slack = int(live.slack * live.total_pages)
    named = None if exact and live.verdict is Verdict.HOLDS else live.reason
    return Step(live.pages, predicted, live.total_pages, trial, exact, slack, named, None, resumed)
