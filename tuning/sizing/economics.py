"""What a host pool is worth and what it costs, in device-seconds an hour. Pure.

    V(C) = N (R(C) max(0, t_p - t_r)  -  R(min(C, L3)) max(0, t_p - t_3))     saved by L2, over what L3 would save anyway
    K(C) = GiB(C) (g / L + m)                                                 to make the pool, and to carry it

N: input tokens in whole pages an hour; R: hits past L1 in restores long enough to pay (`restorable`), over all; t_p, t_r, t_3: seconds a
token computed, restored from L2, and from L3; g: seconds a GiB to make; L: hours it lives; m: seconds an hour a GiB to carry, counted
as 0 where it was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicachectl.tuning.sizing.levels import Levels, Rates
from hicachectl.units import GIB

__all__ = ["Costs", "Worth", "net_s_per_h", "payback_h", "saved_s_per_h", "slack_s_per_h", "worth_of"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured: seconds a recomputed and a restored token, seconds a GiB to make, seconds an hour a GiB to carry.

    `tokens_per_h` are the input tokens in whole pages of an hour, `lives_h` the hours a pool lives. `crossover_tokens`: restores of fewer
    tokens are dearer than computing (0: all pay, None: none does). `storage_restore_s`: seconds a token restored from L3;
    None: not measured, so what L3 would serve anyway is not taken off. `carry_s_per_gib_h` None: not measured, counted as 0. `source`: what measured `restore_s`.
    """

    prefill_s: float
    restore_s: float
    make_s_per_gib: float
    tokens_per_h: float
    lives_h: float
    carry_s_per_gib_h: float | None = None
    crossover_tokens: int | None = 0
    storage_restore_s: float | None = None
    source: str = "given"

    @property
    def gain_s_per_h(self) -> float:
        """Seconds an hour that a hit rate of 1 in the host tier would save. Pure."""
        if self.crossover_tokens is None:
            return 0.0
        return self.tokens_per_h * max(0.0, self.prefill_s - self.restore_s)

    @property
    def storage_gain_s_per_h(self) -> float:
        """Seconds an hour that a hit rate of 1 in the storage tier would save; 0 where its cost is not known. Pure."""
        if self.crossover_tokens is None or self.storage_restore_s is None:
            return 0.0
        return self.tokens_per_h * max(0.0, self.prefill_s - self.storage_restore_s)

    @property
    def pool_s_per_gib_h(self) -> float:
        """Seconds an hour that a GiB of pool costs, to carry what was measured of it. Pure."""
        return self.make_s_per_gib / self.lives_h + (self.carry_s_per_gib_h or 0.0)


@dataclass(frozen=True, slots=True)
class Worth:
    """One pool: device-seconds an hour saved, spent, and their difference."""

    saved_s_per_h: float
    spent_s_per_h: float
    net_s_per_h: float


def saved_s_per_h(levels: Levels, costs: Costs) -> Rates:
    """Return what host pools of 0, 1, 2, ... pages save an hour, over what storage would save without them. Pure."""
    paying = levels.paying_rates
    if not levels.storage_pages:
        return costs.gain_s_per_h * paying
    served = paying[np.minimum(np.arange(len(paying)), levels.served_below)]
    saved: Rates = costs.gain_s_per_h * paying - costs.storage_gain_s_per_h * served
    return saved


def net_s_per_h(levels: Levels, costs: Costs, page_bytes: int) -> Rates:
    """Return what host pools of 0, 1, 2, ... pages save an hour, less what they cost. Pure."""
    saved = saved_s_per_h(levels, costs)
    net: Rates = saved - np.arange(len(saved)) * (page_bytes / GIB * costs.pool_s_per_gib_h)
    return net


def slack_s_per_h(levels: Levels, costs: Costs, half_interval: float) -> float:
    """Return by how much two net gains must differ to be told apart: 1 % of the largest saving, or the interval of the hit rate. Pure."""
    most, gained = float(saved_s_per_h(levels, costs)[-1]), float(levels.paying_rates[-1])
    return max(0.01 * most, most / gained * half_interval) if gained > 0 else 0.0


def worth_of(levels: Levels, costs: Costs, page_bytes: int, host_pages: int) -> Worth:
    """Return what one pool saves and costs. Pure."""
    saved = saved_s_per_h(levels, costs)
    one = float(saved[min(host_pages, len(saved) - 1)])
    spent = host_pages * page_bytes / GIB * costs.pool_s_per_gib_h
    return Worth(one, spent, one - spent)


def payback_h(levels: Levels, costs: Costs, page_bytes: int, before: int, after: int) -> float | None:
    """Return the hours after which growing from `before` to `after` host pages has paid for itself; None: never. Pure."""
    saved = saved_s_per_h(levels, costs)
    gained = float(saved[min(after, len(saved) - 1)] - saved[min(before, len(saved) - 1)])
    grown_gib = (after - before) * page_bytes / GIB
    gained -= grown_gib * (costs.carry_s_per_gib_h or 0.0)
    return grown_gib * costs.make_s_per_gib / gained if gained > 0 else None
