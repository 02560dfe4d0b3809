"""The `cpu` copy backend: numpy, for a device pool in host memory. The reference for the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hicachectl.runtime.layout import STAGING_BYTES, Backend, PoolMap, pages_a_block, segments
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots, paired_runs
from hicachectl.runtime.transfer.backends import Direction, Submitted

__all__ = ["CpuBackend"]

# numpy holds the interpreter lock while it scatters fewer than 500 one-dimensional elements, and never does with rows of
# two dimensions; rows shorter than this are cheaper as elements, and fewer than 500 of them are moved in no time.
_ELEMENT_BYTES = 512


class CpuBackend:
    """Copies run by run when the slots form few runs, else gathers into staging and scatters from it, block by block.

    A few large calls, because each call takes the interpreter lock again when it ends.
    """

    kind = Backend.CPU

    def __init__(self, staging_bytes: int = STAGING_BYTES) -> None:
        self._staging_bytes = staging_bytes
        self._staging: dict[Direction, NDArray[np.uint8]] = {}

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        page_bytes = n_planes * device_pool.geometry.chunk_bytes
        n_bytes = pages_a_block(page_bytes, self._staging_bytes) * page_bytes
        held = self._staging.get(direction)
        if held is None or held.size < n_bytes:
            self._staging[direction] = np.full(n_bytes, 0, dtype=np.uint8)  # touched, so that no copy pays for it

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
        runs = paired_runs(device_slots, host_slots)
        n_pages, n_runs = int(device_slots.size), len(runs)
        block = pages_a_block(len(planes) * geometry.chunk_bytes, self._staging_bytes)
        n_blocks = -(-n_pages // block)
        device, host = device_pool.planes_numpy().reshape(-1), host_pool.array.reshape(-1)
        if direction is Direction.LOAD:
            source, source_map, source_slots = host, host_pool.map, host_slots
            target, target_map, target_slots = device, device_pool.map, device_slots
        else:
            source, source_map, source_slots = device, device_pool.map, device_slots
            target, target_map, target_slots = host, host_pool.map, host_slots
            runs = runs[:, [1, 0, 2]]
        if n_runs <= 2 * n_blocks:
            target_view = _tokens(target, target_map)[planes.start : planes.stop]
            source_view = _tokens(source, source_map)[planes.start : planes.stop]
            for to, fro, n in runs.tolist():
                target_view[:, to : to + n] = source_view[:, fro : fro + n]
            n_submissions = n_runs
        else:
            self.prepare(direction, device_pool, host_pool, len(planes))
            staging = self._staging[direction]
            for start in range(0, n_pages, block):
                end = min(start + block, n_pages)
                moved = staging[: (end - start) * len(planes) * geometry.chunk_bytes]
                _gather(source, source_map, source_slots[start:end], planes, moved)
                _scatter(target, target_map, target_slots[start:end], planes, moved)
            n_submissions = 2 * n_blocks
        n_segments = segments(
            host_pool.layout,
            n_pages=n_pages,
            n_planes=geometry.n_planes,
            n_runs=n_runs,
            page_tokens=geometry.page_tokens,
            moved_planes=len(planes),
        )
        return Submitted(n_submissions, n_segments)


def _tokens(flat: NDArray[np.uint8], at: PoolMap) -> NDArray[np.void]:
    """View a pool as [plane, slot, token], a token of a plane being one element."""
    elements: NDArray[np.void] = flat.view(f"V{at.geometry.token_plane_bytes}").reshape(at.shape[:3])
    return elements.transpose(at.layer_order[:3])


def _gather(source: NDArray[np.uint8], at: PoolMap, slots: Slots, planes: range, staging: NDArray[np.uint8]) -> None:
    rows = source.reshape(-1, at.row_bytes)
    # Row numbers come from checked slots; "clip" only spares numpy a buffered copy of `out`.
    np.take(rows, at.rows(slots, planes), axis=0, out=staging.reshape(-1, at.row_bytes), mode="clip")


def _scatter(target: NDArray[np.uint8], at: PoolMap, slots: Slots, planes: range, staging: NDArray[np.uint8]) -> None:
    if at.row_bytes < _ELEMENT_BYTES:
        element = f"V{at.row_bytes}"
        target.view(element)[at.rows(slots, planes)] = staging.view(element)
    else:
        target.reshape(-1, at.row_bytes)[at.rows(slots, planes)] = staging.reshape(-1, at.row_bytes)
