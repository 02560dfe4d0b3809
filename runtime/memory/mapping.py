"""Make the memory of a pool, in the order that counts, and say what each step got:

    reserve    addresses that start on a huge page, and the memory itself in them
    bind       the memory policy of the range, before there is a page
    advise     MADV_HUGEPAGE, before there is a page
    populate   every page touched, by threads on the right nodes' CPUs: only now is the memory had
    verify     the share of huge pages from smaps of this mapping, a sample of pages by node
    register   with the device's driver, in chunks that end where slots end
    name       of a named file alone: it is whole now, and others may attach

A refused policy, small pages or a refused registration leave a pool that works and says so; memory that cannot be had, and a
device that is gone, are errors. After an error nothing stays mapped, registered, open or named. docs/facts.md#huge-pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.memory.address_range import AddressRange
from hicachectl.runtime.memory.asked import asked_of
from hicachectl.runtime.memory.attaching import Source, obtain_shared
from hicachectl.runtime.memory.binding import bind_step, require_room_on_nodes
from hicachectl.runtime.memory.live import LIVE, LiveRegistrations
from hicachectl.runtime.memory.making import (
    Obtained,
    advise_step,
    name_step,
    obtain,
    populate_step,
    register_step,
    verify_step,
)
from hicachectl.runtime.memory.register import NoRegistrar, Refusal, Registrar, Registration
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import MappingReport, Step, StepState
from hicachectl.runtime.memory.syscalls import MemoryCalls, PoolCalls

__all__ = ["NOBODY_REGISTERS", "Mapping", "MappingSpec", "Step", "attach_memory", "map_memory", "reserve"]

NOBODY_REGISTERS = NoRegistrar("no device asked for it")


class Mapping:
    """A range of memory, 1-D uint8, zeroed, with what making it got; a context manager that closes it.

    The memory itself stays as long as a view of it does; the registration goes with `close`, and with the process.
    """

    def __init__(
        self, held: AddressRange, report: MappingReport, registration: Registration | None, live: LiveRegistrations
    ) -> None:
        self._range: AddressRange | None = held
        self._buffer: NDArray[np.uint8] | None = held.view(report.n_bytes)
        self._registration = registration
        self._live = live
        self.report = report

    @property
    def buffer(self) -> NDArray[np.uint8]:
        """The pool's bytes. Raises InvariantBroken after close()."""
        if self._buffer is None:
            raise InvariantBroken("the mapping is closed", where="host memory")
        return self._buffer

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.report.steps

    @property
    def fd(self) -> int | None:
        """The descriptor of shared memory, for another process to map; None for private memory and after close()."""
        return None if self._range is None else self._range.fd

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def unregister(self) -> tuple[Refusal, ...]:
        """Take the registration back and return what the driver refused. No copy may be under way. May be called twice.

        What it refused is a step `unregister` of the report: that memory stays mapped until the process ends.
        """
        if self._registration is None:
            return ()
        refused = self._registration.close()
        self._live.drop(self._registration)
        if refused:
            reason = "; ".join(map(str, refused))
            text = "not taken back: the memory stays until the process ends"
            step = Step("unregister", StepState.REFUSED, text, reason, asked="all of it taken back")
            self.report = replace(self.report, steps=(*self.report.steps, step))
        return refused

    def close(self) -> tuple[Refusal, ...]:
        """Unregister, drop the file's name, and give the memory back as soon as nobody holds a view. May be called twice.

        Returns what the driver refused to unregister; then the memory is not given back, for the driver holds it.
        """
        refused = self.unregister()
        if self._range is not None:
            self._range.drop_name()
        self._buffer = self._range = None
        return refused


def reserve(n_bytes: int, *, calls: MemoryCalls | None = None) -> Mapping:
    """Reserve `n_bytes` of private anonymous memory that starts on a huge page, and advise huge pages; nothing more.

    Nothing is populated: pages come when they are touched. Raises CapacityError when the kernel refuses the range.
    """
    calls = PoolCalls() if calls is None else calls
    spec = MappingSpec()
    got = obtain(calls, n_bytes, spec)
    try:
        steps = (got.step, advise_step(calls, got, spec))
        report = MappingReport(spec.kind.value, n_bytes, got.mapped_bytes, got.huge_bytes, steps)
        return Mapping(got.range, report, None, LIVE)
    except BaseException:
        got.range.release()
        raise


