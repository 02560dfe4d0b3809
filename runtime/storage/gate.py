"""Loads before low-value writes: a prefetch raises the gate, a backup waits in front of it between two pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["LoadGate"]


class LoadGate:
    """Counts the loads under way; shared by one Prefetcher and one StorageBackup."""

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._n_loads = 0

    @property
    def n_loads(self) -> int:
        """Loads queued or running."""
        with self._idle:
            return self._n_loads

    def load_begins(self) -> None:
        """Count a load; balanced by load_ends()."""
        with self._idle:
            self._n_loads += 1

    def load_ends(self) -> None:
        """Uncount a load and wake the writers when it was the last."""
        with self._idle:
            self._n_loads -= 1
            if self._n_loads == 0:
                self._idle.notify_all()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Hold the gate up inside a with block."""
        self.load_begins()
        try:
            yield
        finally:
            self.load_ends()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no load is under way; False when `timeout_s` passed first, so that writes are not starved for ever."""
        with self._idle:
            return self._idle.wait_for(lambda: self._n_loads == 0, timeout_s)
