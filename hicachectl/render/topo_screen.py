"""The screen of `topo`: who shares which link, what is near which node, what is wrong, and what could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hicachectl.envelope import Diagnostic
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.render.text import cell_width, pad
from hicachectl.render.topo_words import (
    Names,
    gib,
    ido,
    is_virtual_disk,
    link_text,
    names_of,
    node_text,
    on_off,
    ranges,
    rate,
    word,
)
from hicachectl.tuning.host.facts import Fact, is_absent
from hicachectl.tuning.host.gaps import is_gone, maybe_accelerators, why_no_accelerators, why_no_nodes, why_unidentified
from hicachectl.tuning.host.model import Machine, PciDevice, SlotKind, Uplink
from hicachectl.tuning.host.uplinks import is_unidentified
from hicachectl.tuning.judge_ordering import redirects
from hicachectl.tuning.placement import MEANINGS, Placement
from hicachectl.units import GIB

_MOST_MARKS = 5
_IO = (SlotKind.RDMA_NIC, SlotKind.NIC, SlotKind.NVME)
_POOLS = (
    "of what is available, or free where that is not known. INSTALLED: memory of the nodes in use; DISTANCE: mean from a card's "
    "node to its bytes, 10 is its own; REMOTE: bytes on other nodes. Policies: hicachectl topo --help"
)

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
    notes = _Notes(topology.findings, topology.about)
    draw_header(screen, topology)
    if machine.uplinks:
        screen.table(_uplinks(machine, names, notes))
    _accelerators(screen, topology, names, notes)
    _others(screen, machine, names, notes)
    _nodes(screen, machine, notes)
    _placements(screen, topology.placements)
    _unread(screen, topology.facts)


def draw_header(screen: Screen, topology: Topology) -> None:
    """Draw two lines: which host, how large, live or recorded; kernel, limits, how many facts were read."""
    machine, host = topology.machine, topology.machine.host
    accelerators = sum(d.kind == SlotKind.ACCELERATOR for d in machine.devices)
    n_gone = sum(d.kind == SlotKind.ACCELERATOR and is_gone(d) for d in machine.devices)
    no_devices, no_nodes = why_no_accelerators(machine), why_no_nodes(machine)
    sizes = [
        f"{word(machine.numa.sockets)} socket" + ("" if machine.numa.sockets.value == 1 else "s"),
        "? nodes" if no_nodes and not machine.numa.nodes else _count(len(machine.numa.nodes), "node"),
        "? accelerators"
        if no_devices and not accelerators
        else _count(accelerators, "accelerator") + (f" ({n_gone} gone)" if n_gone else ""),
        "? uplinks" if no_devices and not machine.uplinks else _count(len(machine.uplinks), "uplink"),
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


def _uplinks(machine: Machine, names: Names, notes: _Notes) -> Table:
    columns = (
        Column("UPLINK"), Column("PORT"), Column("LINK now/max"), Column("CAP GiB/s", right=True), Column("SHARED BY"),
        Column("IDO req/cpl", keep=3), Column("NODE", right=True, keep=2), Column("NOTE", keep=1),
        Column("ROOT PORT", wide=True, keep=5), Column("OVERSUB", right=True, wide=True, keep=4),
    )  # fmt: skip
    devices = {device.address: device for device in machine.devices}
    rows = [_uplink_row(uplink, devices, names, notes) for uplink in machine.uplinks]
    return Table(columns, rows, rest="-o json")


def _uplink_row(uplink: Uplink, devices: Mapping[str, PciDevice], names: Names, notes: _Notes) -> list[str | None]:
    over = uplink.oversubscription.value
    members = [devices[address] for address in uplink.accelerators if address in devices]
    configs = [
        device.config for device in members if not device.is_vf.value
    ]  # a virtual function has no bits of its own
    lost = {address for address in uplink.shared_by if address in devices and is_gone(devices[address])}
    dead = lost >= set(uplink.accelerators)
    return [
        uplink.id,
        uplink.port,
        "gone" if dead else link_text(uplink.link),
        "-" if dead else rate(uplink.capacity_bytes_per_s),
        " ".join(names.of(one) + ("(gone)" if one in lost else "") for one in uplink.shared_by),
        ido(configs, sum(is_unidentified(devices[one]) for one in uplink.shared_by if one in devices)),
        word(uplink.node),
        notes.about(uplink.id, uplink.port, uplink.root_port),
        uplink.root_port,
        "?" if over is None else f"{over:.1f}",
    ]


def _accelerators(screen: Screen, topology: Topology, names: Names, notes: _Notes) -> None:
    machine = topology.machine
    found = [device for device in machine.devices if device.kind == SlotKind.ACCELERATOR]
    if not found:
        why = why_no_accelerators(machine)
        screen.paragraph("ACCEL ", "none" if why is None else f"not known: {why}")
        return
    columns = [
        Column("ACCEL"), Column("ADDRESS"), Column("UPLINK"), Column("NODE", right=True), Column("CPUS", keep=3),
        Column("SOLO GiB/s", right=True, keep=2), Column("ALL BUSY", right=True, keep=2), Column("NOTE", keep=1),
        Column("DRIVER", wide=True, keep=4), Column("IOMMU", wide=True, keep=5), Column("ACS", wide=True, keep=6),
        Column("HOPS", right=True, wide=True, keep=7), Column("RO", wide=True, keep=8), Column("IDS", wide=True, keep=9),
        Column("NAME", wide=True, keep=10), Column("RULE", wide=True, keep=11),
    ]  # fmt: skip
    if topology.persistence is not None:
        columns.append(Column("PERSIST", wide=True, keep=9))
    ports = {device.address: device for device in machine.devices}
    uplinks = {uplink.id: uplink for uplink in machine.uplinks}
    cpus = {node.id: node.cpus for node in machine.numa.nodes}
    rows = []
    for device in found:
        uplink = uplinks.get(names.uplink.get(device.address, ""))
        gone = is_gone(device)
        near = cpus.get(device.node.value, device.local_cpus) if device.node.value is not None else device.local_cpus
        row = [
            names.of(device.address),
            device.address,
            uplink.id if uplink else "?",
            node_text(device),
            "?" if near.value is None else ranges(near.value) or "none",
            "gone" if gone else rate(uplink.solo_bytes_per_s.get(device.address)) if uplink else "?",
            "gone" if gone else rate(uplink.busy_bytes_per_s) if uplink else "?",
            notes.about(device.address, names.of(device.address)),
            word(device.driver, _none_or_unknown(device.driver)),
            _iommu(device),
            _acs(device, ports),
            str(len(device.path)),
            on_off(device.config.relaxed_ordering),
            f"{word(device.vendor)}:{word(device.device)}",
            word(device.name),
            device.kind_rule,
        ]
        if topology.persistence is not None:
            row.append((topology.persistence.value or {}).get(device.address, "?"))
        rows.append(row)
    screen.table(Table(columns, rows, rest="-o json"))
    doubtful = maybe_accelerators(machine)
    if doubtful:
        screen.paragraph("  may be more: ", why_unidentified(doubtful))


def _others(screen: Screen, machine: Machine, names: Names, notes: _Notes) -> None:
    found = [d for d in machine.devices if d.kind in _IO or is_virtual_disk(d)]
    shown = [device for device in found if device.address in names.short]
    if not shown:
        return
    columns = (
        Column("I/O"), Column("ADDRESS"), Column("UPLINK"), Column("NODE", right=True), Column("KIND", keep=2),
        Column("LINK now/max", keep=3), Column("INTERFACES", keep=4), Column("NOTE", keep=1), Column("DRIVER", wide=True, keep=5),
        Column("IOMMU", wide=True, keep=6), Column("HOPS", right=True, wide=True, keep=7), Column("NAME", wide=True, keep=8),
    )  # fmt: skip
    rows = [
        (
            names.of(d.address), d.address, names.uplink.get(d.address), node_text(d), "disk" if is_virtual_disk(d) else d.kind, link_text(d.link),
            " ".join((*d.interfaces, *_unlisted(d))) or None, notes.about(d.address, names.of(d.address)),
            word(d.driver, _none_or_unknown(d.driver)), _iommu(d), str(len(d.path)), word(d.name),
        )
        for d in shown
    ]  # fmt: skip
    screen.table(Table(columns, rows, rest="-o json"))
    if len(found) > len(shown):
        screen.print(f"and {_count(len(found) - len(shown), 'virtual function')}: -o json")


def _unlisted(device: PciDevice) -> tuple[str, ...]:
    interfaces = device.listed.get("interfaces")
    return ("?",) if interfaces is not None and not interfaces.is_known else ()


def _nodes(screen: Screen, machine: Machine, notes: _Notes) -> None:
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
    marks = [notes.about(f"node {node.id}") for node in numa.nodes]
    if any(marks):
        rows.append(("note", [mark or "-" for mark in marks]))
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


def _placements(screen: Screen, placements: Sequence[Placement]) -> None:
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
            "  ", f"{_count(len(sources), 'fact')}: {reason}" + (f" ({places[0]}{more})" if places else "")
        )
    rest = (
        [f"{_count(len(ordered) - len(shown), 'more reason')}: -o wide or -o json"] if len(ordered) > len(shown) else []
    )
    if missing:
        rest.append(f"{_count(missing, 'file')} not there: -o json, .data.facts")
    if rest:
        screen.paragraph("  ", "; ".join(rest))


class _Notes:
    """The numbers of findings by what they are about, as the findings below are numbered."""

    def __init__(self, findings: Sequence[Diagnostic], about: Sequence[Sequence[str]]) -> None:
        ordered = sorted(zip(findings, about, strict=False), key=lambda pair: pair[0].severity.rank)
        self._about: dict[str, list[int]] = {}
        for number, (_, names) in enumerate(ordered, 1):
            for name in names:
                self._about.setdefault(name, []).append(number)

    def about(self, *names: str) -> str | None:
        numbers = sorted({number for name in names for number in self._about.get(name, ())})
        shown = numbers if len(numbers) <= _MOST_MARKS else numbers[: _MOST_MARKS - 1]
        more = f"+{len(numbers) - len(shown)}" if len(numbers) > len(shown) else ""
        return "".join(f"[{number}]" for number in shown) + more or None


def _where(machine: Machine) -> str:
    host = machine.host
    kind = host.virtualisation.value
    words = "bare metal" if kind == "none" else "virtualisation ?" if kind is None else f"virtual machine ({kind})"
    box = host.container.value
    return words if box in (None, "none") else f"{words}  container {box}"


def _iommu(device: PciDevice) -> str:
    if device.iommu_group.value is None:
        return _none_or_unknown(device.iommu_group)
    return f"{device.iommu_group.value} {word(device.iommu_domain)}"


def _none_or_unknown(fact: Fact[Any]) -> str:
    return "none" if is_absent(fact.reason or "") else "?"


def _acs(device: PciDevice, ports: Mapping[str, PciDevice]) -> str:
    """Whether a port of a switch on the way sends peer traffic up to the root complex."""
    if len(device.path) < 2:
        return "no switch"
    states = [redirects(ports[address]) if address in ports else None for address in device.path[1:]]
    return "redirect" if True in states else "?" if None in states else "direct"


def _two_sided(screen: Screen, left: str, right: str, style: str | None = None) -> None:
    gap = screen.width - cell_width(left) - cell_width(right)
    screen.print(f"{left}{' ' * gap}{right}" if gap >= 2 else f"{left}\n{right}", style)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _age(seconds: float) -> str:
    for size, unit in ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
