"""The cache's own story as KV events: which pages the device and the host tier hold, in the names routers use.

The cache tells of pages by their page key; routers know them by the hash of the event chain (`keys.event_hashes`). In the
default namespace the one is the first 64 bits of the other. In any other namespace the two chains differ, so the event
digest of each page held is kept here, from its first medium to its last: a page is always told after the page above it,
which some tier still holds, so the chain goes on from there and no page is hashed twice.

The storage tier is not announced. A store event must name the tokens and the parent of a page, a removal must follow when
the page goes; but storage evicts by itself, other processes share it, and what a restart finds there is known by its key
alone. A router that asks for storage pages asks the storage.

Called in the cache's thread, like the cache itself; so is `take`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.events import MEDIUM_OF_TIER, EventBatch, EventLog, Medium
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, KEY_BYTES, Namespace, SeedTag, event_hashes, key64, page_keys
from hicachectl.runtime.tiers import Tier

__all__ = ["CacheEvents"]


class _Named:
    """A page of a namespace: its event digest (32 bytes), its event hash, and a bit for each tier that holds it."""

    __slots__ = ("digest", "event_hash", "tiers")

    def __init__(self, digest: bytes, event_hash: int) -> None:
        self.digest, self.event_hash, self.tiers = digest, event_hash, 0


class CacheEvents:
    """A `CacheObserver` that collects KV events; give it to `HierarchicalCache(observer=...)` and `take` a batch every tick.

    `clock` gives seconds since the epoch, `attn_dp_rank` names the rank that owns the cache. Memory: that of `EventLog`,
    the events not taken yet, and about 350 bytes a page held outside the default namespace.

    >>> from hicachectl.runtime.keys import page_keys
    >>> events = CacheEvents(page_tokens=2, clock=lambda: 7.0)
    >>> tokens = bytes(16)
    >>> events.stored(page_keys(tokens, 2), None, tokens, Tier.DEVICE, DEFAULT_NAMESPACE)
    >>> batch = events.take()
    >>> batch.ts, len(batch.events[0].block_hashes), events.take() is None
    (7.0, 2, True)
    """

    __slots__ = ("_clock", "_log", "_named", "_page_tokens", "_rank")

    def __init__(
        self, page_tokens: int, *, attn_dp_rank: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._page_tokens = page_tokens
        self._log = EventLog(page_tokens)
        self._named: dict[bytes, _Named] = {}
        self._rank, self._clock = attn_dp_rank, clock

    def stored(self, keys: bytes, parent_key: bytes | None, tokens: bytes, tier: Tier, namespace: Namespace) -> None:
        """Note that `tier` holds these consecutive pages; those it holds already are announced once only.

        Raises InvariantBroken for the storage tier, and in a namespace for a page whose parent nobody holds.
        """
        medium = _medium(tier)
        if namespace == DEFAULT_NAMESPACE:
            hashes = key64(keys).view(np.int64)
            parent = int(key64(parent_key).view(np.int64)[0]) if parent_key is not None else None
        else:
            hashes, parent = self._name(keys, parent_key, tokens, tier, namespace)
        self._log.stored(hashes, parent=parent, tokens=tokens, medium=medium, namespace=namespace)

    def removed(self, keys: bytes, tier: Tier) -> None:
        """Note that `tier` no longer holds these pages; those never announced (a failed backup) are held back."""
        medium = _medium(tier)
        hashes = key64(keys).view(np.int64)
        if self._named:
            bit = 1 << tier
            for i in range(len(hashes)):
                key = keys[i * KEY_BYTES : (i + 1) * KEY_BYTES]
                page = self._named.get(key)
                if page is not None:
                    hashes[i] = page.event_hash
                    page.tiers &= ~bit
                    if not page.tiers:
                        del self._named[key]
        self._log.removed(hashes, medium=medium)

    def cleared(self) -> None:
        """Note that every tier was emptied at once, as when an engine drops its cache."""
        self._named.clear()
        self._log.cleared()

    def take(self) -> EventBatch | None:
        """Return the events since the last call as one batch stamped now, and forget them; None when nothing happened."""
        events = self._log.take()
        return EventBatch(self._clock(), events, self._rank) if events else None

    def held(self, tier: Tier) -> int:
        """Return how many pages the routers believe `tier` holds."""
        return self._log.held(_medium(tier))

    @property
    def double_stores(self) -> int:
        """Pages told again while announced: two requests computed the same page, or a restore found it there."""
        return self._log.double_stores

    @property
    def orphan_removals(self) -> int:
        """Pages that left without having been announced: their backup never succeeded."""
        return self._log.orphan_removals

    def _name(
        self, keys: bytes, parent_key: bytes | None, tokens: bytes, tier: Tier, namespace: Namespace
    ) -> tuple[npt.NDArray[np.int64], int | None]:
        """Return event hashes of the pages and of their parent, and note that `tier` holds them.

        Pages held by some tier are known; from the first unknown one on the event chain is hashed.
        """
        above = self._named.get(parent_key) if parent_key is not None else None
        if parent_key is not None and above is None:
            raise InvariantBroken(
                f"page {keys[:8].hex()} was stored under {parent_key[:8].hex()}, which no tier was told to hold",
                where="KV events",
            )
        parent = above.event_hash if above is not None else None
        n, width, bit = len(keys) // KEY_BYTES, len(tokens) // max(1, len(keys) // KEY_BYTES), 1 << tier
        names = [keys[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in range(n)]
        n_known = 0
        while n_known < n and (page := self._named.get(names[n_known])) is not None:
            above, n_known = page, n_known + 1
        if n_known < n:
            digests = page_keys(
                tokens[n_known * width :],
                self._page_tokens,
                namespace=namespace,
                parent=above.digest if above is not None else None,
                tag=SeedTag.EVENT,
            )
            hashes = event_hashes(digests, namespace).tolist()
            for i, event_hash in enumerate(hashes):
                digest = digests[i * KEY_BYTES : (i + 1) * KEY_BYTES]
                if names[n_known + i] not in self._named:
                    self._named[names[n_known + i]] = _Named(digest, event_hash)
        pages = [self._named[name] for name in names]
        for page in pages:
            page.tiers |= bit
        return np.array([page.event_hash for page in pages], dtype=np.int64), parent


def _medium(tier: Tier) -> Medium:
    if tier == Tier.STORAGE:
        raise InvariantBroken("storage evicts by itself: its pages cannot be announced truly", where="KV events")
    return MEDIUM_OF_TIER[tier]
