"""Where `bench model` claims no break-even: two models in one sum, lengths that are no answer, a slope not told apart from 0. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from hicachectl.bench_data import NOISY_SPREAD
from hicachectl.units import format_count

if TYPE_CHECKING:
    from hicachectl.bench_model_data import Model, Tier
    from hicachectl.runtime.geometry import KVGeometry
    from hicachectl.runtime.probes.break_even import BreakEven, Verdict
    from hicachectl.runtime.probes.fits import Fit

__all__ = ["is_made_up", "judged", "slope_is_open", "two_models", "why_no_curve"]

_MADE_UP = "tiny-"
"""Geometry presets that no model has."""
_LEAST_GROWTH = 0.01
"""Of the longest prefill: less between it and the shortest is no growth, however well the few lengths fit (our choice)."""


def is_made_up(geometry_name: str) -> bool:
    """Whether no model has these pages. Pure."""
    return geometry_name.startswith(_MADE_UP)


def two_models(geometry: KVGeometry, model: str | None) -> str | None:
    """Say that pages and prefill are of two models, None where they are of one; `model` None: the prefill's is not said. Pure.

    `run` says DEMO of such a sum, by the same rule. Raises UsageError for a model that is no preset.
    """
    from hicachectl.runtime.geometry import preset

    if model == geometry.name and not is_made_up(geometry.name):
        return None
    here = f"the bytes moved are of {geometry.name} ({format_count(geometry.bytes_per_token)} B a token)"
    if model is None or model == geometry.name:
        return f"{here}, the prefill is of a model that is not named"
    theirs = preset(model, geometry.page_tokens).bytes_per_token
    return f"{here}, the prefill is of {model} ({format_count(theirs)} B a token)"


def slope_is_open(fit: Fit) -> bool:
    """Whether the seconds a token are 0 within noise. Pure."""
    return fit.b_s <= 0 or (fit.b_interval_s is not None and fit.b_interval_s.low <= 0)


def why_no_curve(recompute: Fit) -> str | None:
    """Say why times of prefills give no cost of a token: they do not grow beyond their noise, or lie far off every curve. None where they do, or were given. Pure."""
    first, last = recompute.from_tokens, recompute.to_tokens
    if first is None or last is None:
        return None
    off, longest_s = recompute.residual or 0.0, recompute.seconds(last)
    growth = 1.0 - recompute.seconds(first) / longest_s
    if off > NOISY_SPREAD and growth > _LEAST_GROWTH:
        return f"prefills lie {100 * off:.0f} % off their curve, {100 * NOISY_SPREAD:.0f} % is the most that counts as an answer"
    if growth <= max(off, _LEAST_GROWTH):
        told = f"prefills of {last} tokens take no longer than those of {first}, within their noise"
        return f"{told}: longer lengths, or columns that are not swapped, would tell"
    return None


def judged(model: Model, unanswered: Collection[str], demo: str | None) -> Model:
    """Take back every break-even that these measurements do not carry. Pure.

    `unanswered` are subjects of measures that are no answer (HC-NO-ANSWER); `demo` says that two models are set against each other.
    """
    no_curve = None if model.prefill is None else why_no_curve(model.prefill.fit)
    return replace(model, tiers=tuple(_judged(tier, unanswered, demo, no_curve) for tier in model.tiers))


def _judged(tier: Tier, unanswered: Collection[str], demo: str | None, no_curve: str | None) -> Tier:
    from hicachectl.runtime.probes.break_even import Verdict

    even = tier.break_even
    if even is None:
        return tier
    if demo is not None:
        return replace(tier, break_even=_none(Verdict.DEMO, demo), saved=())
    bad = sorted(one for one in unanswered if one.startswith((f"{tier.name} tier, ", "prefill, ")))
    if bad:
        return replace(tier, break_even=_none(Verdict.OPEN, f"no answer (HC-NO-ANSWER): {'; '.join(bad)}"))
    if no_curve is not None:
        return replace(tier, break_even=_none(Verdict.OPEN, no_curve), saved=())
    if even.verdict is Verdict.ALWAYS and slope_is_open(tier.fit):
        why = "the seconds a token (b) of the restore are not told apart from 0: longer lengths or more rounds would"
        return replace(tier, break_even=_none(Verdict.OPEN, why))
    if even.verdict is Verdict.NEVER and even.low_tokens is not None:
        why = f"a restored token costs about as much as a computed one: some refits break even, from {format_count(even.low_tokens)} tokens on"
        return replace(tier, break_even=_none(Verdict.OPEN, why))
    return tier


def _none(verdict: Verdict, reason: str) -> BreakEven:
    from hicachectl.runtime.probes.break_even import BreakEven

    return BreakEven(verdict, None, None, None, False, reason)
