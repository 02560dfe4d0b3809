"""The document of `hicachectl bench link`: a measure a row with what the link should carry, and what was loaded how. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hicachectl.bench_data import Expected, Measure, measure
from hicachectl.units import format_bytes

if TYPE_CHECKING:
    from hicachectl.runtime.probes.link import LinkProbe, LinkRow
    from hicachectl.runtime.probes.link_math import LinkTarget
    from hicachectl.runtime.probes.node_memory import NodeRow

__all__ = [
    "link_details",
    "link_headline",
    "link_measures",
    "link_reasons",
    "link_subject",
    "node_details",
    "node_measures",
    "node_reasons",
]

_SHARES = "docs/facts.md#h200-link"


def link_subject(row: LinkRow) -> str:
    """Name what a row measured, but for the way. Pure."""
    node = "" if row.node is None else f" node {row.node}"
    return f"{row.target.name}{node} {row.scenario.value} {format_bytes(row.size_bytes)}"


def link_measures(probe: LinkProbe) -> tuple[Measure, ...]:
    """Return every rate of the probe, in its order. Pure."""
    found = []
    for row in probe.rows:
        low, high = row.expected.low_bytes_per_s, row.expected.math_bytes_per_s
        source = f"{row.expected.source}; {_SHARES}"
        expected = None if low is None else Expected(low, high, source)
        quantity = f"{row.way.value}_bytes_per_s"
        found.append(
            measure(link_subject(row), quantity, row.samples, expected=expected, reason=row.refused or row.fewer)
        )
    return tuple(found)


def link_headline(probe: LinkProbe, measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the numbers that must be an answer: each accelerator alone, largest copies. Pure."""
    from hicachectl.runtime.probes.link_cases import Scenario

    most = max((row.size_bytes for row in probe.rows), default=0)
    return tuple(
        one
        for row, one in zip(probe.rows, measures, strict=True)
        if row.scenario is Scenario.ALONE and row.size_bytes == most
    )


def link_details(
    probe: LinkProbe, targets: Sequence[LinkTarget], models: Mapping[str, str | None], under_load: Mapping[str, float]
) -> dict[str, Any]:
    """Return the fields that this document alone has. `models` by torch name, `under_load` GT/s by uplink. Pure."""
    return {
        **_about(probe.seconds, probe.stopped, None),
        "accelerators": [
            {
                "address": target.address,
                "name": target.name,
                "device": target.device,
                "model": models.get(target.device),
                "node": target.own_node,
                "uplink": target.uplink,
                "neighbours": list(target.neighbours),
                "own_link_bytes_per_s": target.own_bytes_per_s,
                "uplink_bytes_per_s": target.uplink_bytes_per_s,
                "link_math_reason": target.math_reason if target.own_bytes_per_s is None else None,
                "uplink_under_load_gt_s": under_load.get(target.uplink or ""),
            }
            for target in targets
        ],
        "cases": [
            {
                "subject": link_subject(row),
                "accelerator": row.target.address,
                "node": row.node,
                "case": row.scenario.value,
                "direction": row.way.value,
                "size_bytes": row.size_bytes,
                "beside": list(row.beside),
                "bytes_per_s": row.bytes_per_s,
                "link_math_bytes_per_s": row.expected.math_bytes_per_s,
                "share_of_link_math": row.share,
                "low": row.is_low,
                "refused": row.refused,
            }
            for row in probe.rows
        ],
        "memory": [
            {
                "accelerator": one.address,
                "node": one.node,
                "placement": one.placement,
                "pages_by_node": {str(node): n for node, n in one.pages_by_node.items()},
                "registered_with": one.registered_with,
                "reasons": list(one.reasons),
            }
            for one in probe.memory
        ],
        "pairs": [],
    }


def link_reasons(probe: LinkProbe, targets: Sequence[LinkTarget]) -> dict[str, str]:
    """Say why nulls of the document are null. Pure."""
    found = {
        **_SHARED_REASONS,
        "no_accelerator": "there are accelerators",
        "model": "torch has no name for it",
        "link_math_reason": "link math is known",
        "uplink_under_load_gt_s": "the port tells no speed",
        "placement": "no policy is set; the reasons say why where one was asked for",
        "registered_with": "not registered; the reasons say why",
    }
    for at, target in enumerate(targets):
        for name in ("uplink", "own_link_bytes_per_s", "uplink_bytes_per_s"):
            found[f"/accelerators/{at}/{name}"] = target.math_reason or "no port above it was found"
        found[f"/accelerators/{at}/node"] = "the firmware does not tell the accelerator's node"
    for at, row in enumerate(probe.rows):
        why = row.expected.reason or "it was not measured"
        found[f"/measures/{at}/expected"] = why
        for name in ("link_math_bytes_per_s", "share_of_link_math"):
            found[f"/cases/{at}/{name}"] = row.refused or why
        found[f"/cases/{at}/bytes_per_s"] = row.refused or "no samples"
        found[f"/cases/{at}/node"] = _NO_NODE
    for at, _ in enumerate(probe.memory):
        found[f"/memory/{at}/node"] = _NO_NODE
    return found


def node_measures(rows: Sequence[NodeRow]) -> tuple[Measure, ...]:
    """Return the rate of each pair of nodes. Pure."""
    return tuple(measure(_pair(row), "copy_bytes_per_s", row.samples, reason=row.refused or row.fewer) for row in rows)


def node_details(
    rows: Sequence[NodeRow], why: str, seconds: float, stopped: str | None, distances: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    """Return the fields of the document where no accelerator is loaded, `why` says why. Pure."""
    return {
        **_about(seconds, stopped, why),
        "accelerators": [],
        "cases": [],
        "memory": [],
        "pairs": [
            {
                "cpu_node": row.cpu_node,
                "memory_node": row.memory_node,
                "distance": distances.get((-1 if row.cpu_node is None else row.cpu_node, -1 if row.memory_node is None else row.memory_node)),
                "threads": row.n_threads,
                "region_bytes": row.region_bytes,
                "bytes_per_s": row.bytes_per_s,
                "pages_by_node": {str(node): n for node, n in (row.pages_by_node or {}).items()},
                "reasons": list(row.reasons),
                "refused": row.refused,
            }
            for row in rows
        ],
    }  # fmt: skip


def node_reasons() -> dict[str, str]:
    """Say why nulls of that document are null. Pure."""
    return {
        **_SHARED_REASONS,
        "expected": "link math says nothing of memory between nodes",
        "cpu_node": "the kernel tells no nodes",
        "memory_node": "the kernel tells no nodes",
        "distance": "the kernel tells no distance",
        "bytes_per_s": "it was refused",
    }


_NO_NODE = "the accelerator's node is not known: memory from wherever the kernel takes it"
_SHARED_REASONS = {"stopped": "all cases were measured", "refused": "it ran"}


def _pair(row: NodeRow) -> str:
    if row.cpu_node is None:
        return "all processors, any memory"
    return f"CPUs of node {row.cpu_node}, memory of node {row.memory_node}"


def _about(seconds: float, stopped: str | None, no_accelerator: str | None) -> dict[str, Any]:
    return {"sample_s": seconds, "stopped": stopped, "no_accelerator": no_accelerator}
