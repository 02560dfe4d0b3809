from __future__ import annotations

import numpy as np
import pytest

from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.replay.pool_content import PoolContent

GEOMETRIES = [
    KVGeometry("small", KVKind.GQA, n_layers=2, token_plane_bytes=8, page_tokens=4),
    KVGeometry("odd", KVKind.GQA, n_layers=2, token_plane_bytes=7, page_tokens=3, dtype="fp8"),
    KVGeometry("large", KVKind.MLA, n_layers=4, token_plane_bytes=1024, page_tokens=4),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
def test_the_device_writes_and_proves_the_same_pages_as_the_processor(geometry: KVGeometry) -> None:
    slots, seeds = np.array([5, 0, 3], np.int32), np.array([7, 2**63 + 5, 1], np.uint64)
    pools = [DevicePool(geometry, 6) for _ in range(2)]
    here, there = PoolContent(pools[0], on_device=False), PoolContent(pools[1], on_device=True)
    for content in (here, there):
        content.fill(slots, seeds)
    np.testing.assert_array_equal(pools[0].planes_numpy(), pools[1].planes_numpy())
    for content in (here, there):
        assert content.first_mismatch(slots, seeds) is None
        assert content.first_mismatch(slots[:0], seeds[:0]) is None


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
def test_the_device_names_the_same_wrong_byte_as_the_processor(geometry: KVGeometry) -> None:
    slots, seeds = np.array([5, 0, 3], np.int32), np.array([7, 9, 1], np.uint64)
    pool = DevicePool(geometry, 6)
    here, there = PoolContent(pool, on_device=False), PoolContent(pool, on_device=True)
    here.fill(slots, seeds)
    pool.planes_numpy()[1, 3, 2] ^= 0x40
    pool.planes_numpy()[geometry.n_planes - 1, 0, geometry.chunk_bytes - 1] ^= 1
    found = there.first_mismatch(slots, seeds)
    assert found == here.first_mismatch(slots, seeds)
    assert found is not None
    assert (found.page, found.slot, found.plane) == (1, 0, geometry.n_planes - 1)
