"""Stored and removed events for routers, as SGLang's and vLLM's are encoded.

A router keeps, for every engine, the set of pages it holds in each medium. Two laws keep that set right: a page is
announced once while a medium holds it, and a removal is announced only for what was. `EventLog` holds both, whatever it
is told, and counts what it held back.

On the wire a batch is the msgpack array `[ts, [event, ...], attn_dp_rank]`; an event is a map whose first key `type` is
the class name and whose unset optional fields are left out.

Source: sgl-project/sglang 0.5.23, `srt/disaggregation/kv_events.py` (classes) and `srt/mem_cache/events.py` (joining of
neighbouring events); read in the wheel. Pages of bigram keys are not announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, TOKEN_BYTES, Namespace
from hicachectl.runtime.keytable import KeyTable

__all__ = [
    "MEDIUM_OF_TIER",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventBatch",
    "EventLog",
    "Medium",
]

_FIRST_CAPACITY = 1024


class Medium(Enum):
    """Where a page lies, in the routers' words."""

    GPU = "GPU"
    CPU_PINNED = "CPU_PINNED"
    DISK = "DISK"
    EXTERNAL = "EXTERNAL"


MEDIUM_OF_TIER = (Medium.GPU, Medium.CPU_PINNED, Medium.DISK)
"""Indexed by `Tier`: device, host, storage. A store shared by machines is EXTERNAL instead of DISK."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive pages became available in a medium. Hashes are `keys.event_hashes`, the parent's the page before."""

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = field(default=None, metadata={"always": True})
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Pages left a medium."""

    block_hashes: tuple[int, ...]
    medium: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Every medium was emptied."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in the order they happened. `ts` is seconds since the epoch, `attn_dp_rank` the rank that owns the cache."""

    ts: float
    events: tuple[Event, ...]
    attn_dp_rank: int | None = None

    def encode(self) -> bytes:
        """Return the batch as msgpack bytes. Pure. Needs the `msgpack` package, and raises UsageError without it."""
        try:
            import msgpack  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise UsageError(
                "cannot encode KV events", why="msgpack is not installed", hint="pip install msgpack"
            ) from error
        packed: bytes = msgpack.packb([self.ts, [_as_map(event) for event in self.events], self.attn_dp_rank])
        return packed


@dataclass(frozen=True, slots=True)
class _Context:
    """What neighbouring stores must share to become one event."""

    medium: Medium
    namespace: Namespace
    session_id: str | None
    lora_name: str | None


@dataclass(slots=True)
class _Pending:
    context: _Context | None  # None: a removal
    medium: Medium
    parent: int | None
    hashes: list[npt.NDArray[np.int64]]
    tokens: list[bytes]


