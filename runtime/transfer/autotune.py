"""Measure the copy backends on the real pools, with compute beside them, and choose one; an explicit choice is not its business.

Every candidate loads and backs up the same scattered pages, in the layer groups of a restore, alone for its rate and beside
matrix products for what it costs them. What was measured, what could not run and why, and the reason of the choice are values
that reach the report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from hicachectl.errors import HicacheError, Unsupported, Vanished
from hicachectl.runtime.layout import Backend, Layout, compatible
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.transfer.backends import CopyBackend, make_backend
from hicachectl.runtime.transfer.device import device_error, first_line
from hicachectl.runtime.transfer.engine import Transfer, TransferEngine
from hicachectl.runtime.transfer.groups import load_groups
from hicachectl.runtime.transfer.load import ComputeLoad
from hicachectl.runtime.transfer.options import StagingOptions

__all__ = ["Candidate", "Choice", "Measured", "autotune", "candidates", "choose"]

# A backend that slows compute by more than this goes behind all that do not (the copy engines: docs/facts.md#h200-uva).
_MOST_SLOWDOWN = 1.05
# One whose slowdown is only known from below goes behind one that is known, unless it is this many times as fast (our choice).
_TWICE = 2.0
# Rates this near to each other are equal: the earlier candidate wins.
_EQUAL = 0.02
_MOST_BYTES = 512 << 20
_ROUNDS = 3
_MOST_BESIDE = 64
"""Transfers at most that follow each other beside the products, so that smaller ones outlast them too; `outlasted` says whether."""
_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A copy backend with a gather kernel (None where it has none to choose)."""

    backend: Backend
    kernel: str | None = None

    def __str__(self) -> str:
        return self.backend.value if self.kernel is None else f"{self.backend.value} with {self.kernel}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a candidate did, or why it could not (`refused`).

    `slowdown`: time of compute beside loads or backups, whichever cost it more, over its time alone; `outlasted`: whether they
    lasted longer than it, both ways and in every round. Where they did not, `slowdown` is less than the truth.
    """

    candidate: Candidate
    load_bytes_per_s: float | None = None
    backup_bytes_per_s: float | None = None
    slowdown: float | None = None
    outlasted: bool = True
    refused: str | None = None

    @property
    def bytes_per_s(self) -> float:
        """The slower of both directions; 0 for one that could not run."""
        return min(self.load_bytes_per_s or 0.0, self.backup_bytes_per_s or 0.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate to take, why, and everything measured on the way."""

    candidate: Candidate
    reason: str
    measured: tuple[Measured, ...]


def candidates(layout: Layout, device_type: str) -> list[Candidate]:
    """Return what may be tried for a layout on a type of device, the preferred first. Pure."""
    order = (Backend.STRIDED, Backend.BATCH, Backend.UVA, Backend.CPU, Backend.TORCH, Backend.DIRECT)
    found: list[Candidate] = []
    for backend in order:
        if compatible(layout, backend, device_type) is None:
            kernels = ("triton", "torch") if backend is Backend.STRIDED else (None,)
            found += [Candidate(backend, kernel) for kernel in kernels]
    return found


def choose(measured: Sequence[Measured]) -> Choice:
    """Choose from measurements: among those that leave compute alone, the one whose slower direction is fastest. Pure.

    When all slow compute down, the one that does so least. Where transfers ended before the compute beside them (`outlasted`) what
    they cost is known from below alone: such a candidate is taken only where none that is known has half its rate. Raises Unsupported
    when none could run.
    """
    ran = [one for one in measured if one.refused is None]
    if not ran:
        raise Unsupported(
            "no copy backend can run here",
            why="; ".join(f"{one.candidate}: {one.refused}" for one in measured),
            hint="name one with run.backend to see its error",
        )
    known = _known(ran)
    quiet = [one for one in known if (one.slowdown or 1.0) <= _MOST_SLOWDOWN]
    if not quiet:
        best = min(known, key=lambda one: one.slowdown or 1.0)
        return Choice(best.candidate, f"slows compute least: {_told(best)}", tuple(measured))
    fastest = max(one.bytes_per_s for one in quiet)
    best = next(one for one in quiet if one.bytes_per_s >= fastest * (1 - _EQUAL))
    others = ", ".join(_told(one) for one in ran if one is not best)
    reason = f"{_told(best)}" + (f"; others: {others}" if others else "; nothing else can run here")
    return Choice(best.candidate, reason, tuple(measured))


def _known(ran: Sequence[Measured]) -> Sequence[Measured]:
    """Those whose slowdown is known, where the fastest of them has half the rate of all; else all. Pure."""
    known = [one for one in ran if one.outlasted]
    fastest = max(one.bytes_per_s for one in ran)
    return known if known and _TWICE * max(one.bytes_per_s for one in known) >= fastest else ran


