"""The screen of `topo`: who shares which link, what is near which node, what is wrong, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hicachectl.envelope import Diagnostic
from hicachectl.render.screen import Screen
from hicachectl.render.text import cell_width
from hicachectl.render.topo_devices import draw_accelerators, draw_others, uplink_table
from hicachectl.render.topo_marks import Marks
from hicachectl.render.topo_nodes import draw_nodes, draw_placements
from hicachectl.render.topo_words import (
    gib,
    names_of,
    word,
)
from hicachectl.tuning.host.facts import Fact, is_absent
from hicachectl.tuning.host.gaps import is_gone, why_no_accelerators, why_no_nodes
from hicachectl.tuning.host.model import Machine, SlotKind
from hicachectl.tuning.placement import Placement
from hicachectl.units import counted

__all__ = ["Seen", "Topology", "draw_header", "draw_topology"]


@dataclass(frozen=True)
class Seen:
    """Whether this is the live host or a recording, and of when. `collected_at` None: the recording does not say."""

    name: str | None
    collected_at: str | None
    age_s: float | None = None

    def __str__(self) -> str:
        if self.name is None:
            return f"LIVE {self.collected_at}"
        if self.age_s is None or self.collected_at is None:
            return f"SNAPSHOT {self.name}, age not known"
        return f"SNAPSHOT {self.name}, {_age(self.age_s)} old ({self.collected_at[:10]})"


@dataclass(frozen=True)
class Topology:
    """What the screen shows. `facts` are those of the flat data; `persistence` is by address, asked for -o wide only."""

    machine: Machine
    findings: Sequence[Diagnostic]
    facts: Mapping[str, Mapping[str, str]]
    seen: Seen
    placements: Sequence[Placement] = ()
    persistence: Fact[dict[str, str]] | None = None
    about: Sequence[Sequence[str]] = ()
    """What each finding names, in the order of `findings`: rows of it are marked."""


def draw_topology(screen: Screen, topology: Topology) -> None:
    """Draw everything but the findings, which the caller prints below."""
    machine, names = topology.machine, names_of(topology.machine)
    marks = Marks(topology.findings, topology.about)
    draw_header(screen, topology)
    if machine.uplinks:
        screen.table(uplink_table(machine, names, marks))
    draw_accelerators(screen, machine, topology.persistence, names, marks)
    draw_others(screen, machine, names, marks)
    draw_nodes(screen, machine, marks)
    draw_placements(screen, topology.placements)
    _unread(screen, topology.facts)


def draw_header(screen: Screen, topology: Topology) -> None:
    """Draw two lines: which host, how large, live or recorded; kernel, limits, how many facts were read."""
    machine, host = topology.machine, topology.machine.host
    accelerators = sum(d.kind == SlotKind.ACCELERATOR for d in machine.devices)
    n_gone = sum(d.kind == SlotKind.ACCELERATOR and is_gone(d) for d in machine.devices)
    no_devices, no_nodes = why_no_accelerators(machine), why_no_nodes(machine)
    sizes = [
        f"{word(machine.numa.sockets)} socket" + ("" if machine.numa.sockets.value == 1 else "s"),
        "? nodes" if no_nodes and not machine.numa.nodes else counted(len(machine.numa.nodes), "node"),
        "? accelerators"
        if no_devices and not accelerators
        else counted(accelerators, "accelerator") + (f" ({n_gone} gone)" if n_gone else ""),
        "? uplinks" if no_devices and not machine.uplinks else counted(len(machine.uplinks), "uplink"),
    ]
    _two_sided(screen, f"HOST {word(host.hostname)}  {', '.join(sizes)}", str(topology.seen), "bold")
    limit = machine.memory.cgroup.memory_max_bytes
    unread = [note for note in topology.facts.values() if "reason" in note]
    absent = sum(is_absent(note["reason"]) for note in unread)
    _two_sided(
        screen,
        f"kernel {word(host.kernel)}  {_where(machine)}  cgroup limit {'none' if limit.reason == 'no limit' else gib(limit) + ' GiB' if limit.is_known else '?'}",
        f"{len(topology.facts) - len(unread) + absent} facts read, {len(unread) - absent} unknown",
    )


def _unread(screen: Screen, facts: Mapping[str, Mapping[str, str]]) -> None:
    """Draw why facts are missing, the most frequent reason first."""
    reasons: dict[str, list[str]] = {}
    for note in facts.values():
        reason = note.get("reason")
        if reason is not None and not is_absent(reason) and not reason.startswith("no such file"):
            reasons.setdefault(reason, []).append(note.get("source", ""))
    missing = len({n.get("source", "") for n in facts.values() if n.get("reason", "").startswith("no such file")})
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = ordered if screen.wide else ordered[:3]
    if not ordered and not missing:
        return
    screen.print("NOT READ", "bold")
    for reason, sources in shown:
        places = list(dict.fromkeys(source for source in sources if source))
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        screen.paragraph(
            "  ", f"{counted(len(sources), 'fact')}: {reason}" + (f" ({places[0]}{more})" if places else "")
        )
    rest = (
        [f"{counted(len(ordered) - len(shown), 'more reason')}: -o wide or -o json"]
        if len(ordered) > len(shown)
        else []
    )
    if missing:
        rest.append(f"{counted(missing, 'file')} not there: -o json, .data.facts")
    if rest:
        screen.paragraph("  ", "; ".join(rest))


def _where(machine: Machine) -> str:
    host = machine.host
    kind = host.virtualisation.value
    words = "bare metal" if kind == "none" else "virtualisation ?" if kind is None else f"virtual machine ({kind})"
    box = host.container.value
    return words if box in (None, "none") else f"{words}  container {box}"


def _two_sided(screen: Screen, left: str, right: str, style: str | None = None) -> None:
    gap = screen.width - cell_width(left) - cell_width(right)
    screen.print(f"{left}{' ' * gap}{right}" if gap >= 2 else f"{left}\n{right}", style)


def _age(seconds: float) -> str:
    for size, unit in ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
