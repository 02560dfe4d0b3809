"""The `batch` and `direct` copy backends: no staging, the copy engines write to the slots themselves.

`batch` starts all pieces with one batched-copy call, `direct` with a call each. On one H200 the calls for pieces of 72
KiB hold their thread for most of the copy's time (docs/facts.md#h200-submissions): for small transfers, to compare, and
for devices that have nothing better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from hicachectl.errors import Unsupported
from hicachectl.runtime.layout import Backend
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction, Submitted
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.groups import group_planes
from hicachectl.runtime.transfer.host_rows import Edges, edges_of
from hicachectl.runtime.transfer.pieces import Offsets, PieceLists, PieceWork
from hicachectl.runtime.transfer.streams import StreamModule
from hicachectl.runtime.transfer.work import copy_all

__all__ = ["BatchBackend", "DirectBackend"]


class _Straight(ABC):
    """What both share: piece lists of either direction, and the two ways to open a transfer."""

    kind: Backend

    def __init__(self) -> None:
        self._lists: dict[tuple[Direction, Edges], PieceLists] = {}

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:  # noqa: B027
        """Keep nothing: there is no staging."""

    def copy(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        planes: range,
    ) -> Submitted:
        self.prepare(direction, device_pool, host_pool, len(planes))
        return copy_all(self._open(direction, device_pool, host_pool, device_slots, host_slots, [(planes, None)]))

    def begin(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        layer_groups: Sequence[int],
    ) -> PieceWork:
        groups = group_planes(device_pool.geometry, layer_groups)
        return self._open(direction, device_pool, host_pool, device_slots, host_slots, groups)

    def _open(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        groups: Sequence[tuple[range, int | None]],
    ) -> PieceWork:
        def move(way: Direction, far: Offsets, near: Offsets, sizes: Offsets) -> int:
            return self._start(way, device_pool, host_pool, far, near, sizes)

        edges = edges_of(host_pool.registrations)
        lists = self._lists.get((direction, edges))
        if lists is None:
            lists = self._lists[direction, edges] = PieceLists(edges)
        return PieceWork(direction, device_pool, host_pool, device_slots, host_slots, groups, lists, move)

    @abstractmethod
    def _start(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        far: Offsets,
        near: Offsets,
        sizes: Offsets,
    ) -> int:
        """Start the copies of pieces, `far` on the host and `near` on the device, in bytes; return the submissions it took."""


class BatchBackend(_Straight):
    """One batched-copy call a step. Raises Unsupported where library or driver do not have it."""

    kind = Backend.BATCH

    def __init__(self, runtime: CudaRuntime, streams: StreamModule) -> None:
        super().__init__()
        self._runtime, self._streams = runtime, streams
        self._require()

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        self._require()

    def _require(self) -> None:
        if self._runtime.batch_missing is not None:
            raise Unsupported(
                "copy backend batch cannot work here", why=self._runtime.batch_missing, hint="use copy backend strided"
            )

    def _start(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        far: Offsets,
        near: Offsets,
        sizes: Offsets,
    ) -> int:
        far += host_pool.array.ctypes.data
        near += device_pool.tensor.data_ptr()
        to, fro = (near, far) if direction is Direction.LOAD else (far, near)
        stream = self._streams.current_stream(device_pool.device).cuda_stream
        self._runtime.copy_batch(to.ctypes.data, fro.ctypes.data, sizes.ctypes.data, int(sizes.size), stream)
        return 1


class DirectBackend(_Straight):
    """One copy a piece: by the CUDA runtime, or without one by torch on any device."""

    kind = Backend.DIRECT

    def __init__(self, runtime: CudaRuntime | None = None, streams: StreamModule | None = None) -> None:
        super().__init__()
        self._runtime, self._streams = runtime, streams

    def _start(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        far: Offsets,
        near: Offsets,
        sizes: Offsets,
    ) -> int:
        load = direction is Direction.LOAD
        if self._runtime is None or self._streams is None:
            host, device = host_pool.tensor.view(-1), device_pool.tensor.view(-1)
            for on_host, on_device, n in zip(far.tolist(), near.tolist(), sizes.tolist(), strict=True):
                _copy(device[on_device : on_device + n], host[on_host : on_host + n], load)
            return int(sizes.size)
        stream: Any = self._streams.current_stream(device_pool.device).cuda_stream
        far += host_pool.array.ctypes.data
        near += device_pool.tensor.data_ptr()
        copy, (to, fro) = self._runtime.copy, (near, far) if load else (far, near)
        for at, source, n in zip(to.tolist(), fro.tolist(), sizes.tolist(), strict=True):
            copy(at, source, n, stream)
        return int(sizes.size)


def _copy(on_device: torch.Tensor, on_host: torch.Tensor, load: bool) -> None:
    if load:
        on_device.copy_(on_host, non_blocking=True)
    else:
        on_host.copy_(on_device, non_blocking=True)
