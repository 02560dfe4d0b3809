"""Two threads that move pages between device and host; whoever asks only enqueues.

    caller ---load(host_slots, device_slots)----> queue --> thread "load"   --> steps of the backend, layer group by group
    caller ---backup(device_slots, host_slots)--> queue --> thread "backup" --> steps of the backend, all planes at once

    slots of a transfer   [enqueued, done)   owned by the transfer: the caller keeps them leased and does not free them
    after done            owned by the caller again, whether it worked or not (`error`)

A copy that fails ends its transfer with `error`; the engine goes on. Loads and backups share little on a link, so both
run at once; before each step of a backup the loads asked for by then have their first layer group submitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import Enum
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np
import torch

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.held_signals import held_signals
from hicachectl.runtime.layout import Backend
from hicachectl.runtime.memory.device_pool import DevicePool, require_slots
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import CopyBackend, Direction, PipelinedBackend, Work, begin
from hicachectl.runtime.transfer.device import DeviceOrder, device_error, device_order
from hicachectl.runtime.transfer.progress import LoadsFirst, Progress
from hicachectl.runtime.transfer.transfer import DirectionCounters, Totals, Transfer

__all__ = ["DirectionCounters", "EngineState", "Transfer", "TransferEngine"]


_log = logging.getLogger("hicachectl.runtime")


class EngineState(Enum):
    """RUNNING takes transfers, CLOSING finishes those it has, CLOSED has joined its threads."""

    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


class TransferEngine:
    """Moves pages between one device pool and one host pool with one copy backend.

    `layer_groups` are the layers of each group of a load, in order ("a small first one, so that compute starts early");
    they add up to the model's layers. Without it a load is one group. `clock` returns seconds, `orders` makes the streams,
    `watch` is told on the submission thread how far a transfer is ("taken", "step", "submitted", ...).
    Starts two daemon threads. Raises UsageError when the groups do not add up or
    the backend cannot reach the device, InvariantBroken when the pools differ.
    """

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        backend: CopyBackend,
        layer_groups: Sequence[int] | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        orders: Callable[[torch.device], DeviceOrder] = device_order,
        watch: Callable[[Transfer, str], None] | None = None,
    ) -> None:
        if device_pool.geometry != host_pool.geometry:
            raise InvariantBroken(
                f"device pool of {device_pool.geometry.name}, host pool of {host_pool.geometry.name}",
                where="transfer engine",
            )
        if backend.kind is Backend.CPU and device_pool.device.type != "cpu":
            raise UsageError(
                f"copy backend cpu cannot reach memory on {device_pool.device}", hint="use copy backend torch"
            )
        n_layers = device_pool.geometry.n_layers
        groups = [n_layers] if layer_groups is None else list(layer_groups)
        if sum(groups) != n_layers or any(size < 1 for size in groups):
            raise UsageError(
                f"layer groups {groups} add up to {sum(groups)}, the model has {n_layers} layers",
                hint="give positive counts that add up to the layers",
            )
        self.device_pool = device_pool
        self.host_pool = host_pool
        self._backend = backend
        # Asked once: what a protocol says of an instance takes as long as a copy call.
        self._begin: Callable[..., Work] = (
            backend.begin if isinstance(backend, PipelinedBackend) else partial(begin, backend)
        )
        self._clock = clock
        self._watch = watch
        self._groups: dict[Direction, tuple[int, ...]] = {
            Direction.LOAD: tuple(groups),
            Direction.BACKUP: (n_layers,),
        }
        self._loads_first = LoadsFirst(clock) if isinstance(backend, PipelinedBackend) else None
        self._state = EngineState.RUNNING
        self._gate = Lock()  # nothing is queued behind the end mark
        self._drop_queued = False
        self._prepared: set[Direction] = set()
        self._chunk_bytes = device_pool.geometry.chunk_bytes
        self._where = {d: (f"{d.value}, device slots", f"{d.value}, host slots") for d in Direction}
        self._totals = {direction: Totals() for direction in Direction}
        self._queues: dict[Direction, SimpleQueue[Transfer | None]] = {d: SimpleQueue() for d in Direction}
        self._orders = {direction: orders(device_pool.device) for direction in Direction}
        self._threads = [
            Thread(target=self._serve, args=(direction,), name=f"hicache-{direction.value}", daemon=True)
            for direction in Direction
        ]
        for thread in self._threads:
            thread.start()

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """The layers of each group of a load; a backend may join some."""
        return self._groups[Direction.LOAD]

    def load(self, host_slots: Slots, device_slots: Slots) -> Transfer:
        """Ask for pages to come up, page i from `host_slots[i]` to `device_slots[i]`; returns at once.

        The caller owns both lists again when the transfer is done. Raises InvariantBroken when the counts differ, a slot
        is outside its pool, or the engine is closed.
        """
        return self._enqueue(Direction.LOAD, device_slots, host_slots)

    def backup(self, device_slots: Slots, host_slots: Slots) -> Transfer:
        """Ask for pages to go down, page i from `device_slots[i]` to `host_slots[i]`; returns at once.

        As `load`. The device slots must not be written before it is done.
        """
        return self._enqueue(Direction.BACKUP, device_slots, host_slots)

    def counters(self, direction: Direction) -> DirectionCounters:
        """Return the totals of a direction; a transfer is in them before it is done."""
        return self._totals[direction].counters()

    def close(self, *, finish: bool = True) -> None:
        """Stop taking transfers, finish what is queued (or end it with an error), and join the threads.

        May be called twice. The copy in progress is always finished: its pages are the caller's to give back only then. In the
        main thread a Ctrl-C that comes meanwhile is raised behind it.
        """
        with held_signals(at_once=True):
            with self._gate:
                if self._state is EngineState.RUNNING:
                    self._state = EngineState.CLOSING
                    self._drop_queued = not finish
                    for queue in self._queues.values():
                        queue.put(None)
            for thread in self._threads:
                thread.join()
            self._state = EngineState.CLOSED

    def _enqueue(self, direction: Direction, device_slots: Slots, host_slots: Slots) -> Transfer:
        if device_slots.size != host_slots.size:
            raise InvariantBroken(
                f"{direction.value} of {device_slots.size} device slots and {host_slots.size} host slots",
                where="transfer engine",
            )
        of_device, of_host = self._where[direction]
        require_slots(device_slots, self.device_pool.n_slots, of_device)
        require_slots(host_slots, self.host_pool.n_slots, of_host)
        transfer = Transfer(direction, np.array(device_slots), np.array(host_slots), self._clock())
        with self._gate:
            if self._state is not EngineState.RUNNING:
                raise InvariantBroken(
                    f"{direction.value} on an engine that is {self._state.value}", where="transfer engine"
                )
            if transfer.n_pages:
                transfer._mark = self._orders[direction].mark()
            if direction is Direction.LOAD and self._loads_first is not None:
                self._loads_first.asked()
            self._queues[direction].put(transfer)
        return transfer

    def _serve(self, direction: Direction) -> None:
        unusable: Exception | None = None
        with ExitStack() as on_stream:
            try:
                on_stream.enter_context(self._orders[direction].thread())
            except Exception as failed:  # noqa: BLE001 - a thread's edge: every transfer gets it in `error`
                unusable = device_error(failed)
            self._serve_queue(direction, unusable)

    def _serve_queue(self, direction: Direction, unusable: Exception | None) -> None:
        """Copy what is queued, or end it with what makes the device unusable, until the engine is closed."""
        queue = self._queues[direction]
        while (transfer := queue.get()) is not None:
            error = unusable
            if error is None and self._drop_queued:
                error = InvariantBroken(f"{direction.value} dropped: the engine was closed", where="transfer engine")
            if error is None:
                try:
                    self._copy(transfer)
                except Exception as failed:  # noqa: BLE001 - a thread's edge: whoever waits gets it in `error`
                    error = device_error(failed)
            elif transfer.n_pages:
                self._orders[direction].drop(transfer._mark)
            if direction is Direction.LOAD and self._loads_first is not None:
                self._loads_first.under_way(transfer)
            self._finish(transfer, error)

    def _copy(self, transfer: Transfer) -> None:
        direction = transfer.direction
        if not transfer.n_pages:
            transfer.queued_s = self._clock() - transfer._asked_s
            transfer._layers_ready(self.device_pool.geometry.n_layers)
            return
        groups = self._groups[direction]
        with self._orders[direction].after(transfer._mark):
            self._prepare(direction, groups)  # before the clock starts
            start_s = self._clock()
            self._say(transfer, "taken")
            transfer.queued_s = start_s - transfer._asked_s
            progress = Progress(transfer, start_s, self._clock)
            self._submit(transfer, groups, progress)
            transfer.submit_s = progress.wall_s
            self._say(transfer, "submitted")
            transfer._all_submitted()
            progress.finish(lambda: self._finish(transfer, None, progress.last_arrived))
            self._say(transfer, "arrived")

    def _prepare(self, direction: Direction, groups: tuple[int, ...]) -> None:
        if direction not in self._prepared:
            widest = max(groups) * self.device_pool.geometry.kind.planes_per_layer
            self._backend.prepare(direction, self.device_pool, self.host_pool, widest)
            self._prepared.add(direction)

    def _submit(self, transfer: Transfer, groups: tuple[int, ...], progress: Progress) -> None:
        direction, order = transfer.direction, self._orders[transfer.direction]
        work = self._begin(
            direction,
            self.device_pool,
            self.host_pool,
            transfer.device_slots,
            transfer.host_slots,
            groups,
        )
        self._say(transfer, "opened")
        try:
            before_last = len(work.steps) - 2
            for number, step in enumerate(work.steps):
                if direction is Direction.BACKUP and self._loads_first is not None:
                    progress.let_pass(self._loads_first.let_pass())
                took = work.copy(step)
                self._say(transfer, "step")
                progress.submitted(took, (step.end - step.start) * len(step.planes) * self._chunk_bytes)
                if number == before_last and work.arrives_on is not None:
                    progress.nearly(order.point(work.arrives_on))
                if step.end_layer is not None:
                    work.seal()
                    progress.mark(step.end_layer, order.point())
                    if direction is Direction.LOAD and self._loads_first is not None:
                        self._loads_first.under_way(transfer)
                progress.look()
        finally:
            work.close()

    def _finish(self, transfer: Transfer, error: Exception | None, before: Callable[[], None] = lambda: None) -> None:
        """Count a transfer and end it, whoever sees its end first; later calls find it done.

        A waiter may be broken off anywhere in here: whoever comes next does it again.
        """
        with transfer._finishing:
            if not transfer.done:
                before()
                self._totals[transfer.direction].add(transfer, error)
                transfer._end(error)
                return
        if error is not None:  # the bytes are there; what failed is behind them
            self._totals[transfer.direction].add_late_failure()
            _log.warning("after the end of a %s of %s pages: %s", transfer.direction.value, transfer.n_pages, error)

    def _say(self, transfer: Transfer, what: str) -> None:
        if self._watch is not None:
            self._watch(transfer, what)
