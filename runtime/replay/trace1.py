"""Our own trace format, `trace/1`: a header line, then one request a line, in replay order.

    {"trace": 1, "block_tokens": 64, "scope": "global", "partial_blocks": true}
    {"time_s": 0.25, "input_tokens": 100, "output_tokens": 7, "blocks": [0, 1], "session": "a", "turn": 1, "kind": "chat"}

scope           global: an id means the same everywhere; local: only in its session, which then every line names
partial_blocks  true (or absent): ceil(input_tokens / block_tokens) ids, the last one may be incomplete;
                false: floor, tokens past the last id have none
repeated_ids    true: an id may come twice in a request (it names a block's content); false or absent: it may not
session, turn, kind may be absent. Only lengths, times and ids: no text.
"""

from __future__ import annotations

import errno
import gzip
import json
import lzma
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from hicachectl.errors import Unsupported, UsageError
from hicachectl.runtime.replay.lines import Fields
from hicachectl.runtime.replay.request import Trace, TraceRequest

__all__ = [
    "HEADER_KEYS",
    "Trace1Lines",
    "header_block_tokens",
    "read_trace1",
    "trace1_header",
    "trace1_line",
    "write_trace",
]

HEADER_KEYS = ("trace", "block_tokens", "scope")
_HEADER_EXTRA = ("partial_blocks", "repeated_ids")
_REQUEST_KEYS = ("time_s", "input_tokens", "output_tokens", "blocks")
_REQUEST_EXTRA = ("session", "turn", "kind")


def header_block_tokens(header: Fields) -> int:
    """Check the header line and return its block size. Pure."""
    header.check_keys(HEADER_KEYS, _HEADER_EXTRA)
    version = header.count("trace")
    if version != 1:
        header.refuse(f"trace version {version}, not 1", "this hicachectl reads trace/1")
    scope = header.text("scope")
    if scope not in ("global", "local"):
        header.refuse(f"scope is {scope!r}, not 'global' or 'local'")
    return header.count("block_tokens", least=1)


def read_trace1(lines: Iterable[Fields]) -> Iterator[TraceRequest]:
    """Read a trace/1 file; sessions are numbered in order of first appearance. Raises UsageError (file:line)."""
    lines = iter(lines)
    read = Trace1Lines(next(lines))
    for line in lines:
        yield read.take(line)


class Trace1Lines:
    """Takes the lines of a trace/1 one by one, after its header. Raises UsageError (file:line) for a broken header."""

    def __init__(self, header: Fields) -> None:
        self.block_tokens = header_block_tokens(header)
        self.local = header.values["scope"] == "local"
        self.partial = header.flag("partial_blocks", default=True)
        self._repeats = header.flag("repeated_ids", default=False)
        self._numbers: dict[str, int] = {}
        self._index = 0

    def take(self, line: Fields) -> TraceRequest:
        """Return the request of a line. Raises UsageError (file:line)."""
        line.check_keys(_REQUEST_KEYS, _REQUEST_EXTRA)
        n_input = line.count("input_tokens")
        session = line.text("session") if "session" in line.values else None
        if self.local and session is None:
            line.refuse("key 'session' is missing", "the header says that ids are local to a session")
        size = self.block_tokens
        rule = f"input_tokens {n_input} in {'' if self.partial else 'whole '}blocks of {size}"
        n_blocks = -(-n_input // size) if self.partial else n_input // size
        numbers = self._numbers
        request = TraceRequest(
            index=self._index,
            time_s=line.seconds("time_s"),
            input_tokens=n_input,
            output_tokens=line.count("output_tokens"),
            blocks=line.ids("blocks", n_blocks=n_blocks, count_rule=rule, repeats=self._repeats),
            scope=numbers.setdefault(session, len(numbers) + 1) if self.local and session is not None else 0,
            session=session,
            turn=line.count("turn", least=1) if "turn" in line.values else None,
            kind=line.text("kind") if "kind" in line.values else None,
        )
        self._index += 1
        return request


def write_trace(trace: Trace, path: str | Path) -> int:
    """Write a trace as trace/1 and return the number of requests; .gz, .xz and .zst are compressed.

    Reads the trace up to three times, streaming. The file appears whole or not at all (temporary name in the same folder, then
    renamed). Raises UsageError when the path cannot be written.
    """
    path = Path(path)
    info = trace.info()
    header = trace1_header(
        info.block_tokens,
        local=info.scopes > 0,
        partial=info.names_partial_blocks,
        repeats=any(len(set(request.blocks.tolist())) != len(request.blocks) for request in trace),
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    n = 0
    try:
        try:
            with temporary.open("xb") as raw, _packed(raw, path.suffix) as file:
                file.write(header)
                for request in trace:
                    file.write(trace1_line(request, local=info.scopes > 0))
                    n += 1
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free room there, or name a file elsewhere" if full else "name a writable file in an existing folder"
        raise UsageError(
            f"cannot write the trace: {error.strerror}", where=str(path), hint=hint, code="HC-OUTPUT"
        ) from error
    return n


def trace1_header(block_tokens: int, *, local: bool = False, partial: bool = True, repeats: bool = False) -> bytes:
    """Return the first line of a trace/1. Pure."""
    scope = "local" if local else "global"
    return _line(
        {"trace": 1, "block_tokens": block_tokens, "scope": scope, "partial_blocks": partial, "repeated_ids": repeats}
    )


def trace1_line(request: TraceRequest, *, local: bool = False) -> bytes:
    """Return the line of one request. Pure."""
    session = request.session
    if local and session is None:
        session = str(request.scope)
    named = {"session": session, "turn": request.turn, "kind": request.kind}
    return _line(
        {
            "time_s": request.time_s,
            "input_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
            "blocks": request.blocks.tolist(),
            **{key: value for key, value in named.items() if value is not None},
        }
    )


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _packed(raw: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))  # same input, same bytes
    if suffix == ".xz":
        return cast(BinaryIO, lzma.open(raw, "wb"))
    if suffix == ".zst":
        try:
            import zstandard
        except ImportError as error:
            raise Unsupported("cannot write zstd: zstandard is not installed", hint="pip install zstandard") from error
        return cast(BinaryIO, zstandard.ZstdCompressor().stream_writer(raw, closefd=False))
    return raw
