"""Progress on stderr: a bar where a person looks at a terminal, else a line at each state change and each 30 s."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from types import TracebackType

from hicachectl.render.screen import Screen
from hicachectl.units import format_seconds

__all__ = ["PLAIN_INTERVAL_S", "Progress", "eta_range_s"]

PLAIN_INTERVAL_S = 30.0
_BAR_INTERVAL_S = 0.1
_SAMPLE_INTERVAL_S = 0.5
_SAMPLES = 20


def eta_range_s(samples: list[tuple[float, int]], total: int) -> tuple[float, float] | None:
    """Predict the remaining seconds as (low, high) from samples (time_s, done). Pure.

    None until two steps forward have been seen. Low and high come from the fastest and the slowest of the recent
    steps, each averaged with the whole, so that one stall does not make the range useless.

    >>> eta_range_s([(0.0, 0), (1.0, 10), (3.0, 20)], total=40)
    (2.4, 3.5)
    """
    rates = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(samples) if t > s]
    moving = [rate for rate in rates if rate > 0]
    if len(moving) < 2:
        return None
    (start, first), (end, last) = samples[0], samples[-1]
    mean = (last - first) / (end - start)
    left = max(0, total - last)
    return (round(left / ((max(moving) + mean) / 2), 1), round(left / ((min(moving) + mean) / 2), 1))


class Progress:
    """One piece of work with a title. `kind` is bar, plain or none. Use as a context manager."""

    def __init__(
        self,
        screen: Screen,
        kind: str,
        title: str,
        *,
        total: int | None = None,
        unit: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.screen = screen
        self.kind = kind
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0
        self.state: str | None = None
        self.stopped = False
        """Set when the work ended early without an exception."""
        self._clock = clock
        self._wall = wall
        self._start = clock()
        self._samples: list[tuple[float, int]] = [(self._start, 0)]
        self._shown_at: float | None = None
        self._drawn = 0

    def __enter__(self) -> Progress:
        if self.kind == "plain":
            self._plain("started")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._erase()
        if self.kind == "plain":
            took = format_seconds(self._clock() - self._start)
            self._plain(f"done in {took}" if kind is None and not self.stopped else f"stopped after {took}")

    def advance(self, n: int = 1) -> None:
        """Count `n` more units done and show it when it is time."""
        self.update(self.done + n)

    def update(self, done: int) -> None:
        """Set the units done and show it when it is time."""
        self.done = done
        now = self._clock()
        if now - self._samples[-1][0] >= _SAMPLE_INTERVAL_S:
            self._samples = [*self._samples[-_SAMPLES + 1 :], (now, done)]
        interval = _BAR_INTERVAL_S if self.kind == "bar" else PLAIN_INTERVAL_S
        if now - (self._start if self._shown_at is None else self._shown_at) >= interval:
            self._show(now)

    def enter(self, state: str) -> None:
        """Name a new state of the work, such as "replay"; shown at once."""
        if state != self.state:
            self.state = state
            self._show(self._clock())

    def line(self) -> str:
        """What is shown now, without time stamp. Pure."""
        parts = [self.title if self.state is None else f"{self.title}: {self.state}"]
        unit = f" {self.unit}" if self.unit else ""
        if self.total:
            parts.append(f"{self.done}/{self.total}{unit} {100 * self.done / self.total:.0f} %")
            eta = eta_range_s(self._samples, self.total)
            if eta is not None and self.done < self.total:
                low, high = (format_seconds(value) for value in eta)
                parts.append(f"left {low}" if low == high else f"left {low} .. {high}")
        elif self.done:
            parts.append(f"{self.done}{unit}")
        return "  ".join(parts)

    def _show(self, now: float) -> None:
        self._shown_at = now
        if self.kind == "plain":
            self._plain()
        elif self.kind == "bar":
            text = self.line()
            free = self.screen.width - len(text) - 5
            if self.total and free >= 10:
                filled = min(20, free) * self.done // self.total
                text = f"[{'#' * filled}{'.' * (min(20, free) - filled)}] {text}"
            text = text[
                : self.screen.width - 1
            ]  # a bar is redrawn, so a cut one is complete a moment later in plain form
            self.screen.write("\r" + text + " " * max(0, self._drawn - len(text)))
            self._drawn = len(text)

    def _plain(self, suffix: str | None = None) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall()))
        self.screen.print(f"{stamp} {self.line()}" + (f"  {suffix}" if suffix else ""))

    def _erase(self) -> None:
        if self._drawn:
            self.screen.write("\r" + " " * self._drawn + "\r")
            self._drawn = 0
