"""Rows of host pages to or from a staging buffer: which copy calls a part of a transfer takes.

A row is what lies together on the host: the layers of a group in one page. In the staging buffer rows lie end to end.

    page_first_direct   row = the group's planes of a page              staging [page, plane, token]
    page_first          row = the group's planes of a token             staging [page, token, plane]
    layer_first         row = a run of pages in one plane               staging [plane, page, token]

Rows at one distance are one 2-D copy, whole pages in runs are pieces of one batched copy, scattered rows are pieces too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hicachectl.runtime.layout import Layout, PoolMap
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Submitted
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime

__all__ = ["Edges", "HostRows", "StagingSteps", "clearly_scattered", "edges_of", "in_host_order", "run_starts"]

# A 2-D copy costs its caller about as much as this many pieces of a batched one (docs/facts.md#h200-groups).
_PIECES_A_2D_COPY = 12
# Of so many pages the first few are looked at before all of them: the link is idle meanwhile.
_MANY_PAGES, _LOOKED_AT = 64, 16
# Up to so many pieces a call are worked out without numpy (`_move_few`) in a transfer of no more pages, and in the first calls
# of any: what numpy works out once a layer group pays from then on.
_FEW_PIECES, _FIRST_CALLS = 144, 4
# The pitch of a 2-D copy is at most this (cudaDeviceProp::memPitch, NVIDIA CUDA Runtime API).
_MOST_PITCH = 2**31 - 1

Edges = tuple[int, ...]
_NO_RUNS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

Words = NDArray[np.int64]  # addresses of this process are below 2^63


class StagingSteps:
    """Steps of a staging buffer in rows of the pool (`PoolMap.row_bytes`): from a page, plane and token to the next.

    `tokens` are the rows of a chunk, `by_plane` says whether the pool is layer_first.
    """

    __slots__ = ("page", "plane", "token")

    def __init__(self, tokens: int, n_planes: int, n_pages: int, *, by_plane: bool) -> None:
        if by_plane:
            self.page, self.plane, self.token = tokens, n_pages * tokens, 1
        elif tokens > 1:
            self.page, self.plane, self.token = n_planes * tokens, 1, n_planes
        else:
            self.page, self.plane, self.token = n_planes, 1, 1


def in_host_order(host_slots: Words) -> NDArray[np.intp] | None:
    """Return the order in which pages that fill one range of host slots are consecutive, None when they do not. Pure."""
    if int(np.maximum.reduce(host_slots)) - int(np.minimum.reduce(host_slots)) != host_slots.size - 1:
        return None
    return np.argsort(host_slots)


def clearly_scattered(first: Sequence[int], n_pages: int) -> bool:
    """Say from the first slots of many that they are no range in any order and have hardly any runs. Pure.

    What comes after them may have runs: those move as pieces too, which large pieces do as fast.

    >>> clearly_scattered([3, 900, 41, 700], 100), clearly_scattered([7, 6, 5, 4], 100)
    (True, False)
    """
    return max(first) - min(first) >= n_pages and 1 not in [b - a for a, b in pairwise(first)]


def edges_of(registrations: Sequence[tuple[int, int]]) -> Edges:
    """Return where registrations meet, from their ranges. Pure."""
    return tuple(start for start, _ in registrations[1:])


def run_starts(host: PoolMap, edges: Edges, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where a run of pages ends and the next starts: not consecutive, or in another registration. Pure.

    A plane of layer_first may meet an edge anywhere, so with edges every page there is a run of its own.
    """
    if not edges:
        return np.flatnonzero(np.diff(slots) != 1) + 1
    if host.layout is Layout.LAYER_FIRST:
        return np.arange(1, slots.size, dtype=np.int64)
    registration = np.searchsorted(np.array(edges), slots * host.geometry.page_bytes, side="right")
    return np.flatnonzero((np.diff(slots) != 1) | (np.diff(registration) != 0)) + 1


def _count_runs(slots: Words) -> int:
    return 1 + int(np.count_nonzero(slots[1:] - slots[:-1] != 1))


