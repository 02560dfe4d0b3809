"""NUMA nodes with their CPUs, distances and memory, and what this process may use of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hicachectl.tuning.host.cgroup import read_cgroup
from hicachectl.tuning.host.facts import Confidence, Fact, derive, known
from hicachectl.tuning.host.kernel_text import field, id_list, number, signed, status_fields, table_bytes
from hicachectl.tuning.host.mempolicy import probe_mempolicy_calls, process_policy
from hicachectl.tuning.host.model import Node, Numa
from hicachectl.tuning.host.pages import base_page_bytes, free_huge_blocks, huge_page_bytes, hugetlb_pools, reserves
from hicachectl.tuning.host.root import HostRoot

__all__ = ["read_numa"]

_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"


def read_numa(root: HostRoot) -> Numa:
    """Read every node that has a folder, in the order of ids, and the process's share. Changes nothing; never raises for odd files."""
    names = root.names(_NODES)
    ids = sorted(
        int(match[1]) for name in names.value or () if (match := re.fullmatch(r"node(\d{1,5})", name, re.ASCII))
    )
    online = root.text(f"{_NODES}/online").then(id_list)
    page_bytes = base_page_bytes(root)
    shared = _Shared(
        online=online,
        blocks=free_huge_blocks(root, page_bytes, huge_page_bytes(root)),
        reserves=reserves(root),
        page_bytes=page_bytes,
        device_nodes=_device_nodes(root),
    )
    nodes = tuple(_node(root, node, shared) for node in ids)
    allowed_nodes, allowed_cpus = _allowed(root)
    sockets = _sockets(root)
    return Numa(
        nodes=nodes,
        allowed_nodes=allowed_nodes,
        allowed_cpus=allowed_cpus,
        sockets=sockets.then(len),
        nodes_a_socket=_nodes_a_socket(nodes, sockets),
        numa_balancing=root.text("/proc/sys/kernel/numa_balancing").then(number),
        zone_reclaim_mode=root.text("/proc/sys/vm/zone_reclaim_mode").then(number),
        process_policy=process_policy(root),
        mempolicy_calls=probe_mempolicy_calls(root, allowed_nodes),
        socket_cpus=sockets.then(lambda found: tuple(tuple(sorted(cpus)) for cpus in found)),
        listed={"nodes": names.then(lambda _: len(ids))},
    )


@dataclass(frozen=True)
class _Shared:
    """What is read once for all nodes."""

    online: Fact[tuple[int, ...]]
    blocks: Fact[dict[int, int]]
    reserves: Fact[dict[int, tuple[int, int]]]
    page_bytes: Fact[int]
    device_nodes: Fact[frozenset[int]]


def _node(root: HostRoot, node: int, shared: _Shared) -> Node:
    folder = f"{_NODES}/node{node}"
    cpus = root.text(f"{folder}/cpulist").then(id_list)
    meminfo = root.text(f"{folder}/meminfo").then(table_bytes)
    total: Fact[int] = field(meminfo, "MemTotal")
    free: Fact[int] = field(meminfo, "MemFree")
    pools, n_pools = hugetlb_pools(root, f"{folder}/hugepages", node)
    return Node(
        id=node,
        online=shared.online.then(lambda ids: node in ids),
        cpus=cpus,
        memory_total_bytes=total,
        memory_free_bytes=free,
        memory_available_bytes=_available(node, meminfo, shared),
        distances=_distances(root, folder, shared.online),
        free_huge_blocks=shared.blocks.then(lambda found: found.get(node), why_not=f"does not list node {node}"),
        interleave_weight=root.text(f"/sys/kernel/mm/mempolicy/weighted_interleave/node{node}").then(number),
        kind=_kind(node, cpus, total, shared.device_nodes),
        hugetlb=pools,
        listed={"hugetlb": n_pools},
    )


