"""How long host memory takes to be had: reserve, populate, register, by kind and threads, beside torch's pinned memory.

Every operand runs twice a round, back to back, and the second time counts. What comes first pays for the memory's past: pages
that another operand left in small pieces, and in a virtual machine the hypervisor's share of every page the guest had given
back, which can be many times the rest. The first times are kept beside (`before`): they are what a cold start pays here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from hicachectl.errors import HicacheError, UsageError
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.mapping import map_memory
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import MappingReport
from hicachectl.runtime.memory.syscalls import MemoryCalls, PoolCalls
from hicachectl.runtime.probes.turns import turns

__all__ = ["Baseline", "PoolCase", "PoolProbe", "PoolRow", "PoolSample", "default_cases", "run_pool_probe"]


@dataclass(frozen=True, slots=True)
class PoolCase:
    """One way to make the pool. `refused` says why it is not tried here."""

    name: str
    spec: MappingSpec
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One pool made and given back; seconds, None for what did not happen."""

    total_s: float
    """From reserve to registered, looking at the pages included: what a start waits for."""
    populate_s: float
    register_s: float | None
    unregister_s: float | None
    unmap_s: float
    huge_share: float | None
    registered_bytes: int
    reasons: tuple[str, ...]
    """Of steps that did not get all they asked for."""


