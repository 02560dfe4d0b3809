"""Two threads that move pages between device and host; whoever asks only enqueues.

    caller ---load(host_slots, device_slots)----> queue --> thread "load"   --> steps of the backend, layer group by group
    caller ---backup(device_slots, host_slots)--> queue --> thread "backup" --> steps of the backend, all planes at once

    slots of a transfer   [enqueued, done)   owned by the transfer: the caller keeps them leased and does not free them
    after done            owned by the caller again, whether it worked or not (`error`)

A copy that fails ends its transfer with `error`; the engine goes on. Loads and backups share little on a link, so both
run at once; a backup that is submitted in steps lets the first layer group of every waiting load go before its next step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from queue import SimpleQueue
from threading import Condition, Lock, Thread

import numpy as np
import torch

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.layout import Backend
from hicachectl.runtime.memory.device_pool import DevicePool, require_slots
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import CopyBackend, Direction, PipelinedBackend, Submitted, Work, begin
from hicachectl.runtime.transfer.device import DeviceOrder, Point, device_error, device_order

__all__ = ["DirectionCounters", "EngineState", "Transfer", "TransferEngine"]


# The last step of a transfer is spun for when it should take no longer than this.
_SPIN_S = 2e-3
# Long enough to sleep through: another thread spins.
_ASLEEP_S = 1.0


class EngineState(Enum):
    """RUNNING takes transfers, CLOSING finishes those it has, CLOSED has joined its threads."""

    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class DirectionCounters:
    """Totals of one direction since the start. Bytes, pages and wall_s count only what worked."""

    transfers: int = 0
    failures: int = 0
    """Transfers that failed."""
    failed_pages: int = 0
    n_pages: int = 0
    n_bytes: int = 0
    n_submissions: int = 0
    n_segments: int = 0
    wall_s: float = 0.0
    queued_s: float = 0.0
    submit_s: float = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        """Rate while copying, or None before anything was copied."""
        return self.n_bytes / self.wall_s if self.wall_s > 0 else None


class _Totals:
    """What `DirectionCounters` are made of; added to by one thread at a time, in little time: the end of a transfer waits."""

    __slots__ = (
        "failed_pages", "failures", "n_bytes", "n_pages", "n_segments", "n_submissions", "queued_s", "submit_s",
        "transfers", "wall_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.transfers = self.failures = self.failed_pages = 0
        self.n_pages = self.n_bytes = self.n_submissions = self.n_segments = 0
        self.wall_s = self.queued_s = self.submit_s = 0.0

    def add(self, transfer: Transfer, error: Exception | None) -> None:
        self.transfers += 1
        if error is not None:
            self.failures += 1
            self.failed_pages += transfer.n_pages
            return
        self.n_pages += transfer.n_pages
        self.n_bytes += transfer.n_bytes
        self.n_submissions += transfer.n_submissions
        self.n_segments += transfer.n_segments
        self.wall_s += transfer.wall_s
        self.queued_s += transfer.queued_s
        self.submit_s += transfer.submit_s

    def counters(self) -> DirectionCounters:
        return DirectionCounters(**{name: getattr(self, name) for name in self.__slots__})


class Transfer:
    """One set of pages on its way. Written by its submission thread, read by anyone.

    `n_bytes`, `n_segments` and `n_submissions` grow with each layer group; `wall_s` is the time in the copies, `submit_s`
    the part of it in which the thread submitted, `queued_s` the time before them, all in seconds and set when done.
    """

    def __init__(
        self, direction: Direction, device_slots: Slots, host_slots: Slots, mark: object, asked_s: float
    ) -> None:
        self.direction = direction
        self.device_slots = device_slots
        self.host_slots = host_slots
        self.error: Exception | None = None
        self.n_bytes = 0
        self.n_segments = 0
        self.n_submissions = 0
        self.wall_s = 0.0
        self.queued_s = 0.0
        self.submit_s = 0.0
        self._mark = mark
        self._asked_s = asked_s
        self._done = False
        self._ready_layers = 0
        self._points: list[tuple[int, Point]] = []
        self._submitted = False
        self._soon: tuple[Point, Callable[[], None]] | None = None
        self._n_waiting = 0
        self._finishing = Lock()  # held by the thread that counts the end: the submission thread or one that waits
        lock = Lock()
        # Who waits for the end is not woken by every layer: each wake-up takes the interpreter from the submission thread.
        self._changed, self._ended = Condition(lock), Condition(lock)

    @property
    def n_pages(self) -> int:
        return int(self.device_slots.size)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or with `error`."""
        return self._done

    @property
    def ok(self) -> bool:
        """Whether every byte is there."""
        return self._done and self.error is None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended and say whether it has; then read `error`."""
        with self._ended:
            self._n_waiting += 1
            try:
                self._ended.wait_for(lambda: self._done or self._soon is not None, timeout_s)
            finally:
                self._n_waiting -= 1
            soon = self._soon
            if self._done or soon is None:
                return self._done
        # The last bytes take less time than being woken behind them: see them arrive, and count the end on this thread.
        last, complete = soon
        try:
            last.wait(0.0)
        except RuntimeError:  # the device failed: the submission thread says how
            with self._ended:
                return self._ended.wait_for(lambda: self._done, timeout_s)
        complete()
        return True

    def wait_layer(self, layer: int, timeout_s: float | None = None) -> bool:
        """Wait until the bytes of `layer`, in all pages, are there and say whether they are.

        False when the time is over, or when the transfer failed before that layer.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._ready_layers > layer, timeout_s)
            return self._ready_layers > layer

    def order_layer(self, layer: int, timeout_s: float | None = None) -> bool:
        """Make the calling thread's current stream wait for the bytes of `layer`, in all pages, and say whether it does.

        The thread itself waits only until the copies of that layer are submitted. False when the time is over, or when
        the transfer failed before that.
        """

        def submitted() -> bool:
            return self._done or self._submitted or (bool(self._points) and self._points[-1][0] > layer)

        with self._changed:
            self._changed.wait_for(submitted, timeout_s)
            if self._ready_layers > layer:
                return True
            if self._done:
                return False
            point = next((point for end, point in self._points if end > layer), None)
        if point is None:
            return False
        point.order()
        return True

    def _on_its_way(self, end_layer: int, point: Point) -> None:
        with self._changed:
            self._points.append((end_layer, point))
            self._changed.notify_all()

    def _all_submitted(self) -> None:
        with self._changed:
            self._submitted = True
            self._changed.notify_all()

    def _nearly_there(self, last: Point, complete: Callable[[], None]) -> bool:
        """Let who waits see `last` and call `complete` behind it; say whether someone does."""
        with self._ended:
            self._soon = (last, complete)
            self._ended.notify_all()
            return self._n_waiting > 0

    def _layers_ready(self, end_layer: int) -> None:
        with self._changed:
            self._ready_layers = end_layer
            self._changed.notify_all()

    def _end(self, error: Exception | None) -> None:
        with self._changed:
            self.error = error
            self._done = True
            self._changed.notify_all()
            self._ended.notify_all()


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
        self._loads_first = _LoadsFirst() if isinstance(backend, PipelinedBackend) else None
        self._state = EngineState.RUNNING
        self._gate = Lock()  # nothing is queued behind the end mark
        self._drop_queued = False
        self._prepared: set[Direction] = set()
        self._totals = {direction: _Totals() for direction in Direction}
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

        May be called twice. The copy in progress is always finished.
        """
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
        require_slots(device_slots, self.device_pool.n_slots, f"{direction.value}, device slots")
        require_slots(host_slots, self.host_pool.n_slots, f"{direction.value}, host slots")
        mark = self._orders[direction].mark()
        transfer = Transfer(direction, np.array(device_slots), np.array(host_slots), mark, self._clock())
        with self._gate:
            if self._state is not EngineState.RUNNING:
                raise InvariantBroken(
                    f"{direction.value} on an engine that is {self._state.value}", where="transfer engine"
                )
            if direction is Direction.LOAD and self._loads_first is not None:
                self._loads_first.asked()
            self._queues[direction].put(transfer)
        return transfer

    def _serve(self, direction: Direction) -> None:
        with self._orders[direction].thread():
            self._serve_on_stream(direction)

    def _serve_on_stream(self, direction: Direction) -> None:
        queue = self._queues[direction]
        while (transfer := queue.get()) is not None:
            error: Exception | None = None
            try:
                if self._drop_queued:
                    raise InvariantBroken(f"{direction.value} dropped: the engine was closed", where="transfer engine")
                self._copy(transfer)
            except Exception as failed:  # noqa: BLE001 - a thread's edge: whoever waits gets it in `error`
                error = device_error(failed)
            if direction is Direction.LOAD and self._loads_first is not None:
                self._loads_first.under_way(transfer)
            self._finish(transfer, error)

    def _copy(self, transfer: Transfer) -> None:
        direction, geometry = transfer.direction, self.device_pool.geometry
        groups = self._groups[direction]
        if transfer.n_pages and direction not in self._prepared:  # before the clock starts
            widest = max(groups) * geometry.kind.planes_per_layer
            self._backend.prepare(direction, self.device_pool, self.host_pool, widest)
            self._prepared.add(direction)
        start_s = self._clock()
        self._say(transfer, "taken")
        transfer.queued_s = start_s - transfer._asked_s
        if not transfer.n_pages:
            transfer._layers_ready(geometry.n_layers)
            return
        progress = _Progress(transfer, start_s, self._clock)
        with self._orders[direction].after(transfer._mark):
            self._submit(transfer, groups, progress)
            transfer.submit_s = self._clock() - start_s
            self._say(transfer, "submitted")
            transfer._all_submitted()
            progress.finish(lambda: self._finish(transfer, None, progress.last_arrived))
            self._say(transfer, "arrived")

    def _submit(self, transfer: Transfer, groups: tuple[int, ...], progress: _Progress) -> None:
        direction, order = transfer.direction, self._orders[transfer.direction]
        chunk_bytes = self.device_pool.geometry.chunk_bytes
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
                    self._loads_first.let_pass()
                took = work.copy(step)
                self._say(transfer, "step")
                progress.submitted(took, (step.end - step.start) * len(step.planes) * chunk_bytes)
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
        """Count a transfer and end it, whoever sees its end first; later calls find it done."""
        with transfer._finishing:
            if transfer._done:
                return
            before()
            self._totals[transfer.direction].add(transfer, error)
            transfer._end(error)

    def _say(self, transfer: Transfer, what: str) -> None:
        if self._watch is not None:
            self._watch(transfer, what)


class _Progress:
    """What of a transfer is on its way, group by group. Used by its submission thread alone."""

    # A link of 50 GB/s; only decides whether to spin or to sleep.
    _GUESSED_BYTES_PER_S = 5e10

    def __init__(self, transfer: Transfer, start_s: float, clock: Callable[[], float]) -> None:
        self._transfer = transfer
        self._start_s, self._clock = start_s, clock
        self._under_way: deque[tuple[int, Point, Submitted, int]] = deque()
        self._took, self._n_bytes = Submitted(0, 0), 0
        self._before_last: Point | None = None
        self._last_bytes = 0

    def submitted(self, took: Submitted, n_bytes: int) -> None:
        """Add a step to the group in hand."""
        self._took = Submitted(self._took.n_submissions + took.n_submissions, self._took.n_segments + took.n_segments)
        self._n_bytes += n_bytes
        self._last_bytes = n_bytes

    def mark(self, end_layer: int, point: Point) -> None:
        """End the group in hand: its bytes are there when `point` is reached."""
        self._under_way.append((end_layer, point, self._took, self._n_bytes))
        self._took, self._n_bytes = Submitted(0, 0), 0
        self._transfer._on_its_way(end_layer, point)

    def look(self) -> None:
        """Tell of the groups whose bytes are there. Does not wait."""
        while self._under_way and self._under_way[0][1].reached():
            self._arrived()

    def nearly(self, point: Point) -> None:
        """Note the point before the last step."""
        self._before_last = point

    def finish(self, complete: Callable[[], None]) -> None:
        """Wait for all groups, asleep, and for the last step spinning, unless one who waits for the transfer does that.

        `complete` counts the last group and ends the transfer; it is called behind the last byte, maybe by two threads.
        """
        while len(self._under_way) > 1:
            _, point, _, n_bytes = self._under_way[0]
            point.wait(n_bytes / self._GUESSED_BYTES_PER_S)
            self._arrived()
        if not self._under_way:
            complete()
            return
        _, point, _, n_bytes = self._under_way[0]
        if self._before_last is not None:
            self._before_last.wait((n_bytes - self._last_bytes) / self._GUESSED_BYTES_PER_S)
            n_bytes = self._last_bytes
        expected_s = n_bytes / self._GUESSED_BYTES_PER_S
        if expected_s <= _SPIN_S:
            expected_s = _ASLEEP_S if self._transfer._nearly_there(point, complete) else 0.0
        point.wait(expected_s)
        complete()

    def last_arrived(self) -> None:
        """Add the last group, if `look` has not."""
        if self._under_way:
            self._arrived()

    def _arrived(self) -> None:
        end_layer, _, took, n_bytes = self._under_way.popleft()
        transfer = self._transfer
        transfer.n_submissions += took.n_submissions
        transfer.n_segments += took.n_segments
        transfer.n_bytes += n_bytes
        transfer.wall_s = self._clock() - self._start_s
        transfer._layers_ready(end_layer)


class _LoadsFirst:
    """Holds a backup back between its steps while loads wait for their first layer group to be submitted.

    From then on the link has work, and a direction's steps cost the other one nothing but the interpreter's time.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._passed: Transfer | None = None
        self._changed = Condition(Lock())

    def asked(self) -> None:
        """Note a load that is queued."""
        with self._changed:
            self._waiting += 1

    def under_way(self, load: Transfer) -> None:
        """Note that a load's first layer group is submitted, or that it has failed; may be told more than once."""
        if load is self._passed:
            return
        self._passed = load
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()

    def let_pass(self) -> None:
        """Wait until no load waits."""
        if self._waiting:
            with self._changed:
                self._changed.wait_for(lambda: not self._waiting)