def autotune(
    device_pool: DevicePool,
    host_pool: HostPool,
    options: StagingOptions | None = None,
    *,
    measure: Callable[[Candidate], Measured] | None = None,
) -> tuple[Choice, CopyBackend]:
    """Measure every candidate on these pools and return the choice and its backend.

    Overwrites pages of both pools: call it before anything is in them. `measure` is for tests. Raises Unsupported when
    nothing can run, Vanished when the device is gone: then no other candidate is tried.
    """
    options = options or StagingOptions()
    layout, device = host_pool.layout, device_pool.device
    if measure is None:
        measure = _Bench(device_pool, host_pool, options).measure
    choice = choose([measure(candidate) for candidate in candidates(layout, device.type)])
    return choice, _backend(choice.candidate, layout, device, options)


class _Bench:
    """Scattered pages of two pools, and compute to run beside their transfers."""

    def __init__(self, device_pool: DevicePool, host_pool: HostPool, options: StagingOptions) -> None:
        self._pools = (device_pool, host_pool)
        self._options = options
        most = max(1, _MOST_BYTES // device_pool.geometry.page_bytes)
        n = min(most, device_pool.n_slots, host_pool.n_slots)
        rng = np.random.default_rng(0)
        self._device_slots = rng.permutation(device_pool.n_slots)[:n].astype(np.int32)
        self._host_slots = rng.permutation(host_pool.n_slots)[:n].astype(np.int32)
        self._compute = ComputeLoad(device_pool.device)

    def measure(self, candidate: Candidate) -> Measured:
        device_pool, host_pool = self._pools
        try:
            backend = _backend(candidate, host_pool.layout, device_pool.device, self._options)
            groups = load_groups(device_pool.geometry.n_layers, device_pool.device.type)
            engine = TransferEngine(device_pool, host_pool, backend, groups)
            try:
                return self._measure(candidate, engine)
            finally:
                engine.close()
        except (HicacheError, RuntimeError) as failed:
            error = device_error(failed)
            if isinstance(error, Vanished):  # no candidate can run on it any more
                raise error from failed
            return Measured(candidate, refused=first_line(error))

    def _measure(self, candidate: Candidate, engine: TransferEngine) -> Measured:
        def load() -> Transfer:
            return engine.load(self._host_slots, self._device_slots)

        def backup() -> Transfer:
            return engine.backup(self._device_slots, self._host_slots)

        load_s, backup_s = self._seconds(load), self._seconds(backup)
        beside = [self._beside(load, load_s), self._beside(backup, backup_s)]
        n_bytes = self._device_slots.size * self._pools[0].geometry.page_bytes
        return Measured(
            candidate,
            n_bytes / load_s,
            n_bytes / backup_s,
            max(slowdown for slowdown, _ in beside),
            all(outlasted for _, outlasted in beside),
        )

    def _beside(self, ask: Callable[[], Transfer], one_s: float) -> tuple[float, bool]:
        """Return what compute takes beside transfers of `one_s` each, over its time alone, and whether they outlasted it."""
        alone, beside, outlasted = [], [], True
        for _ in range(_ROUNDS):
            alone.append(self._compute.seconds())
            n = min(_MOST_BESIDE, 1 + math.ceil(alone[-1] / one_s))
            under_way = [ask() for _ in range(n)]
            beside.append(self._compute.seconds())
            outlasted = outlasted and not under_way[-1].done
            for transfer in under_way:
                _finish(transfer)
        return median(beside) / median(alone), outlasted

    def _seconds(self, ask: Callable[[], Transfer]) -> float:
        found = []
        for _ in range(_ROUNDS + 1):
            began = time.perf_counter()
            _finish(ask())
            found.append(time.perf_counter() - began)
        return median(found[1:])


def _backend(candidate: Candidate, layout: Layout, device: torch.device, options: StagingOptions) -> CopyBackend:
    if candidate.kernel is not None:
        options = replace(options, kernel=candidate.kernel)
    return make_backend(candidate.backend, layout, device, options)


def _finish(transfer: Transfer) -> None:
    if not transfer.wait(_WAIT_S):
        raise Unsupported(f"a {transfer.direction.value} took more than {_WAIT_S} s", hint="use another copy backend")
    if transfer.error is not None:
        raise transfer.error


def _told(one: Measured) -> str:
    rates = [(one.load_bytes_per_s or 0.0) / 1e9, (one.backup_bytes_per_s or 0.0) / 1e9]
    more = "" if one.outlasted else " or more"
    return f"{one.candidate} {rates[0]:.1f} GB/s up, {rates[1]:.1f} down, compute {one.slowdown or 1.0:.2f}x{more}"
