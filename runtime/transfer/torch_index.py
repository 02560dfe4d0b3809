"""The `torch` copy backend: index operations, on every device torch knows."""

from __future__ import annotations

import numpy as np
import torch

from hicachectl.runtime.layout import STAGING_BYTES, Backend, PoolMap, pages_a_block, segments
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots, paired_runs
from hicachectl.runtime.transfer.backends import Direction, Submitted
from hicachectl.runtime.transfer.streams import wait_for_device

__all__ = ["TorchIndexBackend"]

# Index operations move one element at a time, so rows are cut into the widest element that divides them.
_ELEMENTS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class TorchIndexBackend:
    """Gathers a block into staging on the source's side and scatters it on the target's.

    On an accelerator the block crosses in between, from or to pinned memory, on the current stream.
    """

    kind = Backend.TORCH

    def __init__(self, staging_bytes: int = STAGING_BYTES) -> None:
        self._staging_bytes = staging_bytes
        self._staging: dict[tuple[Direction, str], torch.Tensor] = {}

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        page_bytes = n_planes * device_pool.geometry.chunk_bytes
        n_bytes = pages_a_block(page_bytes, self._staging_bytes) * page_bytes
        accelerated = device_pool.device.type != "cpu"
        held = self._staging.get((direction, "host"))
        if held is None or held.numel() < n_bytes:
            self._staging[direction, "host"] = torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=accelerated)
            if accelerated:
                self._staging[direction, "device"] = torch.zeros(n_bytes, dtype=torch.uint8, device=device_pool.device)

    def copy(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        planes: range,
    ) -> Submitted:
        geometry = device_pool.geometry
        n_pages = int(device_slots.size)
        page_bytes = len(planes) * geometry.chunk_bytes
        block = pages_a_block(page_bytes, self._staging_bytes)
        self.prepare(direction, device_pool, host_pool, len(planes))
        near = self._staging[direction, "host"]
        far = self._staging.get((direction, "device"))
        device, host = device_pool.tensor.view(-1), host_pool.tensor.view(-1)
        n_submissions = 0
        for start in range(0, n_pages, block):
            end = min(start + block, n_pages)
            n_bytes = (end - start) * page_bytes
            on_host = near[:n_bytes]
            on_device = on_host if far is None else far[:n_bytes]
            host_rows = _row_numbers(host_pool.map, host_slots[start:end], planes, host.device)
            device_rows = _row_numbers(device_pool.map, device_slots[start:end], planes, device.device)
            if direction is Direction.LOAD:
                _gather(host, host_pool.map, host_rows, on_host)
                if far is not None:
                    on_device.copy_(on_host, non_blocking=True)
                _scatter(device, device_pool.map, device_rows, on_device)
                if far is not None:
                    _finish(device)  # the next block overwrites the pinned staging
            else:
                _gather(device, device_pool.map, device_rows, on_device)
                if far is not None:
                    on_host.copy_(on_device, non_blocking=True)
                    _finish(device)  # the processor reads what has just crossed
                _scatter(host, host_pool.map, host_rows, on_host)
            n_submissions += 2 if far is None else 3
        n_segments = segments(
            host_pool.layout,
            n_pages=n_pages,
            n_planes=geometry.n_planes,
            n_runs=len(paired_runs(device_slots, host_slots)),
            page_tokens=geometry.page_tokens,
            moved_planes=len(planes),
        )
        return Submitted(n_submissions, n_segments)


def _row_numbers(at: PoolMap, slots: Slots, planes: range, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(at.rows(slots, planes))).to(device)


def _as_rows(flat: torch.Tensor, row_bytes: int) -> torch.Tensor:
    dtype = next(dtype for width, dtype in _ELEMENTS if row_bytes % width == 0)
    return flat.view(dtype).view(-1, row_bytes // dtype.itemsize)


def _gather(source: torch.Tensor, at: PoolMap, rows: torch.Tensor, staging: torch.Tensor) -> None:
    torch.index_select(_as_rows(source, at.row_bytes), 0, rows, out=_as_rows(staging, at.row_bytes))


def _scatter(target: torch.Tensor, at: PoolMap, rows: torch.Tensor, staging: torch.Tensor) -> None:
    _as_rows(target, at.row_bytes).index_copy_(0, rows, _as_rows(staging, at.row_bytes))


def _finish(on: torch.Tensor) -> None:
    module = torch.get_device_module(on.device)
    if hasattr(module, "current_stream"):
        module.current_stream(on.device).synchronize()
    else:
        wait_for_device(module, on.device)
