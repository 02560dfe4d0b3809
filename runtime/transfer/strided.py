"""The `strided` copy backend: rows of a layer group into staging in device memory, then one scatter kernel; back alike.

    load     copy stream     rows -> buffer 0 | rows -> buffer 1 | rows -> buffer 0 (after its scatter) | ...
             kernel stream                    | scatter 0        | scatter 1        | ...
    backup   kernel stream   gather -> 0 | gather -> 1 | ...
             copy stream                 | 0 -> rows   | 1 -> rows | ...

The kernel stream is the submission thread's own (`device.py`), so what waits for it waits for whole pages. The copy
engines do the moving: compute keeps its multiprocessors but for the short kernel. Whatever the layout and wherever the
slots are, the link sees wide rows. Measured on one H200: docs/facts.md#h200-groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hicachectl.runtime.layout import Backend
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction, Submitted
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.movers import Mover, word_bytes
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.staging import SlotTable, Staging
from hicachectl.runtime.transfer.streams import StreamModule, new_event
from hicachectl.runtime.transfer.strided_lane import Lane
from hicachectl.runtime.transfer.strided_work import StridedWork
from hicachectl.runtime.transfer.work import copy_all

__all__ = ["StridedBackend"]


class StridedBackend:
    """Copies through staging. `streams` is torch's module of the device (`torch.cuda`).

    `allocate` makes device memory, `allocate_pinned` registered host memory, both of so many bytes.
    """

    kind = Backend.STRIDED

    def __init__(
        self,
        runtime: CudaRuntime,
        mover: Mover,
        streams: StreamModule,
        options: StagingOptions,
        *,
        allocate: Callable[[int, torch.device], torch.Tensor],
        allocate_pinned: Callable[[int], torch.Tensor],
    ) -> None:
        self._runtime = runtime
        self._mover = mover
        self._streams = streams
        self._options = options
        self._allocate = allocate
        self._allocate_pinned = allocate_pinned
        self._lanes: dict[Direction, Lane] = {}

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        self._lane(direction, device_pool, host_pool)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not as asked, with its reason."""
        return tuple(dict.fromkeys(note for lane in self._lanes.values() for note in lane.notes))

    @property
    def staging_bytes(self) -> int:
        """Bytes of device memory held as staging."""
        return sum(lane.staging.n_bytes for lane in self._lanes.values())

    def copy(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        planes: range,
    ) -> Submitted:
        return copy_all(StridedWork(self._lane(direction, device_pool, host_pool), device_slots, host_slots, planes))

    def begin(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        layer_groups: Sequence[int],
    ) -> StridedWork:
        return StridedWork(self._lane(direction, device_pool, host_pool), device_slots, host_slots, layer_groups)

    def _lane(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool) -> Lane:
        lane = self._lanes.get(direction)
        if lane is None or lane.device_pool is not device_pool or lane.host_pool is not host_pool:
            lane = self._lanes[direction] = self._open_lane(direction, device_pool, host_pool)
        return lane

    def _open_lane(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool) -> Lane:
        geometry, device = device_pool.geometry, device_pool.device
        word, dtype = word_bytes(host_pool.map.row_bytes)
        chunk = geometry.chunk_bytes  # whole words, as its rows are
        most = max(chunk, min(self._options.buffer_bytes, device_pool.n_bytes) // word * word)
        least = min(most, max(chunk, (1 << 20) // word * word))
        staging = Staging(
            self._options.n_buffers,
            most,
            least,
            dtype,
            lambda n: self._allocate(n, device),
            lambda: new_event(self._streams),
        )
        table = SlotTable.of(
            device_pool.n_slots,
            device,
            allocate=self._allocate,
            allocate_pinned=self._allocate_pinned,
            read=new_event(self._streams),
        )
        lane = Lane(
            direction,
            device_pool,
            host_pool,
            self._runtime,
            self._mover,
            self._streams,
            self._options,
            staging,
            table,
            dtype,
        )
        if chunk > self._options.buffer_bytes:
            n_buffers = self._options.n_buffers
            lane.notes.append(
                f"staging of 2 x {n_buffers} x {chunk} bytes instead of {self._options.staging_bytes}: "
                f"{n_buffers} buffers a direction, each of a chunk at least"
            )
        if self._mover.note is not None:
            lane.notes.append(self._mover.note)
        return lane
