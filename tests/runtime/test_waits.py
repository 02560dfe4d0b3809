"""Every second a request stands still for the lower tiers is counted, once, where it was spent."""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter

import pytest
from memory_storage import MemoryStorage
from small_cache import GEOMETRY, PAGE_TOKENS, SmallCache, tokens_of

from hicachectl.runtime.cost import Path as CostPath
from hicachectl.runtime.keys import page_keys
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.transfer.backends import CopyBackend, Direction, Submitted, make_backend
from hicachectl.runtime.tree import Slots

HELD_S = 0.5


class LateBackend:
    """Copies in `direction` begin `HELD_S` after they were asked for."""

    def __init__(self, direction: Direction) -> None:
        self._inner: CopyBackend = make_backend(Backend.CPU, Layout.PAGE_FIRST)
        self.kind = self._inner.kind
        self._direction = direction

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        self._inner.prepare(direction, device_pool, host_pool, n_planes)

    def copy(
        self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, device_slots: Slots, host_slots: Slots,
        planes: range,
    ) -> Submitted:  # fmt: skip
        if direction is self._direction:
            threading.Event().wait(HELD_S)
        return self._inner.copy(direction, device_pool, host_pool, device_slots, host_slots, planes)


def test_waiting_for_a_backup_that_holds_the_slots_is_counted_though_nothing_is_restored() -> None:
    with SmallCache(4, 16, backend=LateBackend(Direction.BACKUP)) as small:
        small.serve([1, 2, 3, 4])
        began = perf_counter()
        account = small.serve([5, 6, 7, 8])  # needs the slots the first backup still reads
        took_s = perf_counter() - began
        assert HELD_S / 2 < account.room_wait_s <= took_s
        assert account.restore_wait_s == 0


def test_restore_itself_may_wait_for_slots_and_no_second_counts_twice() -> None:
    with SmallCache(4, 16, backend=LateBackend(Direction.BACKUP)) as small:
        small.serve([1, 2, 3, 4])
        assert small.cache.drain(30)
        small.serve([5, 6, 7, 8])
        tokens = tokens_of([1, 2, 3, 4])
        request = small.cache.match(tokens, page_keys(tokens, PAGE_TOKENS))
        began = perf_counter()
        small.cache.restore(request)
        small.cache.wait_restored(request)
        took_s = perf_counter() - began
        account = small.cache.release(request)
        assert account.room_wait_s > HELD_S / 2
        assert account.restore_wait_s > 0
        assert account.room_wait_s + account.restore_wait_s <= took_s


def test_waiting_for_the_copy_up_is_counted_as_restoring() -> None:
    with SmallCache(4, 16, backend=LateBackend(Direction.LOAD)) as small:
        for pages in ([1, 2, 3, 4], [5, 6, 7, 8]):
            small.serve(pages)
            assert small.cache.drain(30)
        account = small.serve([1, 2, 3, 4])
        assert account.restored_host_pages == 4
        assert account.restore_wait_s > HELD_S / 2
        assert account.room_wait_s == 0


@pytest.mark.parametrize("layout", [Layout.PAGE_FIRST, Layout.LAYER_FIRST])
def test_what_is_under_way_is_told_in_pages_by_path(layout: Layout, tmp_path: Path) -> None:
    class Slow(MemoryStorage):
        begun, go = threading.Event(), threading.Event()

        def write(self, *args: object, **more: object) -> object:  # type: ignore[override]
            self.begun.set()
            assert self.go.wait(60)
            return super().write(*args, **more)  # type: ignore[arg-type]

    storage = Slow(GEOMETRY.page_bytes, 100)
    with SmallCache(4, 8, storage, layout=layout) as small:
        small.serve([1, 2, 3])
        while not storage.begun.is_set():
            assert not small.cache.drain(0.05)
        assert not small.cache.drain(0.05)
        assert small.cache.under_way() == {CostPath.STORAGE_WRITE: 3}
        storage.go.set()
        assert small.cache.drain(30)
        assert small.cache.under_way() == {}
