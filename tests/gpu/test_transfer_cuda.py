"""The transfer engine on a CUDA device: the same bytes, whatever the layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.transfer.backends import make_backend
from hicachectl.runtime.transfer.engine import TransferEngine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("groups", [None, [1, 35]])
@pytest.mark.parametrize("layout", Layout)
def test_pages_that_go_up_and_down_again_are_the_same_bytes(layout: Layout, groups: list[int] | None) -> None:
    geometry, rng = preset("qwen3-8b", 16), np.random.default_rng(0)
    device, host = DevicePool(geometry, 32, "cuda"), HostPool(geometry, 32, layout)
    host.array[:] = rng.integers(0, 256, host.array.shape, dtype=np.uint8)
    up = rng.permutation(32)[:15].astype(np.int32)
    on_device = rng.permutation(32)[:15].astype(np.int32)
    down = np.setdiff1d(np.arange(32, dtype=np.int32), up)[:15]
    engine = TransferEngine(device, host, make_backend(Backend.TORCH, layout), groups)
    try:
        load = engine.load(up, on_device)
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
