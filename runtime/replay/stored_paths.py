"""Requests told from stored blocks: a path through the blocks each engine announced, the one before each known.

An event says what was computed, not what was asked, so this is an estimate and a lower bound of reuse:

    blocks stored after a known one   a request for the whole path; within 2 s of the path's last store: more of the same
                                      request, prefilled in chunks
    one block at the end of a path    generated output: the path grows, no request
    a request that hit entirely       stored nothing: not seen
    a path begun before the recording begins with the first block that was seen of it; stored again as a whole later, its
                                      blocks count as new once: their ids name prefixes
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.key_numbers import KeyNumbers
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.page_ids import id_of_hash
from hicachectl.runtime.replay.request import Blocks, TraceRequest

__all__ = ["CHUNK_S", "MOST_BLOCKS", "StoredBlocks", "StoredPaths"]

CHUNK_S = 2.0
"""Blocks stored on the end of a path so soon after the last ones belong to the same prefill."""
MOST_BLOCKS = 1 << 24
"""Different blocks that are kept: about 1.2 GB."""
_MASK = (1 << 63) - 1
_ODD = 0x9E3779B97F4A7C15
_ROOT = -1


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """One event: consecutive blocks, named by the engine's hashes, after `parent` (None: at a root)."""

    hashes: tuple[object, ...]
    parent: object
    block_size: int


class StoredPaths:
    """Takes stored blocks one event after another and gives the requests that are over. Not thread-safe.

    Keeps a block by its number: its id, the block before it, and whether a path ends there. `where` names the source.
    """

    def __init__(self, notes: Notes, where: str, *, most_blocks: int = MOST_BLOCKS) -> None:
        self.block_size: int | None = None
        self.n_blocks = 0
        self._notes, self._where = notes, where
        self._hashes = KeyNumbers(most_blocks)
        self._number: Blocks = np.full(1024, -1, np.int64)  # of a hash: renewed when the block before it is another
        self._ids: Blocks = np.zeros(1024, np.int64)
        self._before: Blocks = np.full(1024, _ROOT, np.int64)
        self._is_end = bytearray(1024)
        self._waiting: list[_Open] = []
        self._open_at: dict[int, _Open] = {}  # by the block at its end
        self._index = 0
        self._first_s: float | None = None

    def take(self, ts: float, stored: StoredBlocks) -> list[TraceRequest]:
        """Take one event of a batch of time `ts`; return the requests that are over by then.

        Their `blocks` number the blocks from 0. Raises UsageError for another block size, CapacityError past the most.
        """
        self._first_s = ts if self._first_s is None else self._first_s
        self.block_size = self.block_size or stored.block_size
        if stored.block_size != self.block_size:
            raise UsageError(
                f"a block of {stored.block_size} tokens after blocks of {self.block_size}", where=self._where
            )
        over = self._over(ts - CHUNK_S)
        parent = self._parent(stored.parent)
        new = self._path_on(parent, stored.hashes)
        end = new[-1]
        if parent != _ROOT and self._is_end[parent] and len(new) == 1:
            self._is_end[parent], self._is_end[end] = 0, 1
            self._notes.count("single blocks at the end of a path are taken as output: no requests", self._where)
            return over
        grown = self._open_at.pop(parent, None)
        if grown is not None:
            grown.numbers += new
            grown.last_s, grown.end = ts, end
        else:
            grown = _Open(ts, ts, [*self._path_to(parent), *new], end)
            self._waiting.append(grown)
            self._notes.count(
                "requests are told from what was stored; those that hit entirely are not seen", self._where
            )
        if parent != _ROOT:
            self._is_end[parent] = 0
        self._is_end[end] = 1
        self._open_at[end] = grown
        return over

    def flush(self) -> list[TraceRequest]:
        """Return the requests that still wait for more of themselves: nothing is coming."""
        return self._over(float("inf"))

    def ids(self, numbers: Blocks) -> Blocks:
        """Return ids that mean the same everywhere, from the engine's hashes: int64, 0..2^63-1. Changes nothing."""
        return self._ids[numbers]

    def _over(self, until_s: float) -> list[TraceRequest]:
        over = []
        while self._waiting and self._waiting[0].last_s < until_s:
            done = self._waiting.pop(0)
            self._open_at.pop(done.end, None)
            over.append(self._request(done))
        return over

    def _request(self, done: _Open) -> TraceRequest:
        size = self.block_size or 1
        time_s = max(0.0, done.began_s - (self._first_s or 0.0))
        self._index += 1
        return TraceRequest(self._index - 1, time_s, size * len(done.numbers), 0, np.array(done.numbers, np.int64))

    def _parent(self, value: object) -> int:
        if value is None:
            return _ROOT
        found = self._hashes.find(np.array([self._id(value)], np.int64))
        if found[0] < 0:
            self._notes.count(
                "stored blocks follow one from before the recording: their path begins with them", self._where
            )
            return _ROOT
        return int(self._number[found[0]])

    def _path_on(self, parent: int, hashes: tuple[object, ...]) -> list[int]:
        """Numbers of the blocks, each after the one before; new ones where a hash is new, or followed another block."""
        ids = np.array([self._id(one) for one in hashes], np.int64)
        entries = self._hashes.number(ids)
        if len(self._hashes) > len(self._number):
            more = np.full(len(self._hashes), -1, np.int64)
            self._number = np.concatenate([self._number, more])
        path, before = [], parent
        for entry, own in zip(entries.tolist(), ids.tolist(), strict=True):
            number = int(self._number[entry])
            if number < 0 or int(self._before[number]) != before:
                number = self._new(own if number < 0 else (own * _ODD + self.n_blocks) & _MASK, before)
                self._number[entry] = number
            path.append(number)
            before = number
        return path

    def _new(self, own: int, before: int) -> int:
        number = self.n_blocks
        if number == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._before = np.concatenate([self._before, np.full_like(self._before, _ROOT)])
            self._is_end += bytes(number)
        self._ids[number], self._before[number] = own, before
        self.n_blocks = number + 1
        return number

    def _path_to(self, number: int) -> list[int]:
        path = []
        while number != _ROOT:
            path.append(number)
            number = int(self._before[number])
        return path[::-1]

    def _id(self, value: object) -> int:
        found = id_of_hash(value)
        if found is None:
            raise UsageError(
                f"a block hash of type {type(value).__name__}", where=self._where, why="not an int or bytes"
            )
        return found


@dataclass(slots=True)
class _Open:
    began_s: float
    last_s: float
    numbers: list[int]
    end: int