def _available(node: int, meminfo: Fact[dict[str, int]], shared: _Shared) -> Fact[int]:
    """Derive what can be had without swapping; the kernel gives it for the host only.

    Its sum (si_mem_available, mm/show_mem.c): free less reserves, plus page cache and reclaimable slab, each less the
    smaller of its half and the low watermarks.
    """

    def available(table: dict[str, int], kept: dict[int, tuple[int, int]], page_bytes: int) -> int:
        slab = "KReclaimable" if "KReclaimable" in table else "SReclaimable"
        for name in ("MemFree", "Active(file)", "Inactive(file)", slab):
            if name not in table:
                raise ValueError(f"has no {name}")
        if node not in kept:
            raise ValueError(f"zoneinfo does not list node {node}")
        reserve, low = (pages * page_bytes for pages in kept[node])
        found = table["MemFree"] - reserve
        for part in (table["Active(file)"] + table["Inactive(file)"], table[slab]):
            found += part - min(part // 2, low)
        return max(found, 0)

    return derive(available, meminfo, shared.reserves, shared.page_bytes)


def _distances(root: HostRoot, folder: str, online: Fact[tuple[int, ...]]) -> Fact[dict[int, int]]:
    """Read a row. It has one number for each *online* node, in their order; with another count nobody can say which is whose."""
    row = root.text(f"{folder}/distance").then(lambda text: tuple(number(word) for word in text.split()))

    def by_node(found: tuple[int, ...], ids: tuple[int, ...]) -> dict[int, int]:
        if len(found) != len(ids):
            raise ValueError(f"{len(found)} distances for {len(ids)} online nodes")
        return dict(zip(ids, found, strict=True))

    paired = derive(by_node, row, online, source=row.source)
    if not row.is_known:
        return Fact(None, row.source, row.confidence, row.reason)
    return paired if paired.value is None else known(paired.value, row.source)


def _kind(node: int, cpus: Fact[tuple[int, ...]], total: Fact[int], device_nodes: Fact[frozenset[int]]) -> Fact[str]:
    if total.value == 0:
        return derive(lambda _: "memory-less", total)
    if not total.is_known or cpus.value != ():
        return derive(lambda own, _: "memory" if own else None, cpus, total)
    return derive(lambda found, *_: "device-memory" if node in found else "cpu-less", device_nodes, cpus, total)


def _device_nodes(root: HostRoot) -> Fact[frozenset[int]]:
    """Find nodes whose memory is an accelerator's: the driver says so, or firmware gives the node to a generic initiator.

    NVIDIA's driver names the node of each GPU's memory in numa_status (POWER9, Grace); ACPI generic initiators are devices
    that start accesses without being CPUs, and firmware puts GPU memory in their nodes (kernel acpi/numa/srat.c).
    """
    source = "/proc/driver/nvidia/gpus/*/numa_status, has_generic_initiator"
    found: set[int] = set()
    initiators = root.text(f"{_NODES}/has_generic_initiator").then(id_list)
    gpus = root.names("/proc/driver/nvidia/gpus")
    statuses = [root.text(f"/proc/driver/nvidia/gpus/{gpu}/numa_status").then(_status_node) for gpu in gpus.value or ()]
    asked: tuple[Fact[Any], ...] = (initiators, gpus, *statuses)
    for evidence in asked:
        if not evidence.is_known and evidence.reason != "no such file":
            return Fact(None, evidence.source, Confidence.DERIVED, evidence.reason)
    found.update(initiators.value or ())
    found.update(fact.value for fact in statuses if fact.value is not None and fact.value >= 0)
    return Fact(frozenset(found), source, Confidence.DERIVED)


def _status_node(text: str) -> int:
    match = re.search(r"^Node:\s*(-?\d{1,5})$", text, re.MULTILINE | re.ASCII)
    if match is None:
        raise ValueError("no Node line")
    return signed(match[1])


def _allowed(root: HostRoot) -> tuple[Fact[tuple[int, ...]], Fact[tuple[int, ...]]]:
    """Read the process's own lists: sysfs and `numactl -H` show every node, whatever the cpuset. Without them, the cpuset's."""
    status = root.text("/proc/self/status").then(status_fields)
    nodes = field(status, "Mems_allowed_list").then(id_list)
    cpus = field(status, "Cpus_allowed_list").then(id_list)
    if status.reason == "no such file":
        cgroup = read_cgroup(root)
        if cgroup.cpuset_mems.is_known:
            nodes = derive(lambda found: found, cgroup.cpuset_mems)
        if cgroup.cpuset_cpus.is_known:
            cpus = derive(lambda found: found, cgroup.cpuset_cpus)
    return nodes, cpus


def _sockets(root: HostRoot) -> Fact[tuple[frozenset[int], ...]]:
    """Read the CPU sets of the sockets: one file a socket, each names all of its CPUs."""
    online = root.text(f"{_CPUS}/online").then(id_list)
    if online.value is None:
        return Fact(None, online.source, online.confidence, online.reason)
    left = set(online.value)
    sockets: list[frozenset[int]] = []
    while left:
        topology = f"{_CPUS}/cpu{min(left)}/topology"
        members = root.text(f"{topology}/package_cpus_list").then(id_list)
        if members.reason == "no such file":  # the name before Linux 5.5
            members = root.text(f"{topology}/core_siblings_list").then(id_list)
        if members.value is None:
            return Fact(None, members.source, Confidence.DERIVED, members.reason)
        if min(left) not in members.value:
            return Fact(None, members.source, Confidence.DERIVED, f"cpu{min(left)} is not in its own socket")
        sockets.append(frozenset(members.value))
        left -= sockets[-1]
    if not sockets:
        return Fact(None, online.source, Confidence.DERIVED, "no CPU is online")
    return Fact(tuple(sockets), f"{_CPUS}/cpu*/topology/package_cpus_list", Confidence.DERIVED)


def _nodes_a_socket(nodes: tuple[Node, ...], sockets: Fact[tuple[frozenset[int], ...]]) -> Fact[int]:
    """Derive the NPS or SNC mode: nodes with CPUs and memory, a socket. Sockets that differ have no mode."""

    def count(found: tuple[frozenset[int], ...]) -> int:
        counts = [0] * len(found)
        for node in nodes:
            for fact in (node.cpus, node.memory_total_bytes):
                if not fact.is_known:
                    raise ValueError(f"{fact.reason} ({fact.source})")
            own = set(node.cpus.value or ()) & frozenset().union(*found)
            if not own or not node.memory_total_bytes.value:
                continue
            on = [at for at, socket in enumerate(found) if own & socket]
            if len(on) != 1:
                raise ValueError(f"node {node.id} has CPUs of {len(on)} sockets")
            counts[on[0]] += 1
        if min(counts) != max(counts) or not counts[0]:
            raise ValueError(f"sockets have {', '.join(map(str, counts))} nodes with CPUs and memory")
        return counts[0]

    return derive(count, sockets, source=f"{_NODES}/node*/cpulist, {sockets.source}")
