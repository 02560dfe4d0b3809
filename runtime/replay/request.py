"""What every trace reader and synthetic workload hands over: requests made of block ids, and a summary of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Blocks", "Trace", "TraceInfo", "TraceRequest", "longest_input_tokens", "summarize"]

Blocks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    `index` counts requests from 0 in replay order. `time_s` is seconds since the trace began. `blocks` is a 1-D int64
    array of block ids, front to back; block b covers tokens [b * block_tokens, (b + 1) * block_tokens). The last one may
    be incomplete; where a format names only whole blocks, the tokens past the last id have none. `scope` says where an
    id means the same: 0 everywhere in the trace, else only in the session of that number (from 1). `turn` counts from 1
    inside `session`. `kind` is the format's own word for the type of request.
    """

    index: int
    time_s: float
    input_tokens: int
    output_tokens: int
    blocks: Blocks
    scope: int = 0
    session: str | None = None
    turn: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What one pass over a trace tells; `scopes` is the number of id scopes, 0 when ids mean the same everywhere.

    `max_block_id` is None when no request names a block. `names_partial_blocks` is False when the tokens past the last
    whole block of some request have no id. `span_s` is last time - first time. `warnings` are sentences
    for the operator, each with its count and the first place.
    """

    format: str
    path: str | None
    block_tokens: int
    n_requests: int
    max_input_tokens: int
    total_input_tokens: int
    total_output_tokens: int
    total_blocks: int
    max_block_id: int | None
    scopes: int
    names_partial_blocks: bool
    span_s: float
    warnings: tuple[str, ...] = ()


class Trace(Protocol):
    """Requests in replay order, as often as asked: each iteration starts from the first request and gives the same."""

    @property
    def format(self) -> str:
        """Name of the format, such as `mooncake` or `synthetic/agent`."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens a block id stands for."""
        ...

    def info(self) -> TraceInfo:
        """Read the whole trace once, streaming, and summarize it."""
        ...

    def __iter__(self) -> Iterator[TraceRequest]:
        """Stream the requests in replay order."""
        ...


def summarize(requests: Iterable[TraceRequest], *, format_name: str, path: str | None, block_tokens: int) -> TraceInfo:
    """Summarize requests in one pass without keeping any. Pure.

    Warns of times that go back: the order of the requests is the order of replay, whatever the times say.
    """
    n = total_in = total_out = total_blocks = max_in = max_scope = backward = 0
    max_id: int | None = None
    named = True
    first_s = last_s = 0.0
    first_backward = ""
    for request in requests:
        if n == 0:
            first_s = last_s = request.time_s
        if request.time_s < last_s:
            backward += 1
            first_backward = first_backward or f"request {request.index}: {request.time_s:g} s after {last_s:g} s"
        last_s = request.time_s
        n += 1
        total_in += request.input_tokens
        total_out += request.output_tokens
        total_blocks += len(request.blocks)
        max_in = max(max_in, request.input_tokens)
        max_scope = max(max_scope, request.scope)
        named = named and len(request.blocks) * block_tokens >= request.input_tokens
        if len(request.blocks):
            highest = int(request.blocks.max())
            max_id = highest if max_id is None else max(max_id, highest)
    warnings: tuple[str, ...] = ()
    if backward:
        warnings = (f"{backward} requests are earlier than the one before ({first_backward}); file order is kept",)
    return TraceInfo(
        format=format_name, path=path, block_tokens=block_tokens, n_requests=n, max_input_tokens=max_in,
        total_input_tokens=total_in, total_output_tokens=total_out, total_blocks=total_blocks, max_block_id=max_id,
        scopes=max_scope, names_partial_blocks=named, span_s=last_s - first_s, warnings=warnings,
    )  # fmt: skip


def longest_input_tokens(trace: Trace, info: TraceInfo, limit: int | None) -> int:
    """Return the input tokens of the longest request among the first `limit` (None: among all).

    Reads that part of the trace once more when there is a limit below the number of requests. Changes nothing.
    """
    if limit is None or limit >= info.n_requests:
        return info.max_input_tokens
    return max(request.input_tokens for request in islice(trace, limit))
