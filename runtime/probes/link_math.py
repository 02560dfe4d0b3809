"""What a link should carry: link arithmetic, what of it can be reached, and where a measured rate is far below. Pure.

One H200 behind PCIe 5 x16 reached 54.7 of 63.0 GB/s one way and 97.0 of 126.0 both ways at once (docs/facts.md#h200-link); the
rest is packet headers and flow control, which every PCI Express device pays. "Far below" is less than four fifths of that, so that
a platform with smaller packets is not yet a finding and a lost lane (half), a lost generation (half) or one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "BOTH_WAYS_SHARE",
    "FAR_BELOW",
    "LEAST_JUDGED_BYTES",
    "ONE_WAY_SHARE",
    "Expected",
    "LinkTarget",
    "Way",
    "expect",
]

ONE_WAY_SHARE = 54.7 / 63.0
BOTH_WAYS_SHARE = 97.0 / 126.0
FAR_BELOW = 0.8
LEAST_JUDGED_BYTES = 16 << 20
"""Smaller copies are bound by what a copy costs to start, not by the link (docs/facts.md#h200-link: 16 MiB reach 90 %)."""


class Way(str, Enum):
    """Which way bytes go."""

    H2D = "h2d"
    D2H = "d2h"
    BOTH = "both"

    @property
    def flows(self) -> tuple[Way, ...]:
        """The one-way flows it is made of. Pure."""
        return (Way.H2D, Way.D2H) if self is Way.BOTH else (self,)

    @property
    def against(self) -> Way:
        """The other way. Pure."""
        return {Way.H2D: Way.D2H, Way.D2H: Way.H2D, Way.BOTH: Way.BOTH}[self]


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """An accelerator to load, and what the host's links say of it.

    `address` is its PCI address (its torch name where the address is not known), `name` what screens call it, `device` its torch
    name. `uplink` is the display name of the uplink it shares with `neighbours` (addresses of the accelerators there, its own
    left out), None where no uplink was found. Rates are link math of one direction, None with `math_reason` where not known.
    """

    address: str
    name: str
    device: str
    own_node: int | None = None
    uplink: str | None = None
    neighbours: tuple[str, ...] = ()
    own_bytes_per_s: float | None = None
    """What its own way up carries."""
    uplink_bytes_per_s: float | None = None
    """What all behind the uplink have together."""
    math_source: str | None = None
    math_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What one accelerator should get: link math as the upper end, below `low_bytes_per_s` is a finding."""

    low_bytes_per_s: float | None
    math_bytes_per_s: float | None
    source: str | None
    reason: str | None
    """Why there is no lower end, or nothing at all."""


def expect(target: LinkTarget, way: Way, size_bytes: int, n_busy: int) -> Expected:
    """Return what a target should get when `n_busy` accelerators behind its uplink, itself counted, move the same way. Pure.

    >>> found = expect(LinkTarget("a", "X0", "cuda:0", own_bytes_per_s=63e9, math_source="math"), Way.D2H, 1 << 28, 1)
    >>> round(found.low_bytes_per_s / 1e9, 2), found.math_bytes_per_s
    (43.76, 63000000000.0)
    """
    one_way = target.own_bytes_per_s
    if one_way is not None and n_busy > 1:
        one_way = None if target.uplink_bytes_per_s is None else min(one_way, target.uplink_bytes_per_s / n_busy)
    if one_way is None:
        return Expected(None, None, target.math_source, target.math_reason or "the uplink's capacity is not known")
    math = one_way * len(way.flows)
    if size_bytes < LEAST_JUDGED_BYTES:
        reason = f"copies below {LEAST_JUDGED_BYTES >> 20} MiB are bound by what starting one costs, not by the link"
        return Expected(None, math, target.math_source, reason)
    share = BOTH_WAYS_SHARE if way is Way.BOTH else ONE_WAY_SHARE
    return Expected(FAR_BELOW * share * math, math, target.math_source, None)
