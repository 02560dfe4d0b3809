"""L3 -> host: one daemon thread reads whole pages into host buffers; a load can be cut short and keeps what arrived.

op = prefetcher.submit(keys, pages)                                   # returns at once
n_ok = op.finish(deadline_s(policy, n_tokens, base_s=1.0, per_ki_token_s=0.25, max_s=10.0))

who owns the buffers behind `pages`:  the operation, from submit() until `done`; the caller keeps their slots leased
what is in them afterwards:           [0, n_ok) proven right     [n_ok, len) undefined
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.storage.base import PageBytes, StorageBackend, check_pages
from hicachectl.runtime.storage.gate import LoadGate

__all__ = ["OpEnd", "PrefetchOp", "PrefetchPolicy", "PrefetchStats", "Prefetcher", "deadline_s"]

BATCH_PAGES = 32
BATCH_BYTES = (
    64 << 20
)  # a cancel waits for one batch: 64 MiB are about 50 ms at 1.3 GB/s, or one page if that is larger


class PrefetchPolicy(Enum):
    """How long a request waits for its pages from L3 (names as in SGLang; docs/facts.md#sglang-prefetch)."""

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


class OpEnd(Enum):
    """Why a storage operation ended."""

    COMPLETE = "complete"
    SHORT = "short"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CLOSED = "closed"


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


class PrefetchOp:
    """One load from L3. Written by the prefetch thread, read by anyone."""

    def __init__(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> None:
        self.keys = tuple(keys)
        self.pages = tuple(pages)
        self.n_ok = 0
        """Leading pages proven right so far; final once `done`."""
        self.wall_s = 0.0
        """Seconds spent reading."""
        self.queued_s = 0.0
        """Seconds between submit and the first read."""
        self.error: Exception | None = None
        self.end: OpEnd | None = None
        self._cancelled = threading.Event()
        self._done = threading.Event()
        self._submitted_s = time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether the buffers are the caller's again."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when `timeout_s` passed first."""
        return self._done.wait(timeout_s)

    def cancel(self) -> None:
        """Ask for an end after the batch being read; what has arrived counts. The buffers stay taken until `done`."""
        self._cancelled.set()

    def finish(self, deadline_s: float | None) -> int:
        """Wait for at most `deadline_s`, cut the rest short, and return the pages that arrived; the op is done then."""
        if not self.wait(deadline_s):
            self.cancel()
            self.wait()
        return self.n_ok


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
        self._queue: deque[PrefetchOp] = deque()
        self._wake = threading.Condition()
        self._running: PrefetchOp | None = None
        self._closed = False
        self._n_ops = self._n_asked = self._n_ok = 0
        self._wall_s = 0.0
        self._ends = dict.fromkeys((end.value for end in OpEnd), 0)
        self._thread = threading.Thread(target=self._run, name="hicache-prefetch", daemon=True)
        self._thread.start()

    def submit(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> PrefetchOp:
        """Queue a load and return at once.

        Raises InvariantBroken when keys and buffers do not fit together or after close().
        """
        check_pages(keys, pages, self._storage.page_bytes)
        op = PrefetchOp(keys, pages)
        with self._wake:
            if self._closed:
                raise InvariantBroken("a prefetch was submitted after close()", where="storage prefetch")
            self._gate.load_begins()
            self._n_ops += 1
            self._n_asked += len(op.keys)
            self._queue.append(op)
            self._wake.notify()
        return op

    def stats(self) -> PrefetchStats:
        """Return the counters as they stand; a running load is not in them yet."""
        with self._wake:
            return PrefetchStats(
                n_ops=self._n_ops,
                n_pages_asked=self._n_asked,
                n_pages_ok=self._n_ok,
                read_bytes=self._n_ok * self._storage.page_bytes,
                wall_s=self._wall_s,
                ends=dict(self._ends),
            )

    def close(self) -> None:
        """End the running load after its batch and the queued ones at once, and join the thread. Idempotent."""
        with self._wake:
            self._closed = True
            for op in (*self._queue, *((self._running,) if self._running else ())):
                op.cancel()
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: bool(self._queue) or self._closed)
                if not self._queue:
                    return
                op = self._running = self._queue.popleft()
            self._load(op)
            with self._wake:
                self._running = None
                assert op.end is not None
                self._ends[op.end.value] += 1
                self._n_ok += op.n_ok
                self._wall_s += op.wall_s
            self._gate.load_ends()
            op._done.set()

    def _load(self, op: PrefetchOp) -> None:
        started_s = time.perf_counter()
        op.queued_s = started_s - op._submitted_s
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
            if op._cancelled.is_set():
                return OpEnd.CLOSED if self._closed else OpEnd.CANCELLED
            end = min(op.n_ok + self._batch, len(op.keys))
            n = self._storage.read(op.keys[op.n_ok : end], op.pages[op.n_ok : end])
            is_short = n < end - op.n_ok
            op.n_ok += n
            if is_short:
                return OpEnd.SHORT
        return OpEnd.COMPLETE
