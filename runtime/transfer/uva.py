"""The `uva` copy backend: a kernel that reads and writes registered host memory, with a bounded number of programs.

Few programs saturate the link; more only take multiprocessors from compute (docs/facts.md#h200-uva). It needs no staging
and does not care how small rows are, but it runs on the multiprocessors: measure it beside your compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hicachectl.errors import Unsupported
from hicachectl.runtime.layout import Backend
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction, Step, Submitted
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.first_move import first_move, making_kernels
from hicachectl.runtime.transfer.groups import group_planes
from hicachectl.runtime.transfer.movers import Mover, Side, word_bytes
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.pieces import steps_of
from hicachectl.runtime.transfer.staging import SlotTable
from hicachectl.runtime.transfer.streams import StreamModule, new_event
from hicachectl.runtime.transfer.work import copy_all

__all__ = ["UvaBackend"]


class UvaBackend:
    """Moves rows by kernel. Raises Unsupported when the kernel cannot read host memory (torch's index operations cannot)."""

    kind = Backend.UVA

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
        if not mover.reads_host:
            raise Unsupported(
                "copy backend uva cannot work here",
                why=f"the {mover.kind} kernel does not reach host memory",
                hint="install triton, or use copy backend strided",
            )
        self._runtime, self._mover, self._streams, self._options = runtime, mover, streams, options
        self._allocate, self._allocate_pinned = allocate, allocate_pinned
        self._lanes: dict[Direction, _Lane] = {}

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        """Raises Unsupported for a host pool that is not registered: a kernel that touches one loses the device."""
        lane = self._lanes.get(direction)
        if lane is None or lane.device_pool is not device_pool or lane.host_pool is not host_pool:
            _require_registered(host_pool)
            tables = [self._table(device_pool) for _ in range(2)]
            programs = self._options.load_programs if direction is Direction.LOAD else self._options.backup_programs
            lane = _Lane(
                direction,
                device_pool,
                host_pool,
                self._runtime,
                self._mover,
                self._streams,
                tables,
                programs,
                self._options.few_slots,
            )
            self._move_first(lane)
            self._lanes[direction] = lane

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
        lane = self._lanes[direction]
        return copy_all(_Work(lane, device_slots, host_slots, [(planes, None)], self._options.buffer_bytes))

    def begin(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        layer_groups: Sequence[int],
    ) -> _Work:
        self.prepare(direction, device_pool, host_pool, device_pool.geometry.n_planes)
        groups = group_planes(device_pool.geometry, layer_groups)
        return _Work(self._lanes[direction], device_slots, host_slots, groups, self._options.buffer_bytes)

    def _move_first(self, lane: _Lane) -> None:
        """Move a chunk by the kernel of a transfer, between memory of its own, so that no transfer waits for a compilation."""
        pool, host = lane.device_pool, lane.host_pool.map
        stream = lane.streams.current_stream(pool.device)
        fro, to = (self._allocate(pool.geometry.chunk_bytes, pool.device).view(lane.pool_words.dtype) for _ in range(2))
        slots = [table.write(np.zeros(1, dtype=np.int32)) for table in lane.tables]
        with making_kernels(lane.mover):
            first_move(
                lane.mover,
                fro,
                to,
                source_slots=slots[0],
                target_slots=slots[1],
                row_bytes=host.row_bytes,
                n_tokens=host.rows_a_chunk,
                stream=stream.cuda_stream,
            )
        stream.synchronize()

    def _table(self, device_pool: DevicePool) -> SlotTable:
        return SlotTable.of(
            device_pool.n_slots,
            device_pool.device,
            allocate=self._allocate,
            allocate_pinned=self._allocate_pinned,
            read=new_event(self._streams),
        )


def _require_registered(host_pool: HostPool) -> None:
    registered = sum(end - start for start, end in host_pool.registrations)
    if registered < host_pool.n_bytes:
        raise Unsupported(
            f"copy backend uva cannot reach the host pool: {registered} of its {host_pool.n_bytes} bytes are registered",
            why="its kernel reads and writes host memory in place, which only registered memory allows",
            hint="see why it is not registered (step register of the pool's report), or use copy backend strided",
        )


class _Lane:
    """What one direction keeps from transfer to transfer."""

    def __init__(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        runtime: CudaRuntime,
        mover: Mover,
        streams: StreamModule,
        tables: list[SlotTable],
        programs: int,
        few_slots: int,
    ) -> None:
        self.up = direction is Direction.LOAD
        self.device_pool, self.host_pool = device_pool, host_pool
        self.runtime, self.mover, self.streams = runtime, mover, streams
        self.tables, self.programs, self.few_slots = tables, programs, few_slots
        _, word = word_bytes(host_pool.map.row_bytes)
        self.pool_words = device_pool.tensor.view(-1).view(word)
        self.host_words = host_pool.tensor.view(-1).view(word)
        streams.current_stream(device_pool.device).synchronize()  # what was allocated is also zeroed


class _Work:
    """One transfer by kernels on the current stream."""

    def __init__(
        self,
        lane: _Lane,
        device_slots: Slots,
        host_slots: Slots,
        groups: Sequence[tuple[range, int | None]],
        step_bytes: int,
    ) -> None:
        self._lane = lane
        self._stream: Any = lane.streams.current_stream(lane.device_pool.device)
        few = lane.few_slots
        self._n_uploads = sum(int(slots.size > few) for slots in (device_slots, host_slots))
        self._near, self._far = (
            table.put(slots, lane.runtime.copy, self._stream.cuda_stream, few=few)
            for table, slots in zip(lane.tables, (device_slots, host_slots), strict=True)
        )
        self.arrives_on: Any | None = self._stream
        chunk = lane.device_pool.geometry.chunk_bytes
        self.steps = steps_of(groups, int(host_slots.size), lambda n_planes: step_bytes // (n_planes * chunk))

    def copy(self, step: Step) -> Submitted:
        lane, host = self._lane, self._lane.host_pool.map
        plane, page, token, _ = (rows // host.row_bytes for rows in host.strides)
        tokens, n_slots = host.rows_a_chunk, lane.device_pool.n_slots
        far = Side(
            lane.host_words, step.planes.start * plane, page, plane, token or 1, self._far, lane.host_pool.n_slots
        )
        plane_rows = n_slots * tokens
        near = Side(lane.pool_words, step.planes.start * plane_rows, tokens, plane_rows, 1, self._near, n_slots)
        n_pages, n_planes = step.end - step.start, len(step.planes)
        lane.mover.move(
            *((far, near) if lane.up else (near, far)),
            row_bytes=host.row_bytes,
            first_page=step.start,
            n_pages=n_pages,
            n_planes=n_planes,
            n_tokens=tokens,
            programs=lane.programs,
            stream=self._stream.cuda_stream,
        )
        n_uploads, self._n_uploads = self._n_uploads, 0
        return Submitted(1 + n_uploads, n_pages * n_planes * tokens)

    def seal(self) -> None:
        pass

    def close(self) -> None:
        for table in self._lane.tables:
            table.release(self._stream)
