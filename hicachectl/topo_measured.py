"""`topo --measured FILE`: capacities of links as `bench link` measured them, in the place of link math. Pure but for the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hicachectl.bench_results import read_bench
from hicachectl.errors import UsageError
from hicachectl.tuning.host.facts import Confidence, Fact
from hicachectl.tuning.host.model import Machine, Uplink

__all__ = ["read_measured", "with_measured"]

Case = Mapping[str, Any]


def read_measured(path: Path, machine: Machine) -> tuple[Machine, str]:
    """Return the machine with what a file of `bench link` measured, and a sentence on it. Reads the file.

    Raises UsageError for a file that is none, holds no link, or is of another host.
    """
    found = read_bench(path)
    again = "hicachectl bench link -o json --output-file link.json"
    if found.kind != "link":
        raise UsageError(
            f"this is a result of bench {found.kind}", where=str(path), why="it measured no link", hint=again
        )
    hostname = machine.host.hostname.value
    if found.host != hostname:
        raise UsageError(
            f"it was measured on {found.host}, this is {hostname or 'a host without a name'}", where=str(path),
            why="links of another host say nothing of these", hint=again,
        )  # fmt: skip
    cases = found.data["cases"]
    if not cases:
        raise UsageError(
            "it measured memory between nodes, no link", where=str(path), why=str(found.data.get("no_accelerator")), hint=again
        )  # fmt: skip
    source = f"{path}: bench link of {found.collected_at}"
    measured = with_measured(machine, cases, source)
    names = [new.id for new, old in zip(measured.uplinks, machine.uplinks, strict=True) if new is not old]
    boot_id = machine.host.boot_id.value
    earlier = "" if found.boot_id == boot_id else ", in another boot"
    return (
        measured,
        f"{' '.join(names) or 'no uplink'}: measured, not link math ({source}{earlier}); the others are link math",
    )


def with_measured(machine: Machine, cases: Sequence[Case], source: str) -> Machine:
    """Put measured rates, one way, the lower of both, in the place of link math where the cases have them. Pure.

    Of the largest copies: the capacity of an uplink is the sum of its accelerators when all of them and nothing else were busy,
    what each gets the least of these, alone the rate with the first node it was measured with. Findings are judged without: they
    speak of link math.
    """
    most = max((case["size_bytes"] for case in cases), default=0)
    kept = [
        case
        for case in cases
        if case["size_bytes"] == most and case["bytes_per_s"] is not None and case["direction"] in ("h2d", "d2h")
    ]
    return replace(machine, uplinks=tuple(_measured(uplink, kept, source) for uplink in machine.uplinks))


def _measured(uplink: Uplink, cases: Sequence[Case], source: str) -> Uplink:
    solo = {address: _alone(address, cases) for address in uplink.accelerators}
    together = _together(uplink, cases)
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


def _alone(address: str, cases: Sequence[Case]) -> tuple[float, str] | None:
    """The lower of both ways, and which it is, with the first node of the accelerator's cases."""
    own = [case for case in cases if case["case"] == "alone" and case["accelerator"] == address]
    nodes = {case["node"] for case in cases if case["case"] == "uplink" and case["accelerator"] == address}
    node = next(iter(nodes), own[0]["node"] if own else None)
    rates = [(case["bytes_per_s"], case["direction"]) for case in own if case["node"] == node]
    return min(rates, default=None)


def _together(uplink: Uplink, cases: Sequence[Case]) -> tuple[float, float, str] | None:
    """Sum, least and way of the case in which exactly the uplink's accelerators were busy, of both ways the lower sum."""
    found = []
    for way in ("h2d", "d2h"):
        rates = {
            case["accelerator"]: case["bytes_per_s"]
            for case in cases
            if case["case"] == "uplink" and case["direction"] == way and case["accelerator"] in uplink.accelerators
        }
        if set(rates) == set(uplink.accelerators):
            found.append((sum(rates.values()), min(rates.values()), way))
    return min(found, default=None)
