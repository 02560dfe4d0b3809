"""Reads the short outputs recorded in public issues (nvidia-smi, numactl, lscpu, rocm-smi, lspci) and makes hosts of them.

Such a text says how things lie, not at which address: addresses, link speeds and memory sizes that it lacks are our choice.
Heading lines begin with `#`; what an excerpt cut off is added by the test, from the heading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hosts.config_space import Pcie
from hosts.spec import GIB, Bus, Function, HostSpec, NodeSpec, cpus_of, link

__all__ = [
    "Numactl", "TopoTable", "body", "card", "host_of_table", "nodes_of_affinity", "numactl_nodes", "port", "read_lspci_tree",
    "read_numactl", "read_topo_table",
]  # fmt: skip

MIB = 1 << 20
Slot = Callable[[int], tuple[Function, int]]
"""Makes what hangs in a slot from its first bus; returns it and the next free bus."""
_MEMBER = re.compile(r"(?:GPU|NIC)\d+")


def body(text: str) -> str:
    """Return a recorded text without its heading. Pure."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def port(
    address: str, kind: str, node: int | None, *children: Function, gt_s: float = 16.0, width: int = 16
) -> Function:
    """Return a port of a root complex or switch ("root-port", "upstream", "downstream") with what hangs below it."""
    pcie = Pcie(port_type=kind, speed_gt_s=gt_s, width=width)
    return Function(address, node=node, link=link(gt_s, width), pcie=pcie, driver="pcieport", children=children)


def card(address: str, node: int | None, class_code: str, ids: str, *, gt_s: float = 16.0, width: int = 16) -> Function:
    """Return an endpoint; `ids` is "vendor:device"."""
    vendor, _, device = ids.partition(":")
    pcie = Pcie(speed_gt_s=gt_s, width=width)
    return Function(address, class_code, vendor, device, node=node, link=link(gt_s, width), pcie=pcie)


# -- nvidia-smi topo -m -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopoTable:
    """`words[row, column]` is the recorded path class; `cpus` and `nodes` are the affinity columns, by row."""

    columns: tuple[str, ...]
    words: Mapping[tuple[str, str], str]
    cpus: Mapping[str, str]
    nodes: Mapping[str, int]


def read_topo_table(text: str) -> TopoTable:
    """Read the table; rows that are not there stay away. Pure."""
    columns: tuple[str, ...] = ()
    words: dict[tuple[str, str], str] = {}
    cpus: dict[str, str] = {}
    nodes: dict[str, int] = {}
    for line in body(text).splitlines():
        cells = line.split()
        if not columns:
            columns = tuple(_MEMBER.findall(line))
        elif cells and _MEMBER.fullmatch(cells[0]):
            row = cells[0]
            words |= {(row, column): word for column, word in zip(columns, cells[1:], strict=False)}
            after = cells[1 + len(columns) :]
            if len(after) >= 2:
                cpus[row], nodes[row] = after[0], int(after[1])
    return TopoTable(columns, words, cpus, nodes)


def nodes_of_affinity(table: TopoTable, n_nodes: int) -> tuple[NodeSpec, ...]:
    """Return the nodes; those without a GPU continue the pattern of the CPU lists that are recorded. Pure."""
    row = next(iter(table.cpus))
    width, all_cpus = len(cpus_of(table.cpus[row].split(",")[0])), cpus_of(table.cpus[row])
    second = all_cpus[width] - all_cpus[0]

    def cpus(node: int) -> str:
        first = node * width
        return f"{first}-{first + width - 1},{first + second}-{first + second + width - 1}"

    for name, node in table.nodes.items():
        assert table.cpus[name] == cpus(node), name
    rows = [tuple(10 if a == b else 20 for b in range(n_nodes)) for a in range(n_nodes)]
    return tuple(NodeSpec(i, cpus(i), 64 * GIB, 48 * GIB, distances=rows[i]) for i in range(n_nodes))


def host_of_table(
    table: TopoTable, n_nodes: int, *, nic_nodes: Mapping[str, int | None], first_buses: Sequence[int] = ()
) -> tuple[HostSpec, dict[str, str]]:
    """Return a host laid out as a table says, and the address of each member. Pure.

    PIX: functions of one card, or slots of one switch. PXB: the NIC on a switch, the GPUs on a second one below it. PHB:
    root ports of one host bridge. All others have a host bridge of their own. `first_buses`: number of each root bus.
    """
    addresses: dict[str, str] = {}
    node_of = {**{name: table.nodes.get(name) for name in table.columns}, **nic_nodes}
    buses = []
    for index, bridge in enumerate(_joined(table, table.columns, ("PIX", "PXB", "PHB"))):
        bus = first_buses[index] if index < len(first_buses) else 0x10 * (index + 1)
        ports = []
        next_bus = bus + 1
        for slot, members in enumerate(_joined(table, bridge, ("PIX", "PXB"))):
            node = next((node_of[m] for m in members if node_of.get(m) is not None), None)
            below, next_bus = _below_port(table, members, node, next_bus, addresses)
            ports.append(port(f"0000:{bus:02x}:{slot + 1:02x}.0", "root-port", -1 if node is None else node, *below))
        buses.append(Bus(f"0000:{bus:02x}", tuple(ports)))
    return HostSpec(nodes=nodes_of_affinity(table, n_nodes), buses=tuple(buses)), addresses


