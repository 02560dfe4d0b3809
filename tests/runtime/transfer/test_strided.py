from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fakes.cuda_runtime import FakeCuda, QueuedMover, launched_on_processor
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.device import AcceleratorOrder
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.strided import StridedBackend

N_SLOTS = 24
LONG_S = 30.0
GEOMETRIES = [
    KVGeometry("gqa", KVKind.GQA, n_layers=3, token_plane_bytes=8, page_tokens=4),
    KVGeometry("gqa-odd-bytes", KVKind.GQA, n_layers=2, token_plane_bytes=7, page_tokens=3, dtype="fp8"),
    KVGeometry("mla", KVKind.MLA, n_layers=5, token_plane_bytes=18, page_tokens=2),
    KVGeometry("mla-one-plane", KVKind.MLA, n_layers=1, token_plane_bytes=2, page_tokens=4),
    KVGeometry("one-token", KVKind.GQA, n_layers=2, token_plane_bytes=12, page_tokens=1),
]


class Rig:
    """A strided backend over a fake device whose memory is a processor's."""

    def __init__(
        self,
        geometry: KVGeometry,
        layout: Layout,
        options: StagingOptions,
        *,
        seed: int = 0,
        kernel: bool = False,
        version: int = 13000,
        driver_batch: bool = True,
        room: int | None = None,
    ) -> None:
        self.cuda = FakeCuda(seed, version=version, driver_batch=driver_batch)
        self.device, self.host = DevicePool(geometry, N_SLOTS), HostPool(geometry, N_SLOTS, layout)
        rng = np.random.default_rng(seed)
        self.device.planes_numpy()[:] = rng.integers(0, 256, self.device.planes_numpy().shape, dtype=np.uint8)
        self.host.array[:] = rng.integers(0, 256, self.host.array.shape, dtype=np.uint8)
        self.room = room
        self.backend = StridedBackend(
            CudaRuntime(self.cuda.library),
            QueuedMover(self.cuda, launched_on_processor() if kernel else None),
            self.cuda,
            options,
            allocate=self._allocate,
            allocate_pinned=lambda n: torch.zeros(n, dtype=torch.uint8),
        )

    def _allocate(self, n_bytes: int, device: torch.device) -> torch.Tensor:
        if self.room is not None and n_bytes > self.room:
            raise torch.OutOfMemoryError(f"tried to allocate {n_bytes}")
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def copy(self, direction: Direction, device_slots: Slots, host_slots: Slots, planes: range) -> Any:
        took = self.backend.copy(direction, self.device, self.host, device_slots, host_slots, planes)
        self.cuda.current_stream().synchronize()
        return took

    def pages(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        on_device = {slot: self.device.planes_numpy()[:, slot].tobytes() for slot in range(N_SLOTS)}
        return on_device, {slot: self.host.read_page(slot).tobytes() for slot in range(N_SLOTS)}


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
    n_chunks = data.draw(st.integers(1, 40))
    n_buffers = data.draw(st.integers(2, 3))
    rig = Rig(
        geometry,
        layout,
        StagingOptions(2 * n_buffers * n_chunks * geometry.chunk_bytes, n_buffers, least_group_bytes=0),
        seed=data.draw(st.integers(0, 1000)),
        kernel=data.draw(st.booleans()),
        version=data.draw(st.sampled_from([12060, 12080, 13000])),
        driver_batch=data.draw(st.booleans()),
    )
    layers = data.draw(st.integers(1, geometry.n_layers))
    groups = [layers, geometry.n_layers - layers] if layers < geometry.n_layers else [layers]
    engine = TransferEngine(
        rig.device, rig.host, rig.backend, groups, orders=lambda device: AcceleratorOrder(device, rig.cuda)
    )
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            on_device, on_host = rig.pages()
            one, other = data.draw(slot_lists()), data.draw(slot_lists())
            n = min(one.size, other.size)
            host_slots, device_slots = one[:n], other[:n]
            down = int(data.draw(st.integers(0, n)))
            loads = engine.load(host_slots[down:], device_slots[down:])
            backups = engine.backup(device_slots[:down], host_slots[:down])
            for transfer in (loads, backups):
                assert transfer.wait(LONG_S)
                if transfer.error is not None:
                    raise transfer.error
            for d, h in zip(device_slots[down:].tolist(), host_slots[down:].tolist(), strict=True):
                on_device[d] = on_host[h]
            for d, h in zip(device_slots[:down].tolist(), host_slots[:down].tolist(), strict=True):
                on_host[h] = on_device[d]
            assert rig.pages() == (on_device, on_host)
            assert loads.n_bytes == (n - down) * geometry.page_bytes
    finally:
        engine.close()
