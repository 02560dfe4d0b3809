"""What a lower tier raises, and what two requests do to each other, costs a recompute at most: never a slot, a byte or the request."""

from __future__ import annotations

import numpy as np
import pytest
from cache_driver import GEOMETRY, NAMESPACES, PAGE_TOKENS, CacheDriver, Setup, tokens_of

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.cache import CacheConfig, HierarchicalCache
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.backends import make_backend
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.tree import RadixTree
from hicachectl.runtime.write_policy import WritePolicy

EMPTY = NAMESPACES[0]
ALWAYS = CacheConfig(restore="always", strict=True, seen_keys=64)


def small(config: CacheConfig = ALWAYS, **sizes: object) -> CacheDriver:
    return CacheDriver(Setup(config, **{"device_slots": 4, "host_slots": 8, **sizes}))  # type: ignore[arg-type]


def fail(*_: object) -> None:
    raise MemoryError("injected")


def test_a_backup_that_cannot_be_started_leaves_no_page_in_the_host_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = small()
    monkeypatch.setattr(driver.cache._core.engine, "backup", fail)
    driver.serve((0, 1), namespace=EMPTY)
    assert driver.cache.tree.n_pages[Tier.HOST] == 0
    assert driver.cache.counters.failures == {"transfer_backup": 1}
    assert driver.cache.host_slots is not None
    assert driver.cache.host_slots.n_used == 0
    driver.cache.check()
    driver.close()


def test_a_load_that_cannot_be_started_is_a_recompute_and_gives_its_slots_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.drain()
    monkeypatch.setattr(driver.cache._core.engine, "load", fail)
    caller = driver.arrive((0, 1), namespace=EMPTY)
    driver.restore(caller)
    assert driver.cache.wait_restored(caller.request) == 0
    driver.cache.check()
    account = driver.cache.release(caller.request)
    assert {reason.value for reason in account.missed_tokens} == {"failed"}
    assert driver.cache.counters.failures["transfer_load"] == 1
    assert driver.cache.tree.active_leases == 0


def test_a_storage_that_raises_anything_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = small(storage="memory")
    storage = driver.cache.storage
    assert storage is not None
    monkeypatch.setattr(storage, "exists_prefix", fail)
    monkeypatch.setattr(storage, "touch", fail)
    driver.serve((0, 1), namespace=EMPTY)
    driver.drain()
    assert driver.cache.counters.failures["storage"] >= 2
    driver.cache.check()


def test_pages_published_twice_stay_the_second_request_s_to_read_until_it_is_released() -> None:
    driver = small(device_slots=8)
    tokens = tokens_of((0, 1))
    requests = [driver.cache.match(tokens, keys_of_path(tokens)) for _ in range(2)]
    own = []
    for request in requests:
        driver.cache.restore(request)
        driver.cache.wait_restored(request)
        slots = driver.cache.allocate(request, 2)
        assert slots is not None
        own.append(slots.copy())
    for request in requests:
        driver.cache.publish(request)
    first, second = requests
    np.testing.assert_array_equal(driver.cache.slots(first), own[0])
    np.testing.assert_array_equal(driver.cache.slots(second), own[0])
    assert driver.cache.device_slots.is_used(own[1]).all()
    driver.cache.check()
    driver.cache.release(second)
    assert not driver.cache.device_slots.is_used(own[1]).any()
    driver.cache.release(first)
    driver.cache.check()


def keys_of_path(tokens: bytes) -> bytes:
    from hicachectl.runtime.keys import page_keys

    return page_keys(tokens, PAGE_TOKENS)


def test_a_request_publishes_only_after_its_restore_is_over() -> None:
    driver = small()
    tokens = tokens_of((0,))
    request = driver.cache.match(tokens, keys_of_path(tokens))
    driver.cache.restore(request)
    with pytest.raises(InvariantBroken, match="wait_restored first"):
        driver.cache.publish(request)
    driver.cache.release(request)


def test_a_request_given_up_before_its_restore_used_what_was_ready_and_nothing_failed() -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.drain()
    tokens = tokens_of((0, 1))
    account = driver.cache.release(driver.cache.match(tokens, keys_of_path(tokens)))
    assert (account.used_pages, dict(account.missed_tokens)) == (2, {})


def test_a_load_two_requests_wait_for_is_restored_once() -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.drain()
    callers = [driver.arrive((0, 1), namespace=EMPTY) for _ in range(2)]
    for caller in callers:
        driver.restore(caller)
    for copy in list(driver.control.pending):
        copy.finish()
    for caller in callers:
        driver.wait(caller)
        assert caller.request.used_pages == 2
    restored = sum(driver.cache.release(c.request).restored_host_pages for c in callers)
    assert restored == driver.cache.counters.loaded_pages == 2


def test_a_path_of_thousands_of_nodes_is_dropped_without_recursion() -> None:
    n = 3000
    tree = RadixTree(1, eviction=Eviction.LRU)
    tokens = np.arange(n, dtype="<u4").tobytes()
    slots = np.arange(n, dtype=np.int32)
    node = tree.insert(tokens, slots).node
    for page in range(n - 1, 0, -1):  # a page at a time to the host tier, as write_back does
        tree.attach(node, Tier.HOST, page, page + 1, slots[page : page + 1])
        node = tree.path(node)[0]
        assert len(tree.evict(Tier.DEVICE, 1).slots) == 1
    assert tree.n_nodes == n
    evicted = tree.evict(Tier.DEVICE, 1)
    assert (len(evicted.slots), len(evicted.dropped_host_slots), tree.n_nodes) == (1, n - 1, 0)
    tree.check(host_closed=False)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    pools = [(DevicePool(GEOMETRY, 4), HostPool(GEOMETRY, 4, Layout.PAGE_FIRST_DIRECT)) for _ in range(2)]
    engine = TransferEngine(*pools[0], make_backend(Backend.CPU, Layout.PAGE_FIRST_DIRECT))
    try:
        with pytest.raises(UsageError, match="other pools"):
            HierarchicalCache(*pools[1], engine, CostModel(RecomputeCost(0, 1e-6, 0)), ALWAYS)
    finally:
        engine.close()


def test_a_closed_cache_takes_no_request() -> None:
    driver = small(CacheConfig(write_policy=WritePolicy.WRITE_BACK))
    driver.cache.close()
    with pytest.raises(InvariantBroken, match="after close"):
        driver.cache.match(tokens_of((0,)), keys_of_path(tokens_of((0,))))
