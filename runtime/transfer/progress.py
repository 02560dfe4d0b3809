"""How far a transfer is, layer group by layer group, and which direction goes on first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Lock

from hicachectl.runtime.transfer.backends import Submitted
from hicachectl.runtime.transfer.device import Point
from hicachectl.runtime.transfer.transfer import SHORT_STEP_S, Transfer

__all__ = ["LoadsFirst", "Progress"]

# Long enough to sleep through: another thread sees the end.
_ASLEEP_S = 1.0
# A link of 50 GB/s; only decides whether to spin or to sleep.
_GUESSED_BYTES_PER_S = 5e10
_NOTHING = Submitted(0, 0)


class Progress:
    """What of a transfer is on its way, group by group.

    Used by its submission thread; `last_arrived` also by a thread that waits, once `finish` has told it of the last point.
    """

    def __init__(self, transfer: Transfer, start_s: float, clock: Callable[[], float]) -> None:
        self._transfer = transfer
        self._start_s, self._clock = start_s, clock
        self._under_way: deque[tuple[int, Point, Submitted, int]] = deque()
        """Of each group its end, its point, and what the transfer took and moved up to its end."""
        self._took, self._n_bytes = _NOTHING, 0
        self._before_last: Point | None = None
        self._last_bytes = 0

    @property
    def wall_s(self) -> float:
        """Seconds in the copies so far."""
        return self._clock() - self._start_s

    def let_pass(self, waited_s: float) -> None:
        """Count a wait for the other direction as time in the queue."""
        self._start_s += waited_s
        self._transfer.queued_s += waited_s

    def submitted(self, took: Submitted, n_bytes: int) -> None:
        """Add a step to the group in hand."""
        self._took = Submitted(self._took.n_submissions + took.n_submissions, self._took.n_segments + took.n_segments)
        self._n_bytes += n_bytes
        self._last_bytes = n_bytes

    def mark(self, end_layer: int, point: Point) -> None:
        """End the group in hand: its bytes are there when `point` is reached."""
        self._under_way.append((end_layer, point, self._took, self._n_bytes))
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
            self._under_way[0][1].wait(self._bytes_left() / _GUESSED_BYTES_PER_S)
            self._arrived()
        if not self._under_way:
            complete()
            return
        point, n_bytes = self._under_way[0][1], self._bytes_left()
        if self._before_last is not None:
            self._before_last.wait((n_bytes - self._last_bytes) / _GUESSED_BYTES_PER_S)
            n_bytes = self._last_bytes
        expected_s = n_bytes / _GUESSED_BYTES_PER_S
        if expected_s <= SHORT_STEP_S:
            expected_s = _ASLEEP_S if self._transfer._nearly_there(point, complete) else 0.0
        point.wait(expected_s)
        complete()

    def last_arrived(self) -> None:
        """Add the last group, if `look` has not."""
        if self._under_way:
            self._arrived()

    def _bytes_left(self) -> int:
        """Bytes of the first group under way."""
        return self._under_way[0][3] - self._transfer.n_bytes

    def _arrived(self) -> None:
        """Tell of the first group under way. A waiter may be broken off anywhere in here; whoever comes next does it again."""
        end_layer, _, took, n_bytes = self._under_way[0]
        transfer = self._transfer
        transfer.n_submissions, transfer.n_segments = took.n_submissions, took.n_segments
        transfer.n_bytes = n_bytes
        transfer.wall_s = self.wall_s
        transfer._layers_ready(end_layer)
        self._under_way.popleft()


class LoadsFirst:
    """Holds a backup back before each of its steps until the loads asked for by then have their first layer group submitted.

    From then on the link has work, and a direction's steps cost the other one nothing but the interpreter's time. Loads
    asked for later wait for that step: a queue of loads that never empties slows a backup down and does not stop it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._n_asked = self._n_under_way = 0
        self._last: Transfer | None = None
        self._lock = Lock()
        self._changed = Condition(self._lock)

    def asked(self) -> None:
        """Note a load that is queued; one thread at a time."""
        self._n_asked += 1

    def under_way(self, load: Transfer) -> None:
        """Note that a load's first layer group is submitted, or that it has failed; may be told more than once.

        Loads come in the order in which they were asked for.
        """
        if load is self._last:
            return
        self._last = load
        with self._lock:
            self._n_under_way += 1
            self._changed.notify_all()

    def let_pass(self) -> float:
        """Wait until the loads asked for so far are under way, and return the seconds that took."""
        n_asked = self._n_asked
        if self._n_under_way >= n_asked:
            return 0.0
        began_s = self._clock()
        with self._lock:
            self._changed.wait_for(lambda: self._n_under_way >= n_asked)
        return self._clock() - began_s
