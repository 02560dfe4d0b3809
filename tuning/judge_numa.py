"""Findings about NUMA: nodes that are not known, far NICs, policies, uneven memory, what this process may use. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from hicachectl.tuning.finding import HOST, Finding, Severity, Sight, known_values, some
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Node, PciDevice, SlotKind
from hicachectl.tuning.host.uplinks import is_unidentified
from hicachectl.units import format_bytes

__all__ = ["judge_numa"]

LOW_NODE_SHARE = 0.5
"""A node with less than this share of the median free memory is called low. Our choice."""


def judge_numa(sight: Sight) -> Iterator[Finding]:
    """Yield the findings of the NUMA area. Pure."""
    yield from _unknown(sight)
    yield from _suspicious(sight)
    yield from _far_nics(sight)
    yield from _policies(sight)
    yield from _low(sight)
    yield from _half(sight)
    yield from _cpuset(sight)
    yield from _nps(sight)
    yield from _mempolicy(sight)


def _unknown(sight: Sight) -> Iterator[Finding]:
    """Say which movers have no node. With one node there is nothing to choose: a note, and for accelerators alone."""
    one_node = len(sight.online) == 1
    for kinds, severity in (
        ((SlotKind.ACCELERATOR,), "warn"),
        ((SlotKind.NIC, SlotKind.RDMA_NIC, SlotKind.NVME), "note"),
    ):
        lost = [d for d in sight.movers if d.kind in kinds and d.node.value is None]
        if not lost or (one_node and severity == "note"):
            continue
        first = lost[0]
        near = first.node_fallback
        told = (
            f"the CPUs near {first.address} are on node {some(map(str, near.value))}" if near.value else "no fallback"
        )
        yield Finding(
            "HC-NODE-UNKNOWN",
            "warn" if severity == "warn" and not one_node else "note",
            first.address,
            f"no NUMA node for {some(d.address for d in lost)} ({first.node.reason}); {told}",
            f"cat /sys/bus/pci/devices/{first.address}/local_cpulist",
            first.node.source,
            tuple(d.address for d in lost),
        )


def _suspicious(sight: Sight) -> Iterator[Finding]:
    """Tell of tables that say something, but nothing to believe: all on one node of two sockets, all distances 10."""
    numa, severity = sight.machine.numa, "warn" if sight.accelerators else "note"
    weight: Severity = "warn" if severity == "warn" else "note"
    nodes = {d.node.value for d in sight.movers}
    buses = {d.host_bridge.value or (d.path or (d.address,))[0].rpartition(":")[0] for d in sight.movers}
    if (numa.sockets.value or 0) > 1 and len(sight.accelerators) > 1 and nodes == {0} and len(buses) > 1:
        yield Finding(
            "HC-NODE-UNKNOWN",
            "note",
            HOST,
            f"every accelerator, NIC and disk says node 0, below {len(buses)} root buses of {numa.sockets.value} sockets: "
            "the firmware's table is wrong, or the board has all slots on one socket",
            "hicachectl topo matrix",
            sight.accelerators[0].node.source,
        )
    cpus = [node.cpus.value for node in sight.online if node.cpus.value]
    n_listed, n_cpus = sum(map(len, cpus)), len({cpu for one in cpus for cpu in one})
    if n_listed > n_cpus:
        yield Finding(
            "HC-NODE-UNKNOWN",
            weight,
            "node CPUs",
            f"{len(cpus)} nodes list {n_listed} CPUs, but there are {n_cpus}: the same ones are on several nodes",
            "numactl --hardware",
            sight.online[0].cpus.source,
        )
    rows = [node.distances for node in sight.online]
    values = {value for row in rows for value in (row.value or {}).values()}
    if len(rows) > 1 and all(row.is_known for row in rows) and values == {10}:
        yield Finding(
            "HC-NODE-UNKNOWN",
            weight,
            "node distances",
            f"all distances between {len(rows)} nodes are 10, the distance of a node to itself: near and far cannot be told",
            "numactl --hardware",
            rows[0].source,
        )


def _far_nics(sight: Sight) -> Iterator[Finding]:
    """Name the nodes with accelerators whose every RDMA NIC is far: on another socket, or past the nearest other node."""
    numa, nics = sight.machine.numa, sight.rdma_nics
    if not nics or any(nic.node.value is None for nic in nics) or (numa.sockets.value or 0) < 2:
        return
    if any(_may_be_rdma(device) for device in sight.machine.devices):
        return  # it may be the near one
    by_node: dict[int, list[PciDevice]] = {}
    for device in sight.accelerators:
        if device.node.value is not None:
            by_node.setdefault(device.node.value, []).append(device)
    for node in sight.online:
        row, here = node.distances.value, by_node.get(node.id)
        near = _near_distance(node, numa.nodes_a_socket)
        if here is None or row is None or near is None:
            continue
        reach = {nic.address: row.get(nic.node.value) for nic in nics if nic.node.value is not None}
        known_reach = {address: distance for address, distance in reach.items() if distance is not None}
        if len(known_reach) < len(nics) or min(known_reach.values()) <= near:
            continue
        nic = min(known_reach, key=lambda address: known_reach[address])
        yield Finding(
            "HC-NIC-FAR",
            "warn",
            f"node {node.id}",
            f"the nearest RDMA NIC of {some(d.address for d in here)} on node {node.id} is {nic} on node "
            f"{sight.by_address[nic].node.value}, at distance {known_reach[nic]}; within the socket it is at most {near}",
            f"cat /sys/bus/pci/devices/{nic}/numa_node",
            node.distances.source,
            (*(d.address for d in here), nic),
        )


def _may_be_rdma(device: PciDevice) -> bool:
    """Whether a function of another kind would be an RDMA NIC if what was not read of it said so."""
    if device.kind not in (SlotKind.NIC, SlotKind.OTHER):
        return False
    interfaces = device.listed.get("interfaces")
    unlisted = interfaces is not None and not interfaces.is_known
    return unlisted or is_unidentified(device) or (device.kind == SlotKind.NIC and device.vendor.value is None)


def _near_distance(node: Node, nodes_a_socket: Fact[int]) -> int | None:
    """Return the largest distance that still counts as near; None when it cannot be told."""
    row, per_socket = node.distances.value, nodes_a_socket.value
    if row is None or per_socket is None or node.id not in row:
        return None
    others = sorted(distance for other, distance in row.items() if other != node.id)
    return others[per_socket - 2] if 1 < per_socket <= len(others) + 1 else row[node.id]


def _policies(sight: Sight) -> Iterator[Finding]:
    numa = sight.machine.numa
    policy, balancing = numa.process_policy, numa.numa_balancing
    if policy.value is not None and "interleave" in policy.value.split(":")[0] and len(sight.memory_nodes) > 1:
        yield Finding(
            "HC-INTERLEAVE-ALL",
            "warn",
            HOST,
            f"the policy of the whole process is {policy.value}, wanted: default; it spreads everything, not only pools",
            "head -3 /proc/self/numa_maps",
            policy.source,
        )
    if balancing.value and len(sight.memory_nodes) > 1:
        yield Finding(
            "HC-NUMA-BALANCING",
            "warn" if sight.accelerators else "note",
            "/proc/sys/kernel/numa_balancing",
            f"kernel.numa_balancing is {balancing.value}, 0 once pools and ranks are bound: its scans unmap pages to sample",
            "sudo hicachectl tune plan --only numa.balancing --bound --output-file plan.json",
            balancing.source,
        )


def _low(sight: Sight) -> Iterator[Finding]:
    free = {node.id: _free(node) for node in sight.pool_nodes}
    values = list(known_values(free.values()))
    if len(values) < 2 or len(values) < len(free) or sight.unread_nodes:
        return
    middle = median(values)
    for node, fact in free.items():
        if fact.value is not None and fact.value < LOW_NODE_SHARE * middle:
            yield Finding(
                "HC-NODE-LOW",
                "note",
                f"node {node}",
                f"{format_bytes(fact.value)} usable on node {node}, {format_bytes(middle)} on the middle one of "
                f"{len(values)} nodes: an even pool stops here first",
                "numastat -m",
                fact.source,
            )


def _free(node: Node) -> Fact[int]:
    return node.memory_available_bytes if node.memory_available_bytes.is_known else node.memory_free_bytes


def _half(sight: Sight) -> Iterator[Finding]:
    """Say how much memory strictly local binding reaches; only when every accelerator's node and every node's memory is known."""
    nodes = {d.node.value for d in sight.accelerators}
    if not sight.accelerators or None in nodes or sight.unread_nodes:
        return
    local = [node for node in sight.pool_nodes if node.id in nodes]
    if not local or 2 * len(local) > len(sight.pool_nodes):
        return
    here = sum(known_values(node.memory_total_bytes for node in local))
    there = sum(known_values(node.memory_total_bytes for node in sight.pool_nodes))
    yield Finding(
        "HC-BIND-HALF",
        "note",
        f"node {some(str(node.id) for node in local)}",
        f"accelerators are on {len(local)} of {len(sight.pool_nodes)} memory nodes: strictly local pools reach "
        f"{format_bytes(here)} of {format_bytes(there)}",
        "hicachectl topo matrix",
        sight.accelerators[0].node.source,
        tuple(f"node {node.id}" for node in local),
    )


def _cpuset(sight: Sight) -> Iterator[Finding]:
    numa = sight.machine.numa
    parts, sources = [], []
    n_unread = sum(not node.memory_total_bytes.is_known for node in sight.online)
    for what, allowed, there in (
        ("memory nodes", numa.allowed_nodes, {node.id for node in sight.memory_nodes}),
        ("CPUs", numa.allowed_cpus, {cpu for node in sight.online for cpu in node.cpus.value or ()}),
    ):
        if allowed.value is not None and there - set(allowed.value):
            more = f" ({n_unread} more not read)" if n_unread and what == "memory nodes" else ""
            parts.append(f"{len(there & set(allowed.value))} of the host's {len(there)} {what}{more}")
            sources.append(allowed.source)
    if not parts:
        return
    nodes = numa.allowed_nodes.value
    out = [
        d for d in sight.accelerators if nodes is not None and d.node.value is not None and d.node.value not in nodes
    ]
    yield Finding(
        "HC-CPUSET",
        "warn" if out else "note",
        HOST,
        f"this process may use {some(parts)}"
        + (f"; {some(d.address for d in out)} are on nodes outside" if out else ""),
        "grep -E 'Mems_allowed_list|Cpus_allowed_list' /proc/self/status",
        sources[0],
        tuple(d.address for d in out),
    )


def _nps(sight: Sight) -> Iterator[Finding]:
    per_socket = sight.machine.numa.nodes_a_socket
    if per_socket.value is not None and per_socket.value > 1:
        yield Finding(
            "HC-NPS-MODE",
            "note",
            HOST,
            f"{per_socket.value} memory nodes a socket (NPS or SNC), 1 is the other common setting: each node has that "
            "fraction of the socket's channels and memory",
            "lscpu | grep -i numa",
            per_socket.source,
        )


def _mempolicy(sight: Sight) -> Iterator[Finding]:
    allowed = sight.machine.numa.mempolicy_calls
    if allowed.value is False:
        yield Finding(
            "HC-MEMPOLICY-DENIED",
            "warn" if len(sight.memory_nodes) != 1 or sight.unread_nodes else "note",
            HOST,
            "set_mempolicy is refused (EPERM, wanted: allowed), so no pool can be bound to a node; a container needs "
            "CAP_SYS_NICE or a seccomp profile that lets it through",
            "grep -E 'Seccomp|CapEff' /proc/self/status",
            allowed.source,
        )
