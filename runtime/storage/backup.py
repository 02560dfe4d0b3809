"""Host -> L3: one daemon thread writes whole pages, behind the loads, and drops work rather than making anyone wait.

op = backup.submit(keys, pages)       # returns at once; None when the queue is full

who owns the buffers behind `pages`:  the operation, from submit() until `done`; the caller keeps their slots leased
                                      and their bytes unchanged
what is stored afterwards:            the leading `n_ok` pages
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.storage.base import PageBytes, StorageBackend, check_pages
from hicachectl.runtime.storage.gate import LoadGate
from hicachectl.runtime.storage.operation import LONGEST_CLOSE_S, OpEnd, StorageOp, end_storage_thread

__all__ = ["BackupOp", "BackupStats", "StorageBackup", "TouchOp"]

LONGEST_YIELD_S = (
    0.5  # a page waits at most this long behind loads, so that steady loading slows writes and does not stop them
)


@dataclass(frozen=True, slots=True)
class BackupStats:
    """What the backup thread has done; `wall_s` is the time in storage, `yielded_s` the time it stood behind loads."""

    n_ops: int
    n_pages_asked: int
    n_pages_ok: int
    n_ops_dropped: int
    n_pages_dropped: int
    written_bytes: int
    wall_s: float
    yielded_s: float
    n_queued_pages: int
    ends: dict[str, int]


class BackupOp(StorageOp):
    """One write to L3, on the backup thread."""

    def __init__(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> None:
        super().__init__(keys)
        self.pages = pages
        self.n_ok = 0
        """Leading pages stored, those that were there before included; 0 until `done`."""
        self.n_new = 0
        """Pages of them that were written."""
        self.wall_s = 0.0
        """Seconds spent writing, `yielded_s` excluded."""
        self.yielded_s = 0.0
        """Seconds spent behind loads."""
        self.end: OpEnd | None = None


class TouchOp(StorageOp):
    """One path that was used, on the backup thread; `done` when storage has been told, or could not be (`error`)."""


class StorageBackup:
    """Writes to L3 on a thread of its own, first come first served, yielding to loads between two pages.

    `max_queue_pages` bounds the pages queued or being written: their host slots are leased for so long. Share `gate`
    with the Prefetcher. `longest_yield_s` bounds the wait behind loads for each page.
    """

    def __init__(
        self,
        storage: StorageBackend,
        max_queue_pages: int,
        *,
        gate: LoadGate | None = None,
        longest_yield_s: float = LONGEST_YIELD_S,
    ) -> None:
        self._storage = storage
        self._max_queue_pages = max_queue_pages
        self._gate = gate if gate is not None else LoadGate()
        self._longest_yield_s = longest_yield_s
        self._queue: SimpleQueue[BackupOp | TouchOp | None] = SimpleQueue()  # not a Condition: see storage/prefetch.py
        self._lock = threading.Lock()
        self._n_queued_pages = 0
        self._closed = False
        self._n_ops = self._n_asked = self._n_ok = self._n_new = self._n_ops_dropped = self._n_pages_dropped = 0
        self._wall_s = self._yielded_s = 0.0
        self._ends = dict.fromkeys((end.value for end in OpEnd), 0)
        self._thread = threading.Thread(target=self._run, name="hicache-backup", daemon=True)
        self._thread.start()

    @property
    def room_pages(self) -> int:
        """Pages that fit the queue now; only submit() makes it smaller."""
        with self._lock:
            return self._max_queue_pages - self._n_queued_pages

    def submit(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> BackupOp | None:
        """Queue a write and return at once; None, counted as dropped, when it does not fit the queue.

        Raises InvariantBroken when keys and buffers do not fit together or after close().
        """
        check_pages(keys, pages, self._storage.page_bytes)
        op = BackupOp(keys, pages)
        with self._lock:
            if self._closed:
                raise InvariantBroken("a backup was submitted after close()", where="storage backup")
            if self._n_queued_pages + len(op.keys) > self._max_queue_pages:
                self._n_ops_dropped += 1
                self._n_pages_dropped += len(op.keys)
                return None
            self._queue.put(op)
            self._n_ops += 1
            self._n_asked += len(op.keys)
            self._n_queued_pages += len(op.keys)
        return op

    def touch(self, keys: Sequence[bytes]) -> TouchOp:
        """Queue a `StorageBackend.touch` of a path behind the writes before it, and return at once."""
        op = TouchOp(keys)
        self._queue.put(op)
        return op

    def stats(self) -> BackupStats:
        """Return the counters as they stand; a running write is not in them yet."""
        with self._lock:
            return BackupStats(
                n_ops=self._n_ops,
                n_pages_asked=self._n_asked,
                n_pages_ok=self._n_ok,
                n_ops_dropped=self._n_ops_dropped,
                n_pages_dropped=self._n_pages_dropped,
                written_bytes=self._n_new * self._storage.page_bytes,
                wall_s=self._wall_s,
                yielded_s=self._yielded_s,
                n_queued_pages=self._n_queued_pages,
                ends=dict(self._ends),
            )

    def close(self, timeout_s: float = LONGEST_CLOSE_S) -> None:
        """End the running write after its page and the queued ones unwritten, and join the thread. Idempotent.

        Wait for the ops to keep what is queued. Raises StorageError when storage has not come back from a write after
        `timeout_s`.
        """
        end_storage_thread(self._thread, self._ask_to_end, timeout_s)

    def _ask_to_end(self) -> None:
        with self._lock:
            self._closed = True
            self._queue.put(None)

    def _run(self) -> None:
        while (op := self._queue.get()) is not None:
            if isinstance(op, TouchOp):
                self._touch(op)
                continue
            self._write(op)
            assert op.end is not None
            with self._lock:
                self._n_queued_pages -= len(op.keys)
                self._ends[op.end.value] += 1
                self._n_ok += op.n_ok
                self._n_new += op.n_new
                self._wall_s += op.wall_s
                self._yielded_s += op.yielded_s
            op.finish()

    def _write(self, op: BackupOp) -> None:
        started_s = op.start()
        try:
            stored = self._storage.write(op.keys, op.pages, before_page=lambda: self._let_loads_go(op))
            op.n_ok, op.n_new = stored.n_ok, stored.n_new
            if op.n_ok == len(op.keys):
                op.end = OpEnd.COMPLETE
            else:
                op.end = OpEnd.CLOSED if self._closed else OpEnd.SHORT
        except Exception as error:  # noqa: BLE001 - travels to the caller in op.error; the thread serves the next write
            op.error = error
            op.end = OpEnd.FAILED
        op.wall_s = time.perf_counter() - started_s - op.yielded_s

    def _touch(self, op: TouchOp) -> None:
        op.start()
        try:
            self._storage.touch(op.keys)
        except Exception as error:  # noqa: BLE001 - travels to the caller in op.error; it costs recency, nothing else
            op.error = error
        op.finish()

    def _let_loads_go(self, op: BackupOp) -> bool:
        if self._closed:
            return False
        started_s = time.perf_counter()
        self._gate.wait_until_idle(self._longest_yield_s)
        op.yielded_s += time.perf_counter() - started_s
        return not self._closed
