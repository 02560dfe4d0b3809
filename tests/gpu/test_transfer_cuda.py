"""The transfer engine on a CUDA device: the same bytes, whatever the layout, the backend, the geometry and the slots."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from hicachectl.runtime.geometry import KVGeometry, KVKind, preset
from hicachectl.runtime.layout import Backend, Layout, compatible
from hicachectl.runtime.memory.cuda_registrar import registrar_for
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool, map_pool
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.probes.products import Products
from hicachectl.runtime.transfer.backends import make_backend
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.transfer.options import StagingOptions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

N_SLOTS = 40
ON_CUDA = [kind for kind in Backend if compatible(Layout.PAGE_FIRST, kind, "cuda") is None]
GEOMETRIES = [
    preset("qwen3-8b", 16),
    KVGeometry("gqa-fp8", KVKind.GQA, n_layers=5, token_plane_bytes=1024, page_tokens=7, dtype="fp8"),
    KVGeometry("mla", KVKind.MLA, n_layers=9, token_plane_bytes=1152, page_tokens=64),
    KVGeometry("mla-one-plane", KVKind.MLA, n_layers=1, token_plane_bytes=6, page_tokens=3),
    KVGeometry("one-token", KVKind.GQA, n_layers=3, token_plane_bytes=36, page_tokens=1),
]


LEAST_BATCH = 12080
"""CUDA 12.8: cudaMemcpyBatchAsync (CUDA Runtime API, release notes)."""


def driver_version() -> int:
    """Return the CUDA version of the driver, such as 13000, by its own word."""
    found = ctypes.c_int()
    assert ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found)) == 0
    return found.value


def registered_pool(geometry: KVGeometry, layout: Layout) -> HostPool:
    registrar = registrar_for("cuda")
    memory = map_pool(geometry, N_SLOTS, layout, MappingSpec(must_register=True), registrar=registrar)
    return HostPool(geometry, N_SLOTS, layout, mapping=memory)


@pytest.mark.parametrize("slots", ["scattered", "consecutive", "one page"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
@pytest.mark.parametrize("layout", Layout)
def test_pages_that_go_up_and_down_again_are_the_same_bytes(
    layout: Layout, kind: Backend, geometry: KVGeometry, slots: str
) -> None:
    if kind is Backend.BATCH and driver_version() < LEAST_BATCH:
        pytest.skip("the driver has no batched copy")
    rng = np.random.default_rng(0)
    device, host = DevicePool(geometry, N_SLOTS, "cuda"), registered_pool(geometry, layout)
    host.array[:] = rng.integers(0, 256, host.array.shape, dtype=np.uint8)
    if slots == "scattered":
        up, on_device = (rng.permutation(N_SLOTS)[:15].astype(np.int32) for _ in range(2))
        down = np.setdiff1d(np.arange(N_SLOTS, dtype=np.int32), up)[:15]
    else:
        n = 15 if slots == "consecutive" else 1
        up, on_device, down = (np.arange(start, start + n, dtype=np.int32) for start in (2, 9, 20))
    options = StagingOptions(staging_bytes=4 * 3 * geometry.page_bytes, least_group_bytes=0)
    try:
        backend = make_backend(kind, layout, "cuda", options)  # one that is refused here is a failure, not a skip
        for groups in (None, [1, geometry.n_layers - 1] if geometry.n_layers > 1 else [1]):
            device.tensor.zero_()
            engine = TransferEngine(device, host, backend, groups)
            try:
                load = engine.load(up, on_device)
                assert load.order_layer(geometry.n_layers - 1, 60)
                assert load.wait(60)
                assert load.error is None
                backup = engine.backup(on_device, down)
                assert backup.wait(60)
                assert backup.error is None
            finally:
                engine.close()
            planes = device.tensor.cpu().numpy()
            for at, fro, to in zip(on_device.tolist(), up.tolist(), down.tolist(), strict=True):
                np.testing.assert_array_equal(planes[:, at], host.read_page(fro))
                np.testing.assert_array_equal(host.read_page(to), host.read_page(fro))
    finally:
        torch.cuda.synchronize()
        host.close()
        device.close()


@pytest.mark.parametrize("way", ["load", "backup"])
def test_a_transfer_beside_products_ends_before_those_that_are_queued(way: str) -> None:
    geometry, layout = GEOMETRIES[0], Layout.PAGE_FIRST_DIRECT
    device, host = DevicePool(geometry, N_SLOTS, "cuda"), registered_pool(geometry, layout)
    slots = np.arange(15, dtype=np.int32)
    engine = TransferEngine(device, host, make_backend(Backend.STRIDED, layout, "cuda"))
    compute, queued, left = Products(torch.device("cuda"), 8192), torch.cuda.current_stream(), []

    def move() -> None:
        transfer = getattr(engine, way)(slots, slots)
        assert transfer.wait(60)
        assert transfer.error is None
        left.append(not queued.query())

    try:
        assert getattr(engine, way)(slots, slots).wait(60)  # kernels are made by now
        compute.in_a_row((1, 300), {1: move})
        assert left == [True]
    finally:
        engine.close()
        torch.cuda.synchronize()
        host.close()
        device.close()
