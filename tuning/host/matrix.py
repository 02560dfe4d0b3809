"""How far apart things are: a path class for each accelerator and node, and for each two accelerators. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hicachectl.tuning.host.facts import Confidence, Fact, derive
from hicachectl.tuning.host.model import Machine, PciDevice, SlotKind

__all__ = ["LEGEND", "VENDOR_LEGEND", "Matrix", "Pair", "PathClass", "VendorWord", "find_matrix"]


class PathClass(str, Enum):
    """Nearest first. UNKNOWN prints as "?" and always has a reason."""

    SELF = "SELF"
    UPLINK = "UPL"
    NODE = "NODE"
    SOCKET = "SOCK"
    OTHER_SOCKET = "XSOCK"


class VendorWord(str, Enum):
    """The words of `nvidia-smi topo -m` for what PCIe and NUMA alone say; NVLink is not among them."""

    SELF = "X"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


LEGEND: dict[str, str] = {
    "SELF": "the same accelerator",
    "UPL": "behind one uplink: they share its capacity",
    "NODE": "the same NUMA node",
    "SOCK": "another node of the same socket",
    "XSOCK": "another socket",
    "?": "not known; -o json gives the reason",
}
VENDOR_LEGEND: dict[str, str] = {
    "X": "self",
    "PIX": "at most one PCIe switch between them",
    "PXB": "several PCIe switches, no host bridge",
    "PHB": "through one PCIe host bridge",
    "NODE": "through host bridges of one NUMA node",
    "SYS": "through the link between NUMA nodes",
}
"""Meanings after NVIDIA's NVML reference, nvmlGpuTopologyLevel_t, and the legend `nvidia-smi topo -m` prints."""


@dataclass(frozen=True)
class Pair:
    """Two things and the path between them; `to` is a node id or an address. `vendor_word` is for two accelerators."""

    accelerator: str
    to: int | str
    path_class: Fact[PathClass]
    vendor_word: Fact[VendorWord] | None = None


@dataclass(frozen=True)
class Matrix:
    """All pairs, row by row."""

    accelerators: tuple[PciDevice, ...]
    nodes: tuple[int, ...]
    to_nodes: tuple[Pair, ...]
    to_accelerators: tuple[Pair, ...]


def find_matrix(machine: Machine) -> Matrix:
    """Return the path classes of a machine. Pure."""
    accelerators = tuple(d for d in machine.devices if d.kind == SlotKind.ACCELERATOR)
    nodes = tuple(node.id for node in machine.numa.nodes if node.online.value is not False)
    sockets = _sockets(machine)
    uplinks = {address: uplink.id for uplink in machine.uplinks for address in uplink.accelerators}
    to_nodes = [Pair(one.address, node, _to_node(one, node, sockets)) for one in accelerators for node in nodes]
    pairs = [
        Pair(a.address, b.address, _between(a, b, uplinks, sockets), vendor_word(a, b))
        for a in accelerators
        for b in accelerators
    ]
    return Matrix(accelerators, nodes, tuple(to_nodes), tuple(pairs))


def vendor_word(a: PciDevice, b: PciDevice) -> Fact[VendorWord]:
    """Return the word for two functions: bridges on the way, then host bridge, then node. Pure."""
    source = f"{a.address}, {b.address}: place in the PCI tree"
    if a.address == b.address:
        return Fact(VendorWord.SELF, source, Confidence.DERIVED)
    common = 0
    for mine, theirs in zip(a.path, b.path, strict=False):
        if mine != theirs:
            break
        common += 1
    if common:
        below = max(len(a.path), len(b.path)) - common
        return Fact(VendorWord.PIX if below <= 1 else VendorWord.PXB, source, Confidence.DERIVED)
    if a.host_bridge.value is None or b.host_bridge.value is None:
        unread = a.host_bridge if a.host_bridge.value is None else b.host_bridge
        return Fact(None, unread.source, Confidence.DERIVED, f"host bridge not known: {unread.reason}")
    if a.host_bridge.value == b.host_bridge.value:
        return Fact(VendorWord.PHB, source, Confidence.DERIVED)
    return derive(lambda mine, theirs: VendorWord.NODE if mine == theirs else VendorWord.SYS, a.node, b.node)


def _between(a: PciDevice, b: PciDevice, uplinks: dict[str, str], sockets: dict[int, Fact[int]]) -> Fact[PathClass]:
    if a.address == b.address:
        return Fact(PathClass.SELF, a.address, Confidence.DERIVED)
    if a.address in uplinks and uplinks[a.address] == uplinks.get(b.address):
        return Fact(PathClass.UPLINK, f"{a.address}, {b.address}: place in the PCI tree", Confidence.DERIVED)
    if b.node.value is None:
        return Fact(None, b.node.source, Confidence.DERIVED, f"node of {b.address} not known: {b.node.reason}")
    return _to_node(a, b.node.value, sockets)


def _to_node(device: PciDevice, node: int, sockets: dict[int, Fact[int]]) -> Fact[PathClass]:
    own = device.node
    if own.value is None:
        return Fact(None, own.source, Confidence.DERIVED, f"node of {device.address} not known: {own.reason}")
    if own.value == node:
        return Fact(PathClass.NODE, own.source, Confidence.DERIVED)
    missing: Fact[int] = Fact(None, own.source, Confidence.DERIVED, "no such node here")
    mine, theirs = sockets.get(own.value, missing), sockets.get(node, missing)
    return derive(lambda x, y: PathClass.SOCKET if x == y else PathClass.OTHER_SOCKET, mine, theirs)


def _sockets(machine: Machine) -> dict[int, Fact[int]]:
    """The socket of each node, by its first CPU; with one socket every node is on it. Pure."""
    sockets, found = machine.numa.socket_cpus, {}
    for node in machine.numa.nodes:
        if sockets.value is not None and len(sockets.value) == 1:
            found[node.id] = Fact(0, sockets.source, Confidence.DERIVED)
        elif node.cpus.value == ():
            found[node.id] = Fact(
                None, node.cpus.source, Confidence.DERIVED, f"node {node.id} has no CPU that tells its socket"
            )
        else:
            found[node.id] = derive(_socket_of, sockets, node.cpus)
    return found


def _socket_of(sockets: tuple[tuple[int, ...], ...], cpus: tuple[int, ...]) -> int | None:
    on = [i for i, members in enumerate(sockets) if set(cpus) & set(members)]
    if len(on) != 1:
        raise ValueError(f"its CPUs are on {len(on)} sockets")
    return on[0]
