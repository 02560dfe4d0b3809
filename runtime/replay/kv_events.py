"""Requests told from an engine's stream of KV events: what was stored, chained by the block before.

The file holds the payloads of vLLM's or SGLang's event publisher, one after another: msgpack arrays
`[ts, [event, ...], rank]`, an event an array `["BlockStored", hashes, parent, token_ids, block_size, ...]` or, since
vLLM 0.16 and SGLang 0.5.23, a map with `type` (vllm/distributed/kv_events.py; sglang/srt/disaggregation/kv_events.py).

An event says what was computed, not what was asked, so this is an estimate and a lower bound of reuse:

    blocks stored after a known one   a request for the whole path; within 2 s of the path's last store: more of the same
                                      request, prefilled in chunks
    one block at the end of a path    generated output: the path grows, no request
    a request that hit entirely       stored nothing: not seen
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hicachectl.errors import Unsupported, UsageError
from hicachectl.runtime.replay.lines import open_bytes
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import TraceRequest

__all__ = ["CHUNK_S", "events_block_tokens", "read_kv_events", "starts_like_events"]

CHUNK_S = 2.0
"""Blocks stored on the end of a path so soon after the last ones belong to the same prefill."""
_DEVICE = (None, "GPU")
_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_READ_BYTES = 1 << 20


def starts_like_events(head: bytes) -> bool:
    """Tell a stream of batches by its first byte: a msgpack array of 2 or more items. Pure."""
    return bool(head) and (0x92 <= head[0] <= 0x9F or head[0] in (0xDC, 0xDD))


def events_block_tokens(path: Path) -> int:
    """Return the block size of the first stored block. Reads the file up to it. Raises UsageError where nothing is stored."""
    for _, stored in _stored(path):
        return stored.block_size
    raise UsageError("no event says that a block was stored", where=str(path), hint="record while requests are served")


def read_kv_events(path: Path, notes: Notes) -> Iterator[TraceRequest]:
    """Read the requests, in the order they began. Raises UsageError (file, byte) for what is no batch of events.

    Keeps one entry a block. Notes what can only be guessed at.
    """
    seen: dict[object, _Block] = {}
    waiting: list[_Request] = []
    open_at: dict[object, _Request] = {}  # by the block at its end
    index = 0
    first_s: float | None = None
    block_size: int | None = None
    for ts, stored in _stored(path):
        first_s = ts if first_s is None else first_s
        block_size = block_size or stored.block_size
        if stored.block_size != block_size:
            raise UsageError(f"a block of {stored.block_size} tokens after blocks of {block_size}", where=str(path))
        while waiting and ts - waiting[0].last_s > CHUNK_S:
            done = waiting.pop(0)
            open_at.pop(done.end, None)
            yield done.request(index, first_s, block_size)
            index += 1
        parent = stored.parent
        if parent is not None and parent not in seen:
            notes.count("stored blocks follow one from before the recording: their path begins with them", str(path))
            parent = None
        before = None if parent is None else seen[parent]
        new = []
        for one in stored.hashes:
            if one not in seen:
                seen[one] = _Block(len(seen), before)
            before = seen[one]
            new.append(before.number)
        if parent is not None and seen[parent].is_end and len(stored.hashes) == 1:
            seen[parent].is_end, before.is_end = False, True  # type: ignore[union-attr]
            notes.count("single blocks at the end of a path are taken as output: no requests", str(path))
            continue
        grown = open_at.pop(parent, None) if parent is not None else None
        if grown is not None:
            grown.ids += new
            grown.last_s, grown.end = ts, stored.hashes[-1]
        else:
            grown = _Request(ts, ts, [*(seen[parent].path() if parent is not None else []), *new], stored.hashes[-1])
            waiting.append(grown)
            notes.count("requests are told from what was stored; those that hit entirely are not seen", str(path))
        if parent is not None:
            seen[parent].is_end = False
        assert before is not None
        before.is_end = True
        open_at[grown.end] = grown
    for done in waiting:
        yield done.request(index, first_s or 0.0, block_size or 1)
        index += 1


@dataclass(slots=True)
class _Block:
    number: int
    before: _Block | None
    is_end: bool = False

    def path(self) -> list[int]:
        """Numbers from the root to this block."""
        found = []
        block: _Block | None = self
        while block is not None:
            found.append(block.number)
            block = block.before
        return found[::-1]


@dataclass(slots=True)
class _Request:
    began_s: float
    last_s: float
    ids: list[int]
    end: object

    def request(self, index: int, first_s: float, block_size: int) -> TraceRequest:
        time_s = max(0.0, self.began_s - first_s)
        return TraceRequest(index, time_s, block_size * len(self.ids), 0, np.array(self.ids, np.int64))


@dataclass(frozen=True, slots=True)
class _Stored:
    hashes: tuple[object, ...]
    parent: object
    block_size: int


def _stored(path: Path) -> Iterator[tuple[float, _Stored]]:
    """Stored blocks of the device with the time of their batch."""
    try:
        import msgpack  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise Unsupported("a stream of KV events, but msgpack is not installed", hint="pip install msgpack") from error
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    n_bytes = complete = 0
    with open_bytes(path) as file:
        while True:
            piece = file.read(_READ_BYTES)
            n_bytes += len(piece)
            unpacker.feed(piece)
            try:
                for batch in unpacker:
                    complete = unpacker.tell()
                    yield from _of_batch(batch, path, complete)
            except (ValueError, msgpack.exceptions.ExtraData) as error:
                _refuse(path, complete, f"not msgpack: {error}")
            if not piece:
                break
    if complete != n_bytes:
        _refuse(path, n_bytes, "the last batch is cut short")


def _of_batch(batch: Any, path: Path, at: int) -> Iterator[tuple[float, _Stored]]:
    if not (type(batch) is list and len(batch) >= 2 and type(batch[0]) in (int, float) and type(batch[1]) is list):
        _refuse(path, at, "not a batch [ts, [event, ...], rank]")
    for event in batch[1]:
        if type(event) is list and event:
            kind, values = event[0], dict(zip(_FIELDS, event[1:], strict=False))
        elif type(event) is dict:
            kind, values = event.get("type"), event
        else:
            _refuse(path, at, "an event is neither an array nor a map")
        if kind != "BlockStored" or values.get("medium") not in _DEVICE:
            continue
        hashes, size = values.get("block_hashes"), values.get("block_size")
        if type(hashes) is not list or not hashes or type(size) is not int or size < 1:
            _refuse(path, at, "a BlockStored without block_hashes or block_size")
        yield float(batch[0]), _Stored(tuple(hashes), values.get("parent_block_hash"), size)


def _refuse(path: Path, at: int, what: str) -> NoReturn:
    raise UsageError(
        what, where=f"{path}, before byte {at}", hint="the file holds the publisher's payloads, one after another"
    )