def map_memory(
    n_bytes: int,
    spec: MappingSpec = MappingSpec(),  # noqa: B008 - frozen
    *,
    registrar: Registrar | NoRegistrar = NOBODY_REGISTERS,
    calls: MemoryCalls | None = None,
    clock: Callable[[], float] = perf_counter,
    live: LiveRegistrations = LIVE,
) -> Mapping:
    """Make `n_bytes` of memory as `spec` says, every step of the order, and register it with `registrar`.

    `calls` is the kernel and `registrar` the driver (the seams at which faults are injected), `clock` times the steps in seconds,
    `live` closes registrations at the end of the process. Raises CapacityError when the memory cannot be had (with the terms),
    UsageError for a place that is no tmpfs, PermissionDenied for one that may not be written, HostError for memory the hardware
    reports broken or a registration refused that must be, Vanished when the device is gone.
    """
    calls = PoolCalls() if calls is None else calls
    timed = _Timed(clock, asked_of(n_bytes, spec, registrar))
    got = timed.run(lambda: obtain(calls, n_bytes, spec), lambda got: got.step)
    return _filled(calls, got, spec, timed, registrar, live)


def attach_memory(
    source: Source,
    n_bytes: int,
    spec: MappingSpec = MappingSpec(),  # noqa: B008 - frozen
    *,
    registrar: Registrar | NoRegistrar = NOBODY_REGISTERS,
    calls: MemoryCalls | None = None,
    clock: Callable[[], float] = perf_counter,
    live: LiveRegistrations = LIVE,
) -> Mapping:
    """Map the `n_bytes` of shared memory that another process made, and register them for this one.

    `source` is the path of its file or a descriptor of its memfd; of `spec` count huge, n_threads, label and what concerns
    registration. Steps and errors are those of `map_memory` and of `attaching.obtain_shared`. Its file is neither cut nor
    removed; the memory lives until the last process that maps it lets go.
    """
    calls = PoolCalls() if calls is None else calls
    timed = _Timed(clock, asked_of(n_bytes, spec, registrar, source=source))
    got, spec = timed.run(lambda: obtain_shared(calls, source, n_bytes, spec), lambda found: found[0].step)
    return _filled(calls, got, spec, timed, registrar, live)


def _filled(
    calls: MemoryCalls,
    got: Obtained,
    spec: MappingSpec,
    timed: _Timed,
    registrar: Registrar | NoRegistrar,
    live: LiveRegistrations,
) -> Mapping:
    """Take the steps after the first one."""
    registration: Registration | None = None
    try:
        bound = timed.run(lambda: _bound(calls, got, spec), _itself)
        if bound.ok:
            require_room_on_nodes(calls, got.mapped_bytes, spec)
        advice = timed.run(lambda: advise_step(calls, got, spec), _itself)
        touched = timed.run(lambda: populate_step(calls, got, spec), _itself).ok
        seen = timed.run(
            lambda: verify_step(calls, got, spec, advised=advice.ok, mapped_here=touched), lambda seen: seen.step
        )
        refused: Refusal | None = None
        if not isinstance(registrar, NoRegistrar):
            refused = registrar.prepare()  # what a driver brings up on first use is no part of registering
            registration = Registration(registrar, got.range.address)
            got.range.before_release(partial(_let_go, registration, live))
            live.hold(registration)
        timed.run(lambda: register_step(calls, got, spec, registrar, registration, refused), _itself)
        if spec.has_name:
            timed.run(lambda: name_step(got, spec, live), _itself)
        ranges = () if registration is None else registration.ranges
        if registration is not None and not ranges:
            live.drop(registration)
        report = MappingReport(
            kind=spec.kind.value,
            n_bytes=got.n_bytes,
            mapped_bytes=got.mapped_bytes,
            huge_page_bytes=got.huge_bytes,
            steps=tuple(timed.steps),
            huge_share=seen.huge_share,
            resident_bytes=seen.resident_bytes,
            pages_by_node=seen.by_node,
            placement=str(spec.placed) if bound.ok and spec.placed is not None else None,
            registered_with=None if isinstance(registrar, NoRegistrar) or not ranges else registrar.name,
            registrations=ranges,
        )
        return Mapping(got.range, report, registration, live)
    except BaseException:
        got.range.release()
        raise


def _bound(calls: MemoryCalls, got: Obtained, spec: MappingSpec) -> Step:
    if not got.attached:
        return bind_step(calls, got.range.address, got.mapped_bytes, spec)
    reason = "the pages are there: the process that made them placed them"
    return Step("bind", StepState.SKIPPED, f"skipped: {reason}", reason)


_T = TypeVar("_T")


class _Timed:
    """Runs steps and keeps what they got, each with the time it took and what was asked of it."""

    def __init__(self, clock: Callable[[], float], asked: dict[str, str]) -> None:
        self._clock = clock
        self._asked = asked
        self.steps: list[Step] = []

    def run(self, act: Callable[[], _T], step_of: Callable[[_T], Step]) -> _T:
        began = self._clock()
        got = act()
        step = step_of(got)
        self.steps.append(replace(step, wall_s=self._clock() - began, asked=self._asked.get(step.name, "")))
        return got


def _itself(step: Step) -> Step:
    return step


def _let_go(registration: Registration, live: LiveRegistrations) -> bool:
    """What goes before the memory does; returns whether the driver has let go of all of it."""
    registration.close()
    live.drop(registration)
    return not registration.refused
