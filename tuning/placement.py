"""Which nodes' memory each accelerator's host pool should take, how much, and what each choice costs. Pure.

Five policies, none of them best everywhere:

| policy | an accelerator's pool lies on | for |
|---|---|---|
| local | its own node | the shortest way, the least memory |
| one-to-one | a node of its own, the nearest free one | all memory, one remote hop, and writers of one uplink part ways |
| socket | all nodes of its socket, evenly | a pool larger than a node without crossing sockets |
| interleave | all nodes, evenly | one pool that all accelerators read |
| weighted | all nodes, by usable memory | the same on nodes that are not even |

Pools are equal for all accelerators, because ranks of one group hold the same pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hicachectl.tuning.assignment import cheapest_assignment
from hicachectl.tuning.finding import Sight, some
from hicachectl.tuning.host.model import Machine, Node, PciDevice
from hicachectl.units import format_bytes, format_rate

__all__ = ["MEANINGS", "Binding", "Placement", "Policy", "place", "placements"]

_MAX_WEIGHT = 255
"""Largest weight of weighted interleave (Linux Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave)."""
_NO_LIMIT = "no limit"
"""Reason of a limit that is not there (`Cgroup.memory_max_bytes`), unlike one that could not be read."""
_REGISTERED = ((80, 20.6), (40, 11.5), (15, 8.8))
"""GB registered and not bound -> slow-down in % (docs/facts.md#kunlun-registered)."""


class Policy(str, Enum):
    """How accelerators and nodes are paired."""

    LOCAL = "local"
    ONE_TO_ONE = "one-to-one"
    SOCKET = "socket"
    INTERLEAVE = "interleave"
    WEIGHTED = "weighted"


MEANINGS = {
    Policy.LOCAL: "a card's pool lies on the card's own node",
    Policy.ONE_TO_ONE: "each card's pool has a node for itself, the nearest that is left",
    Policy.SOCKET: "a card's pool lies on all nodes of its socket, evenly",
    Policy.INTERLEAVE: "every pool lies on all nodes, evenly",
    Policy.WEIGHTED: "every pool lies on all nodes, each by what it has available",
}
"""What each policy does with the pools of accelerators, in words."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One accelerator's pool: bytes on each node, and what its copies meet on the way."""

    accelerator: str
    bytes_by_node: Mapping[int, int]
    distance: float | None
    """Mean kernel distance from its node to its bytes, 10 = all local; None where a row is not known."""
    remote_share: float | None
    """Part of its bytes that lies on other nodes than its own; None where that is not known."""
    uplink: str | None
    """Display name of the uplink it shares, None when it has its link for itself."""
    busy_bytes_per_s: float | None
    """Its share of the uplink when all members are busy; None when it is not known or not shared."""

    @property
    def pool_bytes(self) -> int:
        """Size of the pool."""
        return sum(self.bytes_by_node.values())


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy worked out for a machine. When it cannot be used `refused` says why and `bindings` is empty."""

    policy: Policy
    bindings: tuple[Binding, ...]
    bytes_by_node: Mapping[int, int]
    reached_bytes: int
    """Installed memory of the nodes in use."""
    installed_bytes: int | None
    """Installed memory of all nodes that pools could use; None while one of them was not read."""
    costs: tuple[str, ...]
    weights: Mapping[int, int] | None = None
    """For weighted: the weight of each node."""
    refused: str | None = None
    unknown: tuple[str, ...] = ()
    """Terms that may make less of the sizes and could not be read; `costs` holds them too."""
    installed_reason: str | None = None
    """Why `installed_bytes` is not known."""

    @property
    def pool_bytes(self) -> int:
        """All pools together."""
        return sum(self.bytes_by_node.values())


class _Refused(Exception):
    """Ends the working out of one policy; becomes `Placement.refused`."""


def placements(machine: Machine, *, pool_bytes: int | None = None, margin_bytes: int = 0) -> tuple[Placement, ...]:
    """Work out every policy, in the order of `Policy`. Pure. Arguments as for `place`."""
    return tuple(place(machine, policy, pool_bytes=pool_bytes, margin_bytes=margin_bytes) for policy in Policy)


def place(machine: Machine, policy: Policy, *, pool_bytes: int | None = None, margin_bytes: int = 0) -> Placement:
    """Work out one policy: the largest pools it allows, or `pool_bytes` for all accelerators together. Pure.

    A node gives what is available on it (free where that is not known) minus `margin_bytes`; the control group's room
    bounds the sum. Never raises for a machine: what cannot be worked out is refused with the reason.
    """
    sight = Sight(machine)
    known_bytes = sum(node.memory_total_bytes.value or 0 for node in sight.pool_nodes)
    installed = known_bytes if sight.unread_memory is None else None
    try:
        usable = _usable(sight, margin_bytes)
        _check(sight, usable)
        shares, weights = _SHARES[policy](sight, usable)
        each = _pool_each(sight, shares, usable, pool_bytes)
    except _Refused as why:
        return Placement(policy, (), {}, 0, installed, (), refused=str(why), installed_reason=sight.unread_memory)
    bindings = tuple(
        _binding(sight, device, share, each) for device, share in zip(sight.accelerators, shares, strict=True)
    )
    by_node: Counter[int] = Counter()
    for binding in bindings:
        by_node.update(binding.bytes_by_node)
    reached = sum(n.memory_total_bytes.value or 0 for n in sight.pool_nodes if by_node.get(n.id))
    unknown = tuple(_unknown(sight))
    costs = (*_costs(sight, policy, bindings, reached, installed), *unknown)
    return Placement(
        policy, bindings, dict(sorted(by_node.items())), reached, installed, costs, weights, unknown=unknown,
        installed_reason=sight.unread_memory,
    )  # fmt: skip


# -- what there is ----------------------------------------------------------------------------------------------------


def _usable(sight: Sight, margin_bytes: int) -> dict[int, int]:
    """Bytes each pool node can give."""
    usable = {}
    for node in sight.pool_nodes:
        fact = node.memory_available_bytes if node.memory_available_bytes.is_known else node.memory_free_bytes
        if fact.value is None:
            raise _Refused(f"free memory of node {node.id} is not known ({fact.reason}; {fact.source})")
        usable[node.id] = max(0, fact.value - margin_bytes)
    return usable


def _unknown(sight: Sight) -> Iterator[str]:
    """Yield the bounds that were not read: sizes are worked out as if there were none."""
    cgroup, allowed = sight.machine.memory.cgroup, sight.machine.numa.allowed_nodes
    limit, used = cgroup.memory_max_bytes, cgroup.memory_used_bytes
    if limit.value is None and limit.reason != _NO_LIMIT:
        yield f"the control group's limit is not known ({limit.reason}; {limit.source}): it may allow less"
    elif limit.value is not None and used.value is None:
        yield f"what the control group has used is not known ({used.reason}; {used.source}): less may be left"
    if allowed.value is None:
        yield f"which nodes this process may use is not known ({allowed.reason}; {allowed.source}): they may be fewer"
    if sight.unread_memory is not None:
        yield f"memory is not known of {_because(sight.unread_memory)}: pools leave it out, and more may be installed"

    if sight.unidentified:
        named, first = some(d.address for d in sight.unidentified), sight.unidentified[0]
        missing = next(fact for fact in (first.class_code, first.vendor, first.device) if not fact.is_known)
        verb = "is an accelerator" if len(sight.unidentified) == 1 else "are accelerators"
        why = f"{missing.reason}; {missing.source}"
        yield f"whether {named} {verb} is not known ({why}): pools are for {len(sight.accelerators)}"


def _because(reason: str) -> str:
    """Turn "node 1: why" into "node 1 (why)". Pure."""
    what, _, why = reason.partition(": ")
    return f"{what} ({why})"


def _check(sight: Sight, usable: Mapping[int, int]) -> None:
    if not sight.accelerators:
        raise _Refused("there is no accelerator to place a pool for")
    if not usable:
        raise _Refused("no node with memory is known that this process may use")
    if sight.machine.numa.mempolicy_calls.value is False and len(usable) > 1:
        raise _Refused(f"this process may not set a memory policy ({sight.machine.numa.mempolicy_calls.source})")


def _node_of(device: PciDevice) -> int:
    if device.node.value is None:
        raise _Refused(f"the node of {device.address} is not known ({device.node.reason})")
    return device.node.value


def _row(sight: Sight, node: int) -> dict[int, int]:
    found = next((n for n in sight.machine.numa.nodes if n.id == node), None)
    if found is None or found.distances.value is None:
        raise _Refused(
            f"distances of node {node} are not known ({found.distances.reason if found else 'no such node'})"
        )
    return found.distances.value


# -- policies: for each accelerator the part of its pool on each node ---------------------------------------------------

_Shares = list[dict[int, float]]
_Weights = dict[int, int] | None


def _local(sight: Sight, usable: Mapping[int, int]) -> tuple[_Shares, _Weights]:
    shares: _Shares = []
    for device in sight.accelerators:
        node = _node_of(device)
        if node not in usable:
            raise _Refused(f"{device.address} is on node {node}, {_why_not(sight, node)}")
        shares.append({node: 1.0})
    return shares, None


def _why_not(sight: Sight, node: int) -> str:
    found = next((n for n in sight.online if n.id == node), None)
    if found is None:
        return "which is not online"
    allowed = sight.machine.numa.allowed_nodes.value
    if allowed is not None and node not in allowed:
        return "which this process may not use"
    for what, fact in (("memory is", found.memory_total_bytes), ("CPUs are", found.cpus)):
        if fact.value is None:
            return f"whose {what} not known ({fact.reason}; {fact.source})"
        if fact.value == 0:
            return "which has no memory"
    return "whose memory is a device's"


def _one_to_one(sight: Sight, usable: Mapping[int, int]) -> tuple[_Shares, _Weights]:
    if len(sight.accelerators) > len(usable) and sight.unread_memory is not None:
        raise _Refused(
            f"{len(sight.accelerators)} accelerators and {len(usable)} nodes known to have memory: whether they can have one "
            f"each is not known without that of {_because(sight.unread_memory)}"
        )
    if len(sight.accelerators) > len(usable):
        raise _Refused(f"{len(sight.accelerators)} accelerators and {len(usable)} nodes: they cannot have one each")
    nodes = sorted(usable)
    costs = []
    for device in sight.accelerators:
        row = _row(sight, _node_of(device))
        missing = [node for node in nodes if node not in row]
        if missing:
            raise _Refused(f"the distance from node {device.node.value} to node {missing[0]} is not known")
        costs.append([row[node] for node in nodes])
    return [{nodes[column]: 1.0} for column in cheapest_assignment(costs)], None


def _socket(sight: Sight, usable: Mapping[int, int]) -> tuple[_Shares, _Weights]:
    sockets = _sockets(sight)
    shares: _Shares = []
    for device in sight.accelerators:
        node = _node_of(device)
        members = [n for n in next((s for s in sockets if node in s), ()) if n in usable]
        if not members:
            known = "" if sight.unread_memory is None else "is known "
            raise _Refused(f"no usable memory {known}on the socket of {device.address} (node {node})")
        shares.append({n: 1 / len(members) for n in members})
    return shares, None


def _sockets(sight: Sight) -> list[tuple[int, ...]]:
    """Group nodes by socket: consecutive CPU nodes, as many as `nodes_a_socket` says, when distances agree with it."""
    numa = sight.machine.numa
    ids = [node.id for node in sight.online if node.cpus.value]
    dark = next((node for node in sight.online if node.cpus.value is None), None)
    if dark is not None:
        raise _Refused(
            f"which nodes form a socket is not known (node {dark.id}: {dark.cpus.reason}; {dark.cpus.source})"
        )
    if numa.sockets.value is None or numa.nodes_a_socket.value is None:
        fact = numa.sockets if numa.sockets.value is None else numa.nodes_a_socket
        raise _Refused(f"which nodes form a socket is not known ({fact.reason})")
    size = numa.nodes_a_socket.value
    if len(ids) != size * numa.sockets.value:
        raise _Refused(f"{len(ids)} nodes with CPUs are not {numa.sockets.value} sockets of {size}")
    groups = [tuple(ids[i : i + size]) for i in range(0, len(ids), size)]
    if len(groups) > 1 and size > 1:
        inside = max(_row(sight, a).get(b, 0) for group in groups for a in group for b in group)
        across = min(_row(sight, a).get(b, 255) for g in groups for a in g for h in groups if h != g for b in h)
        if inside >= across:
            raise _Refused(
                f"distances do not show {len(groups)} sockets of {size} nodes: {inside} within, {across} across"
            )
    return groups


def _interleave(sight: Sight, usable: Mapping[int, int]) -> tuple[_Shares, _Weights]:
    return [{node: 1 / len(usable) for node in usable} for _ in sight.accelerators], None


def _weighted(sight: Sight, usable: Mapping[int, int]) -> tuple[_Shares, _Weights]:
    unknown = [node for node in sight.pool_nodes if node.interleave_weight.value is None]
    if unknown:
        fact = unknown[0].interleave_weight
        raise _Refused(f"weighted interleave is not there ({fact.reason}; {fact.source}); Linux has it since 6.9")
    most = max(usable.values())
    if most == 0:
        raise _Refused("no memory is free on any node")
    weights = {node: max(1, round(_MAX_WEIGHT * free / most)) for node, free in usable.items()}
    total = sum(weights.values())
    return [{node: weight / total for node, weight in weights.items()} for _ in sight.accelerators], weights


_SHARES = {
    Policy.LOCAL: _local,
    Policy.ONE_TO_ONE: _one_to_one,
    Policy.SOCKET: _socket,
    Policy.INTERLEAVE: _interleave,
    Policy.WEIGHTED: _weighted,
}


# -- sizes and costs --------------------------------------------------------------------------------------------------


def _pool_each(sight: Sight, shares: _Shares, usable: Mapping[int, int], wanted: int | None) -> int:
    """Return the bytes of one accelerator's pool: what the tightest node and the control group allow, or what is wanted."""
    load: Counter[int] = Counter()
    for share in shares:
        load.update(share)
    tightest = min(load, key=lambda node: usable[node] / load[node])
    most, bound = int(usable[tightest] / load[tightest]), f"node {tightest}"
    cgroup = sight.machine.memory.cgroup
    if cgroup.memory_max_bytes.value is not None:
        room = max(0, cgroup.memory_max_bytes.value - (cgroup.memory_used_bytes.value or 0)) // len(shares)
        most, bound = min((most, bound), (room, "the control group"))
    if wanted is None:
        if most == 0:
            raise _Refused(f"{bound} has no room")
        return most
    each = wanted // len(shares)
    if each > most:
        raise _Refused(
            f"{format_bytes(each)} for each of {len(shares)} accelerators is more than {bound} allows: {format_bytes(most)}"
        )
    return each


def _binding(sight: Sight, device: PciDevice, share: Mapping[int, float], each: int) -> Binding:
    nodes = sorted(share)
    by_node = {node: int(each * share[node]) for node in nodes}
    home: Node | None = next((n for n in sight.machine.numa.nodes if n.id == device.node.value), None)
    row = home.distances.value if home else None
    distance = None
    if row is not None and all(node in row for node in nodes):
        distance = sum(row[node] * share[node] for node in nodes)
    uplink = sight.uplink_of(device.address)
    return Binding(
        accelerator=device.address,
        bytes_by_node=by_node,
        distance=distance,
        remote_share=1.0 - share.get(device.node.value, 0.0) if device.node.value is not None else None,
        uplink=uplink.id if uplink else None,
        busy_bytes_per_s=uplink.busy_bytes_per_s.value if uplink else None,
    )


def _costs(
    sight: Sight, policy: Policy, bindings: Sequence[Binding], reached: int, installed: int | None
) -> tuple[str, ...]:
    costs = []
    if installed is not None and reached < installed:
        costs.append(f"reaches {format_bytes(reached)} of {format_bytes(installed)} installed")
    lost = [b.accelerator for b in bindings if b.remote_share is None]
    remote = [b for b in bindings if b.remote_share]
    if lost:
        costs.append(f"how far {some(lost)} are from their bytes is not known")
    elif remote:
        far = max((b.distance for b in remote if b.distance is not None), default=None)
        share = sum(b.remote_share or 0 for b in bindings) / len(bindings)
        costs.append(
            f"{share:.0%} of the bytes are on another node"
            + (f"; the card that is farthest from its bytes has a mean distance of {far:g}" if far else "")
        )
    parted = []
    for uplink in sight.shared_uplinks:
        targets = [frozenset(b.bytes_by_node) for b in bindings if b.uplink == uplink.id]
        if len(targets) > 1 and len(frozenset().union(*targets)) > 1:
            parted.append(uplink.id)
    if parted:
        costs.append(
            f"writers behind {some(parted, most=8)} have different target nodes: under strict ordering they wait for each "
            "other, so measure device to host with all of them busy"
        )
    sharing = [b for b in bindings if b.uplink is not None]
    busy = [b.busy_bytes_per_s for b in sharing if b.busy_bytes_per_s is not None]
    if sharing:
        told = (
            f"down to {format_rate(min(busy))} each when all are busy" if busy else "what is left for each is not known"
        )
        if 0 < len(busy) < len(sharing):
            told += f", not known for {len(sharing) - len(busy)} of them"
        costs.append(f"{len(sharing)} of {len(bindings)} share an uplink: {told}")
    if policy in (Policy.INTERLEAVE, Policy.WEIGHTED):
        size = max(b.pool_bytes for b in bindings) / 1e9
        gb, slower = min(_REGISTERED, key=lambda entry: abs(entry[0] - size))
        costs.append(
            f"a pool on many nodes is bound to none: one published measurement had {slower} % less speed with {gb} GB registered "
            "and unbound than with none; bound by topology nothing was lost"
        )
    if sight.machine.numa.mempolicy_calls.value is None:
        costs.append(f"whether a memory policy may be set is not known ({sight.machine.numa.mempolicy_calls.reason})")
    return tuple(costs)
