"""Requests for one step: what was there before it warms the pools, then new ones as they come, until the step's time is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from time import monotonic

from hicachectl.errors import CapacityError
from hicachectl.runtime.replay.key_numbers import KeyNumbers
from hicachectl.runtime.replay.request import Trace, TraceInfo, TraceRequest
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.live_source import LiveSource
from hicachectl.tuning.sizing.window_file import WindowFile

__all__ = ["LiveFeed", "NewRequests", "NumberedTrace", "Share"]

_WAIT_S = 0.2


class NumberedTrace:
    """A window's file with its page keys made small numbers, the same ones in every pass and file that share `numbers`."""

    def __init__(self, path: Path, numbers: KeyNumbers) -> None:
        self.path = path
        self._trace = open_trace(path)
        self._numbers = numbers

    @property
    def format(self) -> str:
        """Name of the format."""
        return self._trace.format

    @property
    def block_tokens(self) -> int:
        """Tokens a block id stands for."""
        return self._trace.block_tokens

    def info(self) -> TraceInfo:
        """Summarize the file; its ids are below the most that are numbered."""
        return replace(self._trace.info(), max_block_id=self._numbers.most - 1)

    def __iter__(self) -> Iterator[TraceRequest]:
        """Stream the requests."""
        for request in self._trace:
            yield replace(request, blocks=self._numbers.number(request.blocks))


class NewRequests:
    """What came from a source after its window: appended to a file of its own, read back as a trace.

    `source` None, or ended: nothing more comes. `waiting` were read from it already.
    """

    def __init__(
        self, path: Path, source: LiveSource | None, numbers: KeyNumbers, *, window: Trace, partial: bool,
        waiting: Iterable[TraceRequest] = (),
    ) -> None:  # fmt: skip
        self.path, self.source = path, source
        self.n_requests = 0
        self._waiting = deque(waiting)
        self.is_full = False
        self._numbers, self._partial = numbers, partial
        self._block_tokens = window.block_tokens
        self._file: WindowFile | None = None
        self._last_s = 0.0
        if path.exists():
            self._file = WindowFile.go_on(path)
            self.n_requests = sum(1 for _ in self.so_far())

    def so_far(self) -> Iterator[TraceRequest]:
        """Stream those that came until now, numbered."""
        if self._file is not None:
            yield from NumberedTrace(self.path, self._numbers)

    def next(self, timeout_s: float) -> TraceRequest | None:
        """Return the next one that came, not yet kept; None where none came in time, or no more blocks can be known.

        Raises UsageError for bad input.
        """
        if not self._waiting and self.source is not None:
            try:
                self._waiting.extend(self.source.poll(timeout_s))
            except CapacityError:
                self.is_full = True
            if not self._waiting and self.source.ended is not None:
                self._waiting.extend(self.source.flush())
        return self._waiting.popleft() if self._waiting else None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        gone = self.source is None or self.source.ended is not None
        return self.is_full or (gone and not self._waiting)

    def keep(self, request: TraceRequest) -> TraceRequest | None:
        """Append a request to the file; return it numbered, None where no more pages can be numbered. Raises HostError."""
        try:
            numbered = replace(request, blocks=self._numbers.number(request.blocks))
        except CapacityError:
            self.is_full = True
            return None
        if self._file is None:
            self._file = WindowFile.begin(self.path, self._block_tokens, partial=self._partial)
        self._last_s = max(self._last_s, request.time_s)
        self._file.append([replace(request, time_s=self._last_s)])
        self.n_requests += 1
        return numbered

    def sync(self) -> None:
        """Make all that was kept durable. Raises HostError."""
        if self._file is not None:
            self._file.sync()

    def into(self, path: Path, window: Trace) -> NewRequests:
        """Go on with the same source into another file, after another window. Closes this file."""
        if self._file is not None:
            self._file.close()
        return NewRequests(
            path, self.source, self._numbers, window=window, partial=self._partial, waiting=self._waiting
        )

    def close(self) -> None:
        """Close the file; the source is its opener's."""
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True, slots=True)
class Share:
    """What a step may take of live traffic: seconds, from its very start or `after_warming` its pools, and requests."""

    seconds: float
    most_requests: int
    after_warming: bool = False


class LiveFeed:
    """A trace of one pass: the newest saved requests first, as many as the window has, then what comes.

    `n_before`, `n_new` and `n_too_long` count what was given.
    """

    def __init__(
        self, window: Trace, new: NewRequests, share: Share, *, most_tokens: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self.n_before = self.n_new = self.n_too_long = 0
        self._window, self._new, self._share, self._most_tokens = window, new, share, most_tokens
        self._clock, self._began_s = clock, clock()
        self._n_older = new.n_requests

    @property
    def format(self) -> str:
        """Name of the format."""
        return "live"

    @property
    def block_tokens(self) -> int:
        """Tokens a block id stands for."""
        return self._window.block_tokens

    def info(self) -> TraceInfo:
        """Summarize the window."""
        return self._window.info()

    def saved(self) -> Iterator[TraceRequest]:
        """Stream the newest saved requests, as many as the window has and whichever came since; those of this pass last."""
        return islice(chain(self._window, self._new.so_far()), self._n_older, None)

    def __iter__(self) -> Iterator[TraceRequest]:
        """Give what was before, then each new request as it comes; one longer than L1 is counted and left out."""
        for request in self.saved():
            self.n_before += 1
            yield replace(request, index=self.n_before - 1)
        began_s = self._clock() if self._share.after_warming else self._began_s
        while self.n_new < self._share.most_requests:
            left_s = self._share.seconds - (self._clock() - began_s)
            came = self._new.next(max(0.0, min(_WAIT_S, left_s)))
            kept = None
            if came is not None and came.input_tokens > self._most_tokens:
                self.n_too_long += 1
            elif came is not None:
                kept = self._new.keep(came)
            if kept is not None:
                self.n_new += 1
                yield replace(kept, index=self.n_before + self.n_new - 1)
            if (left_s <= 0 and (came is None or self.n_new)) or self._new.is_over:
                break
        self._new.sync()
