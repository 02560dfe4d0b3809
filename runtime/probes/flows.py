"""Copies back to back in several flows at once, and what each got while all were at it.

    flow 0   |--step--|--step--|--step--|--step--|--step--|
    flow 1   |-------step-------|-------step-------|-------step-------|
                                |-- common window --------|

A flow is one direction of one accelerator on a stream of its own, or one thread that copies memory. All start behind a common
barrier. Each keeps a few steps in flight, so that its link never waits for this process, and every step's end is put on one
clock. Counted is the time in which all flows run steadily: from the latest end of a first step to the earliest end of a last
one; a step that reaches over an edge counts in part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.threads import run_threads

__all__ = ["STEPS_IN_FLIGHT", "Flow", "FlowRate", "rate_in_window", "run_together"]

STEPS_IN_FLIGHT = 3
"""One that runs, one that follows it, and one more for as long as the end of the first is noticed late."""


class Flow(Protocol):
    """Copies of one direction. Used by one thread at a time."""

    @property
    def step_bytes(self) -> int:
        """Bytes of one step: one large copy, or many small ones."""

    def submit(self) -> None:
        """Start one step behind those that were started. Returns before it has ended."""

    def wait(self) -> float:
        """Wait for the oldest step that was not waited for, and return when it ended: seconds of a clock common to all flows.

        Raises HicacheError when the device failed or the step does not end.
        """

    def drain(self) -> None:
        """Wait for every step that was started: afterwards nothing touches the memory."""


@dataclass(frozen=True, slots=True)
class FlowRate:
    """What a flow moved in the common window."""

    bytes_per_s: float
    window_s: float
    n_steps: int
    """Steps of this flow that ended in the window."""


def run_together(
    flows: Sequence[Flow], seconds: float, *, under_load: Callable[[], None] = lambda: None
) -> tuple[FlowRate, ...]:
    """Run flows at the same time for `seconds` in which all of them are steady, and return the rate of each, in their order.

    `under_load` is called once, from this thread, while all flows run. When this returns or raises nothing is under way any
    more, unless a device does not answer. Raises what the first flow that failed raised; UsageError without flows.
    """
    if not flows or seconds <= 0:
        raise UsageError(f"a load of {len(flows)} flows for {seconds:g} s", hint="give at least one flow and some time")
    load = _Load(len(flows), seconds)

    def meanwhile() -> None:
        load.steady.wait()
        if not load.errors:
            under_load()

    targets = [partial(load.run, number, flow) for number, flow in enumerate(flows)]
    run_threads(targets, "hicache-flow", stop=load.end, meanwhile=meanwhile)
    if load.errors:
        raise load.errors[0]
    start, end = max(times[0] for times in load.times), min(times[-1] for times in load.times)
    return tuple(
        rate_in_window(times, flow.step_bytes, start, end) for times, flow in zip(load.times, flows, strict=True)
    )


def rate_in_window(times: Sequence[float], step_bytes: int, start: float, end: float) -> FlowRate:
    """Return what one flow moved in `[start, end]`, from the ends of its steps, ascending. Pure. Raises InvariantBroken.

    >>> rate_in_window([1.0, 2.0, 3.0, 4.0], 100, start=1.5, end=3.5)
    FlowRate(bytes_per_s=100.0, window_s=2.0, n_steps=2)
    """
    if len(times) < 2 or not times[0] <= start < end <= times[-1]:
        ends = f"{times[0]:g} to {times[-1]:g}" if times else "none"
        raise InvariantBroken(f"a window from {start:g} to {end:g} s in a flow with step ends {ends}", where="load")
    moved = 0.0
    for before, after in pairwise(times):
        inside = min(after, end) - max(before, start)
        if inside > 0:
            moved += step_bytes * inside / (after - before)
    n_steps = sum(1 for at in times if start < at <= end)
    return FlowRate(moved / (end - start), end - start, n_steps)


class _Load:
    """What the threads of one load share."""

    def __init__(self, n_flows: int, seconds: float) -> None:
        self.times: list[list[float]] = [[] for _ in range(n_flows)]
        self.errors: list[BaseException] = []
        self.steady = threading.Event()
        """Set when every flow has ended its first step, or one failed."""
        self._seconds = seconds
        self._barrier = threading.Barrier(n_flows)
        self._stopped = False

    def run(self, number: int, flow: Flow) -> None:
        """Run one flow until all have had their time together."""
        try:
            self._barrier.wait()
            for _ in range(STEPS_IN_FLIGHT):
                flow.submit()
            while not self._stopped:
                ended = flow.wait()
                self.times[number].append(ended)
                if self._is_enough(ended):
                    break
                flow.submit()
        except threading.BrokenBarrierError:
            pass  # another flow failed, and has said why
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failed(error)
        try:
            flow.drain()
        except BaseException as error:  # noqa: BLE001 - the same
            self._failed(error)

    def end(self) -> None:
        """Let every flow end after the step it waits for."""
        self._stopped = True
        self._barrier.abort()
        self.steady.set()

    def _is_enough(self, ended: float) -> bool:
        if not self.steady.is_set():
            if not all(self.times):
                return False
            self.steady.set()
        latest_first = max(times[0] for times in self.times)
        return ended >= latest_first + self._seconds

    def _failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.end()
