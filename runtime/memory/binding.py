"""Bind a range to the nodes of its placement, before there is a page, and say what the kernel made of it."""

from __future__ import annotations

import errno

from hicachectl.errors import UsageError
from hicachectl.linux_calls import MPOL_BIND, MPOL_DEFAULT, MPOL_LOCAL, why
from hicachectl.runtime.memory.budget import require_node_room
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.numa import free_on_node, nodes_in_both, parse_ids
from hicachectl.runtime.memory.placement_modes import POLICY_NAMES, Placed, PlacementMode, policy_number, weights_text
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import Step, StepState
from hicachectl.runtime.memory.syscalls import MemoryCalls

__all__ = ["bind_step", "kernel_weights", "require_room_on_nodes", "usable_nodes"]


def bind_step(calls: MemoryCalls, address: int, mapped_bytes: int, spec: MappingSpec) -> Step:
    """Set the policy of the range and read it back; a refusal is a result."""
    placed = spec.placed
    if placed is None:
        kept = _kept_from_balancing(calls, address, mapped_bytes, spec)
        reason = f"no placement asked: pages come from where they are first touched{kept}"
        return Step("bind", StepState.SKIPPED, f"skipped: {reason}", reason)
    outside = sorted(set(placed.nodes) - set(usable_nodes(calls)))
    if outside:
        return _not_bound(
            f"nodes {outside} are not both online and allowed to this process ({list(usable_nodes(calls))} are)"
        )
    number = policy_number(placed.mode)
    try:
        calls.bind(address, mapped_bytes, number, placed.nodes)
    except OSError as error:
        return _not_bound(f"{why(error)}{_HINTS.get(error.errno or 0, '')}")
    weights = kernel_weights(calls, placed) if placed.mode is PlacementMode.WEIGHTED else {}
    asked = f"{POLICY_NAMES[number]} on nodes {', '.join(map(str, placed.nodes))}"
    try:
        policy, nodes = calls.policy_of(address)
    except OSError as error:
        return Step("bind", StepState.PARTLY, f"{asked}, not read back", f"set, but not read back: {why(error)}")
    policy &= 0xFFF  # above are the mode flags, MPOL_F_STATIC_NODES and others
    if (policy, nodes) != (number, placed.nodes):
        seen = f"{POLICY_NAMES.get(policy, policy)} on nodes {list(nodes)}"
        return Step(
            "bind", StepState.PARTLY, seen, f"policy not applied as asked: {asked} was set, {seen} is read back"
        )
    text = f"{placed.mode.value}: {asked}, read back"
    if placed.mode is PlacementMode.WEIGHTED:
        seen = weights_text(sorted(weights.items())) or "not readable"
        text += f", weights {seen}"
        if dict(placed.weights) and any(weights.get(node) != weight for node, weight in placed.weights):
            reason = f"the kernel's weights are {seen}, not {weights_text(placed.weights)}; {_SET_WEIGHTS}"
            return Step("bind", StepState.PARTLY, text, reason, n_bytes=mapped_bytes)
    return Step("bind", StepState.DONE, text, n_bytes=mapped_bytes)


def _kept_from_balancing(calls: MemoryCalls, address: int, mapped_bytes: int, spec: MappingSpec) -> str:
    """Keep automatic NUMA balancing away from private memory, and say so; empty where it does not run or a policy keeps it away.

    It samples pages by unmapping them, which delays whoever touches them, moves them, and hides them from smaps
    (docs/facts.md#balancing, #hidden-pages). Where the thread has no policy of its own (numactl), `local` takes pages from where the
    default does, and is left alone.
    """
    if spec.kind is not Kind.ANONYMOUS:
        return ""
    word = _balancing(calls)
    if not word & _SAMPLES:
        return ""
    try:
        own = calls.own_policy()
        if own != MPOL_DEFAULT:
            return f", by the policy of this process ({POLICY_NAMES.get(own, own)})"
        if word != _SAMPLES:
            return f"; automatic NUMA balancing (kernel.numa_balancing {word}) samples them and may move them"
        calls.bind(address, mapped_bytes, MPOL_LOCAL, ())
    except OSError as error:
        return f"; automatic NUMA balancing samples them and may move them ({why(error)})"
    return ", and policy local keeps automatic NUMA balancing from moving them"


def _balancing(calls: MemoryCalls) -> int:
    """Return kernel.numa_balancing, 0 where it has nothing to do: the kernel samples wherever more than one node is online, also for a
    process that may use one alone. Bit 1 is for tiers of memory, between which `local` would keep pages apart."""
    try:
        online = parse_ids(calls.read("/sys/devices/system/node/online"))
        return int(calls.read("/proc/sys/kernel/numa_balancing")) if len(online) > 1 else 0
    except (OSError, ValueError, UsageError):
        return 0  # a kernel without it


def require_room_on_nodes(calls: MemoryCalls, mapped_bytes: int, spec: MappingSpec) -> None:
    """Look at what the nodes that memory is placed on have left, before a page is touched. Raises CapacityError.

    A bound page that cannot be had gets the process killed; an interleaved one comes from another node, and the placement does not
    hold. Where that happens all the same (file cache that the kernel does not give back for it), `verify` tells. Pages of the hugetlb
    pool are counted by themselves (`obtain`).
    """
    if spec.placed is None or spec.kind is Kind.HUGETLB:
        return
    free: dict[int, int] = {}
    for node in spec.placed.nodes:
        try:
            found = free_on_node(calls.read(f"/sys/devices/system/node/node{node}/meminfo"))
        except OSError:
            continue
        if found is not None:
            free[node] = found
    require_node_room(free, mapped_bytes, spec.placed.nodes, weights=_taken_by(calls, spec.placed))


def _taken_by(calls: MemoryCalls, placed: Placed) -> dict[int, int] | None:
    """Return the weights by which nodes give interleaved memory; None where it is bound."""
    if policy_number(placed.mode) == MPOL_BIND:
        return None
    if placed.mode is PlacementMode.WEIGHTED:
        return {node: weight for node, weight in kernel_weights(calls, placed).items() if weight > 0}
    return dict.fromkeys(placed.nodes, 1)


def kernel_weights(calls: MemoryCalls, placed: Placed) -> dict[int, int]:
    """Return the weight of weighted interleave that the kernel has for each node; without those it does not tell."""
    found: dict[int, int] = {}
    for node in placed.nodes:
        try:
            found[node] = int(calls.read(f"{_WEIGHTS}/node{node}"))
        except (OSError, ValueError):
            continue
    return found


def usable_nodes(calls: MemoryCalls) -> tuple[int, ...]:
    """Return the nodes that are online and allowed to this process; empty when the kernel does not say. Reads two files."""
    try:
        return nodes_in_both(calls.read("/sys/devices/system/node/online"), calls.read("/proc/self/status"))
    except OSError:
        return ()


_SAMPLES = 1
_WEIGHTS = "/sys/kernel/mm/mempolicy/weighted_interleave"
"""Linux Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave, since 6.9."""
_SET_WEIGHTS = "they are one set for the whole host: tune.numa.interleave_weight asks for others"


_HINTS = {
    errno.EPERM: "; container runtimes put mbind behind CAP_SYS_NICE",
    errno.EINVAL: "; a node outside the cpuset, or a policy this kernel does not have (weighted: Linux 6.9)",
    errno.ENOSYS: "",
}


def _not_bound(reason: str) -> Step:
    return Step("bind", StepState.REFUSED, "policy not applied", f"policy not applied: {reason}")
