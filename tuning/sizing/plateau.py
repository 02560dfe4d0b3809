"""How many pages the host pool should have, from a hit curve and what it costs. Pure.

The rule: the smallest pool within a point of the unlimited hit rate, read from the right, because the curves are S-shaped
and the first small step is a desert, not the plateau (docs/facts.md#rejected-knees). Where a recomputed token, a restored
token and a GiB of pool were measured, economics decides instead:

    V(C)   = N H(C) max(0, t_p - t_r)         device-seconds saved an hour; H: what the host tier adds
    K(C)   = GiB(C) (g / L + m)               seconds an hour to make the pool, and to carry it
    choose the smallest C with  V - K >= max(V - K) - max(1 % of V(unlimited), N (t_p - t_r) x half the interval of H)

Either is then raised to what one request needs and cut to what the memory allows; the answer names what bound it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hicachectl.errors import CapacityError, UsageError
from hicachectl.units import GIB

__all__ = ["Bound", "Choice", "Costs", "Levels", "Limits", "Rule", "choose", "payback_h"]

Rates = npt.NDArray[np.float64]


class Bound(str, Enum):
    """What decided the size."""

    ECONOMICS = "economics"
    PLATEAU = "plateau"
    MEMORY = "memory"
    TOO_SHORT = "trace too short"
    """The plateau still grows with the trace: a lower bound."""
    NO_REUSE = "no reuse"
    """Do not grow the pool."""


class Rule(str, Enum):
    """Which rule chose before limits were looked at."""

    POINTS = "points"
    ECONOMICS = "economics"


@dataclass(frozen=True, slots=True)
class Levels:
    """A hit curve over two tiers: `hits[C]` of `total` with C pages in all. `device_pages` are those of L1 that no running request holds.

    Inclusive (write_through: L2 holds what L1 holds too): C host pages reach as far as C pages. Exclusive: L1 and L2 add up.
    """

    hits: npt.NDArray[np.int64]
    total: int
    device_pages: int
    exclusive: bool = False

    def reach(self, host_pages: int) -> int:
        """Return the pages both tiers hold between them. Pure."""
        return self.device_pages + host_pages if self.exclusive else max(self.device_pages, host_pages)

    def rate(self, host_pages: int) -> float:
        """Return the hit rate of both tiers, 0 to 1. Pure."""
        return self._at(self.reach(host_pages))

    def host_rate(self, host_pages: int) -> float:
        """Return what the host tier adds to L1 alone, 0 to 1. Pure."""
        return self.rate(host_pages) - self._at(self.device_pages)

    @property
    def ceiling(self) -> float:
        """The hit rate without a limit. Pure."""
        return int(self.hits[-1]) / self.total if self.total else 0.0

    @property
    def host_rates(self) -> Rates:
        """What host pools of 0, 1, 2, ... pages add, up to the largest that adds anything. Pure."""
        rates: Rates = self.hits / max(1, self.total)
        start = min(self.device_pages, len(rates) - 1)
        above: Rates = np.maximum(rates - rates[start], 0.0)
        return above[start:] if self.exclusive else above

    def _at(self, pages: int) -> float:
        return int(self.hits[min(max(pages, 0), len(self.hits) - 1)]) / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured: seconds a recomputed and a restored token, seconds a GiB to make, seconds an hour a GiB to carry.

    `tokens_per_h` are the input tokens of an hour, `lives_h` the hours a pool lives.
    """

    prefill_s: float
    restore_s: float
    make_s_per_gib: float
    tokens_per_h: float
    lives_h: float
    carry_s_per_gib_h: float = 0.0

    @property
    def gain_s_per_h(self) -> float:
        """Seconds an hour that a hit rate of 1 in the host tier would save. Pure."""
        return self.tokens_per_h * max(0.0, self.prefill_s - self.restore_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the pool must hold (the longest request and room to bounce), and what the memory allows; None: no limit."""

    longest_pages: int = 0
    bounce_pages: int = 0
    most_pages: int | None = None

    @property
    def least_pages(self) -> int:
        """The smallest useful pool. Pure."""
        return self.longest_pages + self.bounce_pages


@dataclass(frozen=True, slots=True)
class Choice:
    """A size and why. `plateau_pages` is the smallest host pool within the points, whatever was chosen; rates are of both tiers."""

    host_pages: int
    bound: Bound
    rule: Rule
    reason: str
    plateau_pages: int
    rate: float
    device_rate: float
    ceiling: float

    @property
    def grows(self) -> bool:
        """Whether a host pool is worth having. Pure."""
        return self.host_pages > 0


def choose(
    levels: Levels,
    page_bytes: int,
    *,
    points: float = 1.0,
    costs: Costs | None = None,
    limits: Limits | None = None,
    half_interval: float = 0.0,
    too_short: bool = False,
) -> Choice:
    """Choose the host pool. Pure.

    `page_bytes` are those of a page on this host; `half_interval` of the hit rate, 0 to 1; `too_short`: the plateau still
    grows with the trace. Raises UsageError for points outside 0..100, CapacityError when not even one request fits.

    >>> choose(Levels(np.array([0, 10, 10, 10, 60]), 100, device_pages=1), 1 << 20).host_pages
    4
    """
    if not 0 < points < 100:
        raise UsageError(f"{points:g} points, not between 0 and 100", hint="1 is the default")
    limits = limits or Limits()
    gains = levels.host_rates
    plateau = _plateau(gains, points)

    def chosen(pages: int, bound: Bound, rule: Rule, reason: str) -> Choice:
        return Choice(pages, bound, rule, reason, plateau, levels.rate(pages), levels.rate(0), levels.ceiling)

    most_gain = float(gains[-1])
    if most_gain < points / 100:
        return chosen(
            0, Bound.NO_REUSE, Rule.POINTS,
            f"do not grow the pool: without a limit {100 * levels.ceiling:.2f} % hit, L1 alone {100 * levels.rate(0):.2f} %",
        )  # fmt: skip
    if costs is None:
        pages, rule, bound = plateau, Rule.POINTS, Bound.PLATEAU
        reason = f"the smallest within {points:g} point{'' if points == 1 else 's'} of the ceiling, read from the right"
    else:
        pages, rule, bound = _economical(gains, page_bytes, costs, half_interval), Rule.ECONOMICS, Bound.ECONOMICS
        reason = "the smallest whose net gain is the largest, within its slack"
        if not pages:
            why = (
                "a restored token costs as much as a computed one"
                if not costs.gain_s_per_h
                else "no pool earns its cost"
            )
            return chosen(0, bound, rule, f"do not grow the pool: {why}")
    if too_short:
        bound, reason = Bound.TOO_SHORT, f"{reason}; the plateau still grows with the trace, so this is a lower bound"
    if pages < limits.least_pages:
        pages = limits.least_pages
        reason = f"{reason}; raised to the longest request ({limits.longest_pages} pages) and {limits.bounce_pages} to bounce"
    most = limits.most_pages
    if most is not None and most < limits.least_pages:
        raise CapacityError(
            f"the memory holds {most} pages, one request needs {limits.least_pages}",
            terms=(("longest request, pages", limits.longest_pages), ("room to bounce, pages", limits.bounce_pages),
                   ("pages the memory holds", most)),
            hint="free memory, raise --max-bytes, or take a smaller page",
        )  # fmt: skip
    if most is not None and most < pages:
        lost = 100 * (levels.rate(pages) - levels.rate(most))
        return chosen(
            most,
            Bound.MEMORY,
            rule,
            f"the memory ends before the curve: {pages} pages would hit {lost:.2f} points more",
        )
    return chosen(pages, bound, rule, reason)


def payback_h(levels: Levels, costs: Costs, page_bytes: int, before: int, after: int) -> float | None:
    """Return the hours after which growing from `before` to `after` host pages has paid for itself; None: never. Pure."""
    gained = costs.gain_s_per_h * (levels.host_rate(after) - levels.host_rate(before))
    grown_gib = (after - before) * page_bytes / GIB
    gained -= grown_gib * costs.carry_s_per_gib_h
    return grown_gib * costs.make_s_per_gib / gained if gained > 0 else None


def _plateau(gains: Rates, points: float) -> int:
    """The smallest pool within `points` of the last one; all larger ones are too, the curve never falls."""
    return int(np.argmax(gains >= float(gains[-1]) - points / 100 - 1e-12))


def _economical(gains: Rates, page_bytes: int, costs: Costs, half_interval: float) -> int:
    gib = np.arange(len(gains)) * (page_bytes / GIB)
    net = costs.gain_s_per_h * gains - gib * (costs.make_s_per_gib / costs.lives_h + costs.carry_s_per_gib_h)
    slack = max(0.01 * costs.gain_s_per_h * float(gains[-1]), costs.gain_s_per_h * half_interval)
    best = float(net.max())
    if best <= 0:
        return 0
    return int(np.argmax(net >= best - min(slack, best)))
