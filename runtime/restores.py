"""Upwards: storage -> host -> device. Restored pages become visible only after their copy, and their proof, are over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from hicachectl.runtime import decide
from hicachectl.runtime.core import CacheCore, Restored
from hicachectl.runtime.cost import Path
from hicachectl.runtime.keys import KEY_BYTES, KeyRun
from hicachectl.runtime.memory.host_pages import HostPages
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.request import Phase, Request
from hicachectl.runtime.rooms import Rooms
from hicachectl.runtime.seen import SeenFlag
from hicachectl.runtime.storage.prefetch import Prefetcher, PrefetchPolicy
from hicachectl.runtime.tickets import Copy, CutRead, LoadTicket, ReadOp
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import NO_SLOTS, Node, Slots
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["Restores"]

DEVICE, HOST = Tier.DEVICE, Tier.HOST


class Restores:
    """Starts restores, and publishes what they bring up. `settle_writes` is called before each read from storage."""

    def __init__(
        self, core: CacheCore, rooms: Rooms, prefetcher: Prefetcher | None, settle_writes: Callable[[], None]
    ) -> None:
        self._core = core
        self._rooms = rooms
        self._prefetcher = prefetcher
        self._settle_writes = settle_writes
        self.loads: deque[LoadTicket] = deque()
        self.leftovers: deque[CutRead] = deque()
        """Storage reads given up at their deadline whose last batch still runs."""
        self._readers: dict[LoadTicket, Request] = {}
        """Who waits for a read from storage: its lease must reach the new pages before the load's own lease ends."""

    def poll(self) -> None:
        """Publish what has arrived, in path order. Never waits."""
        for load in list(self.loads):
            if (load.after is None or load.after.over) and self._load_done(load):
                self._finish_load(load)
        for cut in [cut for cut in self.leftovers if cut.read.done]:
            self.leftovers.remove(cut)
            self._finish_cut(cut)

    def start(self, request: Request) -> None:
        """Steps 3 to 5: decide how far to restore `request` and start the copies."""
        match = request.match
        lower = match.logical_pages - match.device_pages + request.storage_pages
        request.restore_began_s = perf_counter()
        if not lower:
            request.planned_pages = match.device_pages
            request.restore_reason = decide.RestoreReason.NOTHING
            return
        joined = self._join_running_loads(request)
        budget = self._device_budget(request, joined)
        decision = decide.restore(
            joined,
            match.logical_pages - joined,
            request.storage_pages,
            match.n_pages,
            self._core.page_tokens,
            self._core.geometry.page_bytes,
            self._core.costs,
            mode=self._core.config.restore,
            budget_pages=budget,
        )
        request.restore_reason = decision.reason
        request.cut_reason = (
            MissReason.IN_FLIGHT if decision.reason is decide.RestoreReason.BUDGET else MissReason.RESTORE_DEARER
        )
        request.planned_pages = joined + decision.pages_host + decision.pages_storage
        if decision.pages_host:
            self._load(request, joined, joined + decision.pages_host)
        if decision.pages_storage and request.planned_pages > match.logical_pages:
            self._read_storage(request, match.logical_pages, request.planned_pages)

    def ask_storage(self, keys: bytes | None, start: int, end: int) -> int:
        """Return how many leading pages of `[start, end)` storage holds; a storage that fails holds none."""
        if self._core.storage is None or keys is None or start >= end:
            return 0
        storage, names = self._core.storage, KeyRun(keys, start, end)
        return self._core.attempt("storage", lambda: storage.exists_prefix(names)) or 0

    def _join_running_loads(self, request: Request) -> int:
        """Wait with loads other requests started for the same pages instead of copying twice; returns how far they reach."""
        reach = request.match.device_pages
        for n in self._core.tree.path(request.lease.node):
            end = n.depth + n.n_pages
            if end <= reach:
                continue
            running = n.load
            if not isinstance(running, LoadTicket) or running.over or running.end <= reach:
                break
            if running not in request.loads:
                request.loads.append(running)
            reach = min(running.end, end)  # of this node: further down it may be on another branch
        return min(reach, request.match.logical_pages)

    def _device_budget(self, request: Request, joined: int) -> int:
        """Return how many pages a restore may bring up so that the tail still finds device slots in an idle cache."""
        capacity = self._core.device_slots.n_slots
        if request.n_pages > capacity:
            return max(0, capacity - joined)
        return request.n_pages - joined

    def _load(self, request: Request, start: int, end: int) -> None:
        """Step 5: start host -> device for pages `[start, end)` of the host tier."""
        assert self._core.engine is not None
        if not self._rooms.make_room(DEVICE, end - start):
            self._core.counters.device_full += 1
            request.cut_reason = MissReason.IN_FLIGHT
            request.planned_pages = start
            return
        engine, device_slots = self._core.engine, self._core.device_slots.alloc(end - start)
        assert device_slots is not None
        host_slots = self._core.tree.slots_between(request.lease.node, HOST, start, end)
        copy: Copy | None = None
        try:
            copy = self._core.attempt("transfer_load", lambda: engine.load(host_slots, device_slots))
        finally:
            if copy is None:
                self._core.device_slots.free(device_slots)
        if copy is None:
            return  # planned and not there: failed
        after = request.loads[-1] if request.loads else None
        lease = self._core.tree.lease_node(request.lease.node)
        ticket = LoadTicket(
            request.serial, lease, request.tokens, request.keys, start, end, device_slots, host_slots, copy, None, after,
            arrived=start,
        )  # fmt: skip
        for node in (
            self._core.tree.isolate(lease.node, start, end)
            if self._core.tree.eviction.needs_uniform_entry
            else self._core.tree.nodes_between(lease.node, start, end)
        ):
            node.load = ticket
        self.loads.append(ticket)
        request.loads.append(ticket)

    def _read_storage(self, request: Request, start: int, end: int) -> None:
        """Step 4: start storage -> host for pages `[start, end)`; the host -> device copy follows when they have arrived."""
        assert self._prefetcher is not None and self._core.host_slots is not None and self._core.host_pool is not None
        assert request.keys is not None
        if request.planned_pages < start:
            return
        wanted = end - start
        device_room = self._rooms.room_for_up_to(DEVICE, wanted)  # first: under write_back it may use host slots
        host_room = self._rooms.room_for_up_to(HOST, min(wanted, device_room))
        n = min(wanted, host_room, device_room)
        if n < wanted:
            request.cut_reason = MissReason.IN_FLIGHT
            request.planned_pages = start + n
        if not n:
            return
        self._settle_writes()
        host_slots, device_slots = self._core.host_slots.alloc(n), self._core.device_slots.alloc(n)
        assert host_slots is not None and device_slots is not None
        pages = HostPages(self._core.host_pool, host_slots)
        after = request.loads[-1] if request.loads else None
        patience = self._core.config.prefetch.seconds(n * self._core.page_tokens)
        prefetcher, names = self._prefetcher, KeyRun(request.keys, start, start + n)
        read: ReadOp | None = None
        try:
            read = self._core.attempt("storage", lambda: prefetcher.submit(names, pages))
        finally:
            if read is None:
                self._core.device_slots.free(device_slots)
                self._core.host_slots.free(host_slots)
        if read is None:
            return  # planned and not there: failed
        lease = self._core.tree.lease_node(request.lease.node)
        ticket = LoadTicket(
            request.serial,
            lease,
            request.tokens,
            request.keys,
            start,
            start + n,
            device_slots,
            host_slots,
            None,
            read,
            after,
            give_up_at_s=perf_counter() + patience if patience else None,  # best_effort: when a request waits for it
            arrived=start,
        )
        self.loads.append(ticket)
        request.loads.append(ticket)
        self._readers[ticket] = request

    def _load_done(self, ticket: LoadTicket) -> bool:
        """Whether a load is over; starts the second half of a storage read whose pages have arrived."""
        if ticket.over:
            return True
        if ticket.copy is None:
            assert ticket.read is not None and self._core.engine is not None
            if ticket.read.done:
                n_ok = ticket.read.n_ok
                self._account_read(ticket.read, len(ticket.host_slots))
                self._trim_load(ticket, ticket.start + n_ok)
            elif ticket.give_up_at_s is not None and perf_counter() >= ticket.give_up_at_s:
                n_ok = self._give_up(ticket)
            else:
                return False
            if not n_ok:
                return True
            engine = self._core.engine
            ticket.copy = self._core.attempt(
                "transfer_load", lambda: engine.load(ticket.host_slots, ticket.device_slots)
            )
            if ticket.copy is None:
                self._trim_load(ticket, ticket.start)
                ticket.cut = False
                return True
        return ticket.copy.done

    def _give_up(self, ticket: LoadTicket) -> int:
        """End the wait for a storage read at its deadline; returns the pages that have arrived, which go on to the device.

        The batch being read goes on in its thread and into its host slots: those stay with a `CutRead` until it is over.
        """
        read = ticket.read
        assert read is not None
        n_asked, n_ok = len(ticket.host_slots), read.n_ok
        read.cancel()
        self._core.counters.storage_reads_cut += 1
        ticket.cut = True
        self.leftovers.append(CutRead(read, n_asked, ticket.host_slots[n_ok:]))
        self._core.device_slots.free(ticket.device_slots[n_ok:])
        ticket.device_slots, ticket.host_slots = ticket.device_slots[:n_ok], ticket.host_slots[:n_ok]
        ticket.end = ticket.start + n_ok
        return n_ok

    def _finish_cut(self, cut: CutRead) -> None:
        """A read that was given up is over: nobody fills its host slots any more."""
        assert self._core.host_slots is not None
        if len(cut.host_slots):
            self._core.host_slots.free(cut.host_slots)
        self._account_read(cut.read, cut.read.n_ok if cut.read.error is None else cut.n_asked)

    def _account_read(self, read: ReadOp, n_asked: int) -> None:
        """Count a storage read that is over. Of `n_asked` pages those that did not come failed."""
        n_ok = read.n_ok
        if read.error is not None:
            self._core.lower_tier_failed("storage_read", read.error)
        self._core.counters.storage_read_pages += n_ok
        self._core.counters.storage_read_bytes += n_ok * self._core.geometry.page_bytes
        self._core.counters.storage_read_s += read.wall_s
        self._core.counters.storage_read_failed_pages += n_asked - n_ok
        if n_ok:
            self._core.moved(Path.STORAGE_READ, n_ok, read)

    def _trim_load(self, ticket: LoadTicket, end: int) -> None:
        """Give back the slots of pages from `end` on, which did not arrive."""
        n = end - ticket.start
        if ticket.end > end:
            self._core.device_slots.free(ticket.device_slots[n:])
            if ticket.read is not None and self._core.host_slots is not None:
                self._core.host_slots.free(ticket.host_slots[n:])
            ticket.device_slots, ticket.host_slots, ticket.end = ticket.device_slots[:n], ticket.host_slots[:n], end

    def finish_by(self, ticket: LoadTicket, deadline: float) -> bool:
        """Wait for `ticket` (its read, then its copy) and every load before it; False when `deadline` passed first."""
        while True:
            self.poll()
            if ticket.over:
                return True
            left = deadline - perf_counter()
            if left <= 0:
                return False
            first = ticket
            while first.after is not None and not first.after.over:
                first = first.after
            if first.copy is None and self._core.config.prefetch.policy is PrefetchPolicy.BEST_EFFORT:
                first.give_up_at_s = perf_counter()
                continue
            self.wait_copy(first, left)

    def wait_copy(self, ticket: LoadTicket, timeout_s: float | None) -> bool:
        """Wait for the part of a load that is under way, or for the deadline of its read; False when `timeout_s` passed first."""
        if ticket.copy is not None:
            return ticket.copy.wait(timeout_s)
        if ticket.read is None:
            return True
        if ticket.give_up_at_s is not None:
            patience = max(0.0, ticket.give_up_at_s - perf_counter())
            if timeout_s is None or patience <= timeout_s:
                ticket.read.wait(patience)
                return True
        return ticket.read.wait(timeout_s)

    def _finish_load(self, ticket: LoadTicket) -> None:
        """Publish what a load brought up, all or nothing, or give its slots back when it failed."""
        self.loads.remove(ticket)
        ticket.over = True
        for node in self._core.tree.path(
            ticket.lease.node
        ):  # all of it: parts split off outside the range carry it too
            if node.load is ticket:
                node.load = None
        copy = ticket.copy
        try:
            if copy is None or ticket.start == ticket.end:
                return
            if copy.error is not None:
                self._core.lower_tier_failed("transfer_load", copy.error)
                return
            self._core.counters.load_s += copy.wall_s
            self._core.counters.load_bytes += copy.n_bytes
            self._core.moved(Path.HOST_READ, ticket.end - ticket.start, copy)
            if self._core.verify_restored is not None:
                keys = (
                    ticket.keys[ticket.start * KEY_BYTES : ticket.end * KEY_BYTES] if ticket.keys is not None else None
                )
                source = Tier.HOST if ticket.read is None else Tier.STORAGE
                self._core.verify_restored(Restored(ticket.start, keys, ticket.device_slots, ticket.host_slots, source))
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
                self._core.counters.transfer_failed("load_after_failed_load")
                return
            skip = min(ready, end) - start
            if skip:
                self._core.device_slots.free(ticket.device_slots[:skip])
                self._core.counters.duplicate_pages += skip
            if skip < end - start:
                self._core.tree.extend(node, DEVICE, start + skip, end, ticket.device_slots[skip:])
        else:
            if self._device_ready(node) < start:
                self._core.counters.transfer_failed("load_after_failed_load")
                return
            inserted = self._core.tree.insert(
                ticket.tokens,
                ticket.device_slots,
                namespace=node.namespace,
                start_page=start,
                start_node=node,
                keys=ticket.keys,
            )
            if len(inserted.unused_slots):
                self._core.device_slots.free(inserted.unused_slots)
                self._core.counters.duplicate_pages += len(inserted.unused_slots)
            node = inserted.node
            self._core.remember(ticket.keys, start, end, SeenFlag.PUBLISHED | SeenFlag.STORED)
            for low, high in self._adopt_host(node, start, end, ticket.host_slots):
                self._core.remember(ticket.keys, low, high, SeenFlag.BACKED_UP)
                self._core.tell_pages(node, low, high, HOST)
            if (reader := self._readers.get(ticket)) is not None:
                self._extend_to(reader, end)
        self._core.tell_pages(node, start, end, DEVICE)
        n = end - start
        ticket.device_slots, ticket.host_slots, ticket.start, ticket.arrived = NO_SLOTS, NO_SLOTS, end, end
        self._core.counters.loaded_pages += n

    def _adopt_host(self, node: Node, start: int, end: int, host_slots: Slots) -> list[tuple[int, int]]:
        """Attach host slots just filled from storage and return for which pages; elsewhere ours go back.

        Where the host tier holds a page already it keeps its own slot, whose copy may still be under way. All go back when
        the pages above are on the device alone: a backed-up page never hangs under one that is not (write_back apart).
        The write policy brings both down together.
        """
        assert self._core.host_slots is not None
        above = self._core.tree.nodes_between(node, 0, start)
        closed = all(n.resident(HOST) >= min(n.n_pages, start - n.depth) for n in above)
        if not closed and self._core.config.write_policy is not WritePolicy.WRITE_BACK:
            self._core.host_slots.free(host_slots)
            return []
        holes: list[tuple[int, int]] = []
        for n in self._core.tree.nodes_between(node, start, end):
            low, high = max(start, n.depth), min(end, n.depth + n.n_pages)
            have = min(high, max(low, n.depth + n.resident(HOST)))
            if have > low:
                self._core.host_slots.free(host_slots[low - start : have - start])
            if high > have:
                holes.append((have, high))
        for low, high in holes:
            self._core.tree.attach(node, HOST, low, high, host_slots[low - start : high - start])
        return holes

    def _device_ready(self, node: Node) -> int:
        """Return how many pages of the path to `node` are device-resident from the root on."""
        ready = 0
        for n in self._core.tree.path(node):
            ready += n.resident(DEVICE)
            if n.resident(DEVICE) < n.n_pages:
                break
        return ready

    def settle(self, request: Request, late: bool) -> None:
        """Close the restore of a request: what is ready now is what it may use."""
        match = request.match
        if request.loads:
            request.restore_s = perf_counter() - request.restore_began_s
        for ticket in request.loads:
            if self._readers.get(ticket) is request:
                del self._readers[ticket]
        ready = (
            min(self._device_ready(request.lease.node), request.planned_pages) if request.loads else match.device_pages
        )
        for ticket in request.loads:
            if ticket.owner == request.serial:  # a joined load is restored by the request that started it
                n = max(0, min(ticket.arrived, ready) - ticket.first)
                if ticket.read is None:
                    request.restored_host_pages += n
                else:
                    request.restored_storage_pages += n
        request.ready_pages = request.used_pages = ready
        if ready < request.planned_pages:
            cut = any(ticket.cut and (ticket.copy is None or ticket.copy.error is None) for ticket in request.loads)
            request.failed = not late and not cut
        request.move(Phase.READY)

    def _extend_to(self, request: Request, page: int) -> None:
        """Pin the pages a storage read added below what the request had pinned."""
        if page > request.lease.n_pages:
            found = self._core.tree.match(request.tokens[: page * self._core.tree.page_width], request.namespace)
            self._core.tree.extend_lease(request.lease, self._core.tree.isolate(found.node, 0, page)[-1])
