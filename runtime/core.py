"""What all steps of the cache share: pools, slots, tree, counters, and who is told what. No order of steps here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, TypeVar

from hicachectl.errors import InvariantBroken, StorageError, Vanished
from hicachectl.runtime.cost import CostModel, Path
from hicachectl.runtime.counters import CacheCounters, CacheObserver, CacheProbe
from hicachectl.runtime.departures import Departures
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.ghost import GhostList
from hicachectl.runtime.keys import KEY_BYTES, Namespace, key64
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import SlotAllocator
from hicachectl.runtime.request import Request
from hicachectl.runtime.seen import SeenFlag, SeenKeys
from hicachectl.runtime.storage.base import StorageBackend
from hicachectl.runtime.storage.prefetch import PrefetchPolicy, deadline_s
from hicachectl.runtime.tickets import Timed
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.tree import Evicted, Node, RadixTree, Slots
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["CacheConfig", "CacheCore", "PrefetchWait", "Restored"]

DEVICE, HOST = Tier.DEVICE, Tier.HOST
T = TypeVar("T")
_log = logging.getLogger("hicachectl.runtime")


@dataclass(frozen=True, slots=True)
class PrefetchWait:
    """How long a request waits for pages from storage: the policy and its terms, see `storage.prefetch.deadline_s`."""

    policy: PrefetchPolicy = PrefetchPolicy.TIMEOUT
    base_s: float = 1.0
    per_ki_token_s: float = 0.25
    max_s: float = 10.0

    def seconds(self, n_tokens: int) -> float | None:
        """Return the longest wait for `n_tokens`, None for as long as it takes. Pure."""
        return deadline_s(
            self.policy, n_tokens, base_s=self.base_s, per_ki_token_s=self.per_ki_token_s, max_s=self.max_s
        )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How the cache decides. Sizes come from the pools.

    `strict` keeps the exact eviction order by waiting for a copy that holds the next victim (replay); without it a held
    victim is passed over (an engine must not wait). `settle_storage` lets writes to storage end before storage is asked,
    read or touched, so that what it evicts does not hang on timing (replay). `seen_keys` bounds the memory behind "why no hit", `ghost_entries`
    the ghost list (0 = off). `restore_timeout_s` bounds every wait for a copy; `prefetch` the wait for storage reads.
    """

    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    selective_hits: int = 2
    restore: Literal["cost", "always"] = "cost"
    eviction: Eviction = Eviction.LRU
    protected_hits: int = 2
    free_list: Literal["lifo", "fifo"] = "lifo"
    ghost_entries: int = 0
    seen_keys: int = 0
    strict: bool = False
    settle_storage: bool = False
    keep_keys: bool = False
    restore_timeout_s: float = 60.0
    prefetch: PrefetchWait = PrefetchWait()
    storage_queue_pages: int = 4096


@dataclass(frozen=True, slots=True)
class Restored:
    """Pages just brought up and not yet visible: what a verifier gets to see. `keys` are theirs (32 bytes each) if known."""

    first_page: int
    keys: bytes | None
    device_slots: Slots
    host_slots: Slots
    source: Tier


