"""What a running engine writes, taken piece by piece: lines of a request log or of a trace/1, or batches of KV events.

Every request that comes out names its blocks by ids that mean the same everywhere (`page_ids`). A session's name is kept
as a digest. No text is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.kv_events import EventBatches
from hicachectl.runtime.replay.lines import MAX_LINE_BYTES, parse_line
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.page_ids import page_ids, scoped_ids
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.request_log import HOW_TO_LOG, LoggedRequests
from hicachectl.runtime.replay.stored_paths import StoredPaths
from hicachectl.runtime.replay.trace1 import Trace1Lines

__all__ = ["BAD_ONE_IN", "EventParser", "LogParser", "Parser", "Tolerated", "TraceParser"]

BAD_ONE_IN = 100
"""Of so many lines or batches one may be broken; it is counted and left out. The first one never."""
_LOOKED_AT_LINES = 20_000


class Parser(Protocol):
    """Takes bytes, gives requests. `unit` is what it counts, `waiting_bytes` those of the unit that is not whole yet."""

    @property
    def kind(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def n_units(self) -> int: ...
    @property
    def n_bad(self) -> int: ...
    @property
    def block_tokens(self) -> int | None: ...
    @property
    def partial(self) -> bool:
        """Whether the incomplete last block has an id."""
        ...

    @property
    def waiting_bytes(self) -> int: ...
    def feed(self, piece: bytes) -> list[TraceRequest]:
        """Take the next bytes. Raises UsageError (place) for what is not of this kind."""
        ...

    def flush(self) -> list[TraceRequest]:
        """Return what waited for more of itself: nothing is coming."""
        ...

    def restart(self) -> None:
        """The next bytes begin a new file: drop a unit that is not whole."""
        ...


class Tolerated:
    """Counts broken units and keeps the first; raises it where there are too many."""

    def __init__(self, notes: Notes, unit: str) -> None:
        self.n_units = self.n_bad = 0
        self._notes, self._unit = notes, unit
        self._first: UsageError | None = None

    def take(self, read: Callable[[], list[TraceRequest]]) -> list[TraceRequest]:
        """Return what `read` returns, nothing where it raises UsageError. Raises it past one in `BAD_ONE_IN`."""
        self.n_units += 1
        try:
            return read()
        except UsageError as error:
            self.n_bad += 1
            self._first = self._first or error
            first = self._first
            if self.n_units == 1 or self.n_bad > 1 + self.n_units // BAD_ONE_IN:
                raise UsageError(
                    first.what, where=first.where,
                    why=f"{self.n_bad} of {self.n_units} {self._unit} are broken, this one first; one in {BAD_ONE_IN} is let pass",
                    hint=first.hint,
                ) from error  # fmt: skip
            self._notes.count(f"{self._unit} were broken and left out: {error.what}", str(error.where))
            return []


class _Lines:
    """Cuts bytes into whole lines; one that is too long is dropped."""

    def __init__(self, *, inside_line: bool) -> None:
        self.rest = b""
        self._skip = inside_line

    def cut(self, piece: bytes) -> Iterator[bytes]:
        *whole, self.rest = (self.rest + piece).split(b"\n")
        for line in whole:
            if not self._skip:
                yield line
            self._skip = False
        if len(self.rest) > MAX_LINE_BYTES:
            self.rest, self._skip = b"", True


class LogParser:
    """A request log of vLLM or SGLang, its blocks cut to the pages of the pool."""

    kind, unit, partial, n_bad = "request-log", "lines", True, 0

    def __init__(self, name: str, notes: Notes, page_tokens: int, *, inside_line: bool = False) -> None:
        self.block_tokens: int | None = page_tokens
        self.n_units = 0
        self._name = name
        self._lines = _Lines(inside_line=inside_line)
        self._logged = LoggedRequests(notes, lambda tokens: page_ids(tokens, page_tokens))

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the line that has no end yet."""
        return len(self._lines.rest)

    def feed(self, piece: bytes) -> list[TraceRequest]:
        """Take bytes. Raises UsageError where none of very many lines logs a request, or a token id is no uint32."""
        found = []
        for line in self._lines.cut(piece):
            self.n_units += 1
            where = f"{self._name}, new line {self.n_units}"
            try:
                request = self._logged.take(line.decode("utf-8", errors="replace"), where)
            except OverflowError as error:
                raise UsageError("a token id past the largest uint32", where=where, why=str(error)) from error
            if request is not None:
                found.append(request)
        if not self._logged.n_requests and self.n_units >= _LOOKED_AT_LINES:
            raise UsageError(
                f"none of {self.n_units} lines logs a request with its token ids", where=self._name, hint=HOW_TO_LOG
            )
        return found

    def flush(self) -> list[TraceRequest]:
        """Return nothing: a line is whole or not."""
        return []

    def restart(self) -> None:
        """Drop the line that has no end."""
        self._lines = _Lines(inside_line=False)


