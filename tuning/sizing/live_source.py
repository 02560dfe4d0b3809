"""Where live requests come from: a file that grows, standard input, or an engine's publisher of KV events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Protocol

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.kv_events import starts_like_events
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.stored_paths import CHUNK_S
from hicachectl.tuning.sizing.live_events import EventSubscription, is_endpoint
from hicachectl.tuning.sizing.live_follow import READ_BYTES, FollowedFile, StandardInput, Transport
from hicachectl.tuning.sizing.live_parsers import EventParser, LogParser, Parser, TraceParser

__all__ = ["ByteSource", "LiveSource", "open_live"]

_HEAD_BYTES = 4096


class LiveSource(Protocol):
    """Gives requests as they come, their blocks named by ids that mean the same everywhere.

    `kind` and `block_tokens` are None before the first bytes told them; `ended` says why nothing more will come;
    `partial` whether the incomplete last block has an id. `notes` counts oddities.
    """

    name: str
    transport: str
    notes: Notes

    @property
    def kind(self) -> str | None: ...
    @property
    def block_tokens(self) -> int | None: ...
    @property
    def partial(self) -> bool: ...
    @property
    def ended(self) -> str | None: ...
    def poll(self, timeout_s: float) -> list[TraceRequest]:
        """Return what is over by now; waits up to `timeout_s` for the first bytes. Raises UsageError for bad input."""
        ...

    def flush(self) -> list[TraceRequest]:
        """Return what waited for more of itself: nothing is coming."""
        ...

    def position(self) -> dict[str, int] | None:
        """Say where to go on from in another process; None where that cannot be."""
        ...

    def seen(self) -> dict[str, int]:
        """Count what came, whatever it was."""
        ...

    def close(self) -> None: ...


def open_live(
    source: str, page_tokens: int, *, stdin: int = 0, replay: str | None = None, position: dict[str, int] | None = None
) -> LiveSource:
    """Open a source: `-`, an endpoint tcp://HOST:PORT, or a file, followed from its end or from `position`.

    Reads no request yet. `stdin` is the descriptor that `-` stands for. Raises UsageError, and Unsupported without pyzmq.
    """
    notes = Notes()
    if is_endpoint(source):
        return EventSubscription(source, notes, replay=replay)
    if replay is not None:
        raise UsageError(
            "a replay endpoint without a publisher", where="--replay-endpoint", hint="--live tcp://HOST:PORT"
        )
    if source == "-":
        return ByteSource("-", "stdin", StandardInput(stdin), notes, page_tokens)
    file = FollowedFile(Path(source), notes)
    try:
        return _followed(file, notes, page_tokens, position)
    except UsageError:
        file.close()
        raise


def _followed(file: FollowedFile, notes: Notes, page_tokens: int, position: dict[str, int] | None) -> ByteSource:
    name = str(file.path)
    start = file.size_bytes
    if position is not None and file.is_at(position):
        start = position["offset"]
    elif position is not None:
        notes.count("times the file was another one than before: what came between is not seen", name)
    source = ByteSource(name, "file", file, notes, page_tokens)
    head = file.head(_HEAD_BYTES)
    if not head:
        return source
    if _kind(head, name) == EventParser.kind:
        source.learn(start)
        return source
    header = file.first_line() if _kind(head, name) == TraceParser.kind else None
    inside = file.go_to(start)
    source.begin(header=header, head=head, inside_line=inside)
    return source


class ByteSource:
    """Bytes and what reads them, which the first bytes decide."""

    def __init__(
        self, name: str, transport: str, bytes_: Transport, notes: Notes, page_tokens: int,
        *, clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        self.name, self.transport, self.notes = name, transport, notes
        self._bytes, self._page_tokens, self._clock = bytes_, page_tokens, clock
        self._parser: Parser | None = None
        self._quiet_since = clock()

    @property
    def kind(self) -> str | None:
        """What the bytes are."""
        return None if self._parser is None else self._parser.kind

    @property
    def block_tokens(self) -> int | None:
        """Tokens a block."""
        return None if self._parser is None else self._parser.block_tokens

    @property
    def partial(self) -> bool:
        """Whether the incomplete last block has an id."""
        return self._parser is None or self._parser.partial

    @property
    def ended(self) -> str | None:
        """Why nothing more will come."""
        return self._bytes.ended

    def begin(self, *, head: bytes, header: bytes | None = None, inside_line: bool = False) -> None:
        """Choose what reads the bytes. Raises UsageError where `head` is of no known kind."""
        kind = _kind(head, self.name)
        if kind == EventParser.kind:
            self._parser = EventParser(self.name, self.notes)
        elif kind == TraceParser.kind:
            self._parser = TraceParser(self.name, self.notes, header=header, inside_line=inside_line)
        else:
            self._parser = LogParser(self.name, self.notes, self._page_tokens, inside_line=inside_line)

    def learn(self, n_bytes: int) -> None:
        """Read events that are there already for the blocks they name; requests told from them are not given."""
        parser = EventParser(self.name, self.notes)
        self._parser = parser
        while self._bytes.n_bytes < n_bytes:
            piece, _ = self._bytes.read(0.0, min(READ_BYTES, n_bytes - self._bytes.n_bytes))
            if not piece:
                break
            parser.feed(piece)
        parser.flush()

    def poll(self, timeout_s: float) -> list[TraceRequest]:
        """Return what is over by now; as `LiveSource.poll`."""
        piece, anew = self._bytes.read(timeout_s)
        if not piece:
            return self.flush() if self._clock() - self._quiet_since > CHUNK_S else []
        self._quiet_since = self._clock()
        if self._parser is None:
            self.begin(head=piece[:_HEAD_BYTES])
        assert self._parser is not None
        if anew:
            self._parser.restart()
        return self._parser.feed(piece)

    def flush(self) -> list[TraceRequest]:
        """Return what waited for more of itself."""
        return [] if self._parser is None else self._parser.flush()

    def position(self) -> dict[str, int] | None:
        """Say where the first byte stands that is not in a whole line or batch."""
        found = self._bytes.position()
        if found is None or self._parser is None:
            return found
        return {**found, "offset": max(0, found["offset"] - self._parser.waiting_bytes)}

    def seen(self) -> dict[str, int]:
        """Count bytes, lines or batches, and what became of the file."""
        counts = {"bytes": self._bytes.n_bytes}
        if self._parser is not None:
            counts |= {self._parser.unit: self._parser.n_units, "broken": self._parser.n_bad}
        if isinstance(self._bytes, FollowedFile):
            counts |= {"replaced": self._bytes.n_replaced, "cut": self._bytes.n_cut}
        return counts

    def close(self) -> None:
        """Close the bytes."""
        self._bytes.close()


def _kind(head: bytes, name: str) -> str:
    """Tell what bytes are. Pure. Raises UsageError where they are nothing known."""
    if starts_like_events(head):
        return EventParser.kind
    if head.lstrip().startswith(b"{"):
        return TraceParser.kind
    if b"\0" in head:
        raise UsageError(
            f"begins with bytes {head[:8].hex(' ')}: no text, and no batch of KV events", where=name,
            hint="a request log, a trace/1, or the payloads of a KV-event publisher one after another",
        )  # fmt: skip
    return LogParser.kind
