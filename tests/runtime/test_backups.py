"""Backups that fail, and what may hang below them."""

from __future__ import annotations

import pytest
from cache_driver import NAMESPACES, CacheDriver, Setup
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.tiers import Tier
from memory_storage import MemoryStorage

EMPTY = NAMESPACES[0]


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
