"""The rates of a file of `bench link`, typed: each held against its measure, and whether it can stand for what a link carries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicachectl.bench_data import LEAST_SAMPLES, Measure
from hicachectl.bench_json import made_of, part_of, wrong
from hicachectl.bench_results import BenchResult
from hicachectl.runtime.probes.link_cases import Scenario
from hicachectl.runtime.probes.link_math import LEAST_JUDGED_BYTES, Way
from hicachectl.units import format_bytes

__all__ = ["Fit", "LinkRate", "MeasuredCase", "fit_cases", "read_cases"]

_ONE_WAY = (Way.H2D.value, Way.D2H.value)
_OF_CAPACITY = (Scenario.ALONE.value, Scenario.UPLINK.value)
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """One of `data.cases`. `bytes_per_s` None: it was refused."""

    subject: str
    accelerator: str
    node: int | None
    case: str
    direction: str
    size_bytes: int
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class LinkRate:
    """A rate that says what a link carries one way, of `cases[place]` of the file."""

    place: int
    accelerator: str
    case: str
    direction: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The rates that can stand for what links carry, and why others cannot."""

    kept: tuple[LinkRate, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Memory:
    accelerator: str
    node: int | None
    registered_with: str | None


def read_cases(found: BenchResult) -> tuple[MeasuredCase, ...]:
    """Return the cases of a result, in its order. Pure. Raises UsageError with the file, the field, and both values.

    Each must be of a known kind, have a rate above 0 where it has one, and be what its measure, in the same place, says.
    """
    cases = made_of(tuple[MeasuredCase, ...], part_of(found.data, "cases", list, found.path), "cases", found.path)
    if cases and len(cases) != len(found.measures):
        raise wrong(found.path, "cases", f"a list of {len(found.measures)} values, one a measure,", list(cases))
    seen = set()
    for at, case in enumerate(cases):
        place = f"cases[{at}]"
        for name, known in (("case", Scenario), ("direction", Way)):
            if getattr(case, name) not in [one.value for one in known]:
                raise wrong(found.path, f"{place}.{name}", f"one of {', '.join(known)}", getattr(case, name))
        if case.size_bytes < 1:
            raise wrong(found.path, f"{place}.size_bytes", "a number above 0", case.size_bytes)
        if case.bytes_per_s is not None and case.bytes_per_s <= 0:
            raise wrong(found.path, f"{place}.bytes_per_s", "a number above 0", case.bytes_per_s)
        _check_measure(found, at, case)
        key = (case.accelerator, case.node, case.case, case.direction, case.size_bytes)
        if key in seen:
            raise wrong(found.path, f"{place}.subject", "a case that was not there before", case.subject)
        seen.add(key)
    return tuple(cases)


def fit_cases(cases: Sequence[MeasuredCase], found: BenchResult) -> Fit:
    """Choose the cases that can stand for what a link carries one way: of the largest copies, of registered memory, an answer. Pure.

    Of an accelerator alone those with the first of its nodes. Where one way of a case is left out the other is too: it may be the lower.
    Raises UsageError where the document's list of memory is none.
    """
    memory = made_of(tuple[_Memory, ...], part_of(found.data, "memory", list, found.path), "memory", found.path)
    bare = {(one.accelerator, one.node) for one in memory if one.registered_with is None}
    first = {case.accelerator: case.node for case in reversed(cases) if case.case == Scenario.ALONE.value}
    first |= {case.accelerator: case.node for case in cases if case.case == Scenario.UPLINK.value}
    of_links = [
        (at, case, case.bytes_per_s)
        for at, case in enumerate(cases)
        if case.direction in _ONE_WAY and case.case in _OF_CAPACITY and case.bytes_per_s is not None
        if case.node == first[case.accelerator]
    ]
    most = max((case.size_bytes for _, case, _ in of_links), default=0)
    rates: list[LinkRate] = []
    why: dict[str, list[str]] = {}
    unsure = set()
    for at, case, rate in of_links:
        if case.size_bytes < most:
            continue
        reason = _no_answer(found.measures[at])
        if (case.accelerator, case.node) in bare:
            reason = "host memory not registered"
        elif most < LEAST_JUDGED_BYTES:
            reason = f"copies of {format_bytes(most)}, below {format_bytes(LEAST_JUDGED_BYTES)} starting them bounds"
        if reason is not None:
            why.setdefault(reason, []).append(f"{case.subject} {case.direction}")
            unsure.add((case.accelerator, case.case))
        rates.append(LinkRate(at, case.accelerator, case.case, case.direction, rate))
    kept = tuple(one for one in rates if (one.accelerator, one.case) not in unsure)  # the lower of both ways, or none
    return Fit(kept, tuple(f"{_some(names)}: {reason}" for reason, names in why.items()))


def _check_measure(found: BenchResult, at: int, case: MeasuredCase) -> None:
    one, place = found.measures[at], f"cases[{at}]"
    node = "" if case.node is None else f" node {case.node}"
    tail = f"{node} {case.case} {format_bytes(case.size_bytes)}"
    if not case.subject.endswith(tail):
        raise wrong(found.path, f"{place}.subject", f"a name that ends with {tail.strip()!r}", case.subject)
    if case.subject != one.subject:
        raise wrong(found.path, f"{place}.subject", f"{one.subject!r}, as in measures[{at}],", case.subject)
    if f"{case.direction}_bytes_per_s" != one.quantity:
        raise wrong(found.path, f"{place}.direction", f"that of {one.quantity}, as in measures[{at}],", case.direction)
    if case.bytes_per_s != one.p50:
        raise wrong(found.path, f"{place}.bytes_per_s", f"{one.p50}, as measures[{at}].p50,", case.bytes_per_s)


def _no_answer(one: Measure) -> str | None:
    if len(one.samples) < LEAST_SAMPLES:
        return f"fewer than {LEAST_SAMPLES} samples"
    return "samples too far apart" if one.noisy else None


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
