"""Opens a recorded trace: the format is told by its content, the compression by the first bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hicachectl.errors import UsageError
from hicachectl.runtime.replay import formats, sessions, trace1
from hicachectl.runtime.replay.kv_events import events_block_tokens, read_kv_events, starts_like_events
from hicachectl.runtime.replay.lines import Fields, open_bytes, read_lines
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import Trace, TraceInfo, TraceRequest, summarize
from hicachectl.runtime.replay.request_log import LOG_BLOCK_TOKENS, has_logged_requests, read_request_log

__all__ = ["Trace", "TraceFile", "TraceInfo", "TraceRequest", "open_trace"]


def open_trace(path: str | Path, *, session_gap_s: float = 60.0) -> TraceFile:
    """Open a trace file and find out its format; reads its first line only, of an engine's log some more.

    `session_gap_s`: where a file holds sessions with times of their own, session k starts at k * session_gap_s.
    Raises UsageError (file:line) when the file cannot be read or is no known format.

    >>> open_trace("conversation_trace.jsonl.gz").info().n_requests  # doctest: +SKIP
    12031
    """
    path = Path(path)
    if not 0 <= session_gap_s < math.inf:
        raise UsageError(f"session gap {session_gap_s} s is not a time of zero or more", hint="the default is 60")
    with open_bytes(path) as file:
        head = file.read(4096)
    if starts_like_events(head):
        return TraceFile(path, _KV_EVENTS, events_block_tokens(path), session_gap_s)
    if head and not head.lstrip().startswith(b"{") and has_logged_requests(path):
        return TraceFile(path, _REQUEST_LOG, LOG_BLOCK_TOKENS, session_gap_s)
    first = next(read_lines(path), None)
    if first is None:
        raise UsageError("the trace is empty", where=str(path), hint="a trace has one JSON object a line")
    format_ = _recognise(first)
    return TraceFile(path, format_, format_.block_tokens(first), session_gap_s)


class TraceFile:
    """A trace in a file. Each iteration reads the file again, streaming, and refuses the first broken line."""

    def __init__(self, path: Path, format_: _Format | _WholeFile, block_tokens: int, session_gap_s: float) -> None:
        self.path = path
        self.session_gap_s = session_gap_s
        self._format = format_
        self._block_tokens = block_tokens
        self._info: TraceInfo | None = None

    @property
    def format(self) -> str:
        """Name of the format."""
        return self._format.name

    @property
    def block_tokens(self) -> int:
        """Tokens a block id stands for."""
        return self._block_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        """Stream the requests in replay order. Raises UsageError (file:line) at the first broken line."""
        return self._read(Notes())

    def _read(self, notes: Notes) -> Iterator[TraceRequest]:
        if isinstance(self._format, _WholeFile):
            return self._format.read(self.path, notes)
        return self._format.read(read_lines(self.path), self.session_gap_s, notes)

    def info(self) -> TraceInfo:
        """Summarize the trace; the first call reads the whole file, streaming, later calls remember.

        Raises UsageError (file:line) at the first broken line, and when there are no requests.
        """
        if self._info is None:
            notes = Notes()
            info = summarize(
                self._read(notes),
                format_name=self._format.name,
                path=str(self.path),
                block_tokens=self._block_tokens,
            )
            if not info.n_requests:
                raise UsageError(
                    "the trace holds no requests",
                    where=str(self.path),
                    hint="give a trace with at least one request line",
                )
            self._info = replace(info, warnings=info.warnings + notes.sentences())
        return self._info


@dataclass(frozen=True, slots=True)
class _Format:
    """How a format is told from its first line (`sign` is a key only it has) and read."""

    name: str
    sign: str
    keys: tuple[str, ...]
    block_tokens: Callable[[Fields], int]
    read: Callable[[Iterator[Fields], float, Notes], Iterator[TraceRequest]]


@dataclass(frozen=True, slots=True)
class _WholeFile:
    """What an engine wrote for other ends than this; read by a reader of its own."""

    name: str
    read: Callable[[Path, Notes], Iterator[TraceRequest]]


_KV_EVENTS = _WholeFile("kv-events", read_kv_events)
_REQUEST_LOG = _WholeFile("request-log", read_request_log)

_FORMATS = (
    _Format("trace/1", "trace", trace1.HEADER_KEYS, trace1.header_block_tokens,
            lambda lines, gap_s, notes: trace1.read_trace1(lines)),
    _Format("kv-cache-tester", "requests", sessions.SESSION_KEYS, sessions.session_block_tokens,
            lambda lines, gap_s, notes: sessions.read_sessions(lines, gap_s)),
    _Format("qwen-bailian", "chat_id", formats.QWEN_KEYS, lambda first: formats.QWEN_BLOCK_TOKENS,
            lambda lines, gap_s, notes: formats.read_qwen(lines, notes)),
    _Format("mooncake", "timestamp", formats.MOONCAKE_KEYS, lambda first: formats.MOONCAKE_BLOCK_TOKENS,
            lambda lines, gap_s, notes: formats.read_mooncake(lines)),
)  # fmt: skip


def _recognise(first: Fields) -> _Format:
    """Choose the format whose sign the first line carries, else the one most of whose keys it has (at least two).

    The latter lets the strict reader name the misspelt key.
    """
    for format_ in _FORMATS:
        if format_.sign in first.values:
            return format_

    def known(format_: _Format) -> int:
        return len(first.values.keys() & set(format_.keys))

    best = max(reversed(_FORMATS), key=known)  # equal counts: the format with fewer keys
    if known(best) >= 2:
        return best
    names = "; ".join(f"{format_.name}: {', '.join(format_.keys)}" for format_ in _FORMATS)
    first.refuse(f"keys {', '.join(sorted(first.values)) or '(none)'} are no known trace format", f"known are {names}")
