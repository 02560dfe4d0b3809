"""One finding, and a machine arranged for judging it. Pure.

A finding says what is, with the values it was judged by; where a value is not known there is no finding, because nothing
unread is good or bad. What could not be read is told by HC-NOTHING-READ, HC-PART-READ, HC-KIND-UNKNOWN, HC-NEED-ROOT,
HC-SUSPENDED and the reason beside each null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Machine, Node, PciDevice, SlotKind, Uplink
from hicachectl.tuning.host.uplinks import is_unidentified

__all__ = ["HOST", "Finding", "PathLink", "Severity", "Sight", "known_values", "some"]

Severity = Literal["error", "warn", "note"]
HOST = "host"
"""Subject of a finding about the whole machine."""
_NICS = frozenset((SlotKind.NIC, SlotKind.RDMA_NIC))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a host.

    `subject` is an address, "node N", a path, or "host"; `hint` is one command; `source` where the judged value was read.
    """

    code: str
    severity: Severity
    subject: str
    message: str
    hint: str
    source: str
    about: tuple[str, ...] = ()
    """Everything it names besides the subject that a screen has a row for: addresses, uplinks, "node N"."""

    @property
    def named(self) -> tuple[str, ...]:
        """All it is about; nothing when it is about the whole machine."""
        return tuple(dict.fromkeys((*((self.subject,) if self.subject != HOST else ()), *self.about)))


@dataclass(frozen=True, slots=True)
class PathLink:
    """A link between two functions on the path of something that moves data; `upper` is None at the root bus."""

    upper: PciDevice | None
    lower: PciDevice
    carries: tuple[PciDevice, ...]
    """Accelerators, NICs and NVMe whose data crosses it."""

    @property
    def has_accelerator(self) -> bool:
        """Whether an accelerator's data crosses it."""
        return any(device.kind == SlotKind.ACCELERATOR for device in self.carries)

    @property
    def ends(self) -> tuple[PciDevice, ...]:
        """Both functions, upper first."""
        return (self.upper, self.lower) if self.upper else (self.lower,)


class Sight:
    """A machine with the look-ups that rules share. Does not change it.

    `recorded` says that it was read from a recording: advice to look again must name the host it was taken on.
    """

    def __init__(self, machine: Machine, *, recorded: bool = False) -> None:
        self.machine = machine
        self.recorded = recorded
        self.by_address = {device.address: device for device in machine.devices}
        self.accelerators = tuple(d for d in machine.devices if d.kind == SlotKind.ACCELERATOR)
        self.rdma_nics = tuple(d for d in machine.devices if d.kind == SlotKind.RDMA_NIC)
        self.movers = tuple(
            d for d in machine.devices if d.kind in _NICS or d.kind in (SlotKind.ACCELERATOR, SlotKind.NVME)
        )
        self.online = tuple(node for node in machine.numa.nodes if node.online.value is not False)
        self.memory_nodes = tuple(node for node in self.online if (node.memory_total_bytes.value or 0) > 0)

    @cached_property
    def pool_nodes(self) -> tuple[Node, ...]:
        """Nodes whose memory a host pool may use: with memory, allowed to this process, and CPUs.

        A node without CPUs is an accelerator's own memory or an expander; which of them is not always told, so neither; nor
        one whose CPUs were not read.
        """
        allowed = self.machine.numa.allowed_nodes.value
        return tuple(
            node
            for node in self.memory_nodes
            if node.kind.value not in (None, "device-memory", "cpu-less") and (allowed is None or node.id in allowed)
        )

    @cached_property
    def unidentified(self) -> tuple[PciDevice, ...]:
        """Functions that may be accelerators: what they are was not read, and nothing lies below them."""
        above = {device.parent for device in self.machine.devices}
        return tuple(d for d in self.machine.devices if is_unidentified(d) and d.address not in above)

    @cached_property
    def unread_nodes(self) -> tuple[Node, ...]:
        """Nodes whose memory a host pool may be able to use: how much they have, or whether they have CPUs, was not read."""
        allowed = self.machine.numa.allowed_nodes.value
        return tuple(
            node
            for node in self.online
            if (node.memory_total_bytes.value is None or (node.memory_total_bytes.value and not node.cpus.is_known))
            and node.cpus.value != ()
            and (allowed is None or node.id in allowed)
        )

    @cached_property
    def unread_memory(self) -> str | None:
        """Why it is not known what memory pools could use; None where all of it was read."""
        listed = self.machine.numa.listed.get("nodes")
        if not self.machine.numa.nodes and listed is not None and not listed.is_known:
            return f"nodes: {listed.reason} ({listed.source})"
        whys = {}
        for node in self.unread_nodes:
            fact = node.memory_total_bytes if not node.memory_total_bytes.is_known else node.cpus
            whys[f"node {node.id}"] = f"{fact.reason}; {fact.source}"
        return f"{some(whys)}: {next(iter(whys.values()))}" if whys else None

    @cached_property
    def shared_uplinks(self) -> tuple[Uplink, ...]:
        """Uplinks that an accelerator shares with something else."""
        return tuple(u for u in self.machine.uplinks if u.accelerators and len(u.shared_by) > 1)

    def uplink_of(self, address: str) -> Uplink | None:
        """Return the shared uplink a function sits behind, if any."""
        return next((u for u in self.shared_uplinks if address in u.shared_by), None)

    def on_path(self, device: PciDevice) -> tuple[PciDevice, ...]:
        """Return the functions from the root port down to `device`, with it; those not in the list are left out."""
        return tuple(self.by_address[a] for a in (*device.path, device.address) if a in self.by_address)

    @cached_property
    def links(self) -> tuple[PathLink, ...]:
        """Every link between a mover and its root port, once, in the order of devices. The inside of a switch is none."""
        found: dict[tuple[str | None, str], list[PciDevice]] = {}
        firsts: dict[tuple[str | None, str], str] = {}  # a device's functions share its link: named by the first
        for mover in self.movers:
            if mover.is_vf.value:
                continue
            chain = (*mover.path, firsts.setdefault((mover.parent, mover.address.rpartition(".")[0]), mover.address))
            if len(chain) == 1:
                found.setdefault((None, mover.address), []).append(mover)
            for i, (upper, lower) in enumerate(pairwise(chain)):
                if lower in self.by_address and not self._inside_a_switch(i, lower):
                    found.setdefault((upper, lower), []).append(mover)
        return tuple(
            PathLink(self.by_address.get(upper) if upper else None, self.by_address[lower], tuple(movers))
            for (upper, lower), movers in found.items()
        )

    def _inside_a_switch(self, position: int, lower: str) -> bool:
        """Whether `lower` is a switch's downstream port: by its type, else every second step from the root port."""
        port_type = self.by_address[lower].config.port_type.value
        return port_type == "downstream" if port_type is not None else position % 2 == 1


def some(names: Iterable[str], most: int = 4) -> str:
    """Join names for a sentence, the first few of them. Pure.

    >>> some(["a", "b", "c"]), some("abcdef", most=2)
    ('a, b and c', 'a, b and 4 more')
    """
    listed = list(names)
    if len(listed) > most:
        return f"{', '.join(listed[:most])} and {len(listed) - most} more"
    return " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)


def known_values(facts: Iterable[Fact[int]]) -> Iterator[int]:
    """Yield the values there are."""
    for fact in facts:
        if fact.value is not None:
            yield fact.value
