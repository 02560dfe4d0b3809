"""Collects a window from a live source into its file, until it is long enough, time is up, or somebody says stop."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from hicachectl.errors import CapacityError, ExitCode, HicacheError, UsageError
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.tokens import check_page_tokens
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.live_parsers import TraceParser
from hicachectl.tuning.sizing.live_source import LiveSource
from hicachectl.tuning.sizing.live_window import LiveWindow
from hicachectl.tuning.sizing.window_file import WindowFile

__all__ = ["CHECKPOINT_S", "QUIET_S", "Collector", "WindowLimit", "nothing_came", "parse_window"]

CHECKPOINT_S = 10.0
"""So often the window is made durable and its place in the source recorded."""
QUIET_S = 300.0
"""A source that gave nothing for so long is taken to have stopped."""
_WAIT_S = 0.2
_MOST_CHARACTERS = 20
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)|(\d+)", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class WindowLimit:
    """When a window is long enough; None: not limited in that way. `budget_s` is what the time budget leaves to it."""

    seconds: float | None = None
    requests: int | None = None
    budget_s: float | None = None
    quiet_s: float = QUIET_S

    def after(self, elapsed_s: float) -> WindowLimit:
        """Return what is left of it when a window was collected for so long already. Pure."""
        return self if self.seconds is None else replace(self, seconds=max(0.0, self.seconds - elapsed_s))

    def reached(self, n_requests: int, elapsed_s: float, quiet_s: float) -> str | None:
        """Say why the window ends now, None to go on. Pure."""
        if self.requests is not None and n_requests >= self.requests:
            return f"{self.requests} requests"
        if self.seconds is not None and elapsed_s >= self.seconds:
            return f"{self.seconds:g} s"
        if self.budget_s is not None and elapsed_s >= self.budget_s:
            return "time budget"
        return f"nothing came for {self.quiet_s:g} s" if quiet_s >= self.quiet_s else None


def parse_window(text: str | None) -> WindowLimit:
    """Read a duration (`600s`, `10m`, `1.5h`) or a number of requests (`5000`). Pure. Raises UsageError.

    >>> parse_window("10m").seconds, parse_window("5000").requests
    (600.0, 5000)
    """
    if text is None:
        return WindowLimit()
    match = _LIMIT.fullmatch(text.strip())
    if match is None or len(text) > _MOST_CHARACTERS or not float(match[1] or match[3]):
        raise UsageError(
            f"{text[:_MOST_CHARACTERS]!r} is no window",
            where="--window",
            hint="a duration such as 600s, 10m or 1h, or requests such as 5000",
        )
    if match[3]:
        return WindowLimit(requests=int(match[3]))
    return WindowLimit(seconds=float(match[1]) * _SECONDS[match[2]])


class Collector:
    """One window being collected: counts in `window`, requests in `file`; both None before the first request."""

    def __init__(
        self, source: LiveSource, path: Path, page_tokens: int, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self.source, self.path = source, path
        self.window: LiveWindow | None = None
        self.file: WindowFile | None = None
        self.elapsed_s = 0.0
        """Seconds of collecting in this process."""
        self.waiting: list[TraceRequest] = []
        """Read from the source, past the end of the window."""
        self._page_tokens, self._clock = page_tokens, clock
        self._shift_s = 0.0

    def go_on(self, n_bytes: int | None) -> None:
        """Take up a window that was begun, cut to `n_bytes` (None: to its whole lines). Reads it. Raises UsageError, HostError."""
        if not self.path.exists():
            return
        file = WindowFile.go_on(self.path, n_bytes)
        if not file.n_bytes:
            file.close()
            self.path.unlink()  # killed before its first checkpoint: all of it comes again
            return
        self.file = file
        trace = open_trace(self.path)
        self.window = LiveWindow(trace.block_tokens, self._page_tokens)
        for request in trace:
            self.window.add(request)
        if self.source.kind != TraceParser.kind:
            self._shift_s = self.window.last_s  # its times begin anew with each look; those of a trace go on

    def collect(
        self, limit: WindowLimit, *, asked: Callable[[], bool], checkpoint: Callable[[Collector], None],
        tell: Callable[[Collector, float], None],
    ) -> str:  # fmt: skip
        """Collect until `limit`, the end of the source, a bound, or until `asked`; return which.

        `checkpoint` is called with all requests so far durable in the file, `tell` at least five times a second with the
        seconds since the last request. Raises UsageError for bad input (the window so far stays), HostError.
        """
        began = last = saved = self._clock()
        checkpoint(self)
        try:
            while True:
                requests, full = self._poll()
                now = self._clock()
                self.elapsed_s = now - began
                last = now if requests else last
                why = self._take(requests, limit.requests) or full
                why = why or limit.reached(self.n_requests, self.elapsed_s, now - last)
                if why is None and self.source.ended is not None and not requests:
                    why = self.source.ended
                if why is None and asked():
                    why = "Ctrl-C"
                if why is not None:
                    self._take(self.source.flush(), limit.requests)
                    return why
                if now - saved >= CHECKPOINT_S:
                    self._save(checkpoint)
                    saved = now
                tell(self, now - last)
        finally:
            self._save(checkpoint)

    @property
    def n_requests(self) -> int:
        """Requests in the window."""
        return 0 if self.window is None else self.window.n_requests

    def _poll(self) -> tuple[list[TraceRequest], str | None]:
        """What came; the bound that the source itself ran into."""
        try:
            return self.source.poll(_WAIT_S), None
        except CapacityError as error:
            return [], error.what

    def _save(self, checkpoint: Callable[[Collector], None]) -> None:
        if self.file is not None:
            self.file.sync()
        checkpoint(self)

    def _take(self, requests: Sequence[TraceRequest], most: int | None) -> str | None:
        """Add requests; return the bound that one of them ran into."""
        kept: list[TraceRequest] = []
        full = None
        for request in requests:
            if full is not None or (most is not None and self.n_requests >= most):
                self.waiting.append(request)
                continue
            window = self._begun()
            request = replace(request, time_s=max(window.last_s, self._shift_s + request.time_s))
            if window.add(request):
                kept.append(request)
            full = window.full
        if kept:
            assert self.file is not None
            self.file.append(kept)
        return full

    def _begun(self) -> LiveWindow:
        size = self.source.block_tokens
        assert size is not None
        if self.window is None:
            check_page_tokens(size, self._page_tokens)
            self.window = LiveWindow(size, self._page_tokens)
            self.file = WindowFile.begin(self.path, size, partial=self.source.partial)
        elif size != self.window.block_tokens:
            raise UsageError(
                f"blocks of {size} tokens, the window so far has {self.window.block_tokens}", where=self.source.name,
                hint="start a new run without --resume",
            )  # fmt: skip
        return self.window


def nothing_came(source: LiveSource, why: str) -> HicacheError:
    """Return the error of a window without a request: exit 9, with what was seen instead. Pure."""
    seen = source.seen()
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in seen.items() if name != "connected")
    what = f"no request came: {why}"
    told = [f"seen: {counts}", *source.notes.sentences()]
    unanswered = "connected" in seen and not seen["connected"]
    if unanswered:
        told.insert(0, "no publisher answered there")
    hint = (
        "look at host and port, and whether the engine publishes KV events there"
        if unanswered
        else {
            "kv-events": "requests that hit entirely store nothing: follow the request log instead, or wait for new prompts",
            "request-log": "vLLM: --enable-log-requests at DEBUG; SGLang: --log-requests --log-requests-level 3",
        }.get(
            source.kind or "",
            "is the engine serving now? A file is followed from its end; --trace reads a finished one",
        )
    )
    error = HicacheError(what, where=source.name, why="; ".join(told), hint=hint, code="HC-LIVE-EMPTY")
    error.exit_code = ExitCode.NO_RESULT
    return error
