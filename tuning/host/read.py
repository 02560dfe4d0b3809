"""One look at a host: every reader once, in order, into a `Machine`."""

from __future__ import annotations

from hicachectl.tuning.host.machine import read_host
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.numa import read_numa
from hicachectl.tuning.host.pci import read_count, read_devices
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.host.uplinks import find_uplinks

__all__ = ["read_machine"]


def read_machine(root: HostRoot, *, wake: bool = False) -> Machine:
    """Read everything `topo` knows about a host. Changes nothing but what `root` remembers of the reads.

    `wake` also reads the config space of sleeping devices, which wakes them. On a snapshot the facts that no file
    holds are those recorded with it. Raises nothing: what could not be read is a fact with a reason.
    """
    devices = read_devices(root, wake=wake)
    machine = Machine(
        host=read_host(root),
        numa=read_numa(root),
        memory=read_memory(root),
        devices=devices,
        uplinks=find_uplinks(devices),
        listed={"devices": read_count(root)},
    )
    if not root.probes:
        return machine
    from hicachectl.tuning.host.places import with_facts

    return with_facts(machine, root.probes)
