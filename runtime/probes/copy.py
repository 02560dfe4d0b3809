"""Every layout with every copy backend on a geometry: rates against the peak of the same round, first layer, what compute loses.

    layout -> rig (pools, slots)  -> backend -> engine: bytes compared, times, products beside, bytes compared again
                                  -> the best backend -> loads and backups of several sizes

A backend that cannot run here is a row with its reason. A wrong byte ends the probe: nothing that was measured counts then.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch

from hicachectl.errors import HicacheError, Unsupported, UsageError
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Backend, Layout, compatible
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import MappingReport
from hicachectl.runtime.probes.copy_rig import Case, Rig, WrongBytes, backends_here, finish
from hicachectl.runtime.probes.copy_times import AgainstPeak, BesideProducts, against_peak, beside_products
from hicachectl.runtime.probes.products import Products
from hicachectl.runtime.transfer.autotune import Candidate, Measured, choose
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.transfer.groups import layer_groups, load_groups
from hicachectl.runtime.transfer.options import StagingOptions

__all__ = ["NO_TIME", "CopyLines", "CopyProbe", "CopyRow", "copy_pool_bytes", "n_pairs_here", "run_copy_probe"]

NO_TIME = "no time was left for it"
CELL_S = 15.0
"""Seconds of measuring that one layout and backend get; a slower one has fewer rounds, at least three (our choice)."""
_LEAST_ROUNDS = 3
_PRODUCTS_S = 0.05
_PART_BESIDE = 0.7
"""Products last this part of the transfer beside them, so that it outlasts them, and at most `_PRODUCTS_S`."""
_SIZE_STEP = 4


@dataclass(frozen=True, slots=True)
class CopyRow:
    """A layout with a copy backend. `refused` says why it was not measured, `cut` why in fewer rounds than asked for."""

    layout: Layout
    backend: Backend
    load: AgainstPeak | None = None
    backup: AgainstPeak | None = None
    beside_load: BesideProducts | None = None
    beside_backup: BesideProducts | None = None
    staging_bytes: int = 0
    """Of both directions together."""
    refused: str | None = None
    refusal: HicacheError | None = None
    """The error that it was refused with; None where none was."""
    cut: str | None = None

    def moved(self, direction: Direction) -> AgainstPeak | None:
        """The times of a direction."""
        return self.load if direction is Direction.LOAD else self.backup

    def beside(self, direction: Direction) -> BesideProducts | None:
        """The products beside a direction."""
        return self.beside_load if direction is Direction.LOAD else self.beside_backup


@dataclass(frozen=True, slots=True)
class CopyLines:
    """Transfers of several sizes in a layout with its best backend, that lines go through: bytes and seconds, oldest first."""

    layout: Layout
    backend: Backend
    read_transfers: tuple[tuple[int, float], ...]
    """host -> device"""
    write_transfers: tuple[tuple[int, float], ...]
    """device -> host"""

    @property
    def n_samples(self) -> int:
        """Of each direction. Pure."""
        return len(self.read_transfers)


@dataclass(frozen=True, slots=True)
class CopyProbe:
    """What the probe found. `products_size`: edge of the matrices beside the transfers."""

    geometry: KVGeometry
    n_pages: int
    layer_groups: tuple[int, ...]
    rounds: int
    products_size: int
    rows: tuple[CopyRow, ...]
    lines: tuple[CopyLines, ...]
    host_memory: MappingReport | None = None
    """What the host memory of the first layout got; None where no pool was made."""

    @property
    def n_bytes(self) -> int:
        """Bytes of one transfer."""
        return self.n_pages * self.geometry.page_bytes


def copy_pool_bytes(geometry: KVGeometry, n_pages: int) -> int:
    """Return the bytes of one of the two pools that a probe of `n_pages` takes. Pure."""
    return (2 * n_pages + 8) * geometry.page_bytes


def n_pairs_here(
    device: str, layouts: Sequence[Layout], backends: Sequence[Backend], options: StagingOptions | None = None
) -> int:
    """Return how many of these pairs can run on a device: those that `run_copy_probe` tells of before it measures them."""
    on, options = torch.device(device), options or StagingOptions()
    why_not = [_why_not(layout, on, options) for layout in layouts]
    return sum(found[kind] is None for found in why_not for kind in backends)


def _why_not(layout: Layout, device: torch.device, options: StagingOptions) -> dict[Backend, str | None]:
    """Say of every backend why it cannot run on this layout here, None where it can."""
    missing = backends_here(layout, device, options)
    return {kind: compatible(layout, kind, device.type) or missing[kind] for kind in Backend}


def run_copy_probe(
    geometry: KVGeometry,
    n_pages: int,
    device: str,
    *,
    layouts: Sequence[Layout] = tuple(Layout),
    backends: Sequence[Backend] = tuple(Backend),
    rounds: int,
    options: StagingOptions | None = None,
    products_size: int | None = None,
    host_memory: MappingSpec = MappingSpec(),  # noqa: B008 - frozen
    told: Callable[[str], None] = lambda text: None,
    go_on: Callable[[], bool] = lambda: True,
) -> CopyProbe:
    """Measure `n_pages` pages of a geometry in every layout with every backend, `rounds` times after a warm-up.

    `device` is named as torch does ("cpu", "cuda:0"), `host_memory` is what is asked of the host pools' memory. Takes two pools of `copy_pool_bytes` at a time, one in host memory, one on
    the device, and gives them back. `told` hears a line before each pair that can run, `go_on` is asked then whether there is time. Raises
    UsageError for nothing to move, and WrongBytes where a copy was wrong.
    """
    if n_pages < 1 or rounds < 1:
        raise UsageError(f"{rounds} rounds of {n_pages} pages", hint="give at least 1 of both")
    options = options or StagingOptions()
    on = torch.device(device)
    size = products_size or (128 if on.type == "cpu" else 8192)
    groups = layer_groups(geometry.n_layers)
    rows: list[CopyRow] = []
    lines: list[CopyLines] = []
    memory: MappingReport | None = None
    with _collector_off():
        for layout in layouts:
            cells = _Cells(Case(geometry, n_pages, layout), on, groups, rounds, options, size, host_memory)
            try:
                found = cells.measure(backends, told, go_on)
                rows += found
                line = cells.lines(found) if go_on() else None
                lines += [] if line is None else [line]
                memory = memory or cells.host_memory
            finally:
                cells.close()
    return CopyProbe(geometry, n_pages, groups, rounds, size, tuple(rows), tuple(lines), memory)


class _Cells:
    """One layout: its rig, made when the first backend needs it, and what each backend does on it."""

    def __init__(
        self, case: Case, device: torch.device, groups: tuple[int, ...], rounds: int, options: StagingOptions, size: int,
        spec: MappingSpec,
    ) -> None:  # fmt: skip
        self._case, self._device, self._groups = case, device, groups
        self._rounds, self._options, self._size, self._spec = rounds, options, size, spec
        self._rig: Rig | None = None
        self._compute: Products | None = None

    @property
    def host_memory(self) -> MappingReport | None:
        """What the host pool's memory got; None before there is one."""
        return None if self._rig is None else self._rig.host_pool.report

    def close(self) -> None:
        """Give the pools back."""
        self._compute = None
        if self._rig is not None:
            self._rig.close()

    def measure(
        self, backends: Sequence[Backend], told: Callable[[str], None], go_on: Callable[[], bool]
    ) -> list[CopyRow]:
        """Measure every backend; a refusal is a row."""
        layout = self._case.layout
        why_not = _why_not(layout, self._device, self._options)
        rows = []
        for kind in backends:
            row = CopyRow(layout, kind)
            why = why_not[kind]
            if why is not None:
                rows.append(replace(row, refused=why, refusal=_unsupported(kind, why, self._device.type)))
                continue
            told(f"{layout.value} {kind.value}")
            if not go_on():
                row = replace(row, refused=NO_TIME)
            else:
                row = self._cell(row)
            rows.append(row)
        return rows

    def lines(self, rows: Sequence[CopyRow]) -> CopyLines | None:
        """Time several sizes with the best backend of these, in the layer groups of a restore of the cache; None where none ran."""
        ran = [_summary(row) for row in rows if row.load is not None and row.backup is not None]
        if not ran or self._rig is None:
            return None
        best = choose(ran).candidate.backend
        n_pages = self._case.n_pages
        sizes = sorted({*(_SIZE_STEP**i for i in range(n_pages.bit_length()) if _SIZE_STEP**i < n_pages), n_pages})
        seen: dict[Direction, list[tuple[int, float]]] = {Direction.LOAD: [], Direction.BACKUP: []}
        groups = load_groups(self._case.geometry.n_layers, self._device.type)
        with self._rig.engine(best, groups, self._options) as (engine, _):
            for _ in range(self._rounds):
                for size in sizes:
                    for direction, transfers in seen.items():
                        transfer = self._rig.ask(engine, direction, size)
                        finish(transfer)
                        transfers.append((transfer.n_bytes, transfer.wall_s))
        return CopyLines(self._case.layout, best, tuple(seen[Direction.LOAD]), tuple(seen[Direction.BACKUP]))

    def _cell(self, row: CopyRow) -> CopyRow:
        try:
            if self._rig is None:
                self._rig = Rig(self._case, self._device, host_memory=self._spec)
            with self._rig.engine(row.backend, self._groups, self._options) as (engine, backend):
                row = self._timed(row, self._rig, engine)
                return replace(row, staging_bytes=int(getattr(backend, "staging_bytes", 0)))
        except WrongBytes:
            raise
        except (HicacheError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            refusal = error if isinstance(error, HicacheError) else _unsupported(row.backend, why, self._device.type)
            return CopyRow(row.layout, row.backend, refused=why, refusal=refusal)

    def _timed(self, row: CopyRow, rig: Rig, engine: TransferEngine) -> CopyRow:
        began = perf_counter()
        for direction in Direction:
            finish(rig.ask(engine, direction))
        one_s = perf_counter() - began
        rounds = max(_LEAST_ROUNDS, min(self._rounds, int(CELL_S / (2 * one_s))))
        cut = None
        if rounds < self._rounds:
            cut = f"{rounds} of {self._rounds} rounds: a load and a backup take {one_s:.1f} s"
        rounds = min(rounds, self._rounds)
        load, backup = (against_peak(rig, engine, direction, rounds) for direction in Direction)
        if self._compute is None:
            self._compute = Products(self._device, self._size)
        each_s = self._compute.seconds_each()
        beside = []
        for moved in (load, backup):
            part_s = min(_PRODUCTS_S, _PART_BESIDE * median(moved.wall_s))
            n = max(1, int(part_s / each_s))
            beside.append(beside_products(rig, engine, moved.direction, self._compute, n, rounds))
        return replace(row, load=load, backup=backup, beside_load=beside[0], beside_backup=beside[1], cut=cut)


def _unsupported(kind: Backend, why: str, device_type: str) -> Unsupported:
    return Unsupported(
        f"copy backend {kind.value} cannot run on device {device_type}",
        where="--backend",
        why=why,
        hint="leave --backend out to measure what can run here",
    )


def _summary(row: CopyRow) -> Measured:
    """Put a row into the form that `autotune.choose` judges. Pure."""
    assert row.load is not None
    assert row.backup is not None
    beside = [one for one in (row.beside_load, row.beside_backup) if one is not None]
    slow = [median(one.times_alone) for one in beside]
    rates = [one.n_bytes / median(one.wall_s) for one in (row.load, row.backup)]
    outlasted = all(each for one in beside for each in one.outlasted)
    return Measured(Candidate(row.backend), rates[0], rates[1], max(slow, default=None), outlasted)


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
