"""What the nodes of a placement have room for. Pure.

local                 the node's free memory
one-to-one            nodes x the smallest: each rank has a pool of its own on a node of its own; with more ranks than nodes by
                      the ranks on each, the first nodes having one more
socket, interleave    nodes x the smallest: as much is taken from each
weighted              until the first node is full, each giving by its weight

Of the last two rows the kernel would give more, from nodes that were not asked for: no pool is sized, and none is made
(`runtime.memory.budget.require_node_room`), whose placement would not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hicachectl.runtime.memory.placement_modes import PlacementMode, weights_text

__all__ = ["NodeRoom", "node_room"]


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """Bytes that pools may take of the nodes of a mode: on the host, and in one trial pool. None where it is not known.

    `free_bytes` is what each node can give, `words` how the sum was made, or why there is none.
    """

    mode: str
    free_bytes: dict[int, int | None]
    host_bytes: int | None
    trial_bytes: int | None
    words: str


def node_room(
    mode: PlacementMode,
    nodes: Sequence[int],
    free_bytes: Mapping[int, int],
    *,
    trial_nodes: Sequence[int] | None = None,
    weights: Mapping[int, int] | None = None,
    n_ranks: int = 1,
) -> NodeRoom:
    """Add up what nodes can give. Pure. `nodes` hold the pools of all ranks, `trial_nodes` the one pool of a step (None: the same).

    `weights` are those of weighted interleave; a node without one counts as 1, which is the kernel's default.
    """
    trial = tuple(nodes if trial_nodes is None else trial_nodes)
    free = {node: free_bytes.get(node) for node in sorted({*nodes, *trial})}
    known = {node: amount for node, amount in free.items() if amount is not None}
    missing = sorted(set(free) - set(known))
    if missing or not nodes:
        return NodeRoom(mode.value, free, None, None, f"free memory of nodes {missing} could not be read")
    by_weight = mode is PlacementMode.WEIGHTED
    weight = {node: (weights or {}).get(node, 1) if by_weight else 1 for node in known}
    crowded = mode is PlacementMode.ONE_TO_ONE and n_ranks > len(nodes)
    if crowded:
        each, more = divmod(n_ranks, len(nodes))
        weight |= {node: each + (index < more) for index, node in enumerate(nodes)}
    first = min(nodes, key=lambda node: known[node] / weight[node])
    host, in_trial = _room(nodes, known, weight), _room(trial, known, weight)
    if by_weight:
        words = f"weights {weights_text(sorted((n, weight[n]) for n in nodes))}, node {first} is full first"
    elif crowded:
        words = f"{n_ranks} ranks on {len(nodes)} nodes, node {first} is full first"
    elif len(nodes) == 1:
        words = f"node {first}"
    else:
        words = f"{len(nodes)} nodes x the smallest, node {first}"
    return NodeRoom(mode.value, free, host, in_trial, words)


def _room(nodes: Sequence[int], free: Mapping[int, int], weight: Mapping[int, int]) -> int:
    total = sum(weight[node] for node in nodes)
    return min(free[node] * total // weight[node] for node in nodes)
