"""What one direction of the `strided` copy backend keeps from transfer to transfer, and the steps it cuts a transfer into."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.transfer.backends import Direction, Step
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.first_move import first_move, making_kernels
from hicachectl.runtime.transfer.groups import even_parts, group_planes, merged, planes_that_fit
from hicachectl.runtime.transfer.host_rows import HostRows, edges_of
from hicachectl.runtime.transfer.movers import Mover
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.staging import SlotTable, Staging
from hicachectl.runtime.transfer.streams import CurrentStream, StreamModule, new_event, new_stream

__all__ = ["Lane"]

# The pieces of a batched copy that make a layer group: a smaller one moves faster than the next call submits its like, and
# the link waits in between (docs/facts.md#h200-segments).
_LEAST_PIECE_BYTES = 128 << 10
# A long backup begins with a step of about this much: the link waits for the gather of it alone.
_LEAD_BYTES = 16 << 20
# A long load ends with one of about this much: who waits for it waits for the scatter of it alone. With 8 MiB loads took longer,
# with 4 MiB longer still (docs/facts.md#h200-ends): the scatter of the whole buffer before it should not outlast its copy.
_TAIL_BYTES = 16 << 20
_MOST_KEPT_STEPS = 256


class Lane:
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
        self.chunk_bytes, self.row_bytes = device_pool.geometry.chunk_bytes, host_pool.map.row_bytes
        self.page_rows = host_pool.map.rows_a_chunk
        self.plane_rows = device_pool.n_slots * self.page_rows
        streams.current_stream(device_pool.device).synchronize()  # what was allocated is also zeroed
        self._steps: dict[tuple[object, ...], list[Step]] = {}
        no_batch = runtime.try_batch(self.staging.take().address, host_pool.array.ctypes.data, self.copies.cuda_stream)
        self.copies.synchronize()
        self.notes = [f"scattered pages move with a copy each: no batched copy, {no_batch}"] if no_batch else []
        if staging.reason is not None:
            self.notes.append(staging.reason)
        self._move_first()

    def _move_first(self) -> None:
        """Move a chunk by each kernel of a transfer, from one staging buffer to another, so that no transfer waits for a compilation."""
        stream, host = self.current(), self.host_pool.map
        with making_kernels(self.mover):
            slots = self.table.first(self.mover, self.runtime.copy, stream.cuda_stream)
            first_move(
                self.mover,
                self.staging.take().words,
                self.staging.take().words,
                source_slots=None if self.up else slots,
                target_slots=slots if self.up else None,
                row_bytes=host.row_bytes,
                n_tokens=host.rows_a_chunk,
                stream=stream.cuda_stream,
            )
        stream.synchronize()

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
