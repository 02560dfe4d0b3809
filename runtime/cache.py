"""The cache: match -> restore -> publish -> release, and tick(). The only file that knows the order of the steps.

A request takes ten steps, ten calls below; an engine makes them from one thread:

     1  the tokenizer's thread hands over token ids and page keys           (keys.py)
     2  tree.match: device-ready and logical length, one lease              `match`
     3  decide.restore: how far, from where, or recompute                   `restore`
     4  storage -> host slots, whole pages                                  `_read_storage`
     5  host -> device by layer group                                       `_load`
     6  device slots for the tail; the engine computes it                   `allocate`
     7  new pages become visible, all or nothing                            `publish`
     8  write_policy.choose: what goes down                                 `publish`
     9  device -> host, then host -> storage                                `_back_up`, `_store`
    10  the lease ends                                                      `release`

Only bytes move in other threads. Slots, tree and accounts are touched in the caller's thread alone, when `tick` finds a
copy finished. A lower tier that fails costs a recompute, counted by reason, and never a wrong byte or an exception in
the request. Ownership: a slot belongs to an allocator's free list, to the tree, to a ticket, or to a request
(`Request.allocated`); `check` proves that these four make up each pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np

from hicachectl.errors import CapacityError, InvariantBroken, StorageError, UsageError
from hicachectl.runtime import decide, write_policy
from hicachectl.runtime.cost import CostModel, Path
from hicachectl.runtime.counters import CacheCounters, CacheObserver
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.ghost import GhostList
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, KEY_BYTES, Namespace, key64
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import SlotAllocator
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.request import Account, Phase, Request
from hicachectl.runtime.seen import SeenFlag, SeenKeys, classify_missed
from hicachectl.runtime.storage.backup import StorageBackup
from hicachectl.runtime.storage.base import StorageBackend
from hicachectl.runtime.storage.gate import LoadGate
from hicachectl.runtime.storage.prefetch import Prefetcher
from hicachectl.runtime.tickets import BackupTicket, LoadTicket, StoreTicket
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.tree import NO_SLOTS, Evicted, Lease, Node, RadixTree, Slots
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["CacheConfig", "HierarchicalCache", "Restored"]

DEVICE, HOST = Tier.DEVICE, Tier.HOST


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How the cache decides. Sizes come from the pools.

    `strict` keeps the exact eviction order by waiting for a copy that holds the next victim (replay); without it a held
    victim is passed over (an engine must not wait). `seen_keys` bounds the memory behind "why no hit", `ghost_entries`
    the ghost list (0 = off). `restore_timeout_s` bounds every wait for a copy; `storage_wait_s` the wait for storage reads.
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
    keep_keys: bool = False
    restore_timeout_s: float = 60.0
    storage_wait_s: float = 60.0
    storage_queue_pages: int = 4096


@dataclass(frozen=True, slots=True)
class Restored:
    """Pages just brought up and not yet visible: what a verifier gets to see. `keys` are theirs (32 bytes each) if known."""

    first_page: int
    keys: bytes | None
    device_slots: Slots
    host_slots: Slots
    source: Tier


class HierarchicalCache:
    """Three tiers behind one tree. See the module's docstring for the order of calls.

    `device_pool`, `host_pool` (None = no host tier) and `storage` (None = no L3) stay the caller's; `engine` moves bytes
    between the pools. `verify_restored` is called before restored pages become visible and may raise to stop everything.
    """

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool | None,
        engine: TransferEngine | None,
        costs: CostModel,
        config: CacheConfig,
        *,
        storage: StorageBackend | None = None,
        observer: CacheObserver | None = None,
        verify_restored: Callable[[Restored], None] | None = None,
    ) -> None:
        if (host_pool is None) != (engine is None):
            raise UsageError("a host pool and a transfer engine come together", hint="give both or neither")
        if storage is not None and host_pool is None:
            raise UsageError("storage needs a host tier: whole pages are read into host slots", hint="give host_slots > 0")
        self.config = config
        self.geometry = device_pool.geometry
        self.page_tokens = self.geometry.page_tokens
        self.costs = costs
        self.storage = storage
        self.counters = CacheCounters()
        self.observer = observer
        self.verify_restored = verify_restored
        self._device_pool, self._host_pool, self._engine = device_pool, host_pool, engine
        self.device_slots = SlotAllocator(device_pool.n_slots, order=config.free_list, name="device")
        self.host_slots = SlotAllocator(host_pool.n_slots, order=config.free_list, name="host") if host_pool else None
        self.ghost = GhostList(config.ghost_entries) if config.ghost_entries else None
        self.seen = SeenKeys(config.seen_keys) if config.seen_keys else None
        self.wants_keys = bool(config.keep_keys or storage or self.ghost is not None or self.seen is not None or observer)
        keep_keys = self.wants_keys
        self.tree = RadixTree(
            self.page_tokens,
            eviction=config.eviction,
            protected_hits=config.protected_hits,
            keep_keys=keep_keys,
            observer=self if self.ghost is not None or observer is not None else None,
        )
        gate = LoadGate()
        self._prefetcher = Prefetcher(storage, gate=gate) if storage else None
        self._store_queue = StorageBackup(storage, config.storage_queue_pages, gate=gate) if storage else None
        self._backups: deque[BackupTicket] = deque()
        self._loads: deque[LoadTicket] = deque()
        self._stores: deque[StoreTicket] = deque()
        self._open: dict[int, Request] = {}
        self._serial = 0
        self._closed = False

    # -- the ten steps ------------------------------------------------------------------------------------------

    def match(
        self,
        tokens: bytes,
        keys: bytes | None = None,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        priority: int = 0,
    ) -> Request:
        """Step 2: find what is cached of `tokens` and pin it.

        `tokens` is little-endian uint32, 4 bytes each, the incomplete tail included; `keys` the page keys of its whole
        pages, 32 bytes each, wanted when `wants_keys`. Changes leases, and splits the node the match ends in.
        Raises UsageError when keys are wanted and missing.
        """
        self.tick()
        found = self.tree.match(tokens, namespace)
        if self.wants_keys and (keys is None or len(keys) < found.n_pages * KEY_BYTES):
            raise UsageError(
                f"{found.n_pages} page keys wanted, {len(keys or b'') // KEY_BYTES} given",
                hint="storage, ghost list, seen keys and events need the page keys: KeyChain or page_keys computes them",
            )
        lease = self.tree.lease(found)
        self._serial += 1
        stored = self._ask_storage(keys, found.logical_pages, found.n_pages)
        flags = None
        missing_from = found.logical_pages + stored
        if self.seen is not None and keys is not None and missing_from < found.n_pages:
            flags = self.seen.get(key64(keys[missing_from * KEY_BYTES : found.n_pages * KEY_BYTES]))
        request = Request(self._serial, tokens, keys, namespace, priority, self.page_tokens, found, lease, stored, flags)
        request.ready_pages = found.device_pages
        self._open[request.serial] = request
        return request

    def restore(self, request: Request) -> None:
        """Steps 3 to 5: decide how far to restore and start the copies; returns at once.

        Evicts device slots (and host slots for pages that come from storage). Under `strict` it waits for copies that
        hold the next victim.
        """
        request.move(Phase.RESTORING)
        match = request.match
        lower = match.logical_pages - match.device_pages + request.storage_pages
        if not lower:
            request.planned_pages = match.device_pages
            return
        joined = self._join_running_loads(request)
        budget = self._device_budget(request, joined)
        decision = decide.restore(
            joined,
            match.logical_pages - joined,
            request.storage_pages,
            match.n_pages,
            self.page_tokens,
            self.geometry.page_bytes,
            self.costs,
            mode=self.config.restore,
            budget_pages=budget,
        )
        request.cut_reason = MissReason.IN_FLIGHT if decision.reason is decide.RestoreReason.BUDGET else MissReason.RESTORE_DEARER
        request.planned_pages = joined + decision.pages_host + decision.pages_storage
        if decision.pages_host:
            self._load(request, joined, joined + decision.pages_host)
        if decision.pages_storage and request.planned_pages > match.logical_pages:
            self._read_storage(request, match.logical_pages, request.planned_pages)

    def wait_restored(self, request: Request, timeout_s: float | None = None) -> int:
        """Wait until the request's restore is over and return its device-ready pages.

        `timeout_s` None means the configured bound. What has not arrived by then counts as missed in flight.
        """
        if request.phase is not Phase.RESTORING:
            return request.ready_pages
        began = perf_counter()
        deadline = began + (self.config.restore_timeout_s if timeout_s is None else timeout_s)
        late = False
        for ticket in request.loads:
            late = not self._finish_load_by(ticket, deadline)
            if late:
                break
        if request.loads:
            request.restore_wait_s = perf_counter() - began
        self._settle_restore(request, late)
        return request.ready_pages

    def allocate(self, request: Request, n_pages: int) -> Slots | None:
        """Step 6: hand out `n_pages` device slots for the pages to be computed, or None when they cannot be had now.

        They are the request's until `publish` or `release`. Evicts from the device tier.
        """
        if request.phase is not Phase.READY:
            raise InvariantBroken(f"request {request.serial} asks for slots while {request.phase.value}")
        if request.allocated is not None and len(request.allocated):
            raise InvariantBroken(f"request {request.serial} has {len(request.allocated)} unpublished slots already")
        if not self._make_room(DEVICE, n_pages):
            self.counters.device_full += 1
            return None
        slots = self.device_slots.alloc(n_pages)
        request.allocated = slots
        return slots

    def publish(self, request: Request) -> None:
        """Steps 7 to 9: make the allocated pages visible, touch the path, and start what the write policy chooses.

        Call it once the pages are computed (for chunked prefill once a chunk: allocate, compute, publish, again). Also
        right with nothing allocated: the touch and the policy still apply. Host slots are reserved here, in the
        caller's thread; only bytes move later.
        """
        request.move(Phase.READY)
        slots = request.allocated
        if slots is not None and len(slots):
            start = request.ready_pages
            start_node = self._node_at(request, start)
            before = self.tree.n_pages[DEVICE]
            inserted = self.tree.insert(
                request.tokens, slots, namespace=request.namespace, start_page=start, start_node=start_node, keys=request.keys
            )
            request.allocated = None
            if inserted.node.depth + inserted.node.n_pages > request.lease.n_pages:
                self.tree.extend_lease(request.lease, inserted.node)
            if len(inserted.unused_slots):
                self.device_slots.free(inserted.unused_slots)
                self.counters.duplicate_pages += len(inserted.unused_slots)
            request.ready_pages = start + len(slots)
            self.counters.published_pages += self.tree.n_pages[DEVICE] - before
            self._remember(request.keys, start, request.ready_pages, SeenFlag.PUBLISHED)
            self._tell_stored(request, start, request.ready_pages, DEVICE)
        self.tree.touch(request.lease.node, counted_pages=request.counted_pages, priority=request.priority)
        request.counted_pages = request.lease.n_pages
        if self._host_pool is not None and request.ready_pages:
            self._back_up(self._node_at(request, request.ready_pages), self._ghost_pages(request))

    def release(self, request: Request) -> Account:
        """Step 10: end the leases and return the account. Unpublished slots go back; running copies go on by themselves."""
        if request.phase is Phase.RESTORING:
            self._settle_restore(request, late=True)
        request.move(Phase.RELEASED)
        if request.allocated is not None and len(request.allocated):
            self.device_slots.free(request.allocated)
            request.allocated = None
        request.lease.release()
        del self._open[request.serial]
        account = self._account(request)
        self.counters.add_account(account)
        return account

    def tick(self) -> None:
        """Move on what has finished: restored pages become ready, backed-up pages evictable. Never waits."""
        while self._backups and self._backups[0].copy.done:
            self._finish_backup(self._backups.popleft())
        for load in list(self._loads):
            if (load.after is None or load.after.over) and self._load_done(load):
                self._finish_load(load)
        while self._stores and self._stores[0].write.done:
            self._finish_store(self._stores.popleft())

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is under way; returns False when `timeout_s` passed first."""
        deadline = None if timeout_s is None else perf_counter() + timeout_s
        while self._backups or self._loads or self._stores:
            self.tick()
            ticket = self._oldest()
            if ticket is None:
                break
            left = None if deadline is None else max(0.0, deadline - perf_counter())
            if left == 0.0 or not self._wait_ticket(ticket, left):
                return False
        return True

    def close(self) -> None:
        """Finish what is under way and stop the storage threads. The pools, engine and storage are the caller's to close."""
        if self._closed:
            return
        self._closed = True
        try:
            self.drain(self.config.restore_timeout_s)
        finally:
            if self._prefetcher is not None:
                self._prefetcher.close()
            if self._store_queue is not None:
                self._store_queue.close()

    # -- step 3 to 5: restore -----------------------------------------------------------------------------------

    def _ask_storage(self, keys: bytes | None, start: int, end: int) -> int:
        """Return how many leading pages of `[start, end)` storage holds; a storage that fails holds none."""
        if self.storage is None or keys is None or start >= end:
            return 0
        names = _split_keys(keys, start, end)
        try:
            return self.storage.exists_prefix(names)
        except StorageError as error:
            self.counters.storage_failed(error.fault.value)
            return 0

    def _join_running_loads(self, request: Request) -> int:
        """Wait with loads other requests started for the same pages instead of copying twice; returns how far they reach."""
        reach = request.match.device_pages
        node = request.lease.node
        while True:
            running = None
            for n in self.tree.nodes_between(node, reach, reach + 1):
                running = n.load
            if not isinstance(running, LoadTicket) or running.over or running.end <= reach:
                return min(reach, request.match.logical_pages)
            request.loads.append(running)
            reach = running.end

    def _device_budget(self, request: Request, joined: int) -> int:
        """Return how many pages a restore may bring up so that the tail still finds device slots in an idle cache."""
        capacity = self.device_slots.n_slots
        if request.n_pages > capacity:
            return max(0, capacity - joined)
        return request.n_pages - joined

    def _load(self, request: Request, start: int, end: int) -> None:
        """Step 5: start host -> device for pages `[start, end)` of the host tier."""
        assert self._engine is not None
        if not self._make_room(DEVICE, end - start):
            self.counters.device_full += 1
            request.cut_reason = MissReason.IN_FLIGHT
            request.planned_pages = start
            return
        lease = self.tree.lease_node(request.lease.node)
        device_slots = self.device_slots.alloc(end - start)
        assert device_slots is not None
        host_slots = self.tree.slots_between(lease.node, HOST, start, end)
        after = request.loads[-1] if request.loads else None
        ticket = LoadTicket(lease, request.tokens, request.keys, start, end, device_slots, host_slots, None, None, after, arrived=start)
        ticket.copy = self._engine.load(host_slots, device_slots)
        for node in self.tree.isolate(lease.node, start, end) if self.tree.eviction.needs_uniform_entry else self.tree.nodes_between(lease.node, start, end):
            node.load = ticket
        self._loads.append(ticket)
        request.loads.append(ticket)

    def _read_storage(self, request: Request, start: int, end: int) -> None:
        """Step 4: start storage -> host for pages `[start, end)`; the host -> device copy follows when they have arrived."""
        assert self._prefetcher is not None and self.host_slots is not None and request.keys is not None
        if request.planned_pages < start:
            return
        wanted = end - start
        device_room = self._room_for_up_to(DEVICE, wanted)  # first: under write_back it may use host slots
        host_room = self._room_for_up_to(HOST, min(wanted, device_room))
        n = min(wanted, host_room, device_room)
        if n < wanted:
            request.cut_reason = MissReason.IN_FLIGHT
            request.planned_pages = start + n
        if not n:
            return
        host_slots, device_slots = self.host_slots.alloc(n), self.device_slots.alloc(n)
        assert host_slots is not None and device_slots is not None
        pages, buffers = self._page_buffers(host_slots)
        after = request.loads[-1] if request.loads else None
        read = self._prefetcher.submit(_split_keys(request.keys, start, start + n), pages)
        lease = self.tree.lease_node(request.lease.node)
        ticket = LoadTicket(
            lease, request.tokens, request.keys, start, start + n, device_slots, host_slots, None, read, after, buffers, arrived=start
        )
        self._loads.append(ticket)
        request.loads.append(ticket)

    def _page_buffers(self, host_slots: Slots) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
        """Return one writable buffer a page: the pool's own memory where a page is contiguous, staging otherwise."""
        assert self._host_pool is not None
        if self._host_pool.page_is_contiguous:
            return [self._host_pool.page_bytes_view(int(slot)) for slot in host_slots], None
        staging = [np.empty(self.geometry.page_bytes, dtype=np.uint8) for _ in range(len(host_slots))]
        return staging, staging

    def _load_done(self, ticket: LoadTicket) -> bool:
        """Whether a load is over; starts the second half of a storage read whose pages have arrived."""
        if ticket.over:
            return True
        if ticket.copy is None:
            assert ticket.read is not None and self._engine is not None and self._host_pool is not None
            if not ticket.read.done:
                return False
            n_ok = ticket.read.n_ok
            self._account_read(ticket, n_ok)
            self._trim_load(ticket, ticket.start + n_ok)
            if not n_ok:
                return True
            if ticket.buffers is not None:
                for slot, buffer in zip(ticket.host_slots.tolist(), ticket.buffers, strict=False):
                    self._host_pool.write_page(slot, buffer)
                ticket.buffers = None
            ticket.copy = self._engine.load(ticket.host_slots, ticket.device_slots)
        return ticket.copy.done

    def _account_read(self, ticket: LoadTicket, n_ok: int) -> None:
        assert ticket.read is not None
        n_bytes = n_ok * self.geometry.page_bytes
        self.counters.storage_read_pages += n_ok
        self.counters.storage_read_bytes += n_bytes
        self.counters.storage_read_s += ticket.read.wall_s
        short = ticket.end - ticket.start - n_ok
        if short:
            self.counters.storage_read_failed_pages += short
        if n_ok:
            self.costs.observe(Path.STORAGE_READ, n_bytes, ticket.read.wall_s)

    def _trim_load(self, ticket: LoadTicket, end: int) -> None:
        """Give back the slots of pages from `end` on, which did not arrive."""
        n = end - ticket.start
        if ticket.end > end:
            self.device_slots.free(ticket.device_slots[n:])
            if ticket.read is not None and self.host_slots is not None:
                self.host_slots.free(ticket.host_slots[n:])
            ticket.device_slots, ticket.host_slots, ticket.end = ticket.device_slots[:n], ticket.host_slots[:n], end

    def _finish_load_by(self, ticket: LoadTicket, deadline: float) -> bool:
        """Wait for `ticket` (its read, then its copy) and every load before it; False when `deadline` passed first."""
        while not ticket.over:
            self.tick()
            if ticket.over:
                break
            left = deadline - perf_counter()
            if left <= 0:
                return False
            first = ticket
            while first.after is not None and not first.after.over:
                first = first.after
            self._wait_copy(first, left)
        return True

    def _finish_load(self, ticket: LoadTicket) -> None:
        """Publish what a load brought up, all or nothing, or give its slots back when it failed."""
        self._loads.remove(ticket)
        ticket.over = True
        for node in self.tree.nodes_between(ticket.lease.node, ticket.start, ticket.end):
            if node.load is ticket:
                node.load = None
        copy = ticket.copy
        try:
            if copy is None or ticket.start == ticket.end:
                return
            if copy.error is not None:
                self.counters.transfer_failed("load")
                return
            self.counters.load_s += copy.wall_s
            self.counters.load_bytes += copy.n_bytes
            self.costs.observe(Path.HOST_READ, copy.n_bytes, copy.wall_s)
            if self.verify_restored is not None:
                keys = ticket.keys[ticket.start * KEY_BYTES : ticket.end * KEY_BYTES] if ticket.keys is not None else None
                source = Tier.HOST if ticket.read is None else Tier.STORAGE
                self.verify_restored(Restored(ticket.start, keys, ticket.device_slots, ticket.host_slots, source))
            self._publish_load(ticket)
        finally:
            self._trim_load(ticket, ticket.start)
            ticket.lease.release()

    def _publish_load(self, ticket: LoadTicket) -> None:
        """Hand the slots of a finished load to the tree; pages someone else published meanwhile keep theirs."""
        node, start, end = ticket.lease.node, ticket.start, ticket.end
        if ticket.read is None:
            ready = self._device_ready(node)
            if ready < start:
                self.counters.transfer_failed("load_after_failed_load")
                return
            skip = min(ready, end) - start
            if skip:
                self.device_slots.free(ticket.device_slots[:skip])
                self.counters.duplicate_pages += skip
            if skip < end - start:
                self.tree.extend(node, DEVICE, start + skip, end, ticket.device_slots[skip:])
        else:
            if self._device_ready(node) < start:
                self.counters.transfer_failed("load_after_failed_load")
                return
            inserted = self.tree.insert(
                ticket.tokens, ticket.device_slots, namespace=node.namespace, start_page=start, start_node=node, keys=ticket.keys
            )
            if len(inserted.unused_slots):
                self.device_slots.free(inserted.unused_slots)
                self.counters.duplicate_pages += len(inserted.unused_slots)
            node = inserted.node
            self._adopt_host(node, start, end, ticket.host_slots)
            self._remember(ticket.keys, start, end, SeenFlag.PUBLISHED | SeenFlag.BACKED_UP | SeenFlag.STORED)
            self._tell_pages(node, start, end, HOST)
        self._tell_pages(node, start, end, DEVICE)
        n = end - start
        ticket.device_slots, ticket.host_slots, ticket.start, ticket.arrived = NO_SLOTS, NO_SLOTS, end, end
        self.counters.loaded_pages += n

    def _adopt_host(self, node: Node, start: int, end: int, host_slots: Slots) -> None:
        """Attach host slots just filled from storage; where the host tier holds a page already, ours go back."""
        assert self.host_slots is not None
        holes: list[tuple[int, int]] = []
        for n in self.tree.nodes_between(node, start, end):
            low, high = max(start, n.depth), min(end, n.depth + n.n_pages)
            have = min(high, max(low, n.depth + n.resident(HOST)))
            if have > low:
                self.host_slots.free(host_slots[low - start : have - start])
            if high > have:
                holes.append((have, high))
        for low, high in holes:
            for n in self.tree.attach(node, HOST, low, high, host_slots[low - start : high - start]):
                n.stored = True

    def _device_ready(self, node: Node) -> int:
        """Return how many pages of the path to `node` are device-resident from the root on."""
        ready = 0
        for n in self.tree.path(node):
            ready += n.resident(DEVICE)
            if n.resident(DEVICE) < n.n_pages:
                break
        return ready

    def _settle_restore(self, request: Request, late: bool) -> None:
        """Close the restore of a request: what is ready now is what it may use."""
        match = request.match
        ready = match.device_pages
        for ticket in request.loads:
            arrived = min(ticket.arrived, match.logical_pages) if ticket.read is None else ticket.arrived
            if not ticket.over or arrived <= ready:
                break
            self._extend_to(request, arrived)
            ready = arrived
        request.ready_pages = request.used_pages = ready
        request.restored_host_pages = max(0, min(ready, match.logical_pages) - match.device_pages)
        request.restored_storage_pages = max(0, ready - max(match.logical_pages, match.device_pages))
        if ready < request.planned_pages:
            request.failed = not late
        request.move(Phase.READY)

    def _extend_to(self, request: Request, page: int) -> None:
        """Pin the pages a storage read added below what the request had pinned."""
        if page > request.lease.n_pages:
            found = self.tree.match(request.tokens[: page * self.tree.page_width], request.namespace)
            self.tree.extend_lease(request.lease, self.tree.isolate(found.node, 0, page)[-1])

    # -- steps 6 to 9: room, backup, store -----------------------------------------------------------------------

    def _node_at(self, request: Request, page: int) -> Node:
        """Return the node on the request's path that ends at `page`, splitting one that straddles it."""
        node = request.lease.node
        if node.depth + node.n_pages == page or page == 0 and node.parent is None:
            return node
        while node.parent is not None and node.depth >= page:
            node = node.parent
        if node.depth + node.n_pages > page and node.parent is not None:
            return self.tree.isolate(node, node.depth, page)[-1]
        return node

    def _allocator(self, tier: Tier) -> SlotAllocator:
        slots = self.device_slots if tier == DEVICE else self.host_slots
        assert slots is not None
        return slots

    def _room_for_up_to(self, tier: Tier, n: int) -> int:
        """Evict so that as many of `n` slots as possible are free; returns how many."""
        self._make_room(tier, n)
        return min(n, self._allocator(tier).n_free)

    def _make_room(self, tier: Tier, n: int) -> bool:
        """Evict from `tier` until `n` slots are free; False when that cannot be had now."""
        slots = self._allocator(tier)
        if slots.n_free >= n:
            return True
        first_backed_up = tier == DEVICE and self._host_pool is not None and self.config.write_policy is WritePolicy.WRITE_BACK
        while slots.n_free < n:
            result = self.tree.evict(tier, n - slots.n_free, strict=self.config.strict, back_up_first=first_backed_up)
            self._take_back(tier, result)
            if result.unbacked is not None:
                self._back_up_victim(result.unbacked, result.unbacked_pages)
            elif result.blocked_by is not None:
                if not self._wait_ticket(result.blocked_by, self.config.restore_timeout_s):
                    return False
            elif not len(result.slots):
                return False
        return True

    def _take_back(self, tier: Tier, evicted: Evicted) -> None:
        if len(evicted.slots):
            self._allocator(tier).free(evicted.slots)
            self.counters.evicted_pages[tier] += len(evicted.slots)
        if len(evicted.dropped_host_slots):
            self._allocator(HOST).free(evicted.dropped_host_slots)
            self.counters.evicted_pages[HOST] += len(evicted.dropped_host_slots)
            self.counters.orphaned_pages += len(evicted.dropped_host_slots)

    def _back_up_victim(self, node: Node, n: int) -> None:
        """write_back: copy the device tail of a victim down before it goes; without host room it goes uncopied."""
        end = node.depth + node.resident(DEVICE)
        room = self._room_for_up_to(HOST, n)
        if room:
            self._start_backup(node, end - room, end)
            return
        self._take_back(DEVICE, self.tree.evict(DEVICE, n, strict=self.config.strict))
        self.counters.dropped_pages += n

    def _back_up(self, node: Node, ghost_pages: int) -> None:
        """Steps 8 and 9: let the write policy choose pages of the path to `node`, reserve host slots for them, evicting, and start the copy.

        Without room for all, the first pages are kept: what hangs below them could not be reached without them. The
        choice is made again after the eviction, which may have waited for copies and so found the path changed.
        """
        start, end = self._choose(node, ghost_pages)
        if start == end:
            return
        room = self._room_for_up_to(HOST, end - start)
        start, end = self._choose(node, ghost_pages)
        if room < end - start:
            self.counters.dropped_pages += end - start - room
        if room and start < end:
            self._start_backup(node, start, min(end, start + room))

    def _choose(self, node: Node, ghost_pages: int) -> tuple[int, int]:
        config = self.config
        return write_policy.choose(
            self.tree.segments(node), config.write_policy, selective_hits=config.selective_hits, ghost_pages=ghost_pages
        )

    def _start_backup(self, node: Node, start: int, end: int) -> None:
        assert self.host_slots is not None and self._engine is not None
        host_slots = self.host_slots.alloc(end - start)
        assert host_slots is not None
        device_slots = self.tree.slots_between(node, DEVICE, start, end)
        covering = self.tree.attach(node, HOST, start, end, host_slots)
        ticket = BackupTicket(covering[-1], start, end, self._engine.backup(device_slots, host_slots))
        for n in covering:
            n.backup = ticket
            if self.seen is not None:
                self.seen.add(key64(self.tree.keys_of(n, n.depth, n.depth + n.n_pages)), SeenFlag.BACKED_UP)
        self._backups.append(ticket)

    def _finish_backup(self, ticket: BackupTicket) -> None:
        """A backup is over: its pages may be evicted and go on to storage, or lose their host slots when it failed."""
        nodes = self.tree.nodes_between(ticket.node, ticket.start, ticket.end)
        for node in nodes:
            node.backup = None
        if ticket.copy.error is not None or ticket.doomed:
            self.counters.transfer_failed("backup")
            self._unback(nodes[0])
            return
        self.tree.settle(nodes)
        self.counters.backup_pages += ticket.end - ticket.start
        self.counters.backup_bytes += ticket.copy.n_bytes
        self.counters.backup_s += ticket.copy.wall_s
        self.costs.observe(Path.HOST_WRITE, ticket.copy.n_bytes, ticket.copy.wall_s)
        self._tell_pages(ticket.node, ticket.start, ticket.end, HOST)
        if self._store_queue is not None and not all(n.stored for n in nodes):
            self._store(nodes, ticket)

    def _unback(self, node: Node) -> None:
        """Take `node` and everything below it out of the host tier: a backed-up page never hangs under one that is not."""
        for child in list(node.children.values()):
            if child.resident(HOST):
                self._unback(child)
        if isinstance(node.backup, BackupTicket):
            node.backup.doomed = True
            return
        if node.store is not None or node.resident_children[HOST] or node.load is not None:
            return
        slots = self.tree.drop(node, HOST)
        if len(slots):
            self._allocator(HOST).free(slots)

    def _store(self, nodes: Sequence[Node], ticket: BackupTicket) -> None:
        """Step 9, second half: hand pages to the storage thread; their host slots stay until it is over."""
        assert self._store_queue is not None and self._host_pool is not None
        keys = b"".join(self.tree.keys_of(n, n.depth, n.depth + n.n_pages) for n in nodes)
        slots = self.tree.slots_between(ticket.node, HOST, ticket.start, ticket.end)
        pool = self._host_pool
        pages = [pool.page_bytes_view(s) if pool.page_is_contiguous else pool.read_page(s) for s in slots.tolist()]
        names = _split_keys(keys, 0, len(slots))
        write = self._store_queue.submit(names, pages)
        while write is None and self.config.strict and self._stores:
            if not self._stores[0].write.wait(self.config.restore_timeout_s):
                break
            self._finish_store(self._stores.popleft())
            write = self._store_queue.submit(names, pages)
        if write is None:
            self.counters.store_dropped_pages += len(slots)
            return
        store = StoreTicket(ticket.node, ticket.start, ticket.end, keys, write)
        for n in nodes:
            n.store = store
        self._stores.append(store)

    def _finish_store(self, ticket: StoreTicket) -> None:
        n_ok = ticket.write.n_ok
        nodes = self.tree.nodes_between(ticket.node, ticket.start, ticket.end)
        for node in nodes:
            node.store = None
            node.stored = node.depth + node.n_pages <= ticket.start + n_ok
        self.counters.stored_pages += n_ok
        if n_ok:
            self.costs.observe(Path.STORAGE_WRITE, n_ok * self.geometry.page_bytes, ticket.write.wall_s)
        self.counters.store_failed_pages += ticket.end - ticket.start - n_ok
        if self.seen is not None and n_ok:
            self.seen.add(key64(ticket.keys[: n_ok * KEY_BYTES]), SeenFlag.STORED)
        self.tree.settle(nodes)

    # -- waiting ------------------------------------------------------------------------------------------------

    def _oldest(self) -> object | None:
        if self._backups:
            return self._backups[0]
        if self._loads:
            return self._loads[0]
        return self._stores[0] if self._stores else None

    def _wait_ticket(self, ticket: object, timeout_s: float | None) -> bool:
        """Wait for one copy and move on what finished; False when `timeout_s` passed first."""
        if isinstance(ticket, BackupTicket):
            done = ticket.copy.wait(timeout_s)
        elif isinstance(ticket, StoreTicket):
            done = ticket.write.wait(timeout_s)
        elif isinstance(ticket, LoadTicket):
            done = self._wait_copy(ticket, timeout_s)
        else:
            raise InvariantBroken(f"{ticket!r} is no copy the cache knows")
        self.tick()
        return done

    def _wait_copy(self, ticket: LoadTicket, timeout_s: float | None) -> bool:
        waiting = ticket.copy if ticket.copy is not None else ticket.read
        return waiting is None or waiting.wait(timeout_s)

    # -- accounts, observers, laws ------------------------------------------------------------------------------

    def _account(self, request: Request) -> Account:
        match = request.match
        used = request.used_pages
        hit = match.logical_pages + request.storage_pages
        missed: dict[MissReason, int] = {}

        def add(reason: MissReason, tokens: int) -> None:
            if tokens:
                missed[reason] = missed.get(reason, 0) + tokens

        if used < hit:
            cut_at = max(used, min(hit, request.planned_pages))
            add(MissReason.FAILED if request.failed else MissReason.IN_FLIGHT, (cut_at - used) * self.page_tokens)
            add(request.cut_reason, (hit - cut_at) * self.page_tokens)
        if hit < match.n_pages:
            if request.missed_flags is None:
                add(MissReason.FORGOTTEN, (match.n_pages - hit) * self.page_tokens)
            else:
                reasons = classify_missed(
                    request.missed_flags,
                    host_tier=self._host_pool is not None,
                    storage_tier=self.storage is not None,
                    forgot_any=self.seen is not None and self.seen.forgot_any,
                )
                for reason in reasons:
                    add(reason, self.page_tokens)
        add(MissReason.PARTIAL_PAGE, request.input_tokens - match.n_pages * self.page_tokens)
        return Account(
            request.input_tokens,
            self.page_tokens,
            match.n_pages,
            match.device_pages,
            match.logical_pages - match.device_pages,
            request.storage_pages,
            used,
            request.restored_host_pages,
            request.restored_storage_pages,
            request.restore_wait_s,
            missed,
        )

    def _remember(self, keys: bytes | None, start: int, end: int, flags: SeenFlag) -> None:
        if self.seen is not None and keys is not None and start < end:
            self.seen.add(key64(keys[start * KEY_BYTES : end * KEY_BYTES]), flags)

    def _ghost_pages(self, request: Request) -> int:
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

    def leaving(self, node: Node, tier: Tier, start: int, end: int, last_copy: bool) -> None:
        """Hear from the tree that pages leave a tier: feeds the ghost list and the event log."""
        keys = self.tree.keys_of(node, start, end)
        if tier == DEVICE and last_copy and self.ghost is not None and self._host_pool is not None:
            self.ghost.add(key64(keys))
        if self.observer is not None:
            self.observer.removed(keys, tier)

    def _tell_stored(self, request: Request, start: int, end: int, tier: Tier) -> None:
        if self.observer is not None and request.keys is not None and start < end:
            self._tell(request.keys, request.tokens, start, end, tier, request.namespace)

    def _tell_pages(self, node: Node, start: int, end: int, tier: Tier) -> None:
        if self.observer is None or start >= end:
            return
        for n in self.tree.nodes_between(node, start, end):
            low, high = max(start, n.depth), min(end, n.depth + n.n_pages)
            keys = self.tree.keys_of(n, low, high)
            width = self.tree.page_width
            tokens = n.tokens[(low - n.depth) * width : (high - n.depth) * width]
            parent = self._key_before(n, low)
            self.observer.stored(keys, parent, tokens, tier, n.namespace)

    def _key_before(self, node: Node, page: int) -> bytes | None:
        if page == 0:
            return None
        while node.depth > page - 1:
            assert node.parent is not None
            node = node.parent
        return self.tree.keys_of(node, page - 1, page)

    def _tell(self, keys: bytes, tokens: bytes, start: int, end: int, tier: Tier, namespace: Namespace) -> None:
        assert self.observer is not None
        parent = keys[(start - 1) * KEY_BYTES : start * KEY_BYTES] if start else None
        width = self.tree.page_width
        self.observer.stored(keys[start * KEY_BYTES : end * KEY_BYTES], parent, tokens[start * width : end * width], tier, namespace)

    def private_slots(self, tier: Tier) -> Slots:
        """Return the slots owned by running loads and open requests, not by the tree."""
        pieces: list[Slots] = []
        for load in self._loads:
            if tier == DEVICE:
                pieces.append(load.device_slots)
            elif load.read is not None:
                pieces.append(load.host_slots)
        if tier == DEVICE:
            pieces += [r.allocated for r in self._open.values() if r.allocated is not None]
        return np.concatenate(pieces) if pieces else NO_SLOTS

    def check(self) -> None:
        """Verify the laws of tree, slots and leases; raises InvariantBroken with both sides. Costs a walk over everything."""
        self.tree.check(host_closed=self.config.write_policy is not WritePolicy.WRITE_BACK)
        for tier in (DEVICE, HOST):
            if tier == HOST and self.host_slots is None:
                continue
            slots = self._allocator(tier)
            slots.check()
            owned, private = self.tree.owned_slots(tier), self.private_slots(tier)
            total = len(owned) + len(private) + slots.n_free
            if total != slots.n_slots:
                raise InvariantBroken(
                    f"{tier.name}: tree {len(owned)} + private {len(private)} + free {slots.n_free} = {total}, capacity {slots.n_slots}"
                )
            both = np.intersect1d(owned, private)
            if len(both):
                raise InvariantBroken(f"{tier.name}: slots {both[:16].tolist()} belong to the tree and to a transfer")
            used = slots.is_used(np.concatenate([owned, private]).astype(np.int32))
            if not used.all():
                raise InvariantBroken(f"{tier.name}: {int((~used).sum())} owned slots are in the free list")
        leases = len(self._open) + len(self._loads)
        if self.tree.active_leases != leases:
            raise InvariantBroken(f"active leases {self.tree.active_leases}, open requests {len(self._open)} + loads {len(self._loads)} = {leases}")


def _split_keys(keys: bytes, start: int, end: int) -> list[bytes]:
    return [keys[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in range(start, end)]


def require_room(n_pages_longest: int, device_slots: int) -> None:
    """Refuse a device pool that cannot hold the longest request. Pure. Raises CapacityError with both terms."""
    if n_pages_longest > device_slots:
        raise CapacityError(
            f"the longest request needs {n_pages_longest} device slots, the pool has {device_slots}",
            terms=(("longest request, pages", n_pages_longest), ("device slots", device_slots)),
            hint=f"give --device-slots {n_pages_longest} or auto",
        )


__all__ += ["Lease", "require_room"]
