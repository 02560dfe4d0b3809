"""One operation of a storage thread: written by that thread, read by anyone, over when `done`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum

from hicachectl.errors import StorageError, StorageFault
from hicachectl.held_signals import held_signals

__all__ = ["LONGEST_CLOSE_S", "OpEnd", "StorageOp", "end_storage_thread"]

LONGEST_CLOSE_S = 60.0  # what a hung mount gets before close() gives up on it


class OpEnd(Enum):
    """Why a storage operation ended."""

    COMPLETE = "complete"
    SHORT = "short"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CLOSED = "closed"


class StorageOp:
    """What reads, writes and touches share: the keys, how long it waited for its thread, what went wrong, and the end of it."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys
        self.queued_s = 0.0
        """Seconds between submit and its start."""
        self.error: Exception | None = None
        self._done = threading.Event()
        self._submitted_s = time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether it is over: buffers it was given are the caller's again."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when `timeout_s` passed first."""
        return self._done.wait(timeout_s)

    def start(self) -> float:
        """Note, on the storage thread, that its turn has come; return the time, of `perf_counter`."""
        started_s = time.perf_counter()
        self.queued_s = started_s - self._submitted_s
        return started_s

    def finish(self) -> None:
        """Say, on the storage thread, that it is over."""
        self._done.set()


def end_storage_thread(thread: threading.Thread, ask: Callable[[], object], timeout_s: float) -> None:
    """Ask a storage thread to end and wait for that. Raises StorageError when it is still inside storage after `timeout_s`.

    In the main thread a Ctrl-C that comes meanwhile is raised behind it: until then the storage thread uses its caller's pages.
    """
    with held_signals(at_once=True):
        ask()
        thread.join(timeout_s)
        if thread.is_alive():
            raise StorageError(
                f"storage has not come back from a call for {timeout_s:g} s",
                fault=StorageFault.TRANSIENT,
                where=f"thread {thread.name}",
                hint="look at the storage folder: a network mount that hangs stops every read of it",
            )