class HostRows:
    """Starts the copies between host pages and a staging buffer. One a direction: its arrays are used again and again.

    `base` is the address of the host pool. `n_rows` pieces fit the arrays; more make them grow. `edges` are where one
    registration of the pool ends and the next begins, in bytes from its start: no copy spans two.
    """

    def __init__(self, runtime: CudaRuntime, host: PoolMap, base: int, n_rows: int, edges: Edges = ()) -> None:
        self._runtime = runtime
        self._map = host
        self._base = base
        self._plane_step, self._page_step, self._token_step, _ = host.strides
        self._chunk_bytes, self._n_planes = host.geometry.chunk_bytes, host.geometry.n_planes
        self._by_token = host.rows_a_chunk > 1
        self._edges = edges
        self._asked: Slots | Words = np.zeros(0, dtype=np.int32)
        self._widened: Words | None = None
        self._found_runs: NDArray[np.int64] | None = None
        self.rows_are_pieces = False
        """Whether pages are so scattered that each moves as a piece of its own."""
        self._planes = range(0)
        self._n_calls = 0
        self._grow(max(n_rows, 1))

    def open(self, host_slots: Slots) -> NDArray[np.intp] | None:
        """Take the pages of a transfer; the calls of `move` number them from 0, in the order returned if there is one.

        The link is idle until the first call: what scattered pages do not need is left to whoever asks for it.
        """
        n = int(host_slots.size)
        if n > self._far.size:
            self._grow(n)
        self._asked, self._widened, self._found_runs, self._planes = host_slots, None, None, range(0)
        self._n_calls = 0
        scattered = n >= _MANY_PAGES and clearly_scattered(host_slots[:_LOOKED_AT].tolist(), n)
        if scattered or n == 1:
            self.rows_are_pieces = scattered
            return None
        slots = host_slots.astype(np.int64)
        n_runs, order = _count_runs(slots), None
        if n_runs > 1 and (order := in_host_order(slots)) is not None:
            slots = slots[order]
            n_runs = _count_runs(slots)
        self._asked = self._widened = slots
        self.rows_are_pieces = n_runs > 1 and n_runs * _PIECES_A_2D_COPY > n
        return order

    @property
    def _slots(self) -> Words:
        """The pages of the transfer in the order they move."""
        if self._widened is None:
            self._widened = self._asked.astype(np.int64)
        return self._widened

    @property
    def _runs(self) -> NDArray[np.int64]:
        """Where runs of the transfer's pages start, but for the first; looked for once."""
        if self._found_runs is None:
            one = self._slots.size == 1
            self._found_runs = _NO_RUNS if one else run_starts(self._map, self._edges, self._slots)
        return self._found_runs

    def move(self, planes: range, start: int, end: int, near: int, stream: int, *, up: bool) -> Submitted:
        """Start the copies of pages `[start, end)` in `planes` to the staging buffer at address `near` (`up`) or from it."""
        if self._map.layout is Layout.LAYER_FIRST:
            return self._move_planes(planes, start, end, near, stream, up)
        whole = len(planes) == self._n_planes
        if (whole or not self._by_token) and self.rows_are_pieces and self._runtime.batch_missing is None:
            return self._move_pieces(planes, start, end, near, stream, up)
        return self._move_runs(planes, start, end, near, stream, up, whole)

    def _move_pieces(self, planes: range, start: int, end: int, near: int, stream: int, up: bool) -> Submitted:
        """One batched copy, a piece a page. What depends on the planes alone is worked out once a layer group."""
        n, width = end - start, self._width(planes)
        self._n_calls += 1
        if n <= _FEW_PIECES and (self._n_calls <= _FIRST_CALLS or self._asked.size <= _FEW_PIECES):
            return self._move_few(planes, start, end, near, stream, up)
        if planes != self._planes:
            n_all = self._slots.size
            np.multiply(self._slots, self._page_step, out=self._far[:n_all])
            self._far[:n_all] += self._base + planes.start * self._plane_step
            np.multiply(self._numbers[:n_all], width, out=self._ramp[:n_all])
            self._sizes[:n_all] = width
            self._planes = planes
        np.add(self._ramp[:n], near, out=self._close[:n])
        far_at = self._far_at + start * 8
        to, fro = (self._close_at, far_at) if up else (far_at, self._close_at)
        self._runtime.copy_batch(to, fro, self._sizes_at, n, stream)
        return Submitted(1, n)

    def _move_few(self, planes: range, start: int, end: int, near: int, stream: int, up: bool) -> Submitted:
        """The same by plain numbers: no slower for so few once, and after an idle time numpy's first calls take much longer."""
        n, width = end - start, self._width(planes)
        first = self._base + planes.start * self._plane_step
        far = array("q", [first + slot * self._page_step for slot in self._asked[start:end].tolist()])
        close = array("q", range(near, near + n * width, width))
        (far_at, _), (close_at, _) = far.buffer_info(), close.buffer_info()
        sizes = array("q", [width]) * n
        to, fro = (close_at, far_at) if up else (far_at, close_at)
        self._runtime.copy_batch(to, fro, sizes.buffer_info()[0], n, stream)
        return Submitted(1, n)

    def _move_runs(
        self, planes: range, start: int, end: int, near: int, stream: int, up: bool, whole: bool
    ) -> Submitted:
        """A copy a run of pages: plain for whole pages, else 2-D."""
        if whole and end - start == 1:
            far = self._base + planes.start * self._plane_step + int(self._asked[start]) * self._page_step
            self._copy(near, far, self._width(planes), stream, up)
            return Submitted(1, 1)
        rows_a_page, pitch = (self._map.rows_a_chunk, self._token_step) if self._by_token else (1, self._page_step)
        width = self._width(planes) // rows_a_page
        runs = self._runs_in(start, end)
        first = start
        for last in (*(runs + start).tolist(), end):
            far = self._base + planes.start * self._plane_step + int(self._slots[first]) * self._page_step
            n_rows = (last - first) * rows_a_page
            if whole:
                self._copy(near, far, n_rows * width, stream, up)
            else:
                self._copy_rows(near, far, pitch, width, n_rows, stream, up)
            near += n_rows * width
            first = last
        n_copies = int(runs.size) + 1
        return Submitted(n_copies, n_copies if whole else (end - start) * rows_a_page)

    def _move_planes(self, planes: range, start: int, end: int, near: int, stream: int, up: bool) -> Submitted:
        """Every plane's runs; one run of all planes at one distance is one 2-D copy."""
        slots, runs, chunk = self._slots[start:end], self._runs_in(start, end), self._page_step
        n_pages = end - start
        if not runs.size and self._plane_step <= _MOST_PITCH and not self._edges:
            far = self._base + planes.start * self._plane_step + int(slots[0]) * chunk
            self._copy_rows(near, far, self._plane_step, n_pages * chunk, len(planes), stream, up)
            return Submitted(1, len(planes))
        starts = np.concatenate((np.zeros(1, dtype=np.int64), runs))
        shape = (len(planes), int(starts.size))
        n = shape[0] * shape[1]
        if n > self._far.size:
            self._grow(n)
        at_plane = np.arange(len(planes), dtype=np.int64)[:, None]
        self._far[:n].reshape(shape)[:] = (at_plane + planes.start) * self._plane_step + slots[starts] * chunk
        self._far[:n] += self._base
        self._close[:n].reshape(shape)[:] = at_plane * (n_pages * chunk) + starts * chunk
        self._close[:n] += near
        self._sizes[:n].reshape(shape)[:] = np.diff(starts, append=n_pages) * chunk
        if self._runtime.batch_missing is not None:
            for far, close, size in zip(*(a[:n].tolist() for a in (self._far, self._close, self._sizes)), strict=True):
                self._copy(close, far, size, stream, up)
            return Submitted(n, n)
        to, fro = (self._close_at, self._far_at) if up else (self._far_at, self._close_at)
        self._runtime.copy_batch(to, fro, self._sizes_at, n, stream)
        return Submitted(1, n)

    def _width(self, planes: range) -> int:
        """Bytes of a page in these planes."""
        return len(planes) * self._chunk_bytes

    def _runs_in(self, start: int, end: int) -> NDArray[np.int64]:
        """Where runs start inside `[start, end)`, from `start`."""
        low, high = np.searchsorted(self._runs, (start, end - 1), side="right").tolist()
        return self._runs[low:high] - start

    def _copy(self, near: int, far: int, n_bytes: int, stream: int, up: bool) -> None:
        to, fro = (near, far) if up else (far, near)
        self._runtime.copy(to, fro, n_bytes, stream)

    def _copy_rows(self, near: int, far: int, pitch: int, width: int, n_rows: int, stream: int, up: bool) -> None:
        if up:
            self._runtime.copy_rows(near, width, far, pitch, width, n_rows, stream)
        else:
            self._runtime.copy_rows(far, pitch, near, width, width, n_rows, stream)

    def _grow(self, n: int) -> None:
        self._numbers: Words = np.arange(n, dtype=np.int64)
        self._far: Words = np.zeros(n, dtype=np.int64)
        self._close: Words = np.zeros(n, dtype=np.int64)
        self._sizes: Words = np.zeros(n, dtype=np.int64)
        self._ramp: Words = np.zeros(n, dtype=np.int64)
        self._far_at, self._close_at, self._sizes_at = (a.ctypes.data for a in (self._far, self._close, self._sizes))
