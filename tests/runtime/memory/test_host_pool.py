from __future__ import annotations

import numpy as np
import pytest

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.host_pool import HostPool

GEOMETRIES = [
    KVGeometry("gqa", KVKind.GQA, n_layers=2, token_plane_bytes=4, page_tokens=3),
    KVGeometry("one-plane", KVKind.MLA, n_layers=1, token_plane_bytes=6, page_tokens=4),
    KVGeometry("one-token", KVKind.GQA, n_layers=2, token_plane_bytes=8, page_tokens=1),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("layout", Layout)
def test_a_page_written_plane_by_plane_reads_back_and_touches_no_other(layout: Layout, geometry: KVGeometry) -> None:
    pool = HostPool(geometry, 5, layout)
    pool.array[:] = 255
    data = np.arange(geometry.page_bytes, dtype=np.uint8)
    pool.write_page(3, data)
    assert pool.read_page(3).ravel().tolist() == data.tolist()
    assert pool.read_page(3).shape == (geometry.n_planes, geometry.chunk_bytes)
    assert all((pool.read_page(slot) == 255).all() for slot in (0, 1, 2, 4))
    pool.write_page(2, data.tobytes())
    assert pool.read_page(2).ravel().tolist() == data.tolist()


@pytest.mark.parametrize("layout", Layout)
def test_the_layer_view_is_the_same_memory_in_plane_order(layout: Layout) -> None:
    pool = HostPool(GEOMETRIES[0], 5, layout)
    pool.layer_view()[2, 3, 1, 0] = 77
    assert pool.array.reshape(-1)[pool.map.offset(slot=3, plane=2, token=1)] == 77
    assert pool.read_page(3)[2, 4] == 77


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("layout", Layout)
def test_reading_a_page_gives_a_copy(layout: Layout, geometry: KVGeometry) -> None:
    pool = HostPool(geometry, 5, layout)
    page = pool.read_page(1)
    page[:] = 9
    assert not pool.array.any()


@pytest.mark.parametrize("layout", [Layout.PAGE_FIRST, Layout.PAGE_FIRST_DIRECT])
def test_a_contiguous_page_is_served_in_place(layout: Layout) -> None:
    pool = HostPool(GEOMETRIES[0], 5, layout)
    view = pool.page_bytes_view(2)
    view[:] = 5
    assert pool.page_is_contiguous
    assert (pool.read_page(2) == 5).all()
    assert int(pool.array.sum()) == 5 * GEOMETRIES[0].page_bytes


def test_page_first_direct_serves_a_page_in_plane_order() -> None:
    pool = HostPool(GEOMETRIES[0], 5, Layout.PAGE_FIRST_DIRECT)
    data = np.arange(GEOMETRIES[0].page_bytes, dtype=np.uint8)
    pool.write_page(1, data)
    assert pool.page_bytes_view(1).tolist() == data.tolist()


def test_page_first_serves_a_page_token_by_token() -> None:
    geometry = GEOMETRIES[0]
    pool = HostPool(geometry, 5, Layout.PAGE_FIRST)
    data = np.arange(geometry.page_bytes, dtype=np.uint8)
    pool.write_page(1, data)
    by_token = data.reshape(geometry.n_planes, geometry.page_tokens, -1).transpose(1, 0, 2)
    assert pool.page_bytes_view(1).tolist() == by_token.ravel().tolist()


def test_layer_first_has_no_page_in_one_piece() -> None:
    pool = HostPool(GEOMETRIES[0], 5, Layout.LAYER_FIRST)
    assert not pool.page_is_contiguous
    with pytest.raises(InvariantBroken, match="layer_first"):
        pool.page_bytes_view(0)


@pytest.mark.parametrize("slot", [-1, 5])
def test_a_slot_outside_the_pool_is_refused(slot: int) -> None:
    pool = HostPool(GEOMETRIES[0], 5, Layout.PAGE_FIRST_DIRECT)
    for call in (pool.page_bytes_view, pool.read_page, lambda s: pool.write_page(s, bytes(GEOMETRIES[0].page_bytes))):
        with pytest.raises(InvariantBroken, match=r"outside \[0, 5\)"):
            call(slot)


def test_a_write_of_another_size_than_a_page_is_refused() -> None:
    pool = HostPool(GEOMETRIES[0], 5, Layout.LAYER_FIRST)
    with pytest.raises(InvariantBroken, match="write of 3 bytes"):
        pool.write_page(0, b"abc")


def test_the_tensor_is_the_same_memory() -> None:
    pool = HostPool(GEOMETRIES[0], 5, Layout.PAGE_FIRST)
    pool.tensor.fill_(3)
    assert (pool.array == 3).all()


def test_asking_where_a_pool_lies_makes_no_page() -> None:
    pool = HostPool(GEOMETRIES[0], 5, Layout.PAGE_FIRST)
    assert not pool.placement().by_node, "reserved alone, it has no page"
    pool.tensor.fill_(3)
    placement = pool.placement()
    assert placement.reason is not None or sum(placement.by_node.values()) > 0


def test_a_closed_pool_says_so_and_closes_twice() -> None:
    pool = HostPool(GEOMETRIES[0], 5, Layout.PAGE_FIRST)
    pool.close()
    pool.close()
    with pytest.raises(InvariantBroken, match="closed"):
        pool.layer_view()


def test_a_pool_without_slots_is_refused() -> None:
    with pytest.raises(UsageError, match="0 slots"):
        HostPool(GEOMETRIES[0], 0, Layout.PAGE_FIRST)


def test_the_pool_reports_what_its_memory_got() -> None:
    assert [step.name for step in HostPool(GEOMETRIES[0], 5, Layout.PAGE_FIRST).steps] == ["reserve", "advise"]
