"""Times of transfers on a rig, each in turn with what it is compared with: raw samples in seconds, warmed up by one round.

Wall is on the host clock from the call to the end of wait(). The peak is one contiguous copy of the same bytes between the same
host memory and the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

from hicachectl.runtime.probes.copy_rig import Rig, SideStreams, finish
from hicachectl.runtime.probes.products import Products
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.engine import Transfer, TransferEngine

__all__ = [
    "AgainstCopy",
    "AgainstPeak",
    "BesideProducts",
    "BothWays",
    "against_copy",
    "against_peak",
    "beside_products",
    "both_ways",
]


@dataclass(frozen=True, slots=True)
class AgainstPeak:
    """One direction, in turn with its peak. Seconds by round."""

    direction: Direction
    n_bytes: int
    n_submissions: int
    wall_s: tuple[float, ...]
    peak_s: tuple[float, ...]
    held_s: tuple[float, ...]
    """The caller's time in the call."""
    submit_s: tuple[float, ...]
    """The submission thread's time."""
    first_layer_s: tuple[float, ...]
    """From the call until the bytes of the first layer are there."""

    @property
    def peak_bytes_per_s(self) -> float:
        """The rate of the median peak."""
        return self.n_bytes / median(self.peak_s)

    @property
    def shares(self) -> tuple[float, ...]:
        """Rate of each round over the peak."""
        return tuple(self.n_bytes / wall / self.peak_bytes_per_s for wall in self.wall_s)


@dataclass(frozen=True, slots=True)
class BothWays:
    """A load and a backup at once, in turn with two plain copies at once. Seconds by round; `n_bytes` of both together."""

    n_bytes: int
    wall_s: tuple[float, ...]
    peak_s: tuple[float, ...]

    @property
    def peak_bytes_per_s(self) -> float:
        """The rate of the median peak."""
        return self.n_bytes / median(self.peak_s)


@dataclass(frozen=True, slots=True)
class BesideProducts:
    """Products alone (two samples a round), and how many times as long they take beside a transfer."""

    direction: Direction
    alone_s: tuple[float, ...]
    times_alone: tuple[float, ...]
    outlasted: tuple[bool, ...]
    """Whether the transfer was still under way when they ended; else a part of them ran alone."""


@dataclass(frozen=True, slots=True)
class AgainstCopy:
    """Loads of a few pages, in turn with one contiguous copy of the same bytes. Seconds by round."""

    n_pages: int
    wall_s: tuple[float, ...]
    copy_s: tuple[float, ...]


def against_peak(rig: Rig, engine: TransferEngine, direction: Direction, rounds: int) -> AgainstPeak:
    """Time one direction, each round behind a plain copy of the same bytes."""
    streams, n_bytes = SideStreams(rig.device), rig.case.n_bytes
    plain = rig.plain(n_bytes, up=direction is Direction.LOAD)
    walls, peaks, held, submit, first = [], [], [], [], []
    for turn in range(rounds + 1):
        peak = streams.seconds(plain)
        began = perf_counter()
        transfer = rig.ask(engine, direction)
        returned = perf_counter()
        transfer.wait_layer(0)
        layer = perf_counter()
        finish(transfer)
        wall = perf_counter() - began
        if turn:
            walls.append(wall)
            peaks.append(peak)
            held.append(returned - began)
            submit.append(transfer.submit_s)
            first.append(layer - began)
    return AgainstPeak(
        direction, n_bytes, transfer.n_submissions, tuple(walls), tuple(peaks), tuple(held), tuple(submit), tuple(first)
    )  # fmt: skip


def both_ways(rig: Rig, engine: TransferEngine, rounds: int) -> BothWays:
    """Time a load and a backup at the same time, in turn with two plain copies."""
    streams, n_bytes = SideStreams(rig.device), rig.case.n_bytes
    host, device = rig.host_pool.tensor.view(-1), rig.device_pool.tensor.view(-1)

    def up() -> None:
        device[:n_bytes].copy_(host[:n_bytes], non_blocking=True)

    def down() -> None:
        host[-n_bytes:].copy_(device[-n_bytes:], non_blocking=True)

    walls, peaks = [], []
    for turn in range(rounds + 1):
        peak = streams.seconds(up, down)
        began = perf_counter()
        transfers = (rig.load(engine), rig.backup(engine))
        for transfer in transfers:
            finish(transfer)
        wall = perf_counter() - began
        if turn:
            walls.append(wall)
            peaks.append(peak)
    return BothWays(2 * n_bytes, tuple(walls), tuple(peaks))


def beside_products(
    rig: Rig, engine: TransferEngine, direction: Direction, compute: Products, n: int, rounds: int
) -> BesideProducts:
    """Time `n` products beside a transfer that lasts longer than they do, between as many alone.

    The device never idles in a round, so that all have the same clock: some products first, those before, those beside,
    some while the transfer ends, those after.
    """
    alone: list[float] = []
    times, covered = [], []
    moved = _Beside(partial(rig.ask, engine, direction))
    for _ in range(rounds):
        _, before, with_it, _, after = compute.in_a_row((max(1, n // 2), n, n, n, n), moved.stages)
        alone += [before, after]
        times.append(2 * with_it / (before + after))
        covered.append(moved.outlasted)
    return BesideProducts(direction, tuple(alone), tuple(times), tuple(covered))


def against_copy(rig: Rig, engine: TransferEngine, n_pages: int, rounds: int) -> AgainstCopy:
    """Time loads of `n_pages`, in turn with one contiguous copy of the same bytes."""
    streams = SideStreams(rig.device)
    plain = rig.plain(n_pages * rig.case.geometry.page_bytes, up=True)
    walls, copies = [], []
    for turn in range(rounds + 1):
        copy = streams.seconds(plain)
        began = perf_counter()
        finish(rig.load(engine, n_pages))
        wall = perf_counter() - began
        if turn:
            walls.append(wall)
            copies.append(copy)
    return AgainstCopy(n_pages, tuple(walls), tuple(copies))


class _Beside:
    """A transfer that begins with the products beside it, and is over before those after it."""

    def __init__(self, ask: Callable[[], Transfer]) -> None:
        self._ask = ask
        self.outlasted = False
        self.stages = {2: self._begin, 3: self._look, 4: self._finish}

    def _begin(self) -> None:
        self._transfer = self._ask()

    def _look(self) -> None:
        self.outlasted = not self._transfer.done

    def _finish(self) -> None:
        finish(self._transfer)