def _below_port(
    table: TopoTable, members: Sequence[str], node: int | None, bus: int, addresses: dict[str, str]
) -> tuple[tuple[Function, ...], int]:
    """Return what is below one root port, and the next free bus. Notes addresses."""
    at = -1 if node is None else node
    gpus, nics = ([m for m in members if m.startswith(kind)] for kind in ("GPU", "NIC"))

    def one(name: str, on: int, function: int = 0) -> Function:
        addresses[name] = f"0000:{on:02x}:00.{function}"
        if name.startswith("GPU"):
            return card(addresses[name], at, "030200", "10de:2330")
        return card(addresses[name], at, "020000", "15b3:1017")

    def slot(name: str) -> Slot:
        return lambda on: (one(name, on), on + 1)

    if not gpus:
        return tuple(one(nic, bus, function) for function, nic in enumerate(nics)), bus + 1
    if len(members) == 1:
        made, next_bus = slot(gpus[0])(bus)
    elif not nics:
        made, next_bus = _switch(bus, at, [slot(gpu) for gpu in gpus])
    else:
        second: Slot = lambda on: _switch(on, at, [slot(gpu) for gpu in gpus])  # noqa: E731
        made, next_bus = _switch(bus, at, [second, *(slot(nic) for nic in nics)])
    return (made,), next_bus


def _switch(bus: int, node: int, slots: Sequence[Slot]) -> tuple[Function, int]:
    """Return an upstream port at `bus`, with a downstream port for each slot, and the next free bus."""
    downs, next_bus = [], bus + 2
    for index, slot in enumerate(slots):
        below, next_bus = slot(next_bus)
        downs.append(port(f"0000:{bus + 1:02x}:{index:02x}.0", "downstream", node, below))
    return port(f"0000:{bus:02x}:00.0", "upstream", node, *downs), next_bus


def _joined(table: TopoTable, members: Sequence[str], words: Sequence[str]) -> list[list[str]]:
    """Return groups of members that one of the words joins, in order of first appearance. Pure."""
    groups: list[list[str]] = []
    for name in members:
        near = [
            g for g in groups if any({table.words.get((name, m)), table.words.get((m, name))} & set(words) for m in g)
        ]
        joined = sorted([name, *(m for g in near for m in g)], key=members.index)
        groups = [g for g in groups if g not in near]
        groups.append(joined)
    return sorted(groups, key=lambda g: members.index(g[0]))


# -- numactl -H ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numactl:
    """What `numactl -H` prints: CPU ids, MB installed and free by node, and the rows of distances that are there."""

    cpus: Mapping[int, tuple[int, ...]]
    size_mb: Mapping[int, int]
    free_mb: Mapping[int, int]
    rows: Mapping[int, tuple[int, ...]]


def read_numactl(text: str) -> Numactl:
    """Read both forms of the CPU line: "0 1 2" and "0-15 (16)". Pure."""
    cpus: dict[int, tuple[int, ...]] = {}
    sizes: dict[str, dict[int, int]] = {"size": {}, "free": {}}
    rows: dict[int, tuple[int, ...]] = {}
    for line in body(text).splitlines():
        if match := re.match(r"node (\d+) cpus: ?(.*)", line):
            words = re.sub(r"\(\d+\)", "", match[2]).split()
            cpus[int(match[1])] = tuple(cpus_of(",".join(words)))
        elif match := re.match(r"node (\d+) (size|free): (\d+) MB", line):
            sizes[match[2]][int(match[1])] = int(match[3])
        elif match := re.match(r"\s*(\d+):((?:\s+\d+)+)\s*$", line):
            rows[int(match[1])] = tuple(map(int, match[2].split()))
    return Numactl(cpus, sizes["size"], sizes["free"], rows)


def numactl_nodes(found: Numactl) -> tuple[NodeSpec, ...]:
    """Return the nodes with the recorded CPUs, sizes and rows. Pure."""
    return tuple(
        NodeSpec(
            node,
            ",".join(map(str, cpus)),
            found.size_mb[node] * MIB,
            found.free_mb[node] * MIB,
            distances=found.rows[node],
        )
        for node, cpus in found.cpus.items()
    )


# -- lspci -t -----------------------------------------------------------------------------------------------------------

_TREE_WORD = re.compile(
    r"\[(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\]|(?P<slot>[0-9a-f]{2}\.[0-7])"
)


def read_lspci_tree(text: str) -> dict[str, str | None]:
    """Return each function's address and the one above it (None on the root bus), from where things stand in the lines. Pure."""
    above: dict[str, str | None] = {}
    open_buses: list[tuple[int, str, str | None]] = []
    domain = "0000"
    for line in body(text).splitlines():
        last: str | None = None
        for word in _TREE_WORD.finditer(line):
            while open_buses and open_buses[-1][0] >= word.start():
                open_buses.pop()
            if word["bus"]:
                domain = word["domain"] or domain
                open_buses.append((word.start(), f"{domain}:{word['bus']}", last))
            else:
                bus, owner = open_buses[-1][1:]
                last = f"{bus}:{word['slot']}"
                above[last] = owner
    return above
