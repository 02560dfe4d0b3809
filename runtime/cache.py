"""The cache: match -> restore -> publish -> release, and tick(). The only file that knows the order of the steps.

A request takes ten steps, ten calls below; an engine makes them from one thread:

     1  the tokenizer's thread hands over token ids and page keys           (keys.py)
     2  tree.match: device-ready and logical length, one lease              `match`
     3  decide.restore: how far, from where, or recompute                   `restore`
     4  storage -> host slots, whole pages                                  `restore` (restores.py)
     5  host -> device by layer group                                       `restore` (restores.py)
     6  device slots for the tail; the engine computes it                   `allocate`
     7  new pages become visible, all or nothing                            `publish`
     8  write_policy.choose: what goes down                                 `publish`
     9  device -> host, then host -> storage                                `publish`, `tick` (backups.py)
    10  the lease ends                                                      `release`

Only bytes move in other threads. Slots, tree and accounts are touched in the caller's thread alone, when `tick` finds a
copy finished. A lower tier that fails costs a recompute, counted by reason, and never a wrong byte or an exception in
the request. Ownership: a slot belongs to an allocator's free list, to the tree, to a ticket, or to a request
(`Request.allocated`); `check` proves that these four make up each pool.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from hicachectl.errors import CapacityError, InvariantBroken, UsageError
from hicachectl.runtime.account import Account, account_of
from hicachectl.runtime.backups import Backups
from hicachectl.runtime.core import CacheConfig, CacheCore, Restored
from hicachectl.runtime.cost import CostModel, Path
from hicachectl.runtime.counters import CacheObserver, CacheProbe
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, KEY_BYTES, KeyRun, Namespace, key64
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.request import Phase, Request
from hicachectl.runtime.restores import Restores
from hicachectl.runtime.rooms import Rooms
from hicachectl.runtime.seen import SeenFlag
from hicachectl.runtime.storage.backup import StorageBackup
from hicachectl.runtime.storage.base import StorageBackend
from hicachectl.runtime.storage.gate import LoadGate
from hicachectl.runtime.storage.prefetch import Prefetcher
from hicachectl.runtime.tickets import BackupTicket, CutRead, LoadTicket, StoreTicket
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.tree import NO_SLOTS, Node, Slots
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["CacheConfig", "HierarchicalCache", "Restored", "require_room"]

DEVICE, HOST = Tier.DEVICE, Tier.HOST


class HierarchicalCache:
    """Three tiers behind one tree. See the module's docstring for the order of calls.

    `device_pool`, `host_pool` (None = no host tier) and `storage` (None = no L3) stay the caller's; `engine` moves bytes
    between the pools. `verify_restored` is called before restored pages become visible and may raise to stop everything.
    Raises UsageError when the parts do not go together.
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
            raise UsageError(
                "storage needs a host tier: whole pages are read into host slots", hint="give host_slots > 0"
            )
        if engine is not None and (engine.device_pool is not device_pool or engine.host_pool is not host_pool):
            raise UsageError("the transfer engine moves pages between other pools", hint="give it these two pools")
        if storage is not None and storage.page_bytes != device_pool.geometry.page_bytes:
            raise UsageError(
                f"storage holds pages of {storage.page_bytes} bytes, the pools of {device_pool.geometry.page_bytes}",
                hint="name the storage's objects after this geometry",
            )
        self._core = CacheCore(device_pool, host_pool, engine, costs, config, storage, observer, verify_restored)
        gate = LoadGate()
        self._prefetcher = Prefetcher(storage, gate=gate) if storage is not None else None
        self._store_queue = (
            StorageBackup(storage, config.storage_queue_pages, gate=gate) if storage is not None else None
        )
        self._backups = Backups(self._core, self._store_queue)
        self._rooms = Rooms(self._core, self._wait_ticket, self._backups.back_up_victim)
        self._backups.rooms = self._rooms
        self._restores = Restores(self._core, self._rooms, self._prefetcher, self._settle_writes)
        self._open: dict[int, Request] = {}
        self._serial = 0
        self._closed = False
        self.config, self.geometry, self.page_tokens, self.costs = (
            config,
            device_pool.geometry,
            self._core.page_tokens,
            costs,
        )
        self.storage, self.counters, self.tree = storage, self._core.counters, self._core.tree
        self.device_slots, self.host_slots = self._core.device_slots, self._core.host_slots
        self.ghost, self.seen, self.wants_keys = self._core.ghost, self._core.seen, self._core.wants_keys

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
        Raises UsageError when keys are wanted and missing, InvariantBroken after `close`.
        """
        if self._closed:
            raise InvariantBroken("a request came after close()", where="cache")
        self._settle_writes()
        self.tick()
        began = perf_counter()
        found = self.tree.match(tokens, namespace)
        if self.wants_keys and (keys is None or len(keys) < found.n_pages * KEY_BYTES):
            raise UsageError(
                f"{found.n_pages} page keys wanted, {len(keys or b'') // KEY_BYTES} given",
                hint="storage, ghost list, seen keys and events need the page keys: KeyChain or page_keys computes them",
            )
        lease = self.tree.lease(found)
        self._serial += 1
        stored = self._restores.ask_storage(keys, found.logical_pages, found.n_pages)
        flags = None
        missing_from = found.logical_pages + stored
        if self.seen is not None and keys is not None and missing_from < found.n_pages:
            flags = self.seen.get(key64(keys[missing_from * KEY_BYTES : found.n_pages * KEY_BYTES]))
        request = Request(
            self._serial, tokens, keys, namespace, priority, self.page_tokens, found, lease, stored, flags
        )
        request.ready_pages = found.device_pages
        request.match_s = perf_counter() - began
        self._open[request.serial] = request
        return request

    def restore(self, request: Request) -> None:
        """Steps 3 to 5: decide how far to restore and start the copies; returns at once.

        Evicts device slots (and host slots for pages that come from storage). Under `strict` it waits for copies that
        hold the next victim.
        """
        request.move(Phase.RESTORING)
        began, waited = perf_counter(), self._core.room_waited_s
        self._restores.start(request)
        room_wait_s = self._core.room_waited_s - waited
        request.room_wait_s += room_wait_s
        if request.loads:
            request.restore_wait_s += perf_counter() - began - room_wait_s

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
            late = not self._restores.finish_by(ticket, deadline)
            if late:
                break
        if request.loads:
            request.restore_wait_s += perf_counter() - began
        self._restores.settle(request, late)
        return request.ready_pages

    def allocate(self, request: Request, n_pages: int) -> Slots | None:
        """Step 6: hand out `n_pages` device slots for the pages to be computed, or None when they cannot be had now.

        They are the request's until `publish` or `release`. Evicts from the device tier; what was evicted before it
        turned out not to be enough stays evicted.
        """
        if request.phase is not Phase.READY:
            raise InvariantBroken(f"request {request.serial} asks for slots while {request.phase.value}")
        if request.allocated is not None and len(request.allocated):
            raise InvariantBroken(f"request {request.serial} has {len(request.allocated)} unpublished slots already")
        waited = self._core.room_waited_s
        has_room = self._rooms.make_room(DEVICE, n_pages)
        request.room_wait_s += self._core.room_waited_s - waited
        if not has_room:
            self.counters.device_full += 1
            return None
        slots = self.device_slots.alloc(n_pages)
        request.allocated = slots
        return slots

    def slots(self, request: Request) -> Slots:
        """Return the device slots of the request's ready pages, from the first on: its block table. Read it after
        `wait_restored` and after each `publish`."""
        return self.tree.slots_between(request.lease.node, DEVICE, 0, request.ready_pages)

    def publish(self, request: Request) -> None:
        """Steps 7 to 9: make the allocated pages visible, touch the path, and start what the write policy chooses.

        A page that another request published meanwhile stays that request's: `slots` names the ones to use from now on,
        and this request's own copies are given back at `release`, not before.
        Call it once the pages are computed (for chunked prefill once a chunk: allocate, compute, publish, again). Also
        right with nothing allocated: the touch and the policy still apply. Host slots are reserved here, in the
        caller's thread; only bytes move later.
        """
        if request.phase is not Phase.READY:
            raise InvariantBroken(
                f"request {request.serial} publishes while {request.phase.value}: wait_restored first"
            )
        slots = request.allocated
        if slots is not None and len(slots):
            start = request.ready_pages
            start_node = self._node_at(request, start)
            before = self.tree.n_pages[DEVICE]
            inserted = self.tree.insert(
                request.tokens,
                slots,
                namespace=request.namespace,
                start_page=start,
                start_node=start_node,
                keys=request.keys,
            )
            request.allocated = None
            if inserted.node.depth + inserted.node.n_pages > request.lease.n_pages:
                self.tree.extend_lease(request.lease, inserted.node)
            if len(inserted.unused_slots):
                request.duplicates.append(inserted.unused_slots)  # the engine may still read them: freed at release
                self.counters.duplicate_pages += len(inserted.unused_slots)
            request.ready_pages = start + len(slots)
            self.counters.published_pages += self.tree.n_pages[DEVICE] - before
            self._core.remember(request.keys, start, request.ready_pages, SeenFlag.PUBLISHED)
            self._core.tell_stored(request, start, request.ready_pages, DEVICE)
        self.tree.touch(request.lease.node, counted_pages=request.counted_pages, priority=request.priority)
        request.counted_pages = request.lease.n_pages
        if self.host_slots is not None and request.ready_pages:
            node = self._node_at(request, request.ready_pages)
            waited = self._core.room_waited_s
            self._backups.back_up(node, self._core.ghost_pages(request), request.keys)
            request.room_wait_s += self._core.room_waited_s - waited

    def release(self, request: Request) -> Account:
        """Step 10: end the leases and return the account. Unpublished slots go back; running copies go on by themselves."""
        if request.phase is Phase.RESTORING:
            self._restores.settle(request, late=True)
        elif request.phase is Phase.MATCHED:  # given up before a restore was decided: what was ready counts as used
            request.planned_pages = request.used_pages = request.match.device_pages
            request.cut_reason = MissReason.IN_FLIGHT
        request.move(Phase.RELEASED)
        if request.allocated is not None and len(request.allocated):
            self.device_slots.free(request.allocated)
            request.allocated = None
        for slots in request.duplicates:
            self.device_slots.free(slots)
        request.duplicates.clear()
        if request.keys is not None and request.counted_pages:
            self._backups.touch_stored(KeyRun(request.keys, 0, request.counted_pages))
        request.lease.release()
        del self._open[request.serial]
        account = account_of(self._core, request)
        self.counters.add_account(account)
        if self._core.probe is not None:
            self._core.probe.released(account)
        return account

    def attach(self, probe: CacheProbe | None) -> None:
        """Let `probe` hear of copies, evictions and ended requests from now on; None = nobody."""
        self._core.probe = probe

    def tick(self) -> None:
        """Move on what has finished: restored pages become ready, backed-up pages evictable. Never waits."""
        self._backups.poll()
        self._restores.poll()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is under way; returns False when `timeout_s` passed first."""
        deadline = None if timeout_s is None else perf_counter() + timeout_s
        while (ticket := self._oldest()) is not None:
            left = None if deadline is None else max(0.0, deadline - perf_counter())
            if left == 0.0 or not self._wait_ticket(ticket, left):
                return False
        return True

    def under_way(self) -> dict[Path, int]:
        """Return the pages whose copies are not over, by path; paths where nothing moves are left out."""
        pages = dict.fromkeys(Path, 0)
        for backup in self._backups.backups:
            pages[Path.HOST_WRITE] += backup.end - backup.start
        for store in self._backups.stores:
            pages[Path.STORAGE_WRITE] += store.end - store.start
        for load in self._restores.loads:
            pages[Path.STORAGE_READ if load.copy is None else Path.HOST_READ] += load.end - load.start
        for cut in self._restores.leftovers:
            pages[Path.STORAGE_READ] += len(cut.host_slots)
        return {path: n for path, n in pages.items() if n}

    def close(self, *, finish: bool = True) -> None:
        """Finish what is under way (unless `finish` is False) and stop the storage threads.

        The pools, engine and storage are the caller's to close. Raises StorageError when storage does not come back.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if finish:
                self.drain(self.config.restore_timeout_s)
        finally:
            try:
                if self._prefetcher is not None:
                    self._prefetcher.close()
            finally:
                if self._store_queue is not None:
                    self._store_queue.close()

    # -- waiting and rooms ---------------------------------------------------------------------------------------

    def _settle_writes(self) -> None:
        """Under `settle_storage`, let storage catch up before it is asked, read or touched: its eviction order must not hang on timing."""
        if self.storage is None or not self.config.settle_storage:
            return
        deadline = perf_counter() + self.config.restore_timeout_s
        while queue := self._backups.backups or self._backups.stores:
            left = deadline - perf_counter()
            if left <= 0 or not self._wait_ticket(queue[0], left):
                return
        self._backups.wait_touches(max(0.0, deadline - perf_counter()))

    def _oldest(self) -> object | None:
        """Return a ticket that is not settled yet, None when nothing is under way."""
        self.tick()
        for queue in (self._backups.backups, self._restores.loads, self._restores.leftovers, self._backups.stores):
            if queue:
                return queue[0]
        return None

    def _wait_ticket(self, ticket: object, timeout_s: float | None) -> bool:
        """Wait for one copy and move on what finished; False when `timeout_s` passed first."""
        if isinstance(ticket, BackupTicket):
            done = ticket.copy.wait(timeout_s)
        elif isinstance(ticket, StoreTicket):
            done = self._backups.wait_store(ticket, timeout_s)
        elif isinstance(ticket, LoadTicket):
            done = self._restores.wait_copy(ticket, timeout_s)
        elif isinstance(ticket, CutRead):
            done = ticket.read.wait(timeout_s)
        else:
            raise InvariantBroken(f"{ticket!r} is no copy the cache knows")
        self.tick()
        return done

    def _node_at(self, request: Request, page: int) -> Node:
        """Return the node on the request's path that ends at `page`, splitting one that straddles it."""
        node = request.lease.node
        if node.depth + node.n_pages == page or (page == 0 and node.parent is None):
            return node
        while node.parent is not None and node.depth >= page:
            node = node.parent
        if node.depth + node.n_pages > page and node.parent is not None:
            return self.tree.isolate(node, node.depth, page)[-1]
        return node

    # -- laws -------------------------------------------------------------------------------------------------------

    def private_slots(self, tier: Tier) -> Slots:
        """Return the slots owned by running loads and open requests, not by the tree."""
        pieces: list[Slots] = []
        for load in self._restores.loads:
            if tier == DEVICE:
                pieces.append(load.device_slots)
            elif load.read is not None:
                pieces.append(load.host_slots)
        if tier == HOST:
            pieces += [cut.host_slots for cut in self._restores.leftovers]
        if tier == DEVICE:
            pieces += [r.allocated for r in self._open.values() if r.allocated is not None]
            pieces += [slots for r in self._open.values() for slots in r.duplicates]
        return np.concatenate(pieces) if pieces else NO_SLOTS

    def check(self) -> None:
        """Verify the laws of tree, slots and leases; raises InvariantBroken with both sides. Costs a walk over everything."""
        self.tree.check(host_closed=self.config.write_policy is not WritePolicy.WRITE_BACK)
        for tier in (DEVICE, HOST):
            if tier == HOST and self.host_slots is None:
                continue
            slots = self._core.allocator(tier)
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
        leases = len(self._open) + len(self._restores.loads)
        if self.tree.active_leases != leases:
            raise InvariantBroken(
                f"active leases {self.tree.active_leases}, open requests {len(self._open)} + loads {len(self._restores.loads)} = {leases}"
            )


def require_room(n_pages_longest: int, device_slots: int) -> None:
    """Refuse a device pool that cannot hold the longest request. Pure. Raises CapacityError with both terms."""
    if n_pages_longest > device_slots:
        raise CapacityError(
            f"the longest request needs {n_pages_longest} device slots, the pool has {device_slots}",
            terms=(("longest request, pages", n_pages_longest), ("device slots", device_slots)),
            hint=f"give --device-slots {n_pages_longest} or auto",
        )
