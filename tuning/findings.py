"""What a machine's facts mean: `judge(machine)` gives findings with stable codes, worst first. Pure.

Rules are in `judge_links.py`, `judge_ordering.py`, `judge_numa.py`, `judge_memory.py` and `judge_host.py`, one generator an
area. A code is a promise: it keeps its meaning, has a page in `hicachectl explain`, and its severity depends on what the
machine is for (a link that no accelerator uses weighs less).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from hicachectl.tuning.finding import Finding, Severity, Sight
from hicachectl.tuning.hints import for_recording
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.judge_host import judge_host
from hicachectl.tuning.judge_links import judge_links
from hicachectl.tuning.judge_memory import judge_memory
from hicachectl.tuning.judge_numa import judge_numa
from hicachectl.tuning.judge_ordering import judge_ordering

__all__ = ["CODES", "Finding", "Severity", "judge", "worst"]

CODES: tuple[str, ...] = (
    "HC-NOTHING-READ", "HC-PART-READ", "HC-KIND-UNKNOWN", "HC-DEVICE-GONE",
    # link
    "HC-LINK-WIDTH", "HC-LINK-SPEED", "HC-UPLINK-SHARED", "HC-MPS-MISMATCH", "HC-ASPM-ON", "HC-AER-RISING", "HC-BAR-SMALL",
    # ordering
    "HC-IDO-OFF", "HC-IDO-UNEQUAL", "HC-RC-ORDER-UNKNOWN", "HC-RO-OFF", "HC-RO-FORBIDDEN", "HC-ACS-REDIRECT",
    # NUMA
    "HC-NODE-UNKNOWN", "HC-NIC-FAR", "HC-INTERLEAVE-ALL", "HC-NUMA-BALANCING", "HC-NODE-LOW", "HC-BIND-HALF", "HC-CPUSET",
    "HC-NPS-MODE", "HC-MEMPOLICY-DENIED",
    # memory
    "HC-THP-OFF", "HC-THP-STALL", "HC-SHM-4K", "HC-CGROUP-LIMIT", "HC-MEMLOCK-LOW", "HC-HUGETLB-HELD", "HC-PIN-LARGE",
    "HC-KERNEL-GUP",
    # host
    "HC-IOMMU-STRICT", "HC-IOMMU-TRANSLATED", "HC-CSTATE-DEEP", "HC-CONTAINER", "HC-NEED-ROOT", "HC-SUSPENDED", "HC-VF",
)  # fmt: skip
"""Every code `judge` may give, in the order in which findings of one severity are listed."""

_AREAS = (judge_links, judge_ordering, judge_numa, judge_memory, judge_host)
_SEVERITIES: tuple[Severity, ...] = ("error", "warn", "note")


def judge(machine: Machine, *, recorded: bool = False) -> tuple[Finding, ...]:
    """Return the findings of a machine: by severity, then in the order of `CODES`, then as its devices and nodes are listed.

    Pure. Each message holds both values, the one seen and the one it was judged by. A fact that is not known makes no
    finding, except those that say so: HC-NOTHING-READ, HC-PART-READ, HC-KIND-UNKNOWN, HC-NODE-UNKNOWN,
    HC-NEED-ROOT, HC-SUSPENDED, HC-DEVICE-GONE.
    `recorded` says that the machine was read from a recording; it decides advice alone.
    """
    sight = Sight(machine, recorded=recorded)
    found: Iterable[Finding] = chain.from_iterable(area(sight) for area in _AREAS)
    if recorded:
        found = (replace(finding, hint=for_recording(finding.hint)) for finding in found)
    return tuple(sorted(_once(found), key=lambda f: (_SEVERITIES.index(f.severity), CODES.index(f.code))))


def worst(findings: Iterable[Finding]) -> Severity | None:
    """Return the heaviest severity among findings; None when there are none. Pure."""
    there = {finding.severity for finding in findings}
    return next((severity for severity in _SEVERITIES if severity in there), None)


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    seen: set[Finding] = set()
    for finding in findings:
        if finding not in seen:
            seen.add(finding)
            yield finding
