"""How many pages the host pool should have, from a hit curve and what it costs. Pure.

The rule: the smallest pool within a point of the unlimited hit rate, read from the right, because the curves are S-shaped
and the first small step is a desert, not the plateau (docs/facts.md#rejected-knees). Where a recomputed token, a restored
token and a GiB of pool were measured, economics decides instead, with V saved and K spent an hour as in `economics`:

    choose the smallest C with  V - K >= max(V - K) - max(1 % of V(unlimited), V(unlimited) / H x half the interval of H)

Either is then raised to what the longest request and reads from L3 under way need, and cut to what the memory allows; the
answer names what bound it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from hicachectl.errors import CapacityError, UsageError
from hicachectl.tuning.sizing.economics import Costs, net_s_per_h, slack_s_per_h
from hicachectl.tuning.sizing.levels import Levels, Rates

__all__ = ["WITHIN", "Bound", "Choice", "Limits", "Rule", "choose"]


WITHIN = "cannot be told apart"
"""How the reason of a size that costs chose ends, before what is said beside it."""


class Bound(str, Enum):
    """What decided the size."""

    ECONOMICS = "economics"
    PLATEAU = "plateau"
    MEMORY = "memory"
    TOO_SHORT = "trace too short"
    """The plateau still grows with the trace: a lower bound."""
    NO_REUSE = "no reuse"
    """Do not grow the pool."""
    NO_RESTORE = "no restore pays"
    """Do not grow the pool: what it hits is computed again, which is cheaper."""


class Rule(str, Enum):
    """Which rule chose before limits were looked at."""

    POINTS = "points"
    ECONOMICS = "economics"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the pool must hold (the longest request, and `bounce_pages` that reads from storage pass through on their way up), and what the memory allows; None: no limit."""

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

    if not levels.total:
        return chosen(
            0, Bound.NO_REUSE, Rule.POINTS, "do not grow the pool: no request fills a page, so nothing is kept"
        )
    if float(gains[-1]) < points / 100:
        longer = "; the window is too short to rule out that more comes back" if too_short else ""
        return chosen(
            0, Bound.NO_REUSE, Rule.POINTS,
            f"do not grow the pool: without a limit {100 * levels.ceiling:.2f} % hit, L1 alone {100 * levels.rate(0):.2f} %{longer}",
        )  # fmt: skip
    if costs is None:
        pages, rule, bound = plateau, Rule.POINTS, Bound.PLATEAU
        reason = f"the smallest within {points:g} point{'' if points == 1 else 's'} of the ceiling, read from the right"
    else:
        rule, bound = Rule.ECONOMICS, Bound.ECONOMICS
        pages, reason = _economical(levels, page_bytes, costs, half_interval)
        if not pages and not levels.storage_pages:
            return chosen(0, bound, rule, f"do not grow the pool: {reason}")
    reason += _about_storage(levels, costs)
    if too_short:
        bound, reason = Bound.TOO_SHORT, f"{reason}; the plateau still grows with the trace, so this is a lower bound"
    if pages < limits.least_pages:
        pages = limits.least_pages
        bounced = f" and {limits.bounce_pages} that reads from storage pass through" if limits.bounce_pages else ""
        reason = f"{reason}; raised to the longest request ({limits.longest_pages} pages){bounced}"
    most = limits.most_pages
    if most is not None and most < limits.least_pages:
        bounce = (
            (("room that reads from storage pass through, pages", limits.bounce_pages),) if limits.bounce_pages else ()
        )
        raise CapacityError(
            f"the memory holds {most} pages, one request needs {limits.least_pages}",
            terms=(("longest request, pages", limits.longest_pages), *bounce, ("what the memory holds, pages", most)),
            hint="free memory, raise --max-bytes, give fewer --device-slots or a smaller --geometry; to predict for a larger host: --steps none",
            unit="bytes",
        )  # fmt: skip
    if most is not None and most < pages:
        lost = 100 * (levels.rate(pages) - levels.rate(most))
        longer = ", which is a lower bound: the plateau still grows with the trace" if too_short else ""
        useless = _useless(levels, page_bytes, costs, most)
        if useless is not None and not levels.storage_pages:
            return chosen(
                0, Bound.MEMORY, rule,
                f"do not grow the pool: the {most} pages that the memory allows {useless}; {pages} pages would hit {lost:.2f} points more"
                f"{longer}: free memory, raise --max-bytes or give fewer --device-slots",
            )  # fmt: skip
        return chosen(
            most,
            Bound.MEMORY,
            rule,
            f"the memory ends before the curve: {pages} pages would hit {lost:.2f} points more{longer}",
        )
    return chosen(pages, bound, rule, reason)


def _useless(levels: Levels, page_bytes: int, costs: Costs | None, pages: int) -> str | None:
    """Say why a pool that the memory cut short is not worth having; None where it is."""
    if float(levels.host_rates[pages]) <= 0:
        copies = " (they hold copies of them)" if pages <= levels.device_pages and not levels.exclusive else ""
        return f"hit nothing that L1's {levels.device_pages} do not{copies}"
    if costs is None:
        return None
    net = float(net_s_per_h(levels, costs, page_bytes)[pages])
    return f"cost more than they save ({net:.3g} s/h)" if net <= 0 else None


def _why_nothing(costs: Costs) -> str:
    if costs.crossover_tokens is None:
        return "no restore of any length is cheaper than computing"
    return "no pool earns its cost" if costs.gain_s_per_h else "a restored token costs as much as a computed one"


def _about_storage(levels: Levels, costs: Costs | None) -> str:
    """What was made of the hits that storage would serve anyway."""
    if not levels.storage_pages:
        return ""
    if costs is None:
        return "; what storage would serve anyway is not taken off, as economics was not used"
    if costs.storage_restore_s is None:
        return "; what storage would serve anyway is not taken off, its cost was not measured"
    return ", over what storage would serve anyway"


def _plateau(gains: Rates, points: float) -> int:
    """The smallest pool within `points` of the last one; all larger ones are too, the curve never falls."""
    return int(np.argmax(gains >= float(gains[-1]) - points / 100 - 1e-12))


def _economical(levels: Levels, page_bytes: int, costs: Costs, half_interval: float) -> tuple[int, str]:
    """The pages, and why so many; 0 with the reason why a pool is not worth having."""
    net = net_s_per_h(levels, costs, page_bytes)
    best, slack = float(net.max()), slack_s_per_h(levels, costs, half_interval)
    if best <= 0:
        return 0, _why_nothing(costs)
    if slack >= best:
        return 0, f"the gain is within its error: at most {best:.3g} s/h, +- {slack:.3g} s/h"
    pages = int(np.argmax(net >= best - slack))
    return (
        pages,
        f"the smallest whose net gain is the largest {within_slack(levels, page_bytes, costs, half_interval, pages)}",
    )


def within_slack(levels: Levels, page_bytes: int, costs: Costs, half_interval: float, pages: int) -> str:
    """Say how much of the largest net gain a pool has, and what cannot be told apart. Pure."""
    net, slack = net_s_per_h(levels, costs, page_bytes), slack_s_per_h(levels, costs, half_interval)
    own = float(net[min(pages, len(net) - 1)])
    return f"within its slack: {own:.3g} of {float(net.max()):.3g} s/h, less than {slack:.3g} s/h {WITHIN}"
