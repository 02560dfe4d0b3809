"""A hit curve laid over the tiers: what L1, L2 and L3 would hit with a host pool of so many pages. Pure.

One curve serves all three, because a leaf-first LRU cache of more pages holds what one of fewer holds: what a tier adds is
the curve at its reach less the curve at the reach of the tier above it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Levels", "TierRates"]

Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TierRates:
    """Hits of each tier over all pages asked for, 0 to 1; `storage` is 0 without a storage tier."""

    device: float
    host: float
    storage: float


@dataclass(frozen=True, slots=True)
class Levels:
    """`hits[C]` of `total` with C pages in all; `device_pages` are those of L1 that no running request holds.

    Inclusive (L2 holds what L1 holds too, as under write_through): C host pages reach as far as C pages. Exclusive: L1 and
    L2 add up. L3 holds what passed through L2, so it reaches as far as its own `storage_pages` (0: there is none).
    `paying[C]` are, of the hits past L1, those in restores long enough to pay; None: all of them.
    """

    hits: npt.NDArray[np.int64]
    total: int
    device_pages: int
    exclusive: bool = False
    storage_pages: int = 0
    paying: npt.NDArray[np.int64] | None = None

    def reach(self, host_pages: int) -> int:
        """Return the pages L1 and L2 hold between them. Pure."""
        return self.device_pages + host_pages if self.exclusive else max(self.device_pages, host_pages)

    def hits_at(self, host_pages: int) -> int:
        """Return the pages hit in L1 and L2. Pure."""
        return self._hits(self.reach(host_pages))

    def rate(self, host_pages: int) -> float:
        """Return the hit rate of L1 and L2, 0 to 1. Pure."""
        return self._at(self.reach(host_pages))

    def host_rate(self, host_pages: int) -> float:
        """Return what the host tier adds to L1 alone, 0 to 1. Pure."""
        return self.rate(host_pages) - self._at(self.device_pages)

    def tiers(self, host_pages: int) -> TierRates:
        """Return the hit rate of each tier. Without host pages storage serves nothing: pages are read into them. Pure."""
        reach = self.reach(host_pages)
        below = max(reach, self.storage_pages) if host_pages else reach
        return TierRates(self._at(self.device_pages), self.host_rate(host_pages), self._at(below) - self._at(reach))

    def inclusive_pages(self, host_pages: int) -> int:
        """Return the pages of an inclusive host pool that hits as much. Pure."""
        return self.reach(host_pages) if self.exclusive and host_pages else host_pages

    @property
    def ceiling(self) -> float:
        """The hit rate without a limit. Pure."""
        return self._at(len(self.hits) - 1)

    @property
    def host_rates(self) -> Rates:
        """What host pools of 0, 1, 2, ... pages add to L1, up to the largest that adds anything. Pure."""
        return self._above(np.maximum(self.hits - self._hits(self.device_pages), 0))

    @property
    def paying_rates(self) -> Rates:
        """Of `host_rates`, the part in restores long enough to pay. Pure."""
        return self.host_rates if self.paying is None else self._above(self.paying)

    @property
    def served_below(self) -> int:
        """The host pages up to which storage would serve the same hits anyway. Pure."""
        return max(0, self.storage_pages - (self.device_pages if self.exclusive else 0))

    def _above(self, hits: npt.NDArray[np.int64]) -> Rates:
        rates: Rates = hits / max(1, self.total)
        return rates[min(self.device_pages, len(rates) - 1) :] if self.exclusive else rates

    def _hits(self, pages: int) -> int:
        return int(self.hits[min(max(pages, 0), len(self.hits) - 1)])

    def _at(self, pages: int) -> float:
        return self._hits(pages) / self.total if self.total else 0.0
