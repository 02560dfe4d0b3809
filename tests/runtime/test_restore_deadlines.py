"""Deadlines of storage reads: the request goes on at once, what has arrived counts, the rest ends behind its back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from time import perf_counter

import pytest
from memory_storage import MemoryStorage
from small_cache import GEOMETRY, PAGE_TOKENS, SmallCache, tokens_of

from hicachectl.runtime.core import PrefetchWait
from hicachectl.runtime.keys import page_keys
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.request import Request
from hicachectl.runtime.storage.base import PageBytes
from hicachectl.runtime.storage.prefetch import PrefetchPolicy
from hicachectl.runtime.tiers import Tier

OLD, OTHER = [1, 2, 3], [4, 5, 6]
WAITS = {
    "best_effort": PrefetchWait(PrefetchPolicy.BEST_EFFORT),
    "timeout": PrefetchWait(PrefetchPolicy.TIMEOUT, base_s=60.0, per_ki_token_s=0.0, max_s=60.0),
}


class SlowStorage(MemoryStorage):
    """Reads `quick` pages at once; the next read() call comes back only when `go` is set."""

    def __init__(self, quick: int = 0) -> None:
        super().__init__(GEOMETRY.page_bytes, 100)
        self.quick = quick
        self.entered, self.go = threading.Event(), threading.Event()

    def read(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> int:
        if self.quick >= len(keys):
            self.quick -= len(keys)
        else:
            self.entered.set()
            assert self.go.wait(60)
        return super().read(keys, pages)


@pytest.fixture
def storage() -> SlowStorage:
    return SlowStorage()


@pytest.fixture(params=WAITS.values(), ids=WAITS)
def small(storage: SlowStorage, request: pytest.FixtureRequest) -> Iterator[SmallCache]:
    with SmallCache(3, 3, storage, prefetch=request.param) as small:
        for pages in (OLD, OTHER):  # OLD is in storage alone
            small.serve(pages)
            assert small.cache.drain(30)
        assert small.cache._prefetcher is not None
        small.cache._prefetcher._batch = 1
        yield small
        storage.go.set()


def _restore(small: SmallCache, pages: list[int]) -> Request:
    tokens = tokens_of(pages, 1)
    request = small.cache.match(tokens, page_keys(tokens, PAGE_TOKENS))
    small.cache.restore(request)
    return request


def _deadline_comes(small: SmallCache) -> None:
    """Let the deadline of the timeout policy come now; best_effort has none but the wait itself."""
    load = small.cache._restores.loads[0]
    if load.give_up_at_s is not None:
        load.give_up_at_s = perf_counter()


def test_a_request_goes_on_at_the_deadline_while_the_read_still_runs(small: SmallCache, storage: SlowStorage) -> None:
    request = _restore(small, OLD)
    assert request.storage_pages == 3
    assert storage.entered.wait(30)
    _deadline_comes(small)
    assert small.cache.wait_restored(request) == 0, "returns though storage has not answered"
    assert not storage.go.is_set()
    small.cache.check()
    assert len(small.cache.private_slots(Tier.HOST)) == 3, "the read may still fill them"
    assert small.cache.device_slots.n_free == 3, "nothing is on its way to these"
    account = small.cache.release(request)
    assert account.missed_tokens == {MissReason.IN_FLIGHT: 3 * PAGE_TOKENS, MissReason.PARTIAL_PAGE: 1}
    storage.go.set()
    assert small.cache.drain(30)
    small.cache.check()
    assert len(small.cache.private_slots(Tier.HOST)) == 0
    assert (small.cache.counters.storage_reads_cut, small.cache.counters.storage_read_failed_pages) == (1, 0)
    assert small.cache.counters.failures == {}


def test_pages_that_arrived_before_the_deadline_count(small: SmallCache, storage: SlowStorage) -> None:
    storage.quick = 2
    request = _restore(small, OLD)
    assert storage.entered.wait(30), "two pages are there, the third is being read"
    _deadline_comes(small)
    assert small.cache.wait_restored(request) == 2
    assert not storage.go.is_set()
    assert len(small.cache.private_slots(Tier.HOST)) == 1
    assert small.cache.allocate(request, 1) is not None
    small.cache.publish(request)
    account = small.cache.release(request)
    assert account.restored_storage_pages == 2
    assert account.missed_tokens == {MissReason.IN_FLIGHT: PAGE_TOKENS, MissReason.PARTIAL_PAGE: 1}
    storage.go.set()
    assert small.cache.drain(30)
    small.cache.check()
    assert small.cache.counters.storage_read_pages == 3, "what storage read after the deadline was read, too"


def test_tick_ends_a_read_at_its_deadline_for_a_request_that_never_waits(storage: SlowStorage) -> None:
    with SmallCache(3, 3, storage, prefetch=WAITS["timeout"]) as small:
        for pages in (OLD, OTHER):
            small.serve(pages)
            assert small.cache.drain(30)
        request = _restore(small, OLD)
        assert storage.entered.wait(30)
        load = small.cache._restores.loads[0]
        small.cache.tick()
        assert not load.over, "its deadline is to come"
        _deadline_comes(small)
        small.cache.tick()
        assert load.over
        assert small.cache.device_slots.n_free == 3
        small.cache.release(request)
        storage.go.set()


def test_waiting_as_long_as_it_takes_is_not_the_default() -> None:
    assert PrefetchWait().policy is PrefetchPolicy.TIMEOUT
    assert PrefetchWait().seconds(1 << 20) == 10.0
