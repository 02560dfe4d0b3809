"""Downwards: device -> host, then host -> storage. Slots are reserved in the caller's thread; bytes move in others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hicachectl.runtime import write_policy
from hicachectl.runtime.core import CacheCore
from hicachectl.runtime.cost import Path
from hicachectl.runtime.keys import KEY_BYTES, KeyRun, key64
from hicachectl.runtime.memory.host_pages import HostPages
from hicachectl.runtime.rooms import Rooms
from hicachectl.runtime.seen import SeenFlag
from hicachectl.runtime.storage.backup import StorageBackup, TouchOp
from hicachectl.runtime.tickets import BackupTicket, Copy, StoreTicket
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import Node

__all__ = ["Backups"]

DEVICE, HOST = Tier.DEVICE, Tier.HOST


class Backups:
    """Starts backups and storage writes, and settles them when they are over."""

    def __init__(self, core: CacheCore, store_queue: StorageBackup | None) -> None:
        self._core = core
        self._store_queue = store_queue
        self.backups: deque[BackupTicket] = deque()
        self.stores: deque[StoreTicket] = deque()
        self._touches: deque[TouchOp] = deque()
        self.rooms: Rooms
        """Set by the cache: rooms need backups (write_back) and backups need rooms."""

    def poll(self) -> None:
        """Settle what has finished. Never waits."""
        for _ in range(len(self.backups)):  # one that is tried again queues up behind them
            if not self.backups[0].copy.done:
                break
            self._finish_backup(self.backups.popleft())
        while self.stores and (write := self.stores[0].write) is not None and write.done:
            self._finish_store(self.stores.popleft())
        self._hand_over()
        while self._touches and self._touches[0].done:
            if (error := self._touches.popleft().error) is not None:
                self._core.lower_tier_failed("storage", error)

    def touch_stored(self, keys: KeyRun) -> None:
        """Let storage know, in its own thread, that a path was used."""
        if self._store_queue is not None:
            self._touches.append(self._store_queue.touch(keys))

    def wait_touches(self, timeout_s: float | None) -> bool:
        """Wait until storage has been told of every path used so far; False when `timeout_s` passed first."""
        return all(touch.wait(timeout_s) for touch in self._touches)

    def back_up(self, node: Node, ghost_pages: int, keys: bytes | None = None) -> None:
        """Steps 8 and 9: let the write policy choose pages of the path to `node`, reserve host slots for them, evicting, and start the copy.

        Without room for all, the first pages are kept: what hangs below them could not be reached without them. The
        choice is made again after the eviction, which may have waited for copies and so found the path changed. `keys`
        are the page keys of the path (32 bytes each); without them the tree makes them again.
        """
        start, end = self._choose(node, ghost_pages)
        if start == end:
            return
        room = self.rooms.room_for_up_to(HOST, end - start)
        start, end = self._choose(node, ghost_pages)
        if room < end - start:
            self._core.counters.dropped_pages += end - start - room
        if room and start < end:
            self._start_backup(node, start, min(end, start + room), keys)

    def back_up_victim(self, node: Node, n: int) -> bool:
        """write_back: copy the device tail of a victim down before it goes; without host room it goes uncopied.

        Making room may have waited, and the victim may have got its copy meanwhile, or be on its way: then the caller
        looks again. Returns False when nothing can be done now: pages below the victim are being stored.
        """
        room = self.rooms.room_for_up_to(HOST, n)
        end, copied = node.depth + node.resident(DEVICE), node.depth + node.resident(HOST)
        if end <= copied or node.backup is not None or node.leases:
            return True
        if room:
            self._start_backup(node, max(copied, end - room), end)
            return True
        evicted = self._core.evict(DEVICE, n)
        self._core.counters.dropped_pages += len(evicted.slots)
        if evicted.blocked_by is not None:
            return self.rooms.wait_for(evicted.blocked_by)
        return bool(len(evicted.slots))

    def _choose(self, node: Node, ghost_pages: int) -> tuple[int, int]:
        config = self._core.config
        return write_policy.choose(
            self._core.tree.segments(node),
            config.write_policy,
            selective_hits=config.selective_hits,
            ghost_pages=ghost_pages,
        )

    def _start_backup(self, node: Node, start: int, end: int, keys: bytes | None = None) -> None:
        assert self._core.host_slots is not None and self._core.engine is not None
        engine, host_slots = self._core.engine, self._core.host_slots.alloc(end - start)
        assert host_slots is not None
        device_slots = self._core.tree.slots_between(node, DEVICE, start, end)
        copy: Copy | None = None
        try:  # first the copy, then the tree: host slots that nothing fills must never look like pages
            copy = self._core.attempt("transfer_backup", lambda: engine.backup(device_slots, host_slots))
        finally:
            if copy is None:
                self._core.host_slots.free(host_slots)
        if copy is None:
            return
        covering = self._core.tree.attach(node, HOST, start, end, host_slots)
        path_keys = None if keys is None else keys[start * KEY_BYTES : end * KEY_BYTES]
        ticket = BackupTicket(covering[-1], start, end, copy, path_keys)
        for n in covering:
            n.backup = ticket
        self.backups.append(ticket)

    def _finish_backup(self, ticket: BackupTicket) -> None:
        """A backup is over: its pages may be evicted and go on to storage, or lose their host slots when it failed."""
        nodes = self._core.tree.nodes_between(ticket.node, ticket.start, ticket.end)
        for node in nodes:
            node.backup = None
        if ticket.copy.error is not None:
            self._core.lower_tier_failed("transfer_backup", ticket.copy.error)
            if _needed_below(nodes[0]):
                self._try_again(ticket, nodes)
            else:
                self._unback(nodes[0])
            return
        self._core.tree.settle(nodes)
        if self._core.seen is not None:
            self._core.seen.add(key64(ticket.keys or self._keys_of(nodes)), SeenFlag.BACKED_UP)
        self._core.counters.backup_pages += ticket.end - ticket.start
        self._core.counters.backup_bytes += ticket.copy.n_bytes
        self._core.counters.backup_s += ticket.copy.wall_s
        self._core.moved(Path.HOST_WRITE, ticket.end - ticket.start, ticket.copy)
        self._core.tell_pages(ticket.node, ticket.start, ticket.end, HOST)
        if self._store_queue is not None:
            self._store(nodes, ticket)

    def _try_again(self, ticket: BackupTicket, nodes: Sequence[Node]) -> None:
        """Copy once more: pages below are in use, so these cannot leave the host tier, and their host slots hold no page yet."""
        assert self._core.engine is not None
        device_slots, host_slots = (
            self._core.tree.slots_between(ticket.node, tier, ticket.start, ticket.end) for tier in (DEVICE, HOST)
        )
        engine = self._core.engine
        again = self._core.attempt("transfer_backup", lambda: engine.backup(device_slots, host_slots))
        if again is not None:  # else the failed copy stays the ticket's and is tried at the next tick
            ticket.copy = again
        for node in nodes:
            node.backup = ticket
        self.backups.append(ticket)

    def _unback(self, node: Node) -> None:
        """Take `node` and everything below it out of the host tier: a backed-up page never hangs under one that is not."""
        below = [node]
        for n in below:  # grows while it is walked: parents before children
            below += [child for child in n.children.values() if child.resident(HOST)]
        for n in reversed(below):
            slots = self._core.tree.drop(n, HOST)
            self._core.departures.settle()
            if len(slots):
                self._core.allocator(HOST).free(slots)

    def _store(self, nodes: Sequence[Node], ticket: BackupTicket) -> None:
        """Step 9, second half: hand pages to the storage thread; their host slots stay until it is over.

        What storage holds already it does not write again: it knows better than we do. Pages beyond the queue's room go
        without a copy there, under `strict` they stand in line instead.
        """
        assert self._store_queue is not None
        tree, at_most = self._core.tree, self._core.config.storage_queue_pages
        end = ticket.end
        if not self._core.config.strict or not at_most:
            end = min(end, ticket.start + max(0, self._store_queue.room_pages))
            self._core.counters.store_dropped_pages += ticket.end - end
        keys = ticket.keys or self._keys_of(nodes)
        for start in range(ticket.start, end, at_most):
            upto = min(start + at_most, end)
            covering = tree.isolate(ticket.node, start, upto)
            piece = keys[(start - ticket.start) * KEY_BYTES : (upto - ticket.start) * KEY_BYTES]
            store = StoreTicket(covering[-1], start, upto, piece, None)
            for n in covering:
                n.store = store
            self.stores.append(store)
        self._hand_over()

    def _hand_over(self) -> None:
        """Give stores to the storage thread, in their order, as far as its queue has room."""
        if self._store_queue is None:
            return
        assert self._core.host_pool is not None
        waiting = [store for store in self.stores if store.write is None]
        for store in waiting:
            n = store.end - store.start
            if self._store_queue.room_pages < n:
                return
            slots = self._core.tree.slots_between(store.node, HOST, store.start, store.end)
            store.write = self._store_queue.submit(KeyRun(store.keys, 0, n), HostPages(self._core.host_pool, slots))

    def wait_store(self, store: StoreTicket, timeout_s: float | None) -> bool:
        """Wait for a store, or, while it stands in line, for the first of the line; False when `timeout_s` passed first."""
        write = store.write or self.stores[0].write
        return write is None or write.wait(timeout_s)

    def _keys_of(self, nodes: Sequence[Node]) -> bytes:
        """Make the page keys of whole nodes again."""
        return b"".join(self._core.tree.keys_of(n, n.depth, n.depth + n.n_pages) for n in nodes)

    def _finish_store(self, ticket: StoreTicket) -> None:
        write = ticket.write
        assert write is not None
        nodes = self._core.tree.nodes_between(ticket.node, ticket.start, ticket.end)
        for node in nodes:
            node.store = None
        if write.error is not None:
            self._core.lower_tier_failed("storage_write", write.error)
        self._core.counters.stored_pages += write.n_new
        self._core.counters.store_skipped_pages += write.n_ok - write.n_new
        self._core.counters.store_failed_pages += ticket.end - ticket.start - write.n_ok
        if write.n_new:
            self._core.moved(Path.STORAGE_WRITE, write.n_new, write)
        if self._core.seen is not None and write.n_ok:
            self._core.seen.add(key64(ticket.keys[: write.n_ok * KEY_BYTES]), SeenFlag.STORED)
        self._core.tree.settle(nodes)


def _needed_below(node: Node) -> bool:
    """Whether a copy or a lease needs host slots below `node`. Pure."""
    stack = list(node.children.values())
    while stack:
        child = stack.pop()
        if not child.resident(HOST):
            continue
        copying = child.backup is not None or child.store is not None or child.load is not None
        if copying or (child.leases and child.resident(DEVICE) < child.resident(HOST)):
            return True
        stack.extend(child.children.values())
    return False
