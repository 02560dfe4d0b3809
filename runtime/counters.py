"""What the cache counted since it started: plain numbers, one place. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hicachectl.errors import Vanished
from hicachectl.runtime.cost import Path
from hicachectl.runtime.keys import Namespace
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.tiers import Tier

if TYPE_CHECKING:
    from hicachectl.runtime.account import Account

__all__ = ["CacheCounters", "CacheObserver", "CacheProbe"]


class CacheObserver(Protocol):
    """Hears which pages a tier gained or lost, e.g. `events.EventLog`. `keys` are 32 bytes a page, `tokens` 4 bytes a token."""

    def stored(self, keys: bytes, parent_key: bytes | None, tokens: bytes, tier: Tier, namespace: Namespace) -> None:
        """`tier` holds these consecutive pages now; `parent_key` names the page before the first one."""

    def removed(self, keys: bytes, tier: Tier) -> None:
        """`tier` no longer holds these pages."""


class CacheProbe(Protocol):
    """Hears how long things took and how requests ended, e.g. `metric_feed.MetricFeed`. Called in the cache's thread."""

    def moved(self, path: Path, n_pages: int, wall_s: float, queued_s: float) -> None:
        """One copy moved `n_pages` > 0: it waited `queued_s` for its thread and took `wall_s`."""

    def evicted(self, tier: Tier, n_pages: int, wall_s: float) -> None:
        """One eviction pass took `n_pages` > 0 out of `tier`."""

    def released(self, account: Account) -> None:
        """A request is over."""


@dataclass(slots=True)
class CacheCounters:
    """Totals in pages, tokens, bytes and seconds of copying (queueing excluded)."""

    requests: int = 0
    input_tokens: int = 0
    pages_total: int = 0
    hit_pages: list[int] = field(default_factory=lambda: [0, 0, 0])
    """By tier: device, host, storage."""
    used_pages: int = 0
    restored_pages: list[int] = field(default_factory=lambda: [0, 0, 0])
    """By the tier they came from; the device entry stays 0."""
    missed_tokens: dict[MissReason, int] = field(default_factory=dict)
    published_pages: int = 0
    duplicate_pages: int = 0
    """Published by two requests at once; the second copy was given back."""
    evicted_pages: list[int] = field(default_factory=lambda: [0, 0])
    orphaned_pages: int = 0
    """Host pages dropped because the page above them left every tier."""
    dropped_pages: int = 0
    """Not backed up for want of host slots."""
    device_full: int = 0
    """Times device slots could not be had."""
    loaded_pages: int = 0
    load_bytes: int = 0
    load_s: float = 0.0
    backup_pages: int = 0
    backup_bytes: int = 0
    backup_s: float = 0.0
    storage_read_pages: int = 0
    storage_read_failed_pages: int = 0
    storage_read_bytes: int = 0
    storage_reads_cut: int = 0
    """Reads given up at their deadline."""
    storage_read_s: float = 0.0
    stored_pages: int = 0
    """Written to storage."""
    store_skipped_pages: int = 0
    """Offered to storage, which held them already."""
    store_failed_pages: int = 0
    store_dropped_pages: int = 0
    """Not stored because the storage queue was full."""
    ghost_hits: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Failures of lower tiers by reason; each cost a recompute, never a byte."""
    failure_words: dict[str, str] = field(default_factory=dict)
    """What the first failure of each reason said."""
    device_lost: Vanished | None = None
    """The first failure that means no call on the device can succeed any more."""

    def transfer_failed(self, what: str) -> None:
        """Count a failed copy under `transfer_<what>`."""
        self.failures[f"transfer_{what}"] = self.failures.get(f"transfer_{what}", 0) + 1

    def storage_failed(self, fault: str) -> None:
        """Count a failed storage call under `storage_<fault>`."""
        self.failures[f"storage_{fault}"] = self.failures.get(f"storage_{fault}", 0) + 1

    def add_account(self, account: Account) -> None:
        """Add one finished request."""
        self.requests += 1
        self.input_tokens += account.input_tokens
        self.pages_total += account.pages_total
        self.hit_pages[Tier.DEVICE] += account.device_hit_pages
        self.hit_pages[Tier.HOST] += account.host_hit_pages
        self.hit_pages[Tier.STORAGE] += account.storage_hit_pages
        self.used_pages += account.used_pages
        self.restored_pages[Tier.HOST] += account.restored_host_pages
        self.restored_pages[Tier.STORAGE] += account.restored_storage_pages
        for reason, tokens in account.missed_tokens.items():
            self.missed_tokens[reason] = self.missed_tokens.get(reason, 0) + tokens