class CacheCore:
    """The shared state. Fields are set once; what they hold changes in the caller's thread alone."""

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool | None,
        engine: TransferEngine | None,
        costs: CostModel,
        config: CacheConfig,
        storage: StorageBackend | None,
        observer: CacheObserver | None,
        verify_restored: Callable[[Restored], None] | None,
    ) -> None:
        self.config = config
        self.geometry = device_pool.geometry
        self.page_tokens = self.geometry.page_tokens
        self.costs = costs
        self.storage = storage
        self.observer = observer
        self.probe: CacheProbe | None = None
        self.verify_restored = verify_restored
        self.device_pool, self.host_pool, self.engine = device_pool, host_pool, engine
        self.counters = CacheCounters()
        self.room_waited_s = 0.0
        """Seconds waited so far for copies that held the next victim; a request reads it before and after."""
        self.device_slots = SlotAllocator(device_pool.n_slots, order=config.free_list, name="device")
        self.host_slots = SlotAllocator(host_pool.n_slots, order=config.free_list, name="host") if host_pool else None
        self.ghost = GhostList(config.ghost_entries) if config.ghost_entries else None
        self.seen = SeenKeys(config.seen_keys) if config.seen_keys else None
        self.wants_keys = bool(
            config.keep_keys
            or storage is not None
            or self.ghost is not None
            or self.seen is not None
            or observer is not None
        )
        self.departures = Departures(self.ghost if host_pool is not None else None, observer)
        self.tree = RadixTree(
            self.page_tokens,
            eviction=config.eviction,
            protected_hits=config.protected_hits,
            keep_keys=self.wants_keys,
            observer=self.departures if self.departures.wanted else None,
        )
        self.departures.tree = self.tree

    def attempt(self, what: str, call: Callable[[], T]) -> T | None:
        """Call a lower tier; what it raises is counted and logged once, never raised into a request. None then.

        InvariantBroken is a fault of this program and goes on.
        """
        try:
            return call()
        except InvariantBroken:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a copy engine or a storage client raises costs a recompute
            self.lower_tier_failed(what, error)
            return None

    def lower_tier_failed(self, what: str, error: Exception) -> None:
        """Count a failure of a lower tier; the first of its kind is logged."""
        reason = f"{what}_{error.fault.value}" if isinstance(error, StorageError) else what
        if reason not in self.counters.failures:
            _log.warning("%s failed, pages are computed again: %s", what, error)
            self.counters.failure_words[reason] = str(error)
        if isinstance(error, Vanished) and self.counters.device_lost is None:
            self.counters.device_lost = error
        self.counters.failures[reason] = self.counters.failures.get(reason, 0) + 1

    def allocator(self, tier: Tier) -> SlotAllocator:
        """Return the slots of `tier`, which must exist."""
        slots = self.device_slots if tier == DEVICE else self.host_slots
        assert slots is not None
        return slots

    def evict(self, tier: Tier, n: int, *, back_up_first: bool = False) -> Evicted:
        """Take up to `n` pages out of `tier` in the configured order, and free and count their slots. See `RadixTree.evict`."""
        began = perf_counter()
        evicted = self.tree.evict(tier, n, strict=self.config.strict, back_up_first=back_up_first)
        self.take_back(tier, evicted)
        if self.probe is not None and len(evicted.slots):
            self.probe.evicted(tier, len(evicted.slots), perf_counter() - began)
        return evicted

    def moved(self, path: Path, n_pages: int, timed: Timed) -> None:
        """Note that `timed` moved `n_pages` > 0 whole pages: the cost model learns from it, the probe hears of it."""
        self.costs.observe(path, n_pages * self.geometry.page_bytes, timed.wall_s)
        if self.probe is not None:
            self.probe.moved(path, n_pages, timed.wall_s, timed.queued_s)

    def take_back(self, tier: Tier, evicted: Evicted) -> None:
        """Free and count what an eviction handed over."""
        self.departures.settle()
        if len(evicted.slots):
            self.allocator(tier).free(evicted.slots)
            self.counters.evicted_pages[tier] += len(evicted.slots)
        if len(evicted.dropped_host_slots):
            self.allocator(HOST).free(evicted.dropped_host_slots)
            self.counters.evicted_pages[HOST] += len(evicted.dropped_host_slots)
            self.counters.orphaned_pages += len(evicted.dropped_host_slots)

    def remember(self, keys: bytes | None, start: int, end: int, flags: SeenFlag) -> None:
        """Note in the seen-keys memory how far down pages `[start, end)` got."""
        if self.seen is not None and keys is not None and start < end:
            self.seen.add(key64(keys[start * KEY_BYTES : end * KEY_BYTES]), flags)

    def ghost_pages(self, request: Request) -> int:
        """Return how many leading pages the ghost list says are worth writing down, and forget them there."""
        if self.ghost is None or request.keys is None or not request.ready_pages:
            return 0
        prefixes = key64(request.keys[: request.ready_pages * KEY_BYTES])
        deepest = self.ghost.deepest(prefixes)
        if deepest is None:
            return 0
        self.ghost.discard(prefixes[: deepest + 1])
        self.counters.ghost_hits += 1
        return deepest + 1

    def tell_stored(self, request: Request, start: int, end: int, tier: Tier) -> None:
        """Tell the observer that `tier` holds pages `[start, end)` of a request."""
        if self.observer is not None and request.keys is not None and start < end:
            self._tell(request.keys, request.tokens, start, end, tier, request.namespace)

    def tell_pages(self, node: Node, start: int, end: int, tier: Tier) -> None:
        """Tell the observer that `tier` holds pages `[start, end)` of the path to `node`."""
        if self.observer is None or start >= end:
            return
        for n in self.tree.nodes_between(node, start, end):
            low, high = max(start, n.depth), min(end, n.depth + n.n_pages)
            keys = self.tree.keys_of(n, low, high)
            width = self.tree.page_width
            tokens = n.tokens[(low - n.depth) * width : (high - n.depth) * width]
            parent = self._key_before(n, low)
            self.observer.stored(keys, parent, tokens, tier, n.namespace)

    def _tell(self, keys: bytes, tokens: bytes, start: int, end: int, tier: Tier, namespace: Namespace) -> None:
        assert self.observer is not None
        parent = keys[(start - 1) * KEY_BYTES : start * KEY_BYTES] if start else None
        width = self.tree.page_width
        self.observer.stored(
            keys[start * KEY_BYTES : end * KEY_BYTES], parent, tokens[start * width : end * width], tier, namespace
        )

    def _key_before(self, node: Node, page: int) -> bytes | None:
        if page == 0:
            return None
        while node.depth > page - 1:
            assert node.parent is not None
            node = node.parent
        return self.tree.keys_of(node, page - 1, page)
