"""Every byte of a page is what it was on the other side, and no other byte has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.accelerator_rig import GEOMETRIES, N_SLOTS, ON_CUDA, Rig, finish, some
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.host_pool import slot_boundary_bytes
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer import strided_lane
from hicachectl.runtime.transfer.backends import Direction, Submitted
from hicachectl.runtime.transfer.host_rows import HostRows
from hicachectl.runtime.transfer.options import StagingOptions


@st.composite
def slot_lists(draw: st.DrawFn) -> Slots:
    n = draw(st.integers(1, 20))
    kind = draw(st.sampled_from(["scattered", "one run", "descending", "some runs", "a shuffled run"]))
    start = draw(st.integers(0, N_SLOTS - n))
    run = np.arange(start, start + n)
    if kind == "one run":
        return run.astype(np.int32)
    if kind == "descending":
        return run[::-1].astype(np.int32)
    shuffled = np.array(draw(st.permutations(range(N_SLOTS))))
    if kind == "a shuffled run":
        return shuffled[np.isin(shuffled, run)].astype(np.int32)
    return (shuffled[:n] if kind == "scattered" else np.sort(shuffled[:n])).astype(np.int32)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pages_keep_their_bytes_up_and_down_whatever_the_layout_geometry_slots_staging_and_order_of_streams(
    data: st.DataObject,
) -> None:
    geometry = data.draw(st.sampled_from(GEOMETRIES))
    layout = data.draw(st.sampled_from(list(Layout)))
    kind = data.draw(st.sampled_from([Backend.STRIDED, Backend.STRIDED, Backend.BATCH, Backend.UVA, Backend.DIRECT]))
    n_chunks = data.draw(st.integers(1, 40))
    n_buffers = data.draw(st.integers(2, 3))
    boundary = slot_boundary_bytes(geometry, layout)
    n_boundaries = N_SLOTS * geometry.page_bytes // boundary
    edges = tuple(sorted(n * boundary for n in data.draw(st.sets(st.integers(1, n_boundaries - 1), max_size=3))))
    rig = Rig(
        geometry,
        layout,
        StagingOptions(
            2 * n_buffers * n_chunks * geometry.chunk_bytes,
            n_buffers,
            least_group_bytes=0,
            first_pieces=data.draw(st.integers(1, 4)),
            few_slots=data.draw(st.sampled_from([0, 2, 64])),
        ),
        seed=data.draw(st.integers(0, 1000)),
        kernel=data.draw(st.booleans()),
        version=data.draw(st.sampled_from([12080, 13000] if kind is Backend.BATCH else [12060, 12080, 13000])),
        driver_batch=kind is Backend.BATCH or data.draw(st.booleans()),
        kind=kind,
        edges=edges,
    )
    layers = data.draw(st.integers(1, geometry.n_layers))
    groups = [layers, geometry.n_layers - layers] if layers < geometry.n_layers else [layers]
    with rig.engine(groups) as engine:
        for _ in range(data.draw(st.integers(1, 3))):
            on_device, on_host = rig.pages()
            one, other = data.draw(slot_lists()), data.draw(slot_lists())
            n = min(one.size, other.size)
            host_slots, device_slots = one[:n], other[:n]
            down = int(data.draw(st.integers(0, n)))
            load = engine.load(host_slots[down:], device_slots[down:])
            backup = engine.backup(device_slots[:down], host_slots[:down])
            finish(load)
            finish(backup)
            for d, h in zip(device_slots[down:].tolist(), host_slots[down:].tolist(), strict=True):
                on_device[d] = on_host[h]
            for d, h in zip(device_slots[:down].tolist(), host_slots[:down].tolist(), strict=True):
                on_host[h] = on_device[d]
            assert rig.pages() == (on_device, on_host)
            assert load.n_bytes == (n - down) * geometry.page_bytes


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
@pytest.mark.parametrize("layout", Layout)
def test_a_copy_of_some_planes_leaves_the_others_alone(layout: Layout, kind: Backend, direction: Direction) -> None:
    geometry = GEOMETRIES[0]
    device_slots, host_slots = some(22, 4, 0, 13, 2), some(1, 23, 8, 0, 15)
    for planes in (range(2), range(2, 5), range(5, 6)):
        rig = Rig(geometry, layout, StagingOptions(4 * 3 * geometry.chunk_bytes), kind=kind, kernel=True)
        chunks = (geometry.n_planes, N_SLOTS, geometry.page_tokens, geometry.token_plane_bytes)
        on_device, on_host = rig.device.planes_numpy().reshape(chunks).copy(), rig.host.layer_view().copy()
        rig.copy(direction, device_slots, host_slots, planes)
        for d, h in zip(device_slots.tolist(), host_slots.tolist(), strict=True):
            if direction is Direction.LOAD:
                on_device[planes.start : planes.stop, d] = on_host[planes.start : planes.stop, h]
            else:
                on_host[planes.start : planes.stop, h] = on_device[planes.start : planes.stop, d]
        np.testing.assert_array_equal(rig.device.planes_numpy().reshape(chunks), on_device)
        np.testing.assert_array_equal(rig.host.layer_view(), on_host)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("rest", ["scattered too", "one run"])
def test_many_pages_whose_first_are_scattered_keep_their_bytes_up_and_down(layout: Layout, rest: str) -> None:
    geometry = KVGeometry("gqa", KVKind.GQA, n_layers=3, token_plane_bytes=8, page_tokens=4)
    options = StagingOptions(2 * 2 * 64 * geometry.page_bytes, least_group_bytes=0)
    rig = Rig(geometry, layout, options, n_slots=600)
    first = np.where(np.arange(16) % 2, 590, 30) - np.arange(16)  # no two in a row, and too far apart for one range
    others = np.setdiff1d(np.arange(600), first)
    if rest == "scattered too":
        np.random.default_rng(1).shuffle(others)
    host = np.concatenate((first, others[100:284])).astype(np.int32)
    device = np.random.default_rng(2).permutation(600)[: 2 * host.size].astype(np.int32)
    on_device, on_host = rig.pages()
    with rig.engine([1, 2]) as engine:
        finish(engine.load(host, device[: host.size]))
        now, _ = rig.pages()
        assert [now[int(d)] for d in device[: host.size]] == [on_host[int(h)] for h in host]
        finish(engine.backup(device[host.size :], host))
    assert [rig.pages()[1][int(h)] for h in host] == [on_device[int(d)] for d in device[host.size :]]


@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
def test_a_copy_may_follow_another_before_that_one_is_over(kind: Backend) -> None:
    geometry = GEOMETRIES[0]
    for seed in range(10):
        rig = Rig(geometry, Layout.PAGE_FIRST, StagingOptions(1 << 20), seed=seed, kind=kind, kernel=True)
        on_device, on_host = rig.pages()
        planes = range(geometry.n_planes)
        with rig.cuda.stream(rig.cuda.Stream()):
            for host, device in ((some(1, 2), some(5, 9)), (some(20, 4), some(8, 2)), (some(11, 12), some(20, 21))):
                rig.backend.copy(Direction.LOAD, rig.device, rig.host, device, host, planes)
                on_device |= {d: on_host[h] for d, h in zip(device.tolist(), host.tolist(), strict=True)}
            rig.cuda.current_stream().synchronize()
        assert rig.pages() == (on_device, on_host)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
@pytest.mark.parametrize("layout", Layout)
def test_no_copy_spans_two_registrations_however_long_the_run(
    layout: Layout, kind: Backend, direction: Direction
) -> None:
    geometry = GEOMETRIES[0]
    edge = 9 * slot_boundary_bytes(geometry, layout)
    run = np.arange(4, 20, dtype=np.int32)
    for planes in (range(geometry.n_planes), range(2)):
        rig = Rig(geometry, layout, StagingOptions(1 << 20), kind=kind, edges=(edge,))
        on_device, on_host = rig.device.planes_numpy().copy(), rig.host.layer_view().copy()
        rig.copy(direction, run, run, planes)
        part, chunks = slice(planes.start, planes.stop), on_host.shape
        if direction is Direction.LOAD:
            on_device.reshape(chunks)[part, 4:20] = on_host[part, 4:20]
        else:
            on_host[part, 4:20] = on_device.reshape(chunks)[part, 4:20]
        np.testing.assert_array_equal(rig.device.planes_numpy(), on_device)
        np.testing.assert_array_equal(rig.host.layer_view(), on_host)


def test_many_scattered_pages_in_many_small_steps_keep_their_bytes_transfer_after_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few: list[Any] = []
    by_numbers = HostRows._move_few

    def counted(rows: HostRows, *given: Any) -> Submitted:
        few.append(given)
        return by_numbers(rows, *given)

    monkeypatch.setattr(HostRows, "_move_few", counted)
    monkeypatch.setattr(strided_lane, "_LEAST_PIECE_BYTES", 1)
    geometry, n_pages = KVGeometry("gqa", KVKind.GQA, n_layers=3, token_plane_bytes=8, page_tokens=4), 150
    options = StagingOptions(2 * 2 * 20 * geometry.page_bytes, least_group_bytes=0)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, options, n_slots=400)
    rng = np.random.default_rng(1)
    with rig.engine([1, 2]) as engine:
        for _ in range(3):
            host_slots, device_slots = (rng.permutation(400).astype(np.int32) for _ in range(2))
            on_device, on_host = rig.pages()
            load = engine.load(host_slots[:n_pages], device_slots[:n_pages])
            backup = engine.backup(device_slots[n_pages : 2 * n_pages], host_slots[n_pages : 2 * n_pages])
            finish(load)
            finish(backup)
            for i in range(n_pages):
                on_device[int(device_slots[i])] = on_host[int(host_slots[i])]
                on_host[int(host_slots[n_pages + i])] = on_device[int(device_slots[n_pages + i])]
            assert rig.pages() == (on_device, on_host)
    n_calls = len(rig.cuda.pieces)
    assert 0 < len(few) <= 3 * 2 * 4  # the first calls of each transfer; the rest is worked out once a layer group
    assert n_calls > 2 * len(few)
