"""Which pool sizes are tried on real pools, and when the trying is over. Pure.

From small to large: below, at and above the chosen size. A size is confirmed when the one above, twice as large, hits
less than a point more, or its net gain is larger by no more than the slack of a net gain (economics.slack_s_per_h) where costs
decide and its own step measured a gain; never because one step gained little: the curves are S-shaped. A size that was not tried is not confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["ANY", "DONE", "Ended", "Reach", "Tried", "confirmed", "ended", "missing_sizes", "sizes_to_try"]


class Ended(str, Enum):
    """Why no further step is made."""

    CONFIRMED = "plateau confirmed"
    NET_CONFIRMED = "net gain confirmed"
    NOT_CONFIRMED = "steps done, plateau not confirmed"
    NO_ROOM = "not confirmed: no room above"
    NO_GAIN = "not confirmed: its step measured no net gain"
    """Costs chose the size, and the replay through a pool of it waited longer than its restores saved."""
    NO_STEPS = "nothing to try"
    TIME = "time budget"
    FAILED = "a step failed"
    UNSTABLE = "a step is not as predicted"
    """Its hits, its copies, or the memory it got."""


DONE = (Ended.CONFIRMED, Ended.NET_CONFIRMED, Ended.NOT_CONFIRMED, Ended.NO_ROOM, Ended.NO_GAIN)
"""All steps were made and came out as predicted."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The sizes that a choice can be compared with, in pages.

    `least_pages` is the smallest useful pool; a trial pool of more than `most_pages` finds no memory (None: no limit); a pool
    of `all_pages` or more hits all that can be hit (None: not known).
    """

    least_pages: int = 0
    most_pages: int | None = None
    all_pages: int | None = None

    def above(self, chosen: int) -> int:
        """Return the smallest size that says whether more than the chosen one gains: twice it, or where the curve ends. Pure."""
        twice = 2 * chosen
        return max(chosen + 1, twice if self.all_pages is None else min(twice, self.all_pages))

    def has_room_above(self, chosen: int) -> bool:
        """Whether the memory holds that size. Pure."""
        return self.most_pages is None or self.most_pages >= self.above(chosen)

    def is_below(self, pages: int, chosen: int) -> bool:
        """Whether a size stands for less than the chosen one: a pool, or L1 alone where no smaller pool is of use. Pure."""
        return 0 < pages < chosen or (pages == 0 and chosen <= self.least_pages)


ANY = Reach()
"""No size is too small or too large."""


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


def missing_sizes(tried: Sequence[int], chosen: int, reach: Reach) -> tuple[int, ...]:
    """Return what must still be tried to confirm the chosen size: it, and what is not there below and above. Pure.

    >>> missing_sizes((0, 120, 240, 480), 200, Reach(6, 1000))
    (200,)
    >>> missing_sizes((0, 120, 240, 480), 300, Reach(6, 1000))
    (300, 600)
    """
    if chosen < 1:
        return ()
    has_below = any(reach.is_below(pages, chosen) for pages in tried)
    has_above = any(pages >= reach.above(chosen) for pages in tried)
    return tuple(
        size
        for size in sizes_to_try(chosen, least=reach.least_pages, most=reach.most_pages)
        if size not in tried
        and (size == chosen or (size < chosen and not has_below) or (size > chosen and not has_above))
    )


def ended(
    tried: Sequence[Tried],
    left: Sequence[int],
    chosen: int,
    *,
    points: float,
    elapsed_s: float,
    budget_s: float | None,
    reach: Reach = ANY,
) -> Ended | None:
    """Say why no further step is made, None to go on. Pure."""
    if tried and tried[-1].rate is None:
        return Ended.FAILED
    if tried and not tried[-1].as_predicted:
        return Ended.UNSTABLE
    if not left:
        rates = {step.pages: step.rate for step in tried if step.rate is not None}
        return confirmed(rates, chosen, reach, slack=points / 100, if_so=Ended.CONFIRMED)
    if budget_s is not None and elapsed_s >= budget_s:
        return Ended.TIME
    return None


def confirmed(worth: Mapping[int, float], chosen: int, reach: Reach, *, slack: float, if_so: Ended) -> Ended:
    """Say whether the steps confirm the chosen size. Pure.

    `worth` of each size that was made: its hit rate, or its net gain where costs decide. The chosen size must be among them,
    one below it, and one that is large enough above it and worth at most `slack` more.
    """
    if not worth:
        return Ended.NO_STEPS
    above = [value for pages, value in worth.items() if pages >= reach.above(chosen)]
    if chosen in worth and not above and not reach.has_room_above(chosen):
        return Ended.NO_ROOM
    below = any(reach.is_below(pages, chosen) for pages in worth) or chosen == 0
    larger = [value for pages, value in worth.items() if pages > chosen]
    if chosen in worth and above and below and max(larger) - worth[chosen] <= slack + 1e-12:
        return if_so
    return Ended.NOT_CONFIRMED
