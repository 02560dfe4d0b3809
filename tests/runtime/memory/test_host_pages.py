"""Pages of the host pool as storage sees them: nothing is copied before a page is taken, and then in the taker's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from memory_storage import MemoryStorage
from small_cache import GEOMETRY, SmallCache

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.keys import KEY_BYTES, KeyRun
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.host_pages import HostPages
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.storage.base import check_pages

SLOTS = np.array([3, 0, 2], np.int32)


@pytest.mark.parametrize("layout", Layout)
def test_what_is_read_into_the_buffers_is_what_the_pages_hold_after_it_arrived(layout: Layout) -> None:
    pool = HostPool(GEOMETRY, 4, layout)
    pages = HostPages(pool, SLOTS)
    buffers = pages[1:].buffers()
    for i, buffer in enumerate(buffers):
        buffer[:] = i + 1
    pages[1:].arrived(buffers[:1] if not pool.page_is_contiguous else buffers)
    assert [int(page[0]) for page in pages] == [0, 1, 2 if pool.page_is_contiguous else 0]
    check_pages([bytes(32)] * 3, pages, GEOMETRY.page_bytes)
    with pytest.raises(InvariantBroken):
        check_pages([bytes(32)] * 3, pages, GEOMETRY.page_bytes + 1)


def test_a_page_in_one_piece_is_never_copied() -> None:
    pool = HostPool(GEOMETRY, 4, Layout.PAGE_FIRST)
    assert all(np.shares_memory(page, pool.array) for page in HostPages(pool, SLOTS))


def _spied(call: Callable[..., object], threads: set[str]) -> Callable[..., object]:
    def spy(*args: object) -> object:
        threads.add(threading.current_thread().name)
        return call(*args)

    return spy


def test_pages_of_layer_first_are_gathered_and_put_back_in_the_storage_threads_alone() -> None:
    storage = MemoryStorage(GEOMETRY.page_bytes, 100)
    with SmallCache(3, 3, storage, layout=Layout.LAYER_FIRST) as small:
        pool, threads = small.host_pool, set[str]()
        assert pool is not None
        pool.read_page = _spied(pool.read_page, threads)  # type: ignore[method-assign, assignment]
        pool.write_page = _spied(pool.write_page, threads)  # type: ignore[method-assign]
        for pages in ([1, 2, 3], [4, 5, 6]):
            small.serve(pages)
            assert small.cache.drain(30)
        assert threads == {"hicache-backup"}
        threads.clear()
        assert small.serve([1, 2, 3]).restored_storage_pages == 3
        assert threads == {"hicache-prefetch"}


def test_keys_are_cut_out_only_when_asked_for() -> None:
    keys = b"".join(i.to_bytes(KEY_BYTES, "big") for i in range(1000))
    run = KeyRun(keys, 10, 1000)
    assert (len(run), run[0], run[-1]) == (990, keys[320:352], keys[-32:])
    assert list(run[5:7]) == [keys[480:512], keys[512:544]]
    assert list(reversed(run[:2])) == [keys[352:384], keys[320:352]]
    assert list(run[::-500]) == [run[989], run[489]]
    assert len(run[7:3]) == 0
    with pytest.raises(InvariantBroken):
        KeyRun(keys, 0, 1001)
    with pytest.raises(IndexError):
        run[990]
