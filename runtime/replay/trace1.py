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

__all__ = ["HEADER_KEYS", "header_block_tokens", "read_trace1", "write_trace"]

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
    header = next(lines)
    block_tokens = header_block_tokens(header)
    local = header.values["scope"] == "local"
    partial = header.flag("partial_blocks", default=True)
    repeats = header.flag("repeated_ids", default=False)
    numbers: dict[str, int] = {}
    for index, line in enumerate(lines):
        line.check_keys(_REQUEST_KEYS, _REQUEST_EXTRA)
        n_input = line.count("input_tokens")
        session = line.text("session") if "session" in line.values else None
        if local and session is None:
            line.refuse("key 'session' is missing", "the header says that ids are local to a session")
        rule = f"input_tokens {n_input} in {'' if partial else 'whole '}blocks of {block_tokens}"
        n_blocks = -(-n_input // block_tokens) if partial else n_input // block_tokens
        yield TraceRequest(
            index=index,
            time_s=line.seconds("time_s"),
            input_tokens=n_input,
            output_tokens=line.count("output_tokens"),
            blocks=line.ids("blocks", n_blocks=n_blocks, count_rule=rule, repeats=repeats),
            scope=numbers.setdefault(session, len(numbers) + 1) if local and session is not None else 0,
            session=session,
            turn=line.count("turn", least=1) if "turn" in line.values else None,
            kind=line.text("kind") if "kind" in line.values else None,
        )


def write_trace(trace: Trace, path: str | Path) -> int:
    """Write a trace as trace/1 and return the number of requests; .gz, .xz and .zst are compressed.

    Reads the trace up to three times, streaming. The file appears whole or not at all (temporary name in the same folder, then
    renamed). Raises UsageError when the path cannot be written.
    """
    path = Path(path)
    info = trace.info()
    header = {
        "trace": 1,
        "block_tokens": info.block_tokens,
        "scope": "local" if info.scopes else "global",
        "partial_blocks": info.names_partial_blocks,
        "repeated_ids": any(len(set(request.blocks.tolist())) != len(request.blocks) for request in trace),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    n = 0
    try:
        try:
            with temporary.open("xb") as raw, _packed(raw, path.suffix) as file:
                file.write(_line(header))
                for request in trace:
                    file.write(_line(_as_object(request, local=info.scopes > 0)))
                    n += 1
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write the trace: {error.strerror}", where=str(path)) from error
    return n


def _as_object(request: TraceRequest, *, local: bool) -> dict[str, object]:
    session = request.session
    if local and session is None:
        session = str(request.scope)
    named = {"session": session, "turn": request.turn, "kind": request.kind}
    return {
        "time_s": request.time_s,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "blocks": request.blocks.tolist(),
        **{key: value for key, value in named.items() if value is not None},
    }


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
