"""The session format of callanjfox/kv-cache-tester: one session a line, interleaved here into one stream.

A session has `t` of its own and ids of its own (full 64-token blocks only, so floor(in / block_size) ids). Session k of
the file starts at k * session_gap_s; a request's time is that + t, inside a sub-agent that + its t + t. Order: (time, k,
index in the session after a stable sort by time).

Sessions are read one by one, just before their start is due. What waits is kept as (length shared with the request
before, the ids after it), so memory follows new blocks, not the ids of the file.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hicachectl.runtime.replay.lines import Fields
from hicachectl.runtime.replay.request import Blocks, TraceRequest

__all__ = ["SESSION_KEYS", "read_sessions", "session_block_tokens"]

SESSION_KEYS = ("id", "block_size", "hash_id_scope", "requests")
_SESSION_EXTRA = ("models", "tool_tokens", "system_tokens", "totals")
_REQUEST_KEYS = ("t", "type", "in", "out", "hash_ids")
_REQUEST_EXTRA = ("model", "input_types", "output_types", "stop", "api_time", "think_time", "ttft")
_AGENT_KEYS = ("t", "type", "requests")
_AGENT_EXTRA = (
    "agent_id", "subagent_type", "duration_ms", "total_tokens", "tool_use_count", "status", "models", "tool_tokens",
    "system_tokens",
)  # fmt: skip
_PLAIN_TYPES = ("n", "s")  # as recorded: not streamed, streamed


def read_sessions(lines: Iterable[Fields], session_gap_s: float) -> Iterator[TraceRequest]:
    """Interleave the sessions of a file. Raises UsageError (file:line) at the first broken session.

    `scope` and `session` name the session; `turn` counts its requests in time order; `kind` is n, s or subagent.
    """
    waiting: list[tuple[float, int, int]] = []  # next request of each session: (time, session, index in it)
    open_sessions: dict[int, _Session] = {}
    index = 0
    block_tokens: int | None = None
    line_of: dict[str, int] = {}
    for k, line in enumerate(lines):
        start_s = session_gap_s * k
        while waiting and waiting[0][0] <= start_s:  # an equal time belongs to the earlier session
            yield _next_request(waiting, open_sessions, index)
            index += 1
        if block_tokens is None:
            block_tokens = session_block_tokens(line)
        session = _read_session(line, start_s, block_tokens)
        if line_of.setdefault(session.name, line.line) != line.line:
            line.refuse(f"session id {session.name!r} is already on line {line_of[session.name]}")
        if session.entries:
            open_sessions[k] = session
            heapq.heappush(waiting, (session.entries[0].time_s, k, 0))
    while waiting:
        yield _next_request(waiting, open_sessions, index)
        index += 1


def session_block_tokens(line: Fields) -> int:
    """Return the block size a session states. Pure."""
    line.check_keys(SESSION_KEYS, _SESSION_EXTRA)
    return line.count("block_size", least=1)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A waiting request: its ids are `n_shared` of the request before it in the session, then `rest`."""

    time_s: float
    input_tokens: int
    output_tokens: int
    kind: str
    n_shared: int
    rest: Blocks


@dataclass(slots=True)
class _Session:
    name: str
    entries: list[_Entry]
    blocks: Blocks  # of the request handed out last


def _next_request(
    waiting: list[tuple[float, int, int]], open_sessions: dict[int, _Session], index: int
) -> TraceRequest:
    time_s, k, at = waiting[0]
    session = open_sessions[k]
    entry = session.entries[at]
    session.blocks = np.concatenate((session.blocks[: entry.n_shared], entry.rest))
    if at + 1 < len(session.entries):
        heapq.heapreplace(waiting, (session.entries[at + 1].time_s, k, at + 1))
    else:
        heapq.heappop(waiting)
        del open_sessions[k]
    return TraceRequest(
        index=index,
        time_s=time_s,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        blocks=session.blocks,
        scope=k + 1,
        session=session.name,
        turn=at + 1,
        kind=entry.kind,
    )


def _read_session(line: Fields, start_s: float, block_tokens: int) -> _Session:
    own = session_block_tokens(line)
    if own != block_tokens:
        line.refuse(f"block_size is {own}, but {block_tokens} in the first session", "one file has one block size")
    scope = line.text("hash_id_scope")
    if scope != "local":
        line.refuse(f"hash_id_scope is {scope!r}, not 'local'", "sessions with ids of their own are read, no others")
    found: list[tuple[float, Fields, str, Blocks]] = []
    for item in line.objects("requests"):
        if item.values.get("type") == "subagent":
            item.check_keys(_AGENT_KEYS, _AGENT_EXTRA)
            agent_s = start_s + item.seconds("t")
            found.extend(
                _read_request(nested, agent_s, block_tokens, "subagent") for nested in item.objects("requests")
            )
        else:
            found.append(_read_request(item, start_s, block_tokens, None))
    found.sort(key=lambda entry: entry[0])
    entries = []
    before: Blocks = np.empty(0, np.int64)
    for time_s, item, kind, blocks in found:
        n_shared = _shared(before, blocks)
        entries.append(_Entry(time_s, item.count("in"), item.count("out"), kind, n_shared, blocks[n_shared:].copy()))
        before = blocks
    return _Session(line.text("id"), entries, np.empty(0, np.int64))


def _read_request(
    item: Fields, start_s: float, block_tokens: int, kind: str | None
) -> tuple[float, Fields, str, Blocks]:
    item.check_keys(_REQUEST_KEYS, _REQUEST_EXTRA)
    own = item.text("type")
    if own not in _PLAIN_TYPES:
        item.refuse(f"type is {own!r}, not one of {', '.join(_PLAIN_TYPES)}{'' if kind else ', subagent'}")
    n_input = item.count("in")
    rule = f"in {n_input} holds whole blocks of {block_tokens}"
    item.count("out")
    blocks = item.ids("hash_ids", n_blocks=n_input // block_tokens, count_rule=rule)
    time_s = start_s + item.seconds("t")
    if not math.isfinite(time_s):
        item.refuse(f"time {time_s} is not finite")
    return time_s, item, kind or own, blocks


def _shared(one: Blocks, other: Blocks) -> int:
    """Return how many ids from the front are equal. Pure."""
    n = min(len(one), len(other))
    differ = one[:n] != other[:n]
    return int(differ.argmax()) if differ.any() else n
