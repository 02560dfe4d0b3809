"""`topo --measured FILE`: capacities of links as `bench link` measured them, in the place of link math. Pure but for the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hicachectl.bench_link_cases import LinkRate, fit_cases, read_cases
from hicachectl.bench_results import read_bench
from hicachectl.errors import UsageError
from hicachectl.tuning.host.facts import Confidence, Fact
from hicachectl.tuning.host.model import Machine, Uplink

__all__ = ["read_measured", "with_measured"]

_MOST_OF_MATH = 1.02
"""A link carries no more than its arithmetic, which leaves packet headers out; the rest is the clock of a short window (our choice)."""


def read_measured(path: Path, machine: Machine) -> tuple[Machine, str]:
    """Return the machine with what a file of `bench link` measured, and a sentence on it and on what was left out. Reads the file.

    Raises UsageError for a file that is none, holds no rate of a link, contradicts itself or link math, or is of another host.
    """
    found = read_bench(path)
    again = "hicachectl bench link -o json --output-file link.json"
    if found.kind != "link":
        raise UsageError(
            f"this is a result of bench {found.kind}", where=str(path), why="it measured no link", hint=again
        )
    hostname = machine.host.hostname.value
    if hostname is None or found.host != hostname:
        raise UsageError(
            f"it was measured on {found.host or 'a host without a name'}, this is {hostname or 'a host without a name'}", where=str(path),
            why="links of another host say nothing of these", hint=again,
        )  # fmt: skip
    cases = read_cases(found)
    if not cases:
        raise UsageError(
            "it measured memory between nodes, no link", where=str(path), why=str(found.data.get("no_accelerator")),
            hint=f"topo without --measured, or, where torch sees an accelerator: {again}",
        )  # fmt: skip
    fit = fit_cases(cases, found)
    if not fit.kept:
        raise UsageError(
            "none of its rates says what a link carries", where=str(path),
            why="; ".join(fit.left_out) or "no accelerator was measured alone or with all behind its uplink, one way", hint=again,
        )  # fmt: skip
    _check_math(machine, fit.kept, str(path))
    source = f"{path}: bench link of {found.collected_at}"
    measured = with_measured(machine, fit.kept, source)
    names = [new.id for new, old in zip(measured.uplinks, machine.uplinks, strict=True) if new is not old]
    boot_id = machine.host.boot_id.value
    earlier = "" if found.boot_id == boot_id else ", in another boot"
    left_out = "".join(f"; left out: {text}" for text in fit.left_out)
    told = f"{' '.join(names) or 'no uplink'}: measured, not link math ({source}{earlier}); the others are link math"
    return measured, told + left_out


def with_measured(machine: Machine, rates: Sequence[LinkRate], source: str) -> Machine:
    """Put measured rates, one way, the lower of both, in the place of link math where `rates` have them. Pure.

    The capacity of an uplink is the sum of its accelerators when all of them and nothing else were busy, what each gets the least
    of these, alone the rate with the first node it was measured with. Findings are judged without: they speak of link math.
    """
    return replace(machine, uplinks=tuple(_measured(uplink, rates, source) for uplink in machine.uplinks))


def _check_math(machine: Machine, rates: Sequence[LinkRate], path: str) -> None:
    """Raise UsageError for a rate above what link math of this host allows, of one accelerator or of all behind an uplink."""
    for uplink in machine.uplinks:
        for one in rates:
            math = uplink.solo_bytes_per_s.get(one.accelerator)
            if math is not None and math.value is not None and one.bytes_per_s > _MOST_OF_MATH * math.value:
                raise _above(path, f"cases[{one.place}].bytes_per_s", one.bytes_per_s, math.value, one.accelerator)
        together, capacity = _together(uplink, rates), uplink.capacity_bytes_per_s.value
        if together is not None and capacity is not None and together[0] > _MOST_OF_MATH * capacity:
            place = f"the sum of cases[].bytes_per_s of {uplink.id}, {together[2]},"
            raise _above(path, place, together[0], capacity, uplink.port)


def _above(path: str, place: str, rate: float, math: float, address: str) -> UsageError:
    return UsageError(
        f"{place} is {rate:g}, link math of {address} is {math:g}", where=path,
        why="no link carries more: the file was edited, or the link runs with fewer lanes or a lower speed than when it was measured",
        hint=f"hicachectl topo, then measure again: hicachectl bench link -o json --output-file {path}",
    )  # fmt: skip


def _measured(uplink: Uplink, rates: Sequence[LinkRate], source: str) -> Uplink:
    solo = {address: _alone(address, rates) for address in uplink.accelerators}
    together = _together(uplink, rates)
    if len(uplink.accelerators) == 1 and together is None:
        one = solo[uplink.accelerators[0]]
        together = None if one is None else (one[0], one[0], one[1])
    new = dict(uplink.solo_bytes_per_s)
    for address, found in solo.items():
        if found is not None:
            new[address] = Fact(found[0], f"{source}, {found[1]} alone", Confidence.READ)
    if new == uplink.solo_bytes_per_s and together is None:
        return uplink
    if together is None:
        return replace(uplink, solo_bytes_per_s=new)
    total, least, way = together
    n = len(uplink.accelerators)
    return replace(
        uplink,
        solo_bytes_per_s=new,
        capacity_bytes_per_s=Fact(total, f"{source}, {way}, {n} accelerators busy", Confidence.READ),
        busy_bytes_per_s=Fact(least, f"{source}, {way}, {n} accelerators busy", Confidence.READ),
    )


def _alone(address: str, rates: Sequence[LinkRate]) -> tuple[float, str] | None:
    """The lower of both ways, and which it is."""
    own = [one for one in rates if one.case == "alone" and one.accelerator == address]
    return min(((one.bytes_per_s, one.direction) for one in own), default=None)


def _together(uplink: Uplink, rates: Sequence[LinkRate]) -> tuple[float, float, str] | None:
    """Sum, least and way of the case in which exactly the uplink's accelerators were busy, of both ways the lower sum."""
    found = []
    for way in ("h2d", "d2h"):
        of_way = {
            one.accelerator: one.bytes_per_s
            for one in rates
            if one.case == "uplink" and one.direction == way and one.accelerator in uplink.accelerators
        }
        if of_way and set(of_way) == set(uplink.accelerators):
            found.append((sum(of_way.values()), min(of_way.values()), way))
    return min(found, default=None)
