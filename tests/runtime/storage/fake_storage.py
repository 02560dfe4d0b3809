"""A storage in memory whose calls can be held, cut short or made to fail; imported by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from storage_samples import PAGE_BYTES, Page

from hicachectl.runtime.storage.base import StorageStats, Stored


class HeldStorage:
    """Each read() call and each written page first waits for a permit; `entered` counts the ones that began to wait."""

    page_bytes = PAGE_BYTES

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.calls: list[tuple[str, int]] = []
        self.touched: list[list[bytes]] = []
        self.threads: set[str] = set()
        self.permits = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.raises: Exception | None = None

    def _hold(self, what: str, n: int) -> None:
        self.calls.append((what, n))
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.permits.acquire(timeout=30)
        if self.raises is not None:
            raise self.raises

    def exists_prefix(self, keys: Sequence[bytes]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.objects), len(keys))

    def read(self, keys: Sequence[bytes], pages: Sequence[Page]) -> int:
        self._hold("read", len(keys))
        for i, (key, page) in enumerate(zip(keys, pages, strict=True)):
            if key not in self.objects:
                return i
            page.data[:] = self.objects[key]
        return len(keys)

    def write(
        self, keys: Sequence[bytes], pages: Sequence[Page], *, before_page: Callable[[], bool] | None = None
    ) -> Stored:
        n_new = 0
        for i, (key, page) in enumerate(zip(keys, pages, strict=True)):
            if before_page is not None and not before_page():
                return Stored(i, n_new)
            self._hold("write", 1)
            n_new += key not in self.objects
            self.objects[key] = page.tobytes()
        return Stored(len(keys), n_new)

    def touch(self, keys: Sequence[bytes]) -> None:
        self.touched.append(list(keys))

    def stats(self) -> StorageStats:
        raise AssertionError("no test asks this storage for its counters")

    def close(self) -> None:
        pass
