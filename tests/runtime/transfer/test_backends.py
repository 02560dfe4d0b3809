from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.accelerator_rig import GEOMETRIES as ODD_GEOMETRIES
from fakes.accelerator_rig import N_SLOTS

from hicachectl.errors import UsageError
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout, submissions
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots, paired_runs
from hicachectl.runtime.transfer.backends import CopyBackend, Direction, make_backend
from hicachectl.runtime.transfer.cpu import CpuBackend
from hicachectl.runtime.transfer.torch_index import TorchIndexBackend

GEOMETRIES = [
    *ODD_GEOMETRIES,
    KVGeometry("wide", KVKind.GQA, n_layers=1, token_plane_bytes=600, page_tokens=2),
]


def some(*values: int) -> Slots:
    return np.array(values, dtype=np.int32)


PATTERNS = {
    "one page": (some(5), some(0)),
    "one run": (np.arange(3, 10, dtype=np.int32), np.arange(11, 18, dtype=np.int32)),
    "two runs": (np.arange(8, dtype=np.int32), np.concatenate((np.arange(4), np.arange(10, 14))).astype(np.int32)),
    "host scattered": (np.arange(7, dtype=np.int32), some(20, 3, 9, 1, 23, 0, 7)),
    "device scattered": (some(20, 3, 9, 1, 23, 0, 7), np.arange(7, dtype=np.int32)),
    "both scattered": (some(22, 4, 0, 13, 2), some(1, 23, 8, 0, 15)),
    "descending": (some(9, 8, 7, 6, 5), some(14, 13, 12, 11, 10)),
    "all": (np.arange(N_SLOTS, dtype=np.int32), np.arange(N_SLOTS, dtype=np.int32)[::-1].copy()),
}


def backends(page_bytes: int) -> list[CopyBackend]:
    """Both backends, with staging for everything and for two pages."""
    return [CpuBackend(), CpuBackend(2 * page_bytes), TorchIndexBackend(), TorchIndexBackend(2 * page_bytes)]


