"""Backups that fail, and what may hang below them."""

from __future__ import annotations

import pytest
from cache_driver import NAMESPACES, CacheDriver, Setup
from memory_storage import MemoryStorage

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.write_policy import WritePolicy

EMPTY = NAMESPACES[0]


def test_a_failed_backup_leaves_no_page_in_the_host_tier_while_pages_below_it_are_still_being_copied() -> None:
    driver = CacheDriver(Setup(CacheConfig(restore="always"), device_slots=8, host_slots=8))
    driver.control.stuck = True
    driver.serve((0, 1, 2, 3), namespace=EMPTY, chunk=2)
    assert len(driver.control.pending) == 2
    driver.control.fates.append(True)
    driver.control.pending[0].finish()
    driver.cache.tick()
    driver.verify()
    assert not driver.held[Tier.HOST]
    driver.close()
    assert len(driver.held[Tier.HOST]) == 4, "the copy was tried again, and pages below it stayed"
    assert driver.cache.counters.failures == {"transfer_backup": 1}


def test_when_every_backup_fails_the_host_tier_is_empty_and_requests_are_served_from_compute() -> None:
    driver = CacheDriver(Setup(CacheConfig(restore="always", strict=True), device_slots=4, host_slots=8))
    driver.control.fates.extend([True] * 40)
    for _ in range(3):
        driver.serve((0, 1, 2), namespace=EMPTY, chunk=1)
        driver.serve((2, 1, 0), namespace=EMPTY, chunk=2)
    driver.drain()
    assert not driver.held[Tier.HOST]
    assert driver.host_pool is not None
    assert driver.cache.host_slots is not None
    assert driver.cache.host_slots.n_free == driver.host_pool.n_slots
    driver.close()


@pytest.mark.parametrize("layout", Layout)
def test_every_layout_stores_pages_and_gets_them_back(layout: Layout) -> None:
    setup = Setup(
        CacheConfig(restore="always", strict=True), device_slots=4, host_slots=4, layout=layout, storage="memory"
    )
    driver = CacheDriver(setup)
    for path in [(0, 1, 2), (2, 1, 0), (1, 1, 1), (0, 1, 2)]:
        driver.serve(path, namespace=EMPTY)
        driver.drain()
    assert isinstance(driver.storage, MemoryStorage)
    assert len(driver.storage.objects) == 9
    assert driver.restored_from[Tier.STORAGE] == 3
    driver.close()


def test_a_write_back_victim_above_pages_being_stored_gives_up_instead_of_looking_forever() -> None:
    config = CacheConfig(restore="always", write_policy=WritePolicy.WRITE_BACK)
    driver = CacheDriver(Setup(config, device_slots=3, host_slots=1, storage="memory"))
    driver.serve((0, 1, 2), namespace=EMPTY)
    asked = driver.arrive((5,), namespace=EMPTY)
    driver.restore(asked)
    driver.wait(asked)
    driver.allocate(asked, 1)  # no slot yet: page 2 is on its way down
    driver.control.pending[0].finish()
    driver.cache.tick()  # page 2 is on the host, and being stored
    driver.allocate(asked, 1)
    driver.publish(asked)
    driver.allocate(driver.arrive((6,), namespace=EMPTY), 1)
    other = driver.arrive((6, 6), namespace=EMPTY)
    driver.restore(other)
    driver.wait(other)
    driver.allocate(other, 2)  # needs page 1, and the one host slot holds page 2 below it
    assert other.request.allocated is None
    driver.close()