class EventLog:
    """The events of one cache since the last `take`, and what each medium holds.

    Memory: up to 53 bytes a page and medium, growing by doubling, and the events not taken yet: take them every tick.
    Not safe for two threads at once.

    >>> log = EventLog(page_tokens=2)
    >>> log.stored(np.array([7, 8]), parent=None, tokens=bytes(16), medium=Medium.GPU)
    >>> log.stored(np.array([8, 9]), parent=7, tokens=bytes(16), medium=Medium.GPU)
    >>> [event.block_hashes for event in log.take()]
    [(7, 8, 9)]
    >>> log.double_stores
    1
    """

    __slots__ = ("_held", "_page_bytes", "_page_tokens", "_pending", "double_stores", "orphan_removals")

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._page_bytes = page_tokens * TOKEN_BYTES
        self._held: dict[Medium, KeyTable] = {}
        self._pending: list[_Pending | AllBlocksCleared] = []
        self.double_stores = 0
        self.orphan_removals = 0

    def stored(
        self,
        hashes: npt.NDArray[np.int64],
        *,
        parent: int | None,
        tokens: bytes,
        medium: Medium,
        namespace: Namespace = DEFAULT_NAMESPACE,
        session_id: str | None = None,
        lora_name: str | None = None,
    ) -> None:
        """Note that consecutive pages became available in a medium; pages it already holds are held back and counted.

        `hashes` int64 [n_pages] from `keys.event_hashes`, `parent` the hash of the page before the first (None at a
        root), `tokens` the pages' token ids, little-endian uint32. Raises UsageError when the two lengths do not fit.
        """
        if len(tokens) != len(hashes) * self._page_bytes:
            raise UsageError(
                f"{len(tokens)} bytes of tokens for {len(hashes)} pages of {self._page_tokens} tokens",
                hint="give the tokens of exactly these pages",
            )
        new = self._table(medium, len(hashes)).find(hashes.view(np.uint64)) < 0
        self.double_stores += int(np.count_nonzero(~new))
        context = _Context(medium, namespace, session_id, lora_name)
        for start, end in _runs(new):
            before = int(hashes[start - 1]) if start else parent
            self._add_store(
                context, before, hashes[start:end], tokens[start * self._page_bytes : end * self._page_bytes]
            )
        self._held[medium].add(hashes[new].view(np.uint64))

    def removed(self, hashes: npt.NDArray[np.int64], *, medium: Medium) -> None:
        """Note that pages left a medium; those it never announced are held back and counted."""
        table = self._table(medium, 0)
        known = table.find(hashes.view(np.uint64)) >= 0
        self.orphan_removals += int(np.count_nonzero(~known))
        gone = hashes[known].copy()
        if len(gone) == 0:
            return
        table.discard(gone.view(np.uint64))
        tail = self._pending[-1] if self._pending else None
        if isinstance(tail, _Pending) and tail.context is None and tail.medium is medium:
            tail.hashes.append(gone)
        else:
            self._pending.append(_Pending(None, medium, None, [gone], []))

    def cleared(self) -> None:
        """Note that every medium was emptied."""
        for table in self._held.values():
            table.clear()
        self._pending.append(AllBlocksCleared())

    def take(self) -> tuple[Event, ...]:
        """Return the events since the last call, oldest first, and forget them."""
        pending, self._pending = self._pending, []
        return tuple(item if isinstance(item, AllBlocksCleared) else self._event(item) for item in pending)

    def held(self, medium: Medium) -> int:
        """Return how many pages the routers believe a medium holds."""
        return len(self._held[medium]) if medium in self._held else 0

    def _table(self, medium: Medium, n_more: int) -> KeyTable:
        table = self._held.setdefault(medium, KeyTable(_FIRST_CAPACITY))
        wanted = len(table) + n_more
        if wanted > table.capacity:
            # Exact, so it must never drop one: double, and the cost of moving is spread over the pages that came.
            grown = KeyTable(max(2 * table.capacity, wanted))
            grown.add(table.keys())
            self._held[medium] = table = grown
        return table

    def _add_store(self, context: _Context, parent: int | None, hashes: npt.NDArray[np.int64], tokens: bytes) -> None:
        tail = self._pending[-1] if self._pending else None
        if isinstance(tail, _Pending) and tail.context == context and parent == int(tail.hashes[-1][-1]):
            tail.hashes.append(hashes.copy())
            tail.tokens.append(tokens)
        else:
            self._pending.append(_Pending(context, context.medium, parent, [hashes.copy()], [tokens]))

    def _event(self, item: _Pending) -> Event:
        hashes = tuple(np.concatenate(item.hashes).tolist())
        if item.context is None:
            return BlockRemoved(hashes, item.medium.value)
        token_ids = tuple(np.frombuffer(b"".join(item.tokens), dtype="<u4").tolist())
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=item.parent,
            token_ids=token_ids,
            block_size=self._page_tokens,
            medium=item.medium.value,
            cache_salt=item.context.namespace.cache_salt,
            session_id=item.context.session_id,
            lora_name=item.context.lora_name,
        )


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the half-open ranges in which `mask` is true."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _as_map(event: Event) -> Mapping[str, Any]:
    result: dict[str, Any] = {"type": type(event).__name__}
    for item in fields(event):
        value = getattr(event, item.name)
        required = item.name == "parent_block_hash" or item.metadata.get("always", False)
        if value is not None or required:
            result[item.name] = value
    return result
