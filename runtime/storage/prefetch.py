"""L3 -> host: one daemon thread reads whole pages into host buffers; a load can be cut short and keeps what arrived.

op = prefetcher.submit(keys, pages)     # returns at once
if not op.wait(deadline_s(policy, n_tokens, base_s=1.0, per_ki_token_s=0.25, max_s=10.0)):
    n_ok = op.n_ok                      # what has arrived counts
    op.cancel()                         # ends after the batch being read

who owns the buffers behind `pages`:  the operation, from submit() until `done`; the caller keeps their slots leased
what is in them at any time:          [0, n_ok) proven right     [n_ok, len) undefined

Requests come through a SimpleQueue: its put() is one step, so an interrupt in the caller's thread leaves it whole. A
Condition is not: an interrupt inside notify() leaves it with a waiter that was woken, and the thread sleeps for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.storage.base import LazyPages, PageBytes, StorageBackend, check_pages, read_into
from hicachectl.runtime.storage.gate import LoadGate
from hicachectl.runtime.storage.operation import LONGEST_CLOSE_S, OpEnd, StorageOp, end_storage_thread

__all__ = ["PrefetchOp", "PrefetchPolicy", "PrefetchStats", "Prefetcher", "deadline_s"]

BATCH_PAGES = 32
BATCH_BYTES = (
    64 << 20
)  # a cancel waits for one batch: 64 MiB are about 50 ms at 1.3 GB/s, or one page if that is larger


class PrefetchPolicy(Enum):
    """How long a request waits for its pages from L3 (names as in SGLang; docs/facts.md#sglang-prefetch)."""

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


def deadline_s(
    policy: PrefetchPolicy, n_tokens: int, *, base_s: float, per_ki_token_s: float, max_s: float
) -> float | None:
    """Return how long to wait for a prefetch of `n_tokens`, None for as long as it takes. Pure.

    best_effort waits not at all: what has arrived when the request can run counts. timeout grows by `per_ki_token_s` for
    each 1024 tokens and never passes `max_s` (without a bound a million tokens wait 257 s, sgl-project/sglang#23309).

    >>> deadline_s(PrefetchPolicy.TIMEOUT, 8192, base_s=1.0, per_ki_token_s=0.25, max_s=10.0)
    3.0
    """
    if policy is PrefetchPolicy.BEST_EFFORT:
        return 0.0
    if policy is PrefetchPolicy.WAIT_COMPLETE:
        return None
    return min(base_s + n_tokens / 1024 * per_ki_token_s, max_s)


@dataclass(frozen=True, slots=True)
class PrefetchStats:
    """What the prefetch thread has done; seconds are wall time of reading, queueing excluded."""

    n_ops: int
    n_pages_asked: int
    n_pages_ok: int
    read_bytes: int
    wall_s: float
    ends: dict[str, int]


class PrefetchOp(StorageOp):
    """One load from L3, on the prefetch thread."""

    def __init__(self, keys: Sequence[bytes], pages: Sequence[PageBytes] | LazyPages) -> None:
        super().__init__(keys)
        self.pages = pages
        self.n_ok = 0
        """Leading pages proven right so far; final once `done`."""
        self.wall_s = 0.0
        """Seconds spent reading."""
        self.end: OpEnd | None = None
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether its end was asked for."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask for an end after the batch being read; what has arrived counts. The buffers stay taken until `done`."""
        self._cancelled.set()


class Prefetcher:
    """Reads from L3 on a thread of its own, first come first served.

    `gate` is raised while any load is queued or running. `batch_pages` and `batch_bytes` bound what is read between two
    looks at cancel(), one page at least.
    """

    def __init__(
        self,
        storage: StorageBackend,
        *,
        gate: LoadGate | None = None,
        batch_pages: int = BATCH_PAGES,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._storage = storage
        self._gate = gate if gate is not None else LoadGate()
        self._batch = max(1, min(batch_pages, batch_bytes // storage.page_bytes))
        self._queue: SimpleQueue[PrefetchOp | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._n_ops = self._n_asked = self._n_ok = 0
        self._wall_s = 0.0
        self._ends = dict.fromkeys((end.value for end in OpEnd), 0)
        self._thread = threading.Thread(target=self._run, name="hicache-prefetch", daemon=True)
        self._thread.start()

    def submit(self, keys: Sequence[bytes], pages: Sequence[PageBytes] | LazyPages) -> PrefetchOp:
        """Queue a load and return at once.

        Raises InvariantBroken when keys and buffers do not fit together or after close().
        """
        check_pages(keys, pages, self._storage.page_bytes)
        op = PrefetchOp(keys, pages)
        with self._lock:
            if self._closed:
                raise InvariantBroken("a prefetch was submitted after close()", where="storage prefetch")
            self._queue.put(op)
            self._gate.load_begins(op)  # the thread begins and ends it too: an interrupt here leaves no gate up
        return op

    def stats(self) -> PrefetchStats:
        """Return the counters as they stand; a running load is not in them yet."""
        with self._lock:
            return PrefetchStats(
                n_ops=self._n_ops,
                n_pages_asked=self._n_asked,
                n_pages_ok=self._n_ok,
                read_bytes=self._n_ok * self._storage.page_bytes,
                wall_s=self._wall_s,
                ends=dict(self._ends),
            )

    def close(self, timeout_s: float = LONGEST_CLOSE_S) -> None:
        """End the running load after its batch and the queued ones at once, and join the thread. Idempotent.

        Raises StorageError when storage has not come back from a read after `timeout_s`: the buffers of that read are
        not the caller's then, and never will be.
        """
        end_storage_thread(self._thread, self._ask_to_end, timeout_s)

    def _ask_to_end(self) -> None:
        with self._lock:
            self._closed = True
            self._queue.put(None)

    def _run(self) -> None:
        while (op := self._queue.get()) is not None:
            with self._lock:  # submit() is over, well or interrupted
                self._n_ops += 1
                self._n_asked += len(op.keys)
            self._gate.load_begins(op)
            self._load(op)
            with self._lock:
                assert op.end is not None
                self._ends[op.end.value] += 1
                self._n_ok += op.n_ok
                self._wall_s += op.wall_s
            self._gate.load_ends(op)
            op.finish()

    def _load(self, op: PrefetchOp) -> None:
        started_s = op.start()
        try:
            op.end = self._read_batches(op)
            if op.n_ok:
                self._storage.touch(op.keys[: op.n_ok])
        except Exception as error:  # noqa: BLE001 - travels to the caller in op.error; the thread serves the next load
            op.error = error
            op.end = OpEnd.FAILED
        op.wall_s = time.perf_counter() - started_s

    def _read_batches(self, op: PrefetchOp) -> OpEnd:
        while op.n_ok < len(op.keys):
            if self._closed:
                return OpEnd.CLOSED
            if op.cancelled:
                return OpEnd.CANCELLED
            end = min(op.n_ok + self._batch, len(op.keys))
            n = read_into(self._storage, op.keys[op.n_ok : end], op.pages[op.n_ok : end])
            is_short = n < end - op.n_ok
            op.n_ok += n
            if is_short:
                return OpEnd.SHORT
        return OpEnd.COMPLETE
