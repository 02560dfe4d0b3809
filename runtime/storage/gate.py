"""Loads before low-value writes: a prefetch raises the gate, a backup waits in front of it between two pages."""

from __future__ import annotations

import threading

__all__ = ["LoadGate"]


class LoadGate:
    """Knows the loads under way; shared by one Prefetcher and one StorageBackup."""

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._loads: set[int] = set()

    @property
    def n_loads(self) -> int:
        """Loads queued or running."""
        with self._idle:
            return len(self._loads)

    def load_begins(self, load: object) -> None:
        """Hold writers back until `load_ends(load)`; a second call for the same load does nothing."""
        with self._idle:
            self._loads.add(id(load))

    def load_ends(self, load: object) -> None:
        """Forget a load, and wake the writers when it was the last. A load that never began is none."""
        with self._idle:
            self._loads.discard(id(load))
            if not self._loads:
                self._idle.notify_all()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no load is under way; False when `timeout_s` passed first, so that writes are not starved for ever."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._loads, timeout_s)
