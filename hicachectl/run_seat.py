"""Where the device of L1 sits in this host: its node, its number among the accelerators, its socket, the nodes with memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from hicachectl.runtime.memory.pci_address import pci_address_of
from hicachectl.tuning.finding import Sight
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot

__all__ = ["Seat", "read_seat", "seat_in"]


@dataclass(frozen=True, slots=True)
class Seat:
    """What a placement mode needs to know of a device. `own_node` None: not known, and `reason` says why."""

    own_node: int | None
    index: int
    socket_nodes: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    reason: str | None = None


def read_seat(device: str) -> Seat:
    """Look at this host and say where a device sits, by its torch name. Reads as `topo` does, changes nothing."""
    kind, _, number = device.partition(":")
    address = None if kind == "cpu" else pci_address_of(kind, int(number or 0))
    return seat_in(read_machine(HostRoot()), device, address, cpus=lambda: os.sched_getaffinity(0))


def seat_in(machine: Machine, device: str, address: str | None, *, cpus: Callable[[], set[int]]) -> Seat:
    """Say where a device sits in a machine. Pure but for `cpus`, the CPUs this process may use.

    `address` is the device's PCI address, None where it has or tells none. The processor sits where the CPUs of this
    process are, when these are of one node.
    """
    sight = Sight(machine)
    memory = tuple(node.id for node in sight.pool_nodes)
    index, own, reason = 0, None, None
    if device.partition(":")[0] == "cpu":
        mine = cpus()
        nodes = [node.id for node in sight.online if mine & set(node.cpus.value or ())]
        own = nodes[0] if len(nodes) == 1 else None
        reason = (
            None
            if own is not None
            else f"this process may use CPUs of nodes {nodes}, so the processor has no node of its own"
        )
    elif address is None:
        reason = f"{device} does not tell its PCI address"
    else:
        found = sight.by_address.get(address)
        own = None if found is None else found.node.value
        if own is None:
            reason = (
                f"{device} is {address}, {'not in the list of PCI functions' if found is None else found.node.reason}"
            )
        addresses = [accelerator.address for accelerator in sight.accelerators]
        index = addresses.index(address) if address in addresses else int(device.partition(":")[2] or 0)
    return Seat(own, index, _socket_of(sight, own), memory, reason)


def _socket_of(sight: Sight, own: int | None) -> tuple[int, ...]:
    """Return the pool nodes whose CPUs are of the socket of a node; empty where that is not known."""
    node = next((node for node in sight.online if node.id == own), None)
    sockets = sight.machine.numa.socket_cpus.value
    if node is None or not node.cpus.value or sockets is None:
        return ()
    socket = next((set(cpus) for cpus in sockets if set(node.cpus.value) & set(cpus)), set())
    return tuple(other.id for other in sight.pool_nodes if socket & set(other.cpus.value or ()))
