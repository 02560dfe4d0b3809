"""Room in a tier: evict until slots are free, in exact order, waiting for copies or backing victims up first."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from hicachectl.runtime.core import CacheCore
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import Node
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["Rooms"]

DEVICE = Tier.DEVICE


class Rooms:
    """Frees slots. `wait` waits for a ticket that holds the next victim; `back_up_victim` copies one down (write_back)."""

    def __init__(
        self, core: CacheCore, wait: Callable[[object, float | None], bool], back_up_victim: Callable[[Node, int], bool]
    ) -> None:
        self._core = core
        self._wait = wait
        self._back_up_victim = back_up_victim

    def make_room(self, tier: Tier, n: int) -> bool:
        """Evict from `tier` until `n` slots are free; False when that cannot be had now."""
        slots = self._core.allocator(tier)
        if slots.n_free >= n:
            return True
        first_backed_up = (
            tier == DEVICE
            and self._core.host_pool is not None
            and self._core.config.write_policy is WritePolicy.WRITE_BACK
        )
        while slots.n_free < n:
            result = self._core.evict(tier, n - slots.n_free, back_up_first=first_backed_up)
            if result.unbacked is not None:
                if not self._back_up_victim(result.unbacked, result.unbacked_pages):
                    return False
            elif result.blocked_by is not None:
                if not self.wait_for(result.blocked_by):
                    return False
            elif not len(result.slots):
                return False
        return True

    def room_for_up_to(self, tier: Tier, n: int) -> int:
        """Evict so that as many of `n` slots as possible are free; returns how many."""
        self.make_room(tier, n)
        return min(n, self._core.allocator(tier).n_free)

    def wait_for(self, ticket: object) -> bool:
        """Wait for the copy that holds a victim; False when it takes longer than the configured bound."""
        began = perf_counter()
        over = self._wait(ticket, self._core.config.restore_timeout_s)
        self._core.room_waited_s += perf_counter() - began
        return over
