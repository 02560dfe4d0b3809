"""Which pool sizes are tried on real pools, and when the trying is over. Pure.

From small to large: below, at and above the chosen size. A size is confirmed when the one above, twice as large, hits
less than a point more; never because one step gained little: the curves are S-shaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Ended", "Tried", "ended", "sizes_to_try"]


class Ended(str, Enum):
    """Why no further step is made."""

    CONFIRMED = "plateau confirmed"
    NOT_CONFIRMED = "steps done, plateau not confirmed"
    NO_STEPS = "nothing to try"
    TIME = "time budget"
    FAILED = "a step failed"
    UNSTABLE = "measured hits are not the predicted ones"


@dataclass(frozen=True, slots=True)
class Tried:
    """A step that is over: its pages, its hit rate (None: it failed), and whether it was as predicted."""

    pages: int
    rate: float | None
    as_predicted: bool


def sizes_to_try(chosen: int, *, least: int, most: int | None) -> tuple[int, ...]:
    """Return half the chosen size, it, and twice it, within the limits. Pure.

    >>> sizes_to_try(50092, least=246, most=None)
    (25046, 50092, 100184)
    """
    if chosen < 1:
        return ()
    wanted = (max(chosen // 2, least), chosen, 2 * chosen)
    return tuple(sorted({min(size, most) if most is not None else size for size in wanted} - {0}))


def ended(
    tried: Sequence[Tried], left: Sequence[int], chosen: int, *, points: float, elapsed_s: float, budget_s: float | None
) -> Ended | None:
    """Say why no further step is made, None to go on. Pure."""
    if tried and tried[-1].rate is None:
        return Ended.FAILED
    if tried and not tried[-1].as_predicted:
        return Ended.UNSTABLE
    if not left:
        return (
            (Ended.CONFIRMED if _confirmed(tried, chosen, points) else Ended.NOT_CONFIRMED) if tried else Ended.NO_STEPS
        )
    if budget_s is not None and elapsed_s >= budget_s:
        return Ended.TIME
    return None


def _confirmed(tried: Sequence[Tried], chosen: int, points: float) -> bool:
    at = [step.rate for step in tried if step.pages == chosen and step.rate is not None]
    above = [step.rate for step in tried if step.pages > chosen and step.rate is not None]
    below = [step for step in tried if step.pages < chosen]
    return bool(at and above and below) and max(above) - at[0] <= points / 100 + 1e-12
