"""A copy backend over a fake device whose memory is a processor's: pools of random bytes, and streams that run in any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fakes.cuda_runtime import FakeCuda, QueuedMover, launched_on_processor
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction, prepare_both
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.device import AcceleratorOrder
from hicachectl.runtime.transfer.engine import Transfer, TransferEngine
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.straight import BatchBackend, DirectBackend
from hicachectl.runtime.transfer.strided import StridedBackend
from hicachectl.runtime.transfer.uva import UvaBackend

__all__ = ["GEOMETRIES", "LONG_S", "N_SLOTS", "ON_CUDA", "Rig", "finish", "some"]

N_SLOTS = 24
ON_CUDA = [Backend.STRIDED, Backend.BATCH, Backend.DIRECT, Backend.UVA]
LONG_S = 30.0
GEOMETRIES = [
    KVGeometry("gqa", KVKind.GQA, n_layers=3, token_plane_bytes=8, page_tokens=4),
    KVGeometry("gqa-odd-bytes", KVKind.GQA, n_layers=2, token_plane_bytes=7, page_tokens=3, dtype="fp8"),
    KVGeometry("mla", KVKind.MLA, n_layers=5, token_plane_bytes=18, page_tokens=2),
    KVGeometry("mla-one-plane", KVKind.MLA, n_layers=1, token_plane_bytes=2, page_tokens=4),
    KVGeometry("one-token", KVKind.GQA, n_layers=2, token_plane_bytes=12, page_tokens=1),
    KVGeometry("int8-prime", KVKind.MLA, n_layers=3, token_plane_bytes=13, page_tokens=11, dtype="int8"),
    KVGeometry("fp8-e5m2-odd", KVKind.GQA, n_layers=1, token_plane_bytes=5, page_tokens=1, dtype="fp8_e5m2"),
    KVGeometry("fp16-odd", KVKind.GQA, n_layers=2, token_plane_bytes=6, page_tokens=7, dtype="fp16"),
    KVGeometry("fp32-odd", KVKind.GQA, n_layers=2, token_plane_bytes=20, page_tokens=5, dtype="fp32"),
]


def some(*values: int) -> Slots:
    return np.array(values, dtype=np.int32)


def finish(transfer: Transfer) -> Transfer:
    assert transfer.wait(LONG_S)
    if transfer.error is not None:
        raise transfer.error
    return transfer


class PoolInParts(HostPool):
    """A host pool whose registrations meet at `edges`."""

    def __init__(self, geometry: KVGeometry, layout: Layout, edges: tuple[int, ...], n_slots: int) -> None:
        super().__init__(geometry, n_slots, layout)
        self._parts = (0, *edges, self.n_bytes)

    @property
    def registrations(self) -> tuple[tuple[int, int], ...]:
        return tuple(pairwise(self._parts))


class Rig:
    """A backend over a fake device whose memory is a processor's."""

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
        kind: Backend = Backend.STRIDED,
        edges: tuple[int, ...] = (),
        n_slots: int = N_SLOTS,
    ) -> None:
        self.cuda = FakeCuda(seed, version=version, driver_batch=driver_batch)
        self.device, self.host = DevicePool(geometry, n_slots), PoolInParts(geometry, layout, edges, n_slots)
        self.cuda.borders = [self.host.array.ctypes.data + edge for edge in edges]
        rng = np.random.default_rng(seed)
        self.device.planes_numpy()[:] = rng.integers(0, 256, self.device.planes_numpy().shape, dtype=np.uint8)
        self.host.array[:] = rng.integers(0, 256, self.host.array.shape, dtype=np.uint8)
        self.room = room
        self.runtime = CudaRuntime(self.cuda.library)
        self.mover = QueuedMover(self.cuda, launched_on_processor() if kernel else None)
        memory = {"allocate": self._allocate, "allocate_pinned": lambda n: torch.zeros(n, dtype=torch.uint8)}
        self.backend: Any
        if kind is Backend.STRIDED:
            self.backend = StridedBackend(self.runtime, self.mover, self.cuda, options, **memory)
        elif kind is Backend.UVA:
            self.backend = UvaBackend(self.runtime, self.mover, self.cuda, options, **memory)
        elif kind is Backend.BATCH:
            self.backend = BatchBackend(self.runtime, self.cuda)
        else:
            self.backend = DirectBackend(self.runtime, self.cuda)

    @contextmanager
    def engine(self, groups: list[int] | None = None) -> Iterator[TransferEngine]:
        engine = TransferEngine(
            self.device, self.host, self.backend, groups, orders=lambda device: AcceleratorOrder(device, self.cuda)
        )
        try:
            yield engine
        finally:
            engine.close()

    def _allocate(self, n_bytes: int, device: torch.device) -> torch.Tensor:
        if self.room is not None and n_bytes > self.room:
            raise torch.OutOfMemoryError(f"tried to allocate {n_bytes}")
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def prepare(self) -> None:
        """Prepare both directions, and forget which calls that took."""
        prepare_both(self.backend, self.device, self.host)
        self.cuda.started.clear()
        self.cuda.pieces.clear()
        self.mover.programs.clear()

    def copy(self, direction: Direction, device_slots: Slots, host_slots: Slots, planes: range) -> Any:
        with self.cuda.stream(self.cuda.Stream()):
            took = self.backend.copy(direction, self.device, self.host, device_slots, host_slots, planes)
            self.cuda.current_stream().synchronize()
        return took

    def pages(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        on_device = {slot: self.device.planes_numpy()[:, slot].tobytes() for slot in range(self.device.n_slots)}
        return on_device, {slot: self.host.read_page(slot).tobytes() for slot in range(self.host.n_slots)}
