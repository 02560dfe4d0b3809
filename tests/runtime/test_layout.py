from __future__ import annotations

import numpy as np
import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.geometry import KVGeometry, KVKind, preset
from hicachectl.runtime.layout import Backend, Layout, PoolMap, compatible, require_compatible, segments, submissions

GEOMETRIES = [
    KVGeometry("gqa", KVKind.GQA, n_layers=3, token_plane_bytes=4, page_tokens=5),
    KVGeometry("mla", KVKind.MLA, n_layers=3, token_plane_bytes=6, page_tokens=4),
    KVGeometry("one-plane", KVKind.MLA, n_layers=1, token_plane_bytes=6, page_tokens=4),
    KVGeometry("one-token", KVKind.GQA, n_layers=2, token_plane_bytes=8, page_tokens=1),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("layout", Layout)
def test_every_byte_of_the_pool_belongs_to_one_slot_plane_and_token(layout: Layout, geometry: KVGeometry) -> None:
    pool = PoolMap(layout, geometry, n_slots=7)
    starts = sorted(
        pool.offset(slot=slot, plane=plane, token=token)
        for slot in range(7)
        for plane in range(geometry.n_planes)
        for token in range(geometry.page_tokens)
    )
    assert starts == list(range(0, pool.n_bytes, geometry.token_plane_bytes))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("layout", Layout)
def test_the_layer_order_of_the_shape_leads_to_the_offset(layout: Layout, geometry: KVGeometry) -> None:
    pool = PoolMap(layout, geometry, n_slots=7)
    view = np.arange(pool.n_bytes).reshape(pool.shape).transpose(pool.layer_order)
    assert view.shape == (geometry.n_planes, 7, geometry.page_tokens, geometry.token_plane_bytes)
    assert tuple(step // 8 for step in view.strides) == pool.strides
    for slot, plane, token in ((0, 0, 0), (6, geometry.n_planes - 1, geometry.page_tokens - 1), (3, 0, 0)):
        assert view[plane, slot, token, 0] == pool.offset(slot=slot, plane=plane, token=token)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("layout", Layout)
def test_rows_are_the_bytes_of_the_chunks_plane_by_plane(layout: Layout, geometry: KVGeometry) -> None:
    pool = PoolMap(layout, geometry, n_slots=7)
    content = np.arange(pool.n_bytes)
    slots = np.array([5, 0, 6], dtype=np.int32)
    planes = range(geometry.n_planes - 1, geometry.n_planes)
    wanted = content.reshape(pool.shape).transpose(pool.layer_order)[planes.start : planes.stop][:, slots]
    rows = content.reshape(-1, pool.row_bytes)[pool.rows(slots, planes)]
    assert rows.ravel().tolist() == wanted.ravel().tolist()


def test_layer_first_keeps_a_plane_together_page_first_a_token_and_page_first_direct_a_chunk() -> None:
    geometry = preset("tiny-64k", 4)  # 4 planes of 32 bytes a token
    offsets = {layout: PoolMap(layout, geometry, 10) for layout in Layout}
    assert offsets[Layout.LAYER_FIRST].offset(slot=1, plane=0) == 4 * 32
    assert offsets[Layout.PAGE_FIRST].offset(slot=0, plane=0, token=1) == 4 * 32
    assert offsets[Layout.PAGE_FIRST].offset(slot=0, plane=1) == 32
    assert offsets[Layout.PAGE_FIRST_DIRECT].offset(slot=0, plane=1) == 4 * 32
    assert offsets[Layout.PAGE_FIRST_DIRECT].offset(slot=1, plane=0) == geometry.page_bytes


def test_the_reference_case_is_39936_segments_chunk_by_chunk_and_78_layer_first() -> None:
    case = {"n_pages": 512, "n_planes": 78, "n_runs": 1, "page_tokens": 64}
    assert segments(Layout.PAGE_FIRST_DIRECT, **case) == 39_936
    assert segments(Layout.LAYER_FIRST, **case) == 78
    assert submissions(Layout.PAGE_FIRST_DIRECT, Backend.DIRECT, **case, chunk_bytes=73_728) == 39_936
    assert submissions(Layout.LAYER_FIRST, Backend.DIRECT, **case, chunk_bytes=73_728) == 78


def test_scattered_pages_make_layer_first_as_many_segments_as_chunks() -> None:
    case = {"n_pages": 512, "n_planes": 78, "n_runs": 512, "page_tokens": 64}
    assert segments(Layout.LAYER_FIRST, **case) == segments(Layout.PAGE_FIRST_DIRECT, **case)


def test_page_first_moves_token_by_token_unless_there_is_one_plane() -> None:
    assert segments(Layout.PAGE_FIRST, n_pages=3, n_planes=4, n_runs=1, page_tokens=16) == 3 * 4 * 16
    assert segments(Layout.PAGE_FIRST, n_pages=3, n_planes=1, n_runs=1, page_tokens=16) == 1
    assert segments(Layout.PAGE_FIRST_DIRECT, n_pages=3, n_planes=1, n_runs=2, page_tokens=16) == 2


def test_a_layer_group_counts_its_own_planes() -> None:
    case = {"n_pages": 3, "n_planes": 8, "n_runs": 1, "page_tokens": 16}
    assert segments(Layout.LAYER_FIRST, **case, moved_planes=2) == 2
    assert segments(Layout.PAGE_FIRST_DIRECT, **case, moved_planes=1) == 3


def test_the_cpu_backend_submits_a_run_or_two_a_block_whichever_is_fewer() -> None:
    case = {"n_pages": 100, "n_planes": 4, "page_tokens": 512, "chunk_bytes": 16_384}
    assert submissions(Layout.LAYER_FIRST, Backend.CPU, **case, n_runs=1) == 1
    assert submissions(Layout.LAYER_FIRST, Backend.CPU, **case, n_runs=100) == 2
    assert submissions(Layout.LAYER_FIRST, Backend.TORCH, **case, n_runs=1) == 2
    assert (
        submissions(Layout.LAYER_FIRST, Backend.CPU, n_pages=0, n_planes=4, n_runs=0, page_tokens=1, chunk_bytes=1) == 0
    )


def test_the_accelerator_backends_submit_by_the_part_not_by_the_chunk() -> None:
    case = {"n_pages": 512, "n_planes": 78, "n_runs": 512, "page_tokens": 64, "chunk_bytes": 73_728}
    for layout in Layout:
        assert submissions(layout, Backend.STRIDED, **case) == 2 * 47
        assert submissions(layout, Backend.UVA, **case) == 47
    assert submissions(Layout.PAGE_FIRST_DIRECT, Backend.BATCH, **case) == 10
    assert submissions(Layout.PAGE_FIRST, Backend.BATCH, **case) == 512


def test_the_table_has_an_entry_for_every_layout_and_backend() -> None:
    for layout in Layout:
        for backend in Backend:
            assert (compatible(layout, backend) is None) == (backend in (Backend.CPU, Backend.TORCH))
            assert (compatible(layout, backend, "cuda") is None) == (backend is not Backend.CPU)
            assert (compatible(layout, backend, "xpu") is None) == (backend in (Backend.TORCH, Backend.DIRECT))


def test_what_does_not_go_together_is_refused_with_both_names_the_reason_and_what_works() -> None:
    require_compatible(Layout.PAGE_FIRST, Backend.CPU)
    with pytest.raises(UsageError) as caught:
        require_compatible(Layout.PAGE_FIRST, Backend.DIRECT)
    error = caught.value
    assert "page_first" in error.what
    assert "direct" in error.what
    assert error.why == "direct comes with an accelerator"
    assert "cpu or torch" in (error.hint or "")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    assert Layout.parse("layer_first") is Layout.LAYER_FIRST
    assert Backend.parse("cpu") is Backend.CPU
    with pytest.raises(UsageError) as caught:
        Layout.parse("layer-first")
    assert "did you mean layer_first" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="'touch'") as caught:
        Backend.parse("touch")
    assert "torch" in (caught.value.hint or "")


def test_layer_first_and_page_first_direct_write_the_same_storage_objects() -> None:
    assert Layout.LAYER_FIRST.object_layout is Layout.PAGE_FIRST_DIRECT.object_layout
    assert Layout.PAGE_FIRST.object_layout is Layout.PAGE_FIRST
