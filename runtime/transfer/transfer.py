"""A transfer, as whoever asked for it sees it, and the totals of all that ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from operator import add
from os import sched_yield
from threading import Condition, Lock
from typing import Any

from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.device import Point

__all__ = ["SHORT_STEP_S", "DirectionCounters", "Totals", "Transfer"]

# Who waits sees a last step arrive itself when that should take no longer than this.
SHORT_STEP_S = 2e-3
# A last step that takes longer is left to the submission thread.
_LONGEST_LOOK_S = 4 * SHORT_STEP_S


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
    late_failures: int = 0
    """What failed behind the end of a transfer whose bytes were all there; the log has each."""

    @property
    def bytes_per_s(self) -> float | None:
        """Rate while copying, or None before anything was copied."""
        return self.n_bytes / self.wall_s if self.wall_s > 0 else None


class _Waiters:
    """Threads that wait for a change of what `lock` guards; it is held by whoever calls.

    The condition is made when the first one waits: most of the time of making a transfer would be that of making two.
    """

    __slots__ = ("_condition", "_lock")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._condition: Condition | None = None

    def wait_for(self, reached: Callable[[], bool], timeout_s: float | None) -> bool:
        if self._condition is None:
            self._condition = Condition(self._lock)
        return self._condition.wait_for(reached, timeout_s)

    def notify_all(self) -> None:
        if self._condition is not None:
            self._condition.notify_all()


class Transfer:
    """One set of pages on its way. Moved on by its submission thread, ended by that or by one that waits; read by anyone.

    `n_bytes`, `n_segments` and `n_submissions` grow with each layer group; `wall_s` is the time in the copies, `submit_s`
    the part of it in which the thread submitted, `queued_s` the time before them, and that in which a backup let loads
    pass; all in seconds and set when done.
    """

    def __init__(self, direction: Direction, device_slots: Slots, host_slots: Slots, asked_s: float) -> None:
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
        self._mark: object = None
        self._asked_s = asked_s
        self._done = False
        self._ready_layers = 0
        self._points: list[tuple[int, Point]] = []
        self._submitted = False
        self._soon: tuple[Point, Callable[[], None]] | None = None
        self._n_waiting = 0
        self._finishing = Lock()  # held by the thread that counts the end: the submission thread or one that waits
        self._lock = Lock()
        # Who waits for the end is not woken by every layer: each wake-up takes the interpreter from the submission thread.
        self._changed, self._ended = _Waiters(self._lock), _Waiters(self._lock)

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
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
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
        if self._sees(last, until_s):
            complete()
            return True
        with self._lock:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            return self._ended.wait_for(lambda: self._done, left_s)

    def _sees(self, last: Point, until_s: float | None) -> bool:
        """Look until `last` is reached, and say so; not longer than `until_s`, nor than a last step takes that is as expected."""
        look_until_s = time.monotonic() + _LONGEST_LOOK_S
        if until_s is not None and until_s < look_until_s:
            look_until_s = until_s
        try:
            while not last.reached():
                if self._done or time.monotonic() >= look_until_s:
                    return False
                sched_yield()  # a sleep, of 0 s too, lasts some tens of microseconds
        except Exception:  # noqa: BLE001 - the device failed: the submission thread meets it too, and says how
            return False
        return True

    def wait_layer(self, layer: int, timeout_s: float | None = None) -> bool:
        """Wait until the bytes of `layer`, in all pages, are there and say whether they are.

        False when the time is over, or when the transfer failed before that layer.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._done or self._ready_layers > layer, timeout_s)
            return self._ready_layers > layer

    def order_layer(self, layer: int, timeout_s: float | None = None) -> bool:
        """Make the calling thread's current stream wait for the bytes of `layer`, in all pages, and say whether it does.

        The thread itself waits only until the copies of that layer are submitted. False when the time is over, or when
        the transfer failed before that.
        """

        def submitted() -> bool:
            return self._done or self._submitted or (bool(self._points) and self._points[-1][0] > layer)

        with self._lock:
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
        with self._lock:
            self._points.append((end_layer, point))
            self._changed.notify_all()

    def _all_submitted(self) -> None:
        with self._lock:
            self._submitted = True
            self._changed.notify_all()

    def _nearly_there(self, last: Point, complete: Callable[[], None]) -> bool:
        """Let who waits see `last` and call `complete` behind it; say whether someone does."""
        with self._lock:
            self._soon = (last, complete)
            self._ended.notify_all()
            return self._n_waiting > 0

    def _layers_ready(self, end_layer: int) -> None:
        with self._lock:
            self._ready_layers = end_layer
            self._changed.notify_all()

    def _end(self, error: Exception | None) -> None:
        """Wake everyone; `_done` comes last, so that an end that was broken off is not taken for one."""
        with self._lock:
            self.error = error
            self._soon = None
            self._changed.notify_all()
            self._ended.notify_all()
            self._done = True


class Totals:
    """The fields of `DirectionCounters` in their order: sums that are replaced as one, so that a reader has all of a transfer or nothing.

    Added to by one thread at a time, in little time: the end of a transfer waits.
    """

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state: tuple[Transfer | None, tuple[Any, ...]] = (None, astuple(DirectionCounters()))

    def add(self, transfer: Transfer, error: Exception | None) -> None:
        """Count a transfer that ends; one that was counted last is not counted again."""
        last, sums = self._state
        if last is transfer:
            return
        if error is not None:
            self._state = (transfer, _sum(sums, (1, 1, transfer.n_pages)))
            return
        moved = (transfer.n_pages, transfer.n_bytes, transfer.n_submissions, transfer.n_segments)
        took = (transfer.wall_s, transfer.queued_s, transfer.submit_s)
        self._state = (transfer, _sum(sums, (1, 0, 0, *moved, *took)))

    def add_late_failure(self) -> None:
        """Count what failed behind the end of the last transfer."""
        last, sums = self._state
        self._state = (last, _sum(sums, (*[0] * (len(sums) - 1), 1)))

    def counters(self) -> DirectionCounters:
        return DirectionCounters(*self._state[1])


def _sum(sums: tuple[Any, ...], more: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add to the first of some sums; the others stay."""
    return (*map(add, sums, more), *sums[len(more) :])
