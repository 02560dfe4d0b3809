"""Pieces of a transfer that lie together on both sides, for the backends that copy straight between the pools.

A piece is a row of the host's layout (a chunk, or with page_first one token of it); where both pools lie plane by plane it
is a whole run of pages. All arithmetic is numpy's; nothing loops over pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicachectl.runtime.layout import Layout, PoolMap
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots, paired_runs
from hicachectl.runtime.transfer.backends import Direction, Step, Submitted
from hicachectl.runtime.transfer.groups import even_parts
from hicachectl.runtime.transfer.host_rows import Edges

__all__ = ["PieceLists", "PieceWork", "steps_of"]

# A step has about this many pieces: between two steps a backup lets loads pass.
_PIECES_A_STEP = 4096

Offsets = NDArray[np.int64]


class PieceLists:
    """Arrays of a direction that are used again and again: where pieces start on either side, and their bytes.

    With `edges` between registrations of the host pool no piece is more than a row: rows never cross one.
    """

    def __init__(self, edges: Edges = ()) -> None:
        self._edges = edges
        self._grow(_PIECES_A_STEP)

    def fill(
        self, host: PoolMap, device: PoolMap, host_slots: Slots, device_slots: Slots, planes: range
    ) -> tuple[Offsets, Offsets, Offsets]:
        """Return the offsets on the host, those on the device, and the bytes, of all pieces; views of the own arrays."""
        lengths: Offsets | None = None
        if host.layout is Layout.LAYER_FIRST and not self._edges:
            runs = paired_runs(host_slots, device_slots)
            host_slots, device_slots = runs[:, 0].astype(np.int32), runs[:, 1].astype(np.int32)
            lengths = runs[:, 2] * host.row_bytes
        n = len(planes) * int(host_slots.size) * host.rows_a_chunk
        if n > self.near.size:
            self._grow(n)
        near, far, sizes = self.near[:n], self.far[:n], self.sizes[:n]
        self._offsets(host, host_slots, planes, host.rows_a_chunk, far)
        self._offsets(device, device_slots, planes, host.rows_a_chunk, near)
        if lengths is None:
            sizes[:] = host.row_bytes
        else:
            sizes.reshape(len(planes), -1)[:] = lengths
        return far, near, sizes

    @staticmethod
    def _offsets(at: PoolMap, slots: Slots, planes: range, rows_a_chunk: int, out: Offsets) -> None:
        plane_step, slot_step, token_step, _ = at.strides
        shaped = out.reshape(len(planes), slots.size, rows_a_chunk)
        shaped[:] = (slots.astype(np.int64) * slot_step)[None, :, None]
        shaped += (np.arange(planes.start, planes.stop, dtype=np.int64) * plane_step)[:, None, None]
        if rows_a_chunk > 1:
            shaped += np.arange(rows_a_chunk, dtype=np.int64) * token_step

    def _grow(self, n: int) -> None:
        self.far, self.near, self.sizes = (np.zeros(n, dtype=np.int64) for _ in range(3))


def steps_of(
    groups: Sequence[tuple[range, int | None]], n_pages: int, pages_a_step: Callable[[int], int]
) -> list[Step]:
    """Cut groups of planes by pages; `pages_a_step` says how many of a step with so many planes. Pure."""
    found = []
    for planes, end_layer in groups:
        parts = list(even_parts(n_pages, max(1, pages_a_step(len(planes)))))
        for i, (start, end) in enumerate(parts):
            found.append(Step(planes, start, end, end_layer if i == len(parts) - 1 else None))
    return found


class PieceWork:
    """One transfer, piece by piece on the current stream. `move` starts the copies of all pieces it is given."""

    def __init__(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        groups: Sequence[tuple[range, int | None]],
        lists: PieceLists,
        move: Callable[[Direction, Offsets, Offsets, Offsets], int],
    ) -> None:
        self._direction = direction
        self._maps = (host_pool.map, device_pool.map)
        self._host_slots, self._device_slots = host_slots, device_slots
        self._lists, self._move = lists, move
        self.arrives_on: Any | None = None
        rows = host_pool.map.rows_a_chunk
        self.steps = steps_of(groups, int(host_slots.size), lambda n_planes: _PIECES_A_STEP // (n_planes * rows))

    def copy(self, step: Step) -> Submitted:
        pages = slice(step.start, step.end)
        lists = self._lists.fill(*self._maps, self._host_slots[pages], self._device_slots[pages], step.planes)
        return Submitted(self._move(self._direction, *lists), int(lists[0].size))

    def seal(self) -> None:
        pass

    def close(self) -> None:
        pass
