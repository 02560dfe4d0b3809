"""From the cache to the metrics: what each ended request, copy and eviction adds, and what is looked up when someone reads.

Two ways in, whichever is cheaper without telling less:

    told       requests, copies, eviction passes: the cache calls `released`, `moved`, `evicted` (`CacheProbe`), since a
               histogram needs each value. The counters of one request change together, so a reader finds them balanced:
               tokens by source = missed by reason + used = input tokens.
    looked up  slots in use, pages evicted, failures, submissions, what storage did: the cache, the engine and the storage
               count these anyway, so they are read when a scrape comes and cost nothing between scrapes.

Names and meanings: `metric_catalog.py`. The cost a request is measured by a test and lies at some ten microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hicachectl.runtime.account import Account
from hicachectl.runtime.cost import Path
from hicachectl.runtime.decide import RestoreReason
from hicachectl.runtime.metrics import Metrics
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.storage.base import StorageStats
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.backends import Direction

if TYPE_CHECKING:
    from hicachectl.runtime.cache import HierarchicalCache
    from hicachectl.runtime.transfer.engine import TransferEngine

__all__ = ["MetricFeed"]

DEVICE, HOST, STORAGE = Tier.DEVICE, Tier.HOST, Tier.STORAGE
_DIRECTION = {Path.HOST_READ: Direction.LOAD, Path.HOST_WRITE: Direction.BACKUP}


class MetricFeed:
    """Feeds `metrics` from `cache` and its `engine` (None = no host tier) until `close`.

    `verified` returns (pages compared, pages wrong) so far, where someone compares restored pages. Series of tiers that
    exist start at 0. Several feeds may share a registry: each adds what it saw, and the gauges show who was read last.
    """

    def __init__(
        self,
        metrics: Metrics,
        cache: HierarchicalCache,
        engine: TransferEngine | None,
        *,
        verified: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._metrics, self._cache, self._engine, self._verified = metrics, cache, engine, verified
        self._page_tokens, self._page_bytes = cache.page_tokens, cache.geometry.page_bytes
        self._together = metrics.together()
        self._closed = False
        self._told: dict[tuple[str, str | None], float] = {}
        """What of each looked-up total has been added so far."""
        tiers = [DEVICE]
        if cache.host_slots is not None:
            tiers.append(HOST)
        if cache.storage is not None:
            tiers.append(STORAGE)
        words = [tier.name.lower() for tier in tiers]
        paths = [path for path in Path if _end_of(path) in tiers]
        counter, histogram = metrics.counter, metrics.histogram
        self._requests = counter("hicache_requests_total")
        self._computed = counter("hicache_prompt_tokens_total", "computed")
        self._used = [counter("hicache_prompt_tokens_total", word) for word in words]
        self._hits = [counter("hicache_hit_pages_total", word) for word in words]
        self._saved = [counter("hicache_saved_seconds_total", word) for word in words]
        self._waited = counter("hicache_moved_seconds_total")
        self._missed = {reason: counter("hicache_missed_tokens_total", reason.value) for reason in MissReason}
        self._decided = {reason: counter("hicache_restores_total", reason.value) for reason in RestoreReason}
        self._match_s = histogram("hicache_match_seconds")
        self._restore_s = histogram("hicache_restore_seconds")
        self._eviction_s = {
            tier: histogram("hicache_eviction_seconds", tier.name.lower()) for tier in tiers if tier != STORAGE
        }
        self._copies = {
            path: (
                counter("hicache_moved_tokens_total", path.value),
                counter("hicache_moved_bytes_total", path.value),
                histogram("hicache_transfer_seconds", path.value),
                histogram("hicache_queued_seconds", path.value),
            )
            for path in paths
        }
        cache.attach(self)
        metrics.refresh_with(self._look_up)

    # -- told by the cache ----------------------------------------------------------------------------------------

    def released(self, account: Account) -> None:
        """Add one ended request."""
        page, tokens = account.page_tokens, account.input_tokens
        by_host, by_storage = account.restored_host_pages, account.restored_storage_pages
        by_device = account.used_pages - by_host - by_storage
        hits = (account.device_hit_pages, account.host_hit_pages, account.storage_hit_pages)
        saves = self._cache.costs.recompute.skipped_s
        start = 0
        with self._together:
            self._requests.inc()
            self._match_s.observe(account.match_s)
            for tier, used in enumerate((by_device, by_host, by_storage)):
                if hits[tier]:
                    self._hits[tier].inc(hits[tier])
                if used:
                    end = start + used * page
                    self._used[tier].inc(end - start)
                    self._saved[tier].inc(saves(start, end))
                    start = end
            self._computed.inc(tokens - start)
            for reason, missed in account.missed_tokens.items():
                self._missed[reason].inc(missed)
            self._waited.inc(account.restore_wait_s + account.room_wait_s)
            if account.restore_reason is not None:
                self._decided[account.restore_reason].inc()
            if account.restore_s is not None:
                self._restore_s.observe(account.restore_s)

    def moved(self, path: Path, n_pages: int, wall_s: float, queued_s: float) -> None:
        """Add one finished copy."""
        tokens, n_bytes, copy_s, wait_s = self._copies[path]
        with self._together:
            tokens.inc(n_pages * self._page_tokens)
            n_bytes.inc(n_pages * self._page_bytes)
            copy_s.observe(wall_s)
            wait_s.observe(queued_s)

    def evicted(self, tier: Tier, n_pages: int, wall_s: float) -> None:
        """Add one eviction pass."""
        self._eviction_s[tier].observe(wall_s)

    def close(self) -> None:
        """Look up once more and let go of the cache; the metrics keep their last values. A second call does nothing."""
        with self._together:
            if self._closed:
                return
            self._closed = True
            self._look_up()
            self._metrics.forget_refresher(self._look_up)
            self._cache.attach(None)

    # -- looked up when someone reads -----------------------------------------------------------------------------

    def _look_up(self) -> None:
        """Bring gauges and looked-up counters up to date; runs in the reader's thread."""
        cache, page = self._cache, self._page_tokens
        gauge = self._metrics.gauge
        for tier, slots in ((DEVICE, cache.device_slots), (HOST, cache.host_slots)):
            if slots is not None:
                word = tier.name.lower()
                gauge("hicache_used_tokens", word).set(slots.n_used * page)
                gauge("hicache_capacity_tokens", word).set(slots.n_slots * page)
                self._grow("hicache_evicted_tokens_total", word, cache.counters.evicted_pages[tier] * page)
        failures = dict(cache.counters.failures)
        if self._engine is not None:
            for path, direction in _DIRECTION.items():
                total = self._engine.counters(direction)
                self._grow("hicache_submissions_total", path.value, total.n_submissions)
                if total.late_failures:
                    failures[f"transfer_{direction.value}_late"] = total.late_failures
        if cache.storage is not None:
            self._look_up_storage(cache.storage.stats(), failures)
        for reason, n in failures.items():
            self._grow("hicache_failures_total", reason, n)
        if self._verified is not None:
            compared, wrong = self._verified()
            self._grow("hicache_verified_pages_total", None, compared)
            self._grow("hicache_mismatched_pages_total", None, wrong)

    def _look_up_storage(self, stats: StorageStats, failures: dict[str, int]) -> None:
        """Bring what storage knows up to date, and add its failures to `failures`."""
        page = self._page_tokens
        self._metrics.gauge("hicache_used_tokens", "storage").set(stats.n_objects * page)
        if stats.capacity_bytes is not None:
            room = stats.capacity_bytes // self._page_bytes * page
            self._metrics.gauge("hicache_capacity_tokens", "storage").set(room)
        self._grow("hicache_evicted_tokens_total", "storage", stats.evictions * page)
        for reason, n in stats.failures.items():
            failures[f"storage_{reason}"] = failures.get(f"storage_{reason}", 0) + n

    def _grow(self, name: str, label_value: str | None, total: float) -> None:
        """Add to a counter what a total that is kept elsewhere grew by since the last look."""
        before = self._told.get((name, label_value), 0)
        self._metrics.counter(name, label_value).inc(total - before)
        self._told[name, label_value] = total


def _end_of(path: Path) -> Tier:
    """Return the lower end of a path."""
    return HOST if path in _DIRECTION else STORAGE
