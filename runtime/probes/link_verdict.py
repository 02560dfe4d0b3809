"""Measured rates -> where a link carries far less than it should, and what to look at next. Pure.

In this order, so that one cause is told once:

    alone, with the node next to it, slow      the link itself: width, generation, what the IOMMU adds
    alone fast there, with another node slow   the way between sockets: keep the pool on the near node
    alone fast, with its neighbours slow       ordering or arbitration behind the shared uplink
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicachectl.runtime.probes.link import LinkMemory, LinkProbe, LinkRow
from hicachectl.runtime.probes.link_cases import Scenario
from hicachectl.runtime.probes.link_math import Way
from hicachectl.units import format_rate

__all__ = ["LinkVerdict", "judge_memory", "judge_rows"]


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """One finding: its code, the accelerator's address, what was measured beside what should be, and what to look at next."""

    code: str
    subject: str
    message: str
    hint: str


_WAYS = {Way.H2D: "host to device", Way.D2H: "device to host", Way.BOTH: "both ways at once"}


_BESIDE = {
    Scenario.UPLINK: "all go the same way",
    Scenario.SPREAD: "all go the same way, each with a node of its own",
    Scenario.AGAINST: "its neighbours go the other way",
}


def judge_rows(rows: Sequence[LinkRow]) -> tuple[LinkVerdict, ...]:
    """Return the findings of a probe, an accelerator and cause each, in the order of the rows. Pure."""
    by_address: dict[str, list[LinkRow]] = {}
    for row in rows:
        by_address.setdefault(row.target.address, []).append(row)
    found: list[LinkVerdict] = []
    for own in by_address.values():
        alone = [row for row in own if row.scenario is Scenario.ALONE]
        best = {row.way: row for row in reversed(alone) if row.bytes_per_s is not None and not row.is_low}
        found += _link_itself([row for row in alone if row.is_low and row.way not in best])
        found += _far_nodes([row for row in alone if row.is_low and row.way in best], best)
        sound = {(row.way, row.node): row for row in alone if row.bytes_per_s is not None and not row.is_low}
        shared = [row for row in own if row.scenario in _BESIDE]
        found += _sharing([row for row in shared if row.is_low and (row.way, row.node) in sound], sound)
    return tuple(found)


def judge_memory(probe: LinkProbe) -> tuple[LinkVerdict, ...]:
    """Return a finding for each accelerator of which memory could not be registered. Pure."""
    targets = {row.target.address: row.target for row in probe.rows}
    bare: dict[str, list[LinkMemory]] = {}
    for one in probe.memory:
        if not one.is_registered and one.address in targets:  # what only ran beside others has no rates here
            bare.setdefault(one.address, []).append(one)
    return tuple(
        LinkVerdict(
            "HC-LINK-UNREGISTERED",
            address,
            f"host memory of {targets[address].name}{_nodes(held)} is not registered: its rates are of copies through the driver's own "
            f"buffers and say nothing of the link; {'; '.join(dict.fromkeys(reason for one in held for reason in one.reasons))}",
            f"hicachectl bench pool --device {targets[address].device}: what registers here, and why it does not",
        )
        for address, held in bare.items()
    )


def _nodes(held: Sequence[LinkMemory]) -> str:
    known = [str(one.node) for one in held if one.node is not None]
    return f" on node {', '.join(known)}" if known else ""


def _link_itself(rows: Sequence[LinkRow]) -> list[LinkVerdict]:
    if not rows:
        return []
    worst = min(rows, key=lambda row: row.share or 0.0)
    return [
        LinkVerdict(
            "HC-LINK-SLOW",
            worst.target.address,
            f"{worst.target.name} alone, {_WAYS[worst.way]}{_from(worst)}: {_rates(worst)}",
            "hicachectl topo -o wide: width and speed of every link on its way up, then IOMMU and payload size",
        )
    ]


def _far_nodes(rows: Sequence[LinkRow], best: dict[Way, LinkRow]) -> list[LinkVerdict]:
    if not rows:
        return []
    worst = min(rows, key=lambda row: row.share or 0.0)
    good = best[worst.way]
    nodes = sorted({row.node for row in rows if row.node is not None})
    listed = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))}"
    return [
        LinkVerdict(
            "HC-LINK-FAR",
            worst.target.address,
            f"{worst.target.name} is slow with memory of {listed}, worst {_WAYS[worst.way]}{_from(worst)}: {_rates(worst)}; "
            f"{format_rate(good.bytes_per_s or 0.0)}{_from(good)}",
            f"keep its pool on node {good.node} (placement local), or see: hicachectl topo matrix",
        )
    ]


def _sharing(rows: Sequence[LinkRow], sound: dict[tuple[Way, int | None], LinkRow]) -> list[LinkVerdict]:
    if not rows:
        return []
    worst = min(rows, key=lambda row: row.share or 0.0)
    alone = sound[worst.way, worst.node].bytes_per_s or 0.0
    writes = worst.way is not Way.H2D
    hint = (
        "hicachectl tune plan --only pcie.ido-request --output-file PLAN, then: sudo hicachectl tune apply PLAN --prove"
        if writes
        else "hicachectl topo -o wide: read request size and payload of all behind the uplink must agree"
    )
    return [
        LinkVerdict(
            "HC-UPLINK-SLOW",
            worst.target.address,
            f"{worst.target.name} behind {worst.target.uplink or 'its uplink'}, {_WAYS[worst.way]}, while {_BESIDE[worst.scenario]}: {_rates(worst)}; "
            f"alone {format_rate(alone)}",
            hint,
        )
    ]


def _rates(row: LinkRow) -> str:
    rate, low, math = row.bytes_per_s, row.expected.low_bytes_per_s, row.expected.math_bytes_per_s
    assert rate is not None and low is not None and math is not None
    return f"{format_rate(rate)}, expected {format_rate(low)} to {format_rate(math)}"


def _from(row: LinkRow) -> str:
    return "" if row.node is None else f" with node {row.node}"
