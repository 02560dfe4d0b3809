"""The board of a running replay: redrawn in place on a terminal, else a time-stamped line now and then.

It is talk, so it goes to stderr. A call of `update` that draws nothing costs one look at the clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from hicachectl.progress import Progress, eta_range_s
from hicachectl.render.run_words import percent, signed
from hicachectl.render.table import Column, Table, layout
from hicachectl.render.text import ascii_text, printable
from hicachectl.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from hicachectl.context import Context
    from hicachectl.runtime.replay.driver import Replay
    from hicachectl.runtime.replay.record import Recorder

__all__ = ["Board"]

_DRAW_INTERVAL_S = 0.25
_PLAIN_CHECK_S = 1.0
_WINDOW_S = 60.0
_SAMPLE_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """Counters at one moment: requests done, and evictions of device, host, storage."""

    at_s: float
    requests: int
    evicted: tuple[int, int, int]


class Board:
    """Shows a replay while it runs; a context manager. `Board(cli, replay)` follows --progress: bar, plain or none."""

    def __init__(
        self,
        cli: Context,
        replay: Replay,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        output = cli.output
        self.replay = replay
        self.kind = output.progress
        self._screen = output.stderr
        self._interactive = output.interactive or output.progress == "bar"
        self._clock = clock
        self._total = replay.recorder.expected_requests
        self._samples: deque[_Sample] = deque()
        self._next_s = float("-inf")
        self._live: Live | None = None
        self._plain: _PlainBoard | None = None
        if self.kind == "plain":
            self._plain = _PlainBoard(
                output.stderr,
                "plain",
                f"replay {replay.config.trace_name}",
                total=self._total,
                unit="requests",
                clock=clock,
                wall=wall,
            )

    def __enter__(self) -> Board:
        self._take(self._clock())
        if self._plain is not None:
            self._plain.__enter__()
        elif self.kind == "bar":
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain is not None:
            self._plain.stopped = self.replay.stopping
            self._plain.summary, self._plain.done = self.hit_line(), self.replay.recorder.n_requests
            self._plain.__exit__(kind, error, trace)
        self.close()

    def close(self) -> None:
        """Take the board off the screen; the report follows. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, recorder: Recorder) -> None:
        """Show where the replay stands, when it is time; call after each request, in the thread that replays."""
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + (_DRAW_INTERVAL_S if self._live is not None else _PLAIN_CHECK_S)
        self._take(now)
        if self._live is not None:
            self._live.update(self._text(), refresh=True)
        elif self._plain is not None:
            self._plain.summary = self.hit_line()
            self._plain.update(recorder.n_requests)

    def hit_line(self) -> str:
        """The hit rate so far in one piece of text, by tier, as shares of the input tokens."""
        counters, page_tokens = self.replay.cache.counters, self.replay.config.geometry.page_tokens
        if not counters.input_tokens:
            return ""
        device, host, storage = (percent(n * page_tokens, counters.input_tokens) for n in counters.hit_pages)
        return f"hit {percent(sum(counters.hit_pages) * page_tokens, counters.input_tokens)} of tokens: device {device}, host {host}, storage {storage}"

    def lines(self) -> list[str]:
        """The board as text, within the width of the screen."""
        replay, recorder, width = self.replay, self.replay.recorder, self._screen.width
        first, last = self._samples[0], self._samples[-1]
        span = last.at_s - first.at_s
        head = [
            f"RUN {replay.config.trace_name}",
            f"{format_count(recorder.n_requests)} of {format_count(self._total)} requests {percent(recorder.n_requests, self._total)}",
        ]
        if span > 0:
            head.append(f"{format_count(round((last.requests - first.requests) / span))} requests/s")
        eta = eta_range_s([(sample.at_s, sample.requests) for sample in self._samples], self._total)
        if eta is not None:
            low, high = (format_seconds(max(value, 0.1)) for value in eta)
            head.append(f"left {low}" if low == high else f"left {low} .. {high}")
        texts = [
            "  ".join(head),
            *layout(self._tiers(first, last), width),
            *([f"L3 held {format_count(replay.held_at_start)} pages at the start"] if replay.held_at_start else []),
            self._restores(first),
            *self._misses(),
            self._sum(),
        ]
        return [_cut(line, width) for line in texts]

    def _tiers(self, first: _Sample, last: _Sample) -> Table:
        replay, recorder, cache = self.replay, self.replay.recorder, self.replay.cache
        page_bytes, page_tokens = replay.config.geometry.page_bytes, replay.config.geometry.page_tokens
        start, span = first.requests, last.at_s - first.at_s
        asked = float(recorder.column("input_tokens")[start:].sum())
        counters = cache.counters

        def row(tier: int, name: str, used: str, pages: int) -> tuple[str, ...]:
            recent = float(recorder.column(f"{name}_hit")[start:].sum()) * page_tokens
            rate = (last.evicted[tier] - first.evicted[tier]) / span if span > 0 else 0.0
            ever = percent(counters.hit_pages[tier] * page_tokens, counters.input_tokens)
            return (
                f"L{tier + 1} {name}",
                used,
                format_count(pages),
                format_count(round(rate)),
                percent(recent, asked),
                ever,
            )

        def sizes(used: int, size: int | None) -> str:
            return f"{format_bytes(used)} / {'no limit' if size is None else format_bytes(size)}"

        slots = cache.device_slots
        rows = [row(0, "device", sizes(slots.n_used * page_bytes, slots.n_slots * page_bytes), slots.n_used)]
        if cache.host_slots is not None:
            slots = cache.host_slots
            rows.append(row(1, "host", sizes(slots.n_used * page_bytes, slots.n_slots * page_bytes), slots.n_used))
        if replay.storage is not None:
            stats = replay.storage.stats()
            rows.append(row(2, "storage", sizes(stats.used_bytes, stats.capacity_bytes), stats.n_objects))
        recent_title = f"HIT, last {format_seconds(_WINDOW_S)}" if span >= _WINDOW_S * 0.9 else "HIT, lately"
        columns = (
            Column("TIER"), Column("USED / SIZE", right=True), Column("PAGES", right=True, keep=2), Column("EVICT/s", right=True, keep=1),
            Column(recent_title, right=True), Column("HIT, all", right=True),
        )  # fmt: skip
        return Table(columns, rows)

    def _restores(self, first: _Sample) -> str:
        import numpy as np

        recorder, cache = self.replay.recorder, self.replay.cache
        start = first.requests
        waits = recorder.column("restore_wait_s")[start:]
        waits = waits[waits > 0]
        text = f"RESTORE {format_count(sum(cache.counters.restored_pages))} pages, {format_count(recorder.pages_verified)} verified"
        if len(waits):
            p50, p99 = np.percentile(waits, [50, 99])
            text += f"  lately p50 {format_seconds(float(p50))}  p99 {format_seconds(float(p99))}"
        return text

    def _misses(self) -> list[str]:
        counters = self.replay.cache.counters
        found = sorted(((n, reason.value) for reason, n in counters.missed_tokens.items() if n), reverse=True)[:3]
        if not found:
            return []
        return ["MISSED  " + "  ".join(f"{name} {percent(n, counters.input_tokens)}" for n, name in found)]

    def _sum(self) -> str:
        recorder = self.replay.recorder
        saved, moved = float(recorder.column("saved_s").sum()), recorder.moved_s()
        failures = sum(self.replay.failures().values())
        text = f"NET GAIN {signed(saved - moved)} = saved {signed(saved)} (modelled) - moved {format_seconds(moved)} (measured)"
        model, geometry = self.replay.config.compute.model, self.replay.config.geometry
        if model is None or model.name != geometry.name:
            text += f"  DEMO: prefill of {model.name if model else 'a model not named'}, pages of {geometry.name}"
        return text + (f"  FAILURES {format_count(failures)}" if failures else "")

    def _take(self, now: float) -> None:
        """Remember the counters once a second, for one window."""
        samples, replay = self._samples, self.replay
        counters = replay.cache.counters
        stored = replay.storage.stats().evictions if replay.storage is not None else 0
        sample = _Sample(
            now, replay.recorder.n_requests, (counters.evicted_pages[0], counters.evicted_pages[1], stored)
        )
        if len(samples) >= 2 and now - samples[-2].at_s < _SAMPLE_INTERVAL_S:
            samples.pop()
        samples.append(sample)
        while len(samples) > 2 and now - samples[1].at_s >= _WINDOW_S:
            samples.popleft()

    def _open(self) -> None:
        from rich.live import Live

        from hicachectl.render.console import rich_console

        self._live = Live(
            self._text(), console=rich_console(self._screen, interactive=self._interactive), auto_refresh=False, transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._live.start(refresh=True)

    def _text(self) -> Text:
        from rich.text import Text

        screen = self._screen
        lines = [printable(ascii_text(line) if screen.ascii else line, screen.encoding) for line in self.lines()]
        return Text("\n".join(lines), no_wrap=True, overflow="ignore")


class _PlainBoard(Progress):
    """Progress lines that also tell the hit rate."""

    summary = ""

    def line(self) -> str:
        """What is shown now, without time stamp."""
        return super().line() + (f"  {self.summary}" if self.summary else "")


def _cut(line: str, width: int) -> str:
    """Cut at a word: a line that wraps would break the redraw, and the report prints all of it later."""
    if len(line) < width:
        return line
    return line[:width].rsplit(" ", 1)[0]
