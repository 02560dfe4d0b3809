"""One transfer of the `strided` copy backend on its way through the staging of its direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Step, Submitted
from hicachectl.runtime.transfer.host_rows import StagingSteps
from hicachectl.runtime.transfer.movers import Side
from hicachectl.runtime.transfer.staging import StagingBuffer
from hicachectl.runtime.transfer.strided_lane import Lane

__all__ = ["StridedWork"]

# The first call of a load is not larger than what the link takes as long for as the thread for the next call.
_FIRST_BYTES = 4 << 20


class StridedWork:
    """One transfer on its way through the staging of its direction."""

    def __init__(
        self,
        lane: Lane,
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
        had_slots = self._uploaded is not None
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
        uploads = 0 if had_slots or self._uploaded is None else 1
        return Submitted(took.n_submissions + 1 + uploads, took.n_segments)

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
        page_bytes = len(step.planes) * lane.chunk_bytes
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
            self._uploaded = lane.table.bring(n, lane.mover, lane.runtime.copy, self._kernels.cuda_stream)

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
        """Say whether something waits for the kernel of a step.

        Compute waits for the first layers of a load, whoever asked for it for its end, the link for a backup's first gathers.
        """
        if self._lane.up:
            return step.planes.start == 0 or step in self.steps[-2:]
        return step in self.steps[:2]

    def _move(self, step: Step, staging: torch.Tensor) -> None:
        lane = self._lane
        n_pages, n_planes = step.end - step.start, len(step.planes)
        steps = StagingSteps(lane.page_rows, n_planes, n_pages, by_plane=lane.by_plane)
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
            row_bytes=lane.row_bytes,
            first_page=step.start,
            n_pages=n_pages,
            n_planes=n_planes,
            n_tokens=lane.page_rows,
            programs=lane.options.scatter_programs if self._waited_for(step) else lane.options.beside_programs,
            stream=self._kernels.cuda_stream,
        )