@dataclass(frozen=True, slots=True)
class PoolRow:
    """All samples of a case, oldest first, and why there are no more."""

    case: PoolCase
    samples: tuple[PoolSample, ...] = ()
    before: tuple[PoolSample, ...] = ()
    """The one right before each sample."""
    refused: str | None = None
    refusal: HicacheError | None = None
    """The error that ended the case; None where none did."""

    @property
    def total_s(self) -> float | None:
        """The median from reserve to registered."""
        return statistics.median(sample.total_s for sample in self.samples) if self.samples else None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the rows are compared with: seconds to pin, and to give back. `reason` says why there are no samples, or no more."""

    name: str
    samples: tuple[tuple[float, float | None], ...] = ()
    before: tuple[tuple[float, float | None], ...] = ()
    reason: str | None = None

    @property
    def total_s(self) -> float | None:
        """The median time to pin."""
        return statistics.median(made for made, _ in self.samples) if self.samples else None


@dataclass(frozen=True, slots=True)
class PoolProbe:
    """What the probe found."""

    n_bytes: int
    rounds: int
    registrar: str | None
    not_registered: str | None
    """Why nothing is registered; None when it is."""
    rows: tuple[PoolRow, ...]
    baseline: Baseline

    def times_faster(self, row: PoolRow) -> float | None:
        """Return baseline / row of the same run; None where one is missing or the row registered nothing."""
        ours, theirs = row.total_s, self.baseline.total_s
        registered = all(sample.registered_bytes for sample in row.samples)
        return theirs / ours if ours and theirs and registered else None


@dataclass(slots=True)
class _Collected:
    samples: list[PoolSample] = field(default_factory=list)
    before: list[PoolSample] = field(default_factory=list)
    refused: str | None = None
    refusal: HicacheError | None = None


def default_cases(threads: Sequence[int], *, tmpfs: str | None = None, hugetlb: bool = False) -> tuple[PoolCase, ...]:
    """Return the usual cases: small and huge pages of each kind, huge ones by number of threads. Pure.

    `tmpfs` is a folder on a tmpfs mount for files without a name; hugetlb is tried only when asked for.
    """
    most = max(threads)
    cases = [PoolCase(f"anonymous 4K, {_threads(most)}", MappingSpec(huge=False, n_threads=most))]
    cases += [PoolCase(f"anonymous huge, {_threads(n)}", MappingSpec(n_threads=n)) for n in threads]
    cases.append(PoolCase(f"memfd 4K, {_threads(most)}", MappingSpec(kind=Kind.MEMFD, huge=False, n_threads=most)))
    cases += [PoolCase(f"memfd huge, {_threads(n)}", MappingSpec(kind=Kind.MEMFD, n_threads=n)) for n in threads]
    if tmpfs is not None:
        spec = MappingSpec(kind=Kind.TMPFS, path=tmpfs, n_threads=most)
        cases.append(PoolCase(f"tmpfs huge, {_threads(most)}", spec))
    if hugetlb:
        cases.append(PoolCase(f"hugetlb, {_threads(most)}", MappingSpec(kind=Kind.HUGETLB, n_threads=most)))
    return tuple(cases)


def run_pool_probe(
    n_bytes: int,
    cases: Sequence[PoolCase],
    *,
    rounds: int,
    registrar: Registrar | NoRegistrar,
    baseline: Callable[[int], tuple[float, float | None]] | None = None,
    baseline_name: str = "torch.empty(pin_memory=True)",
    baseline_reason: str | None = None,
    baseline_once: bool = False,
    calls: MemoryCalls | None = None,
    clock: Callable[[], float] = perf_counter,
    told: Callable[[str], None] = lambda text: None,
    go_on: Callable[[], bool] = lambda: True,
) -> PoolProbe:
    """Make and give back a pool of `n_bytes` in every case, twice a round, and return the samples.

    `baseline` pins as much in another way and returns seconds to pin and to give back (`baseline_once`: it cannot give back, so
    it runs once in all, cold); without one `baseline_reason` says why. `told` hears a line before each operand, `go_on` is asked
    then whether there is time for it. A case that is refused ends with its reason and the others go on. Takes memory and gives it back; changes nothing of the host. Raises
    UsageError without rounds.
    """
    if rounds < 1 or n_bytes < 1:
        raise UsageError(f"a pool probe of {rounds} rounds of {n_bytes} bytes", hint="give at least 1 of both")
    calls = PoolCalls() if calls is None else calls
    if not isinstance(registrar, NoRegistrar):
        refused = registrar.prepare()
        registrar = registrar if refused is None else NoRegistrar(str(refused))
    found = {case.name: _Collected(refused=case.refused) for case in cases}
    pinned: list[tuple[float, float | None]] = []
    pinned_before: list[tuple[float, float | None]] = []
    reason = baseline_reason
    operands: list[PoolCase | None] = [*cases, *([] if baseline is None else [None])]
    for number, operand in turns(rounds, operands, go_on):
        if operand is None:
            if baseline is not None and reason is None and not (baseline_once and pinned):
                told(f"round {number} of {rounds}: {baseline_name}")
                try:
                    first = None if baseline_once else baseline(n_bytes)
                    pinned.append(baseline(n_bytes))
                    pinned_before += [] if first is None else [first]
                except HicacheError as error:
                    reason = str(error)
            continue
        collected = found[operand.name]
        if collected.refused is None:
            told(f"round {number} of {rounds}: {operand.name}")
            try:
                before = _sample(n_bytes, operand, registrar, calls, clock)
                collected.samples.append(_sample(n_bytes, operand, registrar, calls, clock))
                collected.before.append(before)
            except HicacheError as error:
                collected.refused, collected.refusal = str(error), error
        if reason is not None and all(one.refused is not None for one in found.values()):
            break
    if reason is None and baseline_once and pinned:
        reason = "torch keeps what it pinned: one sample, with nothing before it"
    return PoolProbe(
        n_bytes=n_bytes,
        rounds=rounds,
        registrar=None if isinstance(registrar, NoRegistrar) else registrar.name,
        not_registered=registrar.reason if isinstance(registrar, NoRegistrar) else None,
        rows=tuple(
            PoolRow(case, tuple(of.samples), tuple(of.before), of.refused, of.refusal)
            for case in cases
            for of in (found[case.name],)
        ),
        baseline=Baseline(baseline_name, tuple(pinned), tuple(pinned_before), reason),
    )


def _sample(
    n_bytes: int, case: PoolCase, registrar: Registrar | NoRegistrar, calls: MemoryCalls, clock: Callable[[], float]
) -> PoolSample:
    """Make the pool once and give it back."""
    began = clock()
    mapping = map_memory(n_bytes, case.spec, registrar=registrar, calls=calls, clock=clock)
    made = clock()
    report = mapping.report
    taken_back = mapping.unregister()
    unregistered = clock()
    mapping.close()
    return PoolSample(
        total_s=made - began,
        populate_s=_wall(report, "populate"),
        register_s=_wall(report, "register") if report.registrations else None,
        unregister_s=unregistered - made if report.registrations else None,
        unmap_s=clock() - unregistered,
        huge_share=report.huge_share,
        registered_bytes=report.registered_bytes,
        reasons=(
            *report.reasons(without=("bind",)),
            *(f"unregister: {refusal}" for refusal in taken_back),
        ),
    )


def _wall(report: MappingReport, name: str) -> float:
    step = report.step(name)
    return 0.0 if step is None else step.wall_s


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"
