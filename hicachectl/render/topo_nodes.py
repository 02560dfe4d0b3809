"""Nodes and host pools on the screen of `topo`: what memory lies where, and what each policy would give of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.render.text import cell_width, pad
from hicachectl.render.topo_marks import Marks
from hicachectl.render.topo_words import (
    gib,
    on_off,
    ranges,
    word,
)
from hicachectl.tuning.host.gaps import why_no_accelerators, why_no_nodes
from hicachectl.tuning.host.model import Machine, SlotKind
from hicachectl.tuning.placement import MEANINGS, Placement
from hicachectl.units import GIB

__all__ = ["draw_nodes", "draw_placements"]

_POOLS = (
    "of what is available, or free where that is not known. INSTALLED: memory of the nodes in use; DISTANCE: mean from a card's "
    "node to its bytes, 10 is its own; REMOTE: bytes on other nodes. Policies: hicachectl topo --help"
)


def draw_nodes(screen: Screen, machine: Machine, marks: Marks) -> None:
    """Draw nodes side by side, in as many blocks as the width asks for."""
    numa = machine.numa
    if not numa.nodes:
        why = why_no_nodes(machine)
        screen.paragraph("NODE ", "none" if why is None else f"not known: {why}")
        return
    near = Counter(d.node.value for d in machine.devices if d.kind == SlotKind.ACCELERATOR)
    lost = near[None] or why_no_accelerators(machine) is not None
    rows: list[tuple[str, list[str]]] = [
        ("NODE", [str(node.id) for node in numa.nodes]),
        ("free GiB", [gib(node.memory_free_bytes) for node in numa.nodes]),
        ("available GiB", [gib(node.memory_available_bytes) for node in numa.nodes]),
        ("of GiB", [gib(node.memory_total_bytes) for node in numa.nodes]),
        ("accelerators", [str(near[node.id] or ("?" if lost else 0)) for node in numa.nodes]),
    ]
    kinds = [word(node.kind) for node in numa.nodes]
    if set(kinds) != {"memory"}:
        rows.append(("kind", kinds))
    allowed = numa.allowed_nodes.value
    if allowed is None or not {node.id for node in numa.nodes} <= set(allowed):
        rows.append(
            ("allowed here", ["?" if allowed is None else "yes" if n.id in allowed else "no" for n in numa.nodes])
        )
    if any(node.online.value is False for node in numa.nodes):
        rows.append(("online", [on_off(node.online) for node in numa.nodes]))
    marked = [marks.about(f"node {node.id}") for node in numa.nodes]
    if any(marked):
        rows.append(("note", [mark or "-" for mark in marked]))
    label = max(cell_width(name) for name, _ in rows)
    cell = max(cell_width(text) for _, texts in rows for text in texts)
    a_line = max(1, (screen.width - label) // (cell + 2))
    far = sorted({d for node in numa.nodes for d in (node.distances.value or {}).values()})
    distance = f"distance {' / '.join(map(str, far))}" if far else "distance ?"
    for start in range(0, len(numa.nodes), a_line):
        for number, (name, texts) in enumerate(rows):
            line = pad(name, label) + "".join(
                f"  {pad(text, cell, right=True)}" for text in texts[start : start + a_line]
            )
            if number == 0 and start == 0:
                line = (
                    f"{line}  {distance}"
                    if cell_width(line) + 2 + len(distance) <= screen.width
                    else f"{distance}\n{line}"
                )
            screen.print(line, "bold" if number == 0 else None)


def draw_placements(screen: Screen, placements: Sequence[Placement]) -> None:
    """Draw what each policy for host pools would give, and with -o wide what it costs."""
    usable = [one for one in placements if one.refused is None]
    if usable:
        columns = (
            Column("HOST POOLS"), Column("GiB EACH", right=True), Column("GiB ALL", right=True), Column("NODES", keep=1),
            Column("INSTALLED GiB", right=True, keep=3), Column("DISTANCE", right=True, keep=2), Column("REMOTE", right=True, keep=2),
        )  # fmt: skip
        screen.table(Table(columns, [_placement_row(one) for one in usable]))
        screen.paragraph("  ", _POOLS)
        if screen.wide:
            for one in usable:
                screen.paragraph("  ", f"{one.policy.value}: {MEANINGS[one.policy]}")
    for term in dict.fromkeys(term for one in usable for term in one.unknown):
        screen.paragraph("  ", term)
    if screen.wide:
        costs: dict[str, list[str]] = {}
        for one in usable:
            for cost in (cost for cost in one.costs if cost not in one.unknown):
                costs.setdefault(cost, []).append(one.policy.value)
        for cost, policies in costs.items():
            screen.paragraph("  ", f"{'all' if len(policies) == len(usable) > 1 else ', '.join(policies)}: {cost}")
    reasons = Counter(one.refused for one in placements if one.refused is not None)
    for reason in reasons:
        refused = ", ".join(one.policy.value for one in placements if one.refused == reason)
        screen.paragraph("  no " if usable else "HOST POOLS none: ", f"{refused}: {reason}" if usable else str(reason))


def _placement_row(one: Placement) -> list[str | None]:
    distance, remote = _mean(b.distance for b in one.bindings), _mean(b.remote_share for b in one.bindings)
    each = min((binding.pool_bytes for binding in one.bindings), default=0)
    return [
        one.policy.value,
        f"{each / GIB:.1f}",
        f"{one.pool_bytes / GIB:.0f}",
        ranges(one.bytes_by_node),
        f"{one.reached_bytes / GIB:.0f} of {'?' if one.installed_bytes is None else format(one.installed_bytes / GIB, '.0f')}",
        "?" if distance is None else f"{distance:.1f}",
        "?" if remote is None else f"{remote:.0%}",
    ]


def _mean(numbers: Iterable[float | None]) -> float | None:
    """The mean, or None where one of them is not known or there is none."""
    listed = list(numbers)
    known = [number for number in listed if number is not None]
    return sum(known) / len(known) if known and len(known) == len(listed) else None