def random_bytes(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pools(geometry: KVGeometry, layout: Layout) -> tuple[DevicePool, HostPool]:
    device, host = DevicePool(geometry, N_SLOTS), HostPool(geometry, N_SLOTS, layout)
    device.planes_numpy()[:] = random_bytes(device.planes_numpy().shape, 1)
    host.array[:] = random_bytes(host.array.shape, 2)
    return device, host


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("layout", Layout)
def test_a_load_brings_up_the_bytes_of_each_page_and_touches_no_other(
    layout: Layout, geometry: KVGeometry, pattern: str
) -> None:
    device_slots, host_slots = PATTERNS[pattern]
    for backend in backends(geometry.page_bytes):
        device, host = pools(geometry, layout)
        wanted, host_before = device.planes_numpy().copy(), host.array.copy()
        for to, fro in zip(device_slots.tolist(), host_slots.tolist(), strict=True):
            wanted[:, to] = host.read_page(fro)
        backend.copy(Direction.LOAD, device, host, device_slots, host_slots, range(geometry.n_planes))
        np.testing.assert_array_equal(device.planes_numpy(), wanted)
        np.testing.assert_array_equal(host.array, host_before)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("layout", Layout)
def test_a_backup_takes_down_the_bytes_of_each_page_and_touches_no_other(
    layout: Layout, geometry: KVGeometry, pattern: str
) -> None:
    device_slots, host_slots = PATTERNS[pattern]
    for backend in backends(geometry.page_bytes):
        device, host = pools(geometry, layout)
        model = HostPool(geometry, N_SLOTS, layout)
        model.array[:] = host.array
        for fro, to in zip(device_slots.tolist(), host_slots.tolist(), strict=True):
            model.write_page(to, device.planes_numpy()[:, fro].copy())
        device_before = device.planes_numpy().copy()
        backend.copy(Direction.BACKUP, device, host, device_slots, host_slots, range(geometry.n_planes))
        np.testing.assert_array_equal(host.array, model.array)
        np.testing.assert_array_equal(device.planes_numpy(), device_before)


@pytest.mark.parametrize("pattern", ["one run", "both scattered"])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", Layout)
def test_a_copy_of_some_planes_leaves_the_others_alone(layout: Layout, direction: Direction, pattern: str) -> None:
    geometry = GEOMETRIES[0]
    device_slots, host_slots = PATTERNS[pattern]
    for planes in (range(2), range(2, 5), range(5, 6)):
        for backend in backends(geometry.page_bytes):
            device, host = pools(geometry, layout)
            on_device, on_host = device.planes_numpy().copy(), host.layer_view().copy()
            backend.copy(direction, device, host, device_slots, host_slots, planes)
            chunks = (geometry.n_planes, N_SLOTS, geometry.page_tokens, geometry.token_plane_bytes)
            for plane in planes:
                for d, h in zip(device_slots.tolist(), host_slots.tolist(), strict=True):
                    if direction is Direction.LOAD:
                        on_device.reshape(chunks)[plane, d] = on_host[plane, h]
                    else:
                        on_host[plane, h] = on_device.reshape(chunks)[plane, d]
            np.testing.assert_array_equal(device.planes_numpy(), on_device)
            np.testing.assert_array_equal(host.layer_view(), on_host)


@pytest.mark.parametrize("kind", [Backend.CPU, Backend.TORCH])
@pytest.mark.parametrize("layout", Layout)
def test_what_goes_down_and_comes_up_elsewhere_is_the_same_bytes(layout: Layout, kind: Backend) -> None:
    for geometry in GEOMETRIES:
        device, host = pools(geometry, layout)
        backend = make_backend(kind, layout)
        first, host_slots, second = some(22, 4, 0, 13, 2), some(1, 23, 8, 0, 15), some(9, 10, 11, 1, 5)
        before = device.planes_numpy()[:, first].copy()
        planes = range(geometry.n_planes)
        backend.copy(Direction.BACKUP, device, host, first, host_slots, planes)
        device.planes_numpy()[:, first] = 0
        backend.copy(Direction.LOAD, device, host, second, host_slots, planes)
        np.testing.assert_array_equal(device.planes_numpy()[:, second], before)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", [Backend.CPU, Backend.TORCH])
@pytest.mark.parametrize("layout", Layout)
def test_the_submissions_counted_are_those_the_table_predicts(layout: Layout, kind: Backend, pattern: str) -> None:
    geometry = GEOMETRIES[0]
    device_slots, host_slots = PATTERNS[pattern]
    device, host = pools(geometry, layout)
    took = make_backend(kind, layout).copy(
        Direction.LOAD, device, host, device_slots, host_slots, range(geometry.n_planes)
    )
    predicted = submissions(
        layout,
        kind,
        n_pages=int(device_slots.size),
        n_planes=geometry.n_planes,
        n_runs=len(paired_runs(device_slots, host_slots)),
        page_tokens=geometry.page_tokens,
        chunk_bytes=geometry.chunk_bytes,
    )
    assert took.n_submissions == predicted


def test_small_staging_moves_scattered_pages_block_by_block() -> None:
    geometry = GEOMETRIES[0]
    device_slots, host_slots = PATTERNS["all"]
    device, host = pools(geometry, Layout.PAGE_FIRST_DIRECT)
    planes = range(geometry.n_planes)
    took = CpuBackend(5 * geometry.page_bytes).copy(Direction.LOAD, device, host, device_slots, host_slots, planes)
    assert took.n_submissions == 2 * 5  # 24 pages, 5 a block
    assert took.n_segments == 24 * 6


def test_make_backend_refuses_what_does_not_go_together() -> None:
    assert make_backend(Backend.TORCH, Layout.PAGE_FIRST).kind is Backend.TORCH
    with pytest.raises(UsageError, match="batch"):
        make_backend(Backend.BATCH, Layout.LAYER_FIRST)
