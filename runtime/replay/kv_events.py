"""Requests told from an engine's stream of KV events: what was stored, chained by the block before.

The file holds the payloads of vLLM's or SGLang's event publisher, one after another: msgpack arrays
`[ts, [event, ...], rank]`, an event an array `["BlockStored", hashes, parent, token_ids, block_size, ...]` or, since
vLLM 0.16 and SGLang 0.5.23, a map with `type` (vllm/distributed/kv_events.py; sglang/srt/disaggregation/kv_events.py).

An event says what was computed, not what was asked: how requests are told from it is in `stored_paths`. Of a model with several
groups of layers (`group_idx`) the first one counts: the others store the same tokens again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from hicachectl.errors import Unsupported, UsageError
from hicachectl.runtime.replay.lines import open_bytes
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.stored_paths import StoredBlocks, StoredPaths

__all__ = ["EventBatches", "events_block_tokens", "read_kv_events", "starts_like_events", "stored_in"]

_DEVICE = (None, "GPU")
_FIELDS = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
)  # fmt: skip
_READ_BYTES = 1 << 20
_MOST_BATCH_BYTES = 256 << 20


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
    paths = StoredPaths(notes, str(path))
    for ts, stored in _stored(path):
        yield from paths.take(ts, stored)
    yield from paths.flush()


class EventBatches:
    """Takes the bytes of a stream piece by piece and gives the blocks that were stored on the device.

    `complete` counts the bytes of whole batches. Raises Unsupported without msgpack.
    """

    def __init__(self, where: str) -> None:
        try:
            import msgpack  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise Unsupported(
                "a stream of KV events, but msgpack is not installed", hint="pip install msgpack"
            ) from error
        self._unpacker: Any = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=_MOST_BATCH_BYTES)
        self._broken: tuple[type[Exception], ...] = (ValueError, msgpack.exceptions.ExtraData)
        self._where = where
        self.complete = 0
        self.n_batches = 0

    def feed(self, piece: bytes) -> Iterator[tuple[float, StoredBlocks]]:
        """Give the stored blocks of the batches that are whole now, each with its batch's time. Raises UsageError (byte)."""
        try:
            self._unpacker.feed(piece)
            for batch in self._unpacker:
                self.complete = self._unpacker.tell()
                self.n_batches += 1
                yield from stored_in(batch, self._where, self.complete)
        except self._broken as error:
            _refuse(self._where, self.complete, f"not msgpack: {error}")


def _stored(path: Path) -> Iterator[tuple[float, StoredBlocks]]:
    """Stored blocks of the device with the time of their batch."""
    batches, n_bytes = EventBatches(str(path)), 0
    with open_bytes(path) as file:
        while piece := file.read(_READ_BYTES):
            n_bytes += len(piece)
            yield from batches.feed(piece)
    if batches.complete != n_bytes:
        _refuse(str(path), n_bytes, "the last batch is cut short")


def stored_in(batch: Any, where: str, at: int) -> Iterator[tuple[float, StoredBlocks]]:
    """Give the blocks that a decoded batch says were stored on the device. Pure. Raises UsageError naming byte `at`."""
    if not (type(batch) is list and len(batch) >= 2 and type(batch[0]) in (int, float) and type(batch[1]) is list):
        _refuse(where, at, "not a batch [ts, [event, ...], rank]")
    if not math.isfinite(batch[0]):  # compared with nothing, it would hold back every request after it
        _refuse(where, at, f"a batch whose time {batch[0]} is not finite")
    for event in batch[1]:
        if type(event) is list and event:
            kind, values = event[0], dict(zip(_FIELDS, event[1:], strict=False))
        elif type(event) is dict:
            kind, values = event.get("type"), event
        else:
            _refuse(where, at, "an event is neither an array nor a map")
        if kind != "BlockStored" or values.get("medium") not in _DEVICE or values.get("group_idx"):
            continue
        hashes, size = values.get("block_hashes"), values.get("block_size")
        if type(hashes) is not list or not hashes or type(size) is not int or size < 1:
            _refuse(where, at, "a BlockStored without block_hashes or block_size")
        yield float(batch[0]), StoredBlocks(tuple(hashes), values.get("parent_block_hash"), size)


def _refuse(where: str, at: int, what: str) -> NoReturn:
    raise UsageError(
        what, where=f"{where}, before byte {at}", hint="the file holds the publisher's payloads, one after another"
    )
