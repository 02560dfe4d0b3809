"""The load of `tune apply --prove`: all accelerators behind the changes' uplinks write to host memory at once.

Each writes to a node of its own where there are enough: writers behind one uplink with different targets are what strict ordering
makes wait for each other. So the memory must lie on its node and be registered: it is looked at, and what is not is not measured. Loads
only; nothing of the host is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hicachectl.errors import HicacheError, Unsupported
from hicachectl.memory_room import host_memory
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item

if TYPE_CHECKING:
    from hicachectl.runtime.memory.budget import HostMemory
    from hicachectl.runtime.probes.flows import Flow
    from hicachectl.runtime.probes.link import Rig
    from hicachectl.runtime.probes.link_math import LinkTarget
    from hicachectl.tuning.host.model import Machine
    from hicachectl.tuning.prove import Probe

__all__ = ["D2H_CONCURRENT", "ConcurrentWrites", "Loads", "see_accelerators", "torch_rig"]

D2H_CONCURRENT = "d2h-concurrent"
SECONDS = 0.5
"""Of one run, in which all write; a proof has two dozen."""
SIZE_BYTES = 64 << 20


def see_accelerators() -> Sequence[Any]:
    """Return what torch can use in this process. Raises Unsupported where it cannot be loaded or sees nothing."""
    try:
        from hicachectl.runtime.transfer.accelerators import find_accelerators
    except ImportError as error:
        raise Unsupported(
            "torch cannot be loaded", where="torch", why=str(error), hint="install torch with the vendor's support beside hicachectl"
        ) from error  # fmt: skip
    found = find_accelerators()
    if not found:
        raise Unsupported(
            "torch sees no accelerator in this process",
            where="torch",
            why="no driver, no device file that may be opened, or a torch built without the vendor's support",
            hint="install the torch of the accelerator's vendor, and run it where the device files are visible",
        )
    return found


def torch_rig(most_bytes: int) -> Rig:
    """Return memory on both sides for copies of at most `most_bytes`."""
    from hicachectl.link_room import REGION_BYTES
    from hicachectl.runtime.transfer.link_rig import TorchRig

    return TorchRig(most_bytes, region_bytes=REGION_BYTES)


class Loads:
    """The loads there are on one host, by the word of `Item.probe`, and why one cannot run for an item.

    The accelerators are looked at when an item first asks: that opens their device files, so who holds them is asked before.
    So is whether the host has memory for them. `see`, `rig` and `host` are the seams of tests.
    """

    def __init__(
        self,
        root: HostRoot,
        *,
        see: Callable[[], Sequence[Any]] = see_accelerators,
        rig: Callable[[int], Rig] = torch_rig,
        host: Callable[[], HostMemory] = host_memory,
    ) -> None:
        self.probes: Mapping[str, Callable[[], Probe]] = {D2H_CONCURRENT: self._writes}
        self._root, self._see, self._rig, self._host = root, see, rig, host
        self._machine: Machine | None = None
        self._targets: tuple[LinkTarget, ...] | None = None
        self._unseen: str | None = None

    def refusal(self, item: Item) -> str | None:
        """Say why the load of an item cannot run here, and what would make it possible; None when it can."""
        if item.probe is None:
            return None
        if item.probe not in self.probes:
            return f"--prove needs the load {item.probe}, which this build does not have"
        targets = self._seen()
        if self._unseen is not None:
            return f"--prove needs the load {item.probe}, which cannot run here: {self._unseen}"
        wanted = _accelerators_of(self._look(), item)
        if not wanted:
            return f"--prove needs the load {item.probe}: no accelerator is known behind {item.subject or item.id}"
        missing = sorted(set(wanted) - {target.address for target in targets})
        if missing:
            return (
                f"--prove needs all accelerators behind {item.uplink or item.subject}: torch does not see {', '.join(missing)} in this "
                "process; make them visible (CUDA_VISIBLE_DEVICES, device files)"
            )
        return self._no_room(item, wanted)

    def _no_room(self, item: Item, wanted: Sequence[str]) -> str | None:
        """Say which memory of the host the load lacks; None where it has it."""
        from hicachectl.link_room import require_link_room

        nodes = _nodes_of(self._look(), self._seen())
        n_by_node = Counter(node for node in map(nodes.__getitem__, wanted) if node is not None)
        try:
            require_link_room(self._host(), len(wanted), SIZE_BYTES, "free memory of the host", n_by_node)
        except HicacheError as error:
            return f"--prove needs the load {item.probe}, which cannot run here: {error}; {error.hint}"
        return None

    def _writes(self) -> Probe:
        return ConcurrentWrites(self._look(), self._seen(), self._rig(SIZE_BYTES))

    def _look(self) -> Machine:
        if self._machine is None:
            self._machine = read_machine(self._root)
        return self._machine

    def _seen(self) -> tuple[LinkTarget, ...]:
        """What can be loaded; empty with the reason remembered where nothing can."""
        if self._targets is None:
            self._targets = ()
            try:
                devices = self._see()
                from hicachectl.link_targets import link_targets

                self._targets = link_targets(self._look(), devices)
            except (HicacheError, ImportError) as error:
                hint = error.hint if isinstance(error, HicacheError) else None
                self._unseen = f"{error}; {hint}" if hint else str(error)
        return self._targets


class ConcurrentWrites:
    """Device to host copies of all accelerators behind the items' uplinks, at once. `rig` has their memory, kept between runs."""

    def __init__(self, machine: Machine, targets: Sequence[LinkTarget], rig: Rig) -> None:
        self._machine, self._targets, self._rig = machine, {target.address: target for target in targets}, rig
        self._flows: dict[str, Flow] = {}

    def run(self, items: Sequence[Item]) -> Mapping[str, float]:
        """Load them once and return bytes per second by PCI address.

        Raises HicacheError when a device fails or lacks memory, and Unsupported when its memory is not on its node or not registered.
        """
        from hicachectl.runtime.probes.flows import run_together

        wanted = sorted({address for item in items for address in _accelerators_of(self._machine, item)})
        missing = [address for address in wanted if address not in self._targets]
        if missing or not wanted:
            raise Unsupported(
                f"{', '.join(missing) or 'no accelerator'} cannot be loaded", hint="see why with: hicachectl bench link"
            )
        nodes = _nodes_of(self._machine, tuple(self._targets.values()))
        for address in wanted:
            if address not in self._flows:
                self._flows[address] = self._flow(self._targets[address], nodes[address])
        rates = run_together([self._flows[address] for address in wanted], SECONDS)
        return {address: rate.bytes_per_s for address, rate in zip(wanted, rates, strict=True)}

    def _flow(self, target: LinkTarget, node: int | None) -> Flow:
        """Take memory and look at it: a proof on memory that lies elsewhere, or that the driver copies through buffers, proves nothing."""
        from hicachectl.runtime.probes.link import link_memory

        flow = self._rig.flow(target.device, node, SIZE_BYTES, up=False)
        held = link_memory(target.address, node, self._rig.memory(target.device, node))
        lacks = [
            *([] if held.is_placed else [f"is not on node {node}"]),
            *([] if held.is_registered else ["is not registered"]),
        ]
        if lacks:
            raise Unsupported(
                f"host memory of {target.name} {' and '.join(lacks)}", where=target.address,
                why="; ".join(held.reasons) or f"sampled pages by node: {held.pages_by_node}",
                hint=f"see what it gets with: hicachectl bench link {target.name}",
            )  # fmt: skip
        return flow

    def close(self) -> None:
        """Give back the memory of both sides."""
        self._flows.clear()
        self._rig.close()


def _nodes_of(machine: Machine, targets: Sequence[LinkTarget]) -> Mapping[str, int | None]:
    """The node whose memory each accelerator writes to: one of its own where there are enough."""
    from hicachectl.link_targets import memory_nodes
    from hicachectl.runtime.probes.link_cases import one_to_one

    return one_to_one(targets, memory_nodes(machine))


def _accelerators_of(machine: Machine, item: Item) -> tuple[str, ...]:
    """The accelerators behind an item's uplink; the item's own function where its uplink is not known."""
    for uplink in machine.uplinks:
        if item.subject in (*uplink.shared_by, uplink.port, uplink.root_port):
            return uplink.accelerators
    for uplink in machine.uplinks:
        if item.uplink == uplink.id:
            return uplink.accelerators
    known = {device.address for device in machine.devices}
    return (item.subject,) if item.subject in known and item.subject is not None else ()
