"""Opens a recorded trace: the format is told by the first line, the compression by the first bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hicachectl.errors import UsageError
from hicachectl.runtime.replay import formats
from hicachectl.runtime.replay.lines import Fields, read_lines
from hicachectl.runtime.replay.request import Trace, TraceInfo, TraceRequest, summarize

__all__ = ["Trace", "TraceFile", "TraceInfo", "TraceRequest", "open_trace"]


def open_trace(path: str | Path, *, session_gap_s: float = 60.0) -> TraceFile:
    """Open a trace file and find out its format; reads its first line only.

    `session_gap_s`: where a file holds sessions with times of their own, session k starts at k * session_gap_s.
    Raises UsageError (file:line) when the file cannot be read or is no known format.

    >>> open_trace("conversation_trace.jsonl.gz").info().n_requests  # doctest: +SKIP
    12031
    """
    path = Path(path)
    first = next(read_lines(path), None)
    if first is None:
        raise UsageError("the trace is empty", where=str(path), hint="a trace has one JSON object a line")
    format_ = _recognise(first)
    return TraceFile(path, format_.name, format_.block_tokens(first), session_gap_s, format_.read)


class TraceFile:
    """A trace in a file. Each iteration reads the file again, streaming, and refuses the first broken line."""

    def __init__(self, path: Path, format_name: str, block_tokens: int, session_gap_s: float, read: Reader) -> None:
        self.path = path
        self.session_gap_s = session_gap_s
        self._format = format_name
        self._block_tokens = block_tokens
        self._read = read
        self._info: TraceInfo | None = None

    @property
    def format(self) -> str:
        """Name of the format."""
        return self._format

    @property
    def block_tokens(self) -> int:
        """Tokens a block id stands for."""
        return self._block_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        """Stream the requests in replay order. Raises UsageError (file:line) at the first broken line."""
        return self._read(read_lines(self.path), self)

    def info(self) -> TraceInfo:
        """Summarize the trace; the first call reads the whole file, streaming, later calls remember."""
        if self._info is None:
            self._info = summarize(self, format_name=self._format, path=str(self.path), block_tokens=self._block_tokens)
        return self._info


Reader = Callable[[Iterable[Fields], TraceFile], Iterator[TraceRequest]]


@dataclass(frozen=True, slots=True)
class _Format:
    """How a format is told from its first line (`sign` is a key only it has) and read."""

    name: str
    sign: str
    keys: tuple[str, ...]
    block_tokens: Callable[[Fields], int]
    read: Reader


_FORMATS = (
    _Format("mooncake", "timestamp", formats.MOONCAKE_KEYS, lambda _: formats.MOONCAKE_BLOCK_TOKENS,
            lambda lines, _: formats.read_mooncake(lines)),
)  # fmt: skip


def _recognise(first: Fields) -> _Format:
    """Choose the format whose sign the first line carries, else the one most of whose keys it has (at least two).

    The latter lets the strict reader name the misspelt key.
    """
    for format_ in _FORMATS:
        if format_.sign in first.values:
            return format_
    best = max(_FORMATS, key=lambda format_: len(first.values.keys() & set(format_.keys)))
    if len(first.values.keys() & set(best.keys)) >= 2:
        return best
    known = "; ".join(f"{format_.name}: {', '.join(format_.keys)}" for format_ in _FORMATS)
    first.refuse(f"keys {', '.join(sorted(first.values)) or '(none)'} are no known trace format", f"known are {known}")