class TraceParser:
    """Lines of a trace/1: `header` is its first one where it was read already."""

    kind, unit = "trace/1", "lines"

    def __init__(self, name: str, notes: Notes, *, header: bytes | None = None, inside_line: bool = False) -> None:
        self._name = name
        self._lines = _Lines(inside_line=inside_line)
        self._tolerated = Tolerated(notes, self.unit)
        self._n_lines = 0
        self._read: Trace1Lines | None = None
        if header is not None:
            self._begin(header, 1)

    @property
    def n_units(self) -> int:
        """Lines of requests so far."""
        return self._tolerated.n_units

    @property
    def n_bad(self) -> int:
        """Those of them that were broken."""
        return self._tolerated.n_bad

    @property
    def block_tokens(self) -> int | None:
        """Tokens a block; None before the header came."""
        return None if self._read is None else self._read.block_tokens

    @property
    def partial(self) -> bool:
        """Whether the incomplete last block has an id."""
        return self._read is None or self._read.partial

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the line that has no end yet."""
        return len(self._lines.rest)

    def feed(self, piece: bytes) -> list[TraceRequest]:
        """Take bytes. Raises UsageError for a broken header or too many broken lines, the first with its number."""
        found: list[TraceRequest] = []
        for line in self._lines.cut(piece):
            self._n_lines += 1
            if self._read is None:
                self._begin(line, self._n_lines)
            else:
                found += self._tolerated.take(lambda raw=line: [self._take(raw)])  # type: ignore[misc]
        return found

    def flush(self) -> list[TraceRequest]:
        """Return nothing: a line is whole or not."""
        return []

    def restart(self) -> None:
        """Expect a header again."""
        self._lines = _Lines(inside_line=False)
        self._before, self._read = self._read, None
        self._n_lines = 0

    _before: Trace1Lines | None = None

    def _begin(self, header: bytes, number: int) -> None:
        self._read = Trace1Lines(parse_line(header + b"\n", Path(self._name), number))
        was = self._before
        if was is not None and (was.block_tokens, was.partial) != (self._read.block_tokens, self._read.partial):
            raise UsageError(
                f"blocks of {self._read.block_tokens} tokens after blocks of {was.block_tokens}", where=self._name,
                why="the file was replaced by one of another kind",
            )  # fmt: skip

    def _take(self, raw: bytes) -> TraceRequest:
        assert self._read is not None
        request = self._read.take(parse_line(raw + b"\n", Path(self._name), self._n_lines))
        name = request.session
        ids = scoped_ids(request.blocks, name) if self._read.local and name is not None else request.blocks
        digest = None if name is None else sha256(name.encode()).hexdigest()[:16]
        return replace(request, blocks=ids, scope=0, session=digest, turn=None, kind=None)


class EventParser:
    """Batches of KV events, one after another. What comes out is told from stored blocks (`stored_paths`)."""

    kind, unit, partial, n_bad = "kv-events", "batches", False, 0

    def __init__(self, name: str, notes: Notes) -> None:
        self.paths = StoredPaths(notes, name)
        self._name = name
        self._batches = EventBatches(name)
        self._fed = self._n_before = 0

    @property
    def n_units(self) -> int:
        """Batches so far."""
        return self._n_before + self._batches.n_batches

    @property
    def block_tokens(self) -> int | None:
        """Tokens a block; None before one was stored."""
        return self.paths.block_size

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the batch that is not whole yet."""
        return self._fed - self._batches.complete

    def feed(self, piece: bytes) -> list[TraceRequest]:
        """Take bytes. Raises UsageError (byte) for what is no batch: nothing after it can be read."""
        self._fed += len(piece)
        found = []
        for ts, stored in self._batches.feed(piece):
            found += self.paths.take(ts, stored)
        return [self.named(request) for request in found]

    def flush(self) -> list[TraceRequest]:
        """Return the requests whose last blocks were stored already."""
        return [self.named(request) for request in self.paths.flush()]

    def named(self, request: TraceRequest) -> TraceRequest:
        """Give a request the ids of its blocks' hashes. Pure."""
        return replace(request, blocks=self.paths.ids(request.blocks))

    def restart(self) -> None:
        """Drop the batch that is not whole; the blocks stay known."""
        self._n_before, self._fed = self.n_units, 0
        self._batches = EventBatches(self._name)
