"""What this host has room for, by the kind and placement of the pools that a sizing makes. Looks at the host, changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

from hicachectl.memory_room import host_memory, hugetlb_room
from hicachectl.run_seat import Seat, read_seat
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.memory.binding import kernel_weights
from hicachectl.runtime.memory.budget import HugetlbRoom
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import MemoryCalls, PoolCalls
from hicachectl.runtime.transfer.device import device_type
from hicachectl.tuning.sizing.budget import PoolPlan
from hicachectl.tuning.sizing.engine_flags import copies_on_ranks
from hicachectl.tuning.sizing.node_room import NodeRoom, node_room

__all__ = ["pool_plan"]


def pool_plan(
    spec: MappingSpec,
    geometry: KVGeometry,
    device: str,
    *,
    ranks: int,
    shared: bool,
    calls: MemoryCalls | None = None,
    seat_of: Callable[[str], Seat] = read_seat,
    free_on_nodes: Callable[[], dict[int, int]] = lambda: dict(host_memory().node_free_bytes),
    reserved: Callable[[int | None], HugetlbRoom] = hugetlb_room,
) -> PoolPlan:
    """Return what bounds a pool besides the host's memory: copies on the ranks, nodes, mount, reserved pages.

    The other parameters are how the host is looked at. Raises OSError where the mount of kind tmpfs cannot be asked,
    CapacityError where there is no pool of the page size of kind hugetlb.
    """
    calls = PoolCalls() if calls is None else calls
    mount = None
    if spec.kind is Kind.TMPFS and spec.path is not None:
        mount = calls.free_bytes((os.path.dirname(spec.path) or ".") if spec.named else spec.path)
    kind = device_type(device)
    why = "nothing is registered" if kind == "cpu" else f"registering with {kind} is not bound by it"
    of_heads = copies_on_ranks(ranks, n_kv_heads=geometry.n_kv_heads)
    return PoolPlan(
        copies=ranks if geometry.kind is KVKind.MLA and not shared else of_heads,
        nodes=None if spec.placed is None else _nodes(spec.placed, device, ranks, calls, seat_of, free_on_nodes()),
        mount_free_bytes=mount,
        hugetlb=reserved(spec.hugetlb_bytes) if spec.kind is Kind.HUGETLB else None,
        lock_reason=why,
    )


def _nodes(
    placed: Placed, device: str, ranks: int, calls: MemoryCalls, seat_of: Callable[[str], Seat], free: dict[int, int]
) -> NodeRoom:
    """One-to-one is the one mode whose pools lie on more nodes than a step's pool."""
    nodes = placed.nodes
    if placed.mode is PlacementMode.ONE_TO_ONE and ranks > 1:
        others = [node for node in sorted(seat_of(device).memory_nodes) if node not in nodes]
        nodes = tuple(sorted((*nodes, *others[: ranks - len(nodes)])))
    weights = kernel_weights(calls, placed) if placed.mode is PlacementMode.WEIGHTED else {}
    return node_room(placed.mode, nodes, free, trial_nodes=placed.nodes, weights=weights, n_ranks=ranks)
