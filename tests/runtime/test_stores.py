"""Writes to storage: what fits no queue is cut into pieces, nobody waits in tick, and only what was written counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from memory_storage import MemoryStorage
from small_cache import GEOMETRY, SmallCache

from hicachectl.runtime.cost import Path as CostPath
from hicachectl.runtime.cost import PathState
from hicachectl.runtime.storage.base import PageBytes, Stored


class SlowStorage(MemoryStorage):
    """Writes nothing before `go` is set."""

    def __init__(self) -> None:
        super().__init__(GEOMETRY.page_bytes, 100_000)
        self.go = threading.Event()

    def write(
        self, keys: Sequence[bytes], pages: Sequence[PageBytes], *, before_page: Callable[[], bool] | None = None
    ) -> Stored:
        assert self.go.wait(60)
        return super().write(keys, pages, before_page=before_page)


def _write_cost(small: SmallCache) -> PathState:
    return next(p for p in small.cache.costs.state().paths if p.path == CostPath.STORAGE_WRITE.value)


def test_a_prompt_larger_than_the_storage_queue_is_stored_whole() -> None:
    storage = MemoryStorage(GEOMETRY.page_bytes, 100_000)
    with SmallCache(5000, 5000, storage, seen_keys=0) as small:
        assert small.cache.config.storage_queue_pages < 5000
        small.serve(range(5000))
        assert small.cache.drain(60)
        small.cache.check()
        counters = small.cache.counters
        assert (len(storage.objects), counters.stored_pages, counters.store_dropped_pages) == (5000, 5000, 0)


def test_without_strict_order_what_the_queue_has_no_room_for_is_dropped_from_the_tail_and_counted() -> None:
    storage = SlowStorage()
    with SmallCache(8, 8, storage, strict=False, storage_queue_pages=3) as small:
        small.serve([1, 2, 3, 4, 5])
        while small.cache._backups.backups:
            small.cache.tick()
        assert small.cache.counters.store_dropped_pages == 2
        storage.go.set()
        assert small.cache.drain(30)
        assert len(storage.objects) == 3
        small.cache.check()


def test_tick_returns_while_the_storage_queue_is_full_and_the_rest_stands_in_line() -> None:
    storage = SlowStorage()
    with SmallCache(8, 8, storage, storage_queue_pages=2) as small:
        small.serve([1, 2, 3, 4, 5])
        while small.cache._backups.backups:
            small.cache.tick()  # would never come back if it waited: storage writes nothing before we say so
        assert [ticket.write is not None for ticket in small.cache._backups.stores] == [True, False, False]
        small.cache.check()
        storage.go.set()
        assert small.cache.drain(30)
        assert (len(storage.objects), small.cache.counters.store_dropped_pages) == (5, 0)
        small.cache.check()


def test_pages_storage_holds_already_are_neither_written_nor_counted_nor_learned_from() -> None:
    class Silent(MemoryStorage):
        def exists_prefix(self, keys: Sequence[bytes]) -> int:
            return 0

    storage = Silent(GEOMETRY.page_bytes, 10)
    for n_new, n_skipped in ((3, 0), (0, 3)):  # two processes, one storage
        with SmallCache(4, 4, storage) as small:
            small.serve([1, 2, 3])
            assert small.cache.drain(30)
            counters = small.cache.counters
            assert (counters.stored_pages, counters.store_skipped_pages) == (n_new, n_skipped)
            assert _write_cost(small).n_observed == (1 if n_new else 0)


def test_pages_that_left_storage_are_stored_again_when_they_come_down_again() -> None:
    storage = MemoryStorage(GEOMETRY.page_bytes, 100)
    with SmallCache(8, 4, storage) as small:
        small.serve([1, 2])
        assert small.cache.drain(30)
        first = set(storage.objects)
        assert len(first) == 2
        small.serve([5, 6, 7, 8])  # takes the host tier; 1 and 2 stay on the device
        assert small.cache.drain(30)
        storage.objects.clear()
        small.serve([1, 2])  # comes down again
        assert small.cache.drain(30)
        assert first <= set(storage.objects)


@pytest.mark.parametrize("raises", [OSError(5, "I/O error"), ConnectionError("gone")])
def test_a_write_that_raises_is_counted_with_its_pages(raises: Exception) -> None:
    class Broken(MemoryStorage):
        def write(
            self, keys: Sequence[bytes], pages: Sequence[PageBytes], *, before_page: Callable[[], bool] | None = None
        ) -> Stored:
            raise raises

    with SmallCache(4, 4, Broken(GEOMETRY.page_bytes, 10)) as small:
        small.serve([1, 2, 3])
        assert small.cache.drain(30)
        counters = small.cache.counters
        assert counters.failures == {"storage_write": 1}
        assert (counters.stored_pages, counters.store_failed_pages) == (0, 3)
