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
from typing import Any

import torch

from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction, Step, Submitted
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.groups import even_parts, group_planes, merged, planes_that_fit
from hicachectl.runtime.transfer.host_rows import HostRows, StagingSteps, edges_of
from hicachectl.runtime.transfer.movers import Mover, Side, word_bytes
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.staging import SlotTable, Staging, StagingBuffer
from hicachectl.runtime.transfer.streams import CurrentStream, StreamModule, new_event, new_stream
from hicachectl.runtime.transfer.work import copy_all

__all__ = ["StridedBackend"]

# The pieces of a batched copy that make a layer group: a smaller one moves faster than the next call submits its like, and
# the link waits in between (docs/facts.md#h200-segments).
_LEAST_PIECE_BYTES = 128 << 10
# The first call of a load is not larger than what the link takes as long for as the thread for the next call.
_FIRST_BYTES = 4 << 20
# A long backup begins with a step of about this much: the link waits for the gather of it alone.
_LEAD_BYTES = 16 << 20
# A long load ends with one of about this much: who waits for it waits for the scatter of it alone.
_TAIL_BYTES = 8 << 20
_MOST_KEPT_STEPS = 256


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
        self._lanes: dict[Direction, _Lane] = {}

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        lane = self._lanes.get(direction)
        if lane is not None and lane.device_pool is device_pool and lane.host_pool is host_pool:
            return
        self._lanes[direction] = self._open_lane(direction, device_pool, host_pool)

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
        self.prepare(direction, device_pool, host_pool, len(planes))
        return copy_all(_Work(self._lanes[direction], device_slots, host_slots, planes))

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
        return _Work(self._lanes[direction], device_slots, host_slots, layer_groups)

    def _open_lane(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool) -> _Lane:
        geometry, device = device_pool.geometry, device_pool.device
        word, dtype = word_bytes(host_pool.map.row_bytes)
        most = max(geometry.chunk_bytes, min(self._options.buffer_bytes, device_pool.n_bytes))
        least = min(most, max(geometry.chunk_bytes, 1 << 20))
        least, most = (-(-n // word) * word for n in (least, most))
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
        return _Lane(
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
        options: StagingOptions,
        staging: Staging,
        table: SlotTable,
        word: torch.dtype,
    ) -> None:
        self.up = direction is Direction.LOAD
        self.device_pool, self.host_pool = device_pool, host_pool
        self.runtime, self.mover, self.streams, self.options = runtime, mover, streams, options
        self.staging, self.table = staging, table
        self.copies = new_stream(streams, device_pool.device)
        self.copied = new_event(streams)
        self.current = CurrentStream(streams, device_pool.device)
        self.pool_words = device_pool.tensor.view(-1).view(word)
        self.rows = HostRows(
            runtime, host_pool.map, host_pool.array.ctypes.data, device_pool.n_slots, edges_of(host_pool.registrations)
        )
        self.few_slots = options.few_slots if mover.reads_host else 0  # what the kernel reads from host memory
        self.by_plane = host_pool.layout is Layout.LAYER_FIRST
        rows_a_chunk = host_pool.map.rows_a_chunk
        self.plane_rows, self.page_rows = device_pool.n_slots * rows_a_chunk, rows_a_chunk
        streams.current_stream(device_pool.device).synchronize()  # what was allocated is also zeroed
        self._steps: dict[tuple[object, ...], list[Step]] = {}
        no_batch = runtime.try_batch(self.staging.take().address, host_pool.array.ctypes.data, self.copies.cuda_stream)
        self.copies.synchronize()
        self.notes = [f"scattered pages move with a copy each: no batched copy, {no_batch}"] if no_batch else []
        if staging.reason is not None:
            self.notes.append(staging.reason)

    def steps(self, wanted: Sequence[int] | range, n_pages: int) -> Sequence[Step]:
        """Return the steps of a transfer; they depend on few things, so they are kept."""
        as_key = wanted if isinstance(wanted, range) else tuple(wanted)
        key = (as_key, n_pages, self.rows.rows_are_pieces)
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) >= _MOST_KEPT_STEPS:
                self._steps.clear()
            groups = self._groups(wanted, n_pages)
            found = self._steps[key] = [step for planes, end in groups for step in self._cut(planes, end, n_pages)]
        return found

    def _groups(self, wanted: Sequence[int] | range, n_pages: int) -> Sequence[tuple[range, int | None]]:
        """Turn layer counts into ranges of planes, joined until their rows are worth a submission."""
        if isinstance(wanted, range):
            return [(wanted, None)]
        geometry, host = self.device_pool.geometry, self.host_pool.map
        layer_bytes = geometry.kind.planes_per_layer * geometry.chunk_bytes
        least_a_page = 0
        if host.layout is not Layout.LAYER_FIRST and self.rows.rows_are_pieces:
            # Token by token a group is a 2-D copy a page, at three quarters of the link's rate; a whole page is one piece.
            least_a_page = _LEAST_PIECE_BYTES if host.rows_a_chunk == 1 else geometry.page_bytes
        sizes = merged(wanted, n_pages * layer_bytes, self.options.least_group_bytes)
        sizes = merged(sizes, layer_bytes, min(least_a_page, geometry.page_bytes))
        return group_planes(geometry, sizes)

    def _cut(self, planes: range, end_layer: int | None, n_pages: int) -> list[Step]:
        """Cut a group by pages, and by planes where not even one page fits a buffer."""
        chunk, buffer_bytes = self.device_pool.geometry.chunk_bytes, self.staging.buffer_bytes
        found: list[Step] = []
        for some in planes_that_fit(planes, chunk, buffer_bytes):
            width = len(some) * chunk
            most = buffer_bytes // width
            lead = 0 if self.up or found else _few_pages(n_pages, most, width, _LEAD_BYTES)
            last = self.up and some.stop == self.device_pool.geometry.n_planes
            tail = _few_pages(n_pages, most, width, _TAIL_BYTES) if last else 0
            parts = [(lead + start, lead + end) for start, end in even_parts(n_pages - lead - tail, most)]
            for start, end in ((0, lead), *parts, (n_pages - tail, n_pages)):
                if start < end:
                    found.append(Step(some, start, end, None))
        if found:
            end_step = found[-1]
            found[-1] = Step(end_step.planes, end_step.start, end_step.end, end_layer)
        return found


def _few_pages(n_pages: int, most: int, width: int, n_bytes: int) -> int:
    """Return the pages of a small step beside steps of `most`, 0 where one step is enough or that one no larger. Pure."""
    few = max(1, n_bytes // width)
    return few if few < most < n_pages else 0


class _Work:
    """One transfer on its way through the staging of its direction."""

    def __init__(
        self,
        lane: _Lane,
        device_slots: Slots,
        host_slots: Slots,
        wanted: Sequence[int] | range,
    ) -> None:
        """`wanted` are the layer groups of a transfer, or the planes that move in one."""
        self._lane = lane
        self._kernels: Any = lane.current()
        order = lane.rows.open(host_slots)
        self._device_slots = device_slots if order is None else device_slots[order]
        self._written: torch.Tensor | None = None
        self._uploaded: torch.Tensor | None = None
        self.steps = lane.steps(wanted, int(host_slots.size))
        self.arrives_on: Any | None = self._kernels if lane.up else lane.copies
        self._first = True
        self._filled: list[tuple[Step, StagingBuffer]] = []

    def copy(self, step: Step) -> Submitted:
        lane, kernels, copies = self._lane, self._kernels, self._lane.copies
        buffer = lane.staging.take()
        if lane.up:
            if buffer.used:
                copies.wait_event(buffer.emptied)
            took = self._rows(step, buffer.address, up=True)
            buffer.filled.record(copies)
            self._filled.append((step, buffer))
            if step is not self.steps[0] or len(self.steps) < 3:
                self._scatter()  # that of a long transfer's first step behind the next copies: the link goes first
        else:
            if buffer.used:
                kernels.wait_event(buffer.emptied)
            self._move(step, buffer.words)
            buffer.filled.record(kernels)
            copies.wait_event(buffer.filled)
            took = self._rows(step, buffer.address, up=False)
            buffer.emptied.record(copies)
        buffer.used = True
        return Submitted(took.n_submissions + 1, took.n_segments)

    def seal(self) -> None:
        if self._lane.up:  # a load ends with its scatter, a backup with its copies
            self._scatter()
        else:
            self._lane.copied.record(self._lane.copies)
            self._kernels.wait_event(self._lane.copied)

    def _scatter(self) -> None:
        """Scatter the buffers that are filled, or will be when the kernels' turn comes."""
        for step, buffer in self._filled:
            self._write_slots()
            self._kernels.wait_event(buffer.filled)
            self._move(step, buffer.words)
            buffer.emptied.record(self._kernels)
        self._filled.clear()

    def close(self) -> None:
        lane = self._lane
        lane.copied.record(lane.copies)
        self._kernels.wait_event(lane.copied)
        if self._written is not None:
            lane.table.release(self._kernels)

    def _rows(self, step: Step, near: int, *, up: bool) -> Submitted:
        """Start the copies of a step; those of the first in calls that grow, so that the link waits for a small one only."""
        lane, stream = self._lane, self._lane.copies.cuda_stream
        rows = lane.rows
        if not self._first:
            return rows.move(step.planes, step.start, step.end, near, stream, up=up)
        self._first = False
        cut = up and rows.rows_are_pieces and not lane.by_plane
        page_bytes = len(step.planes) * lane.device_pool.geometry.chunk_bytes
        n_submissions = n_segments = n_calls = 0
        start, n = step.start, step.end - step.start
        if cut:
            n = max(1, min(lane.options.first_pieces, _FIRST_BYTES // page_bytes))
        while start < step.end:
            end = start + n if step.end - start >= 2 * n else step.end
            took = rows.move(step.planes, start, end, near, stream, up=up)
            n_submissions += took.n_submissions
            n_segments += took.n_segments
            n_calls += 1
            near += (end - start) * page_bytes
            start, n = end, 2 * n if n_calls > 1 else n  # the second is as quick as the first
        return Submitted(n_submissions, n_segments)

    def _write_slots(self) -> None:
        """Put the device slots where the kernels read them: in host memory, or before them on the device."""
        lane, n = self._lane, int(self._device_slots.size)
        if self._written is None:
            self._written = lane.table.write(self._device_slots)
        if self._uploaded is None and n > lane.few_slots:
            stream = self._kernels.cuda_stream
            if lane.mover.reads_host:
                self._uploaded = lane.table.send(n, lane.mover, stream)
            else:
                self._uploaded = lane.table.upload(n, lane.runtime.copy, stream)

    def _slots_of(self, step: Step) -> torch.Tensor:
        """Return where the kernel of a step looks the device slots up."""
        lane = self._lane
        if not lane.up:
            if self._written is None and step.end <= lane.few_slots:
                # The link waits for this gather: it does not wait for an upload.
                self._written = lane.table.write(self._device_slots)
                return self._written
            self._write_slots()
        found = self._written if self._uploaded is None else self._uploaded
        assert found is not None
        return found

    def _waited_for(self, step: Step) -> bool:
        """Say whether something waits for the kernel of a step: compute for the first layers of a load, whoever asked for it
        for the last, the link for the first gathers of a backup."""
        return step.planes.start == 0 or step in self.steps[-2:] if self._lane.up else step in self.steps[:2]

    def _move(self, step: Step, staging: torch.Tensor) -> None:
        lane, host = self._lane, self._lane.host_pool.map
        n_pages, n_planes = step.end - step.start, len(step.planes)
        steps = StagingSteps(host, n_planes, n_pages)
        near = Side(staging, 0, steps.page, steps.plane, steps.token)
        pool = Side(
            lane.pool_words,
            step.planes.start * lane.plane_rows,
            lane.page_rows,
            lane.plane_rows,
            1,
            self._slots_of(step),
            lane.device_pool.n_slots,
        )
        lane.mover.move(
            *((near, pool) if lane.up else (pool, near)),
            row_bytes=host.row_bytes,
            first_page=step.start,
            n_pages=n_pages,
            n_planes=n_planes,
            n_tokens=host.rows_a_chunk,
            programs=lane.options.scatter_programs if self._waited_for(step) else lane.options.beside_programs,
            stream=self._kernels.cuda_stream,
        )
