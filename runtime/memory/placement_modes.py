"""The five placement modes of a host pool, which nodes each means, and the kernel's policy for it. Pure.

    local        the accelerator's own node                      MPOL_BIND
    one-to-one   accelerator i on node i, so all nodes are used  MPOL_BIND
    socket       all nodes of the accelerator's socket           MPOL_INTERLEAVE
    interleave   all nodes                                       MPOL_INTERLEAVE
    weighted     all nodes, by the kernel's weights              MPOL_WEIGHTED_INTERLEAVE (Linux 6.9)

MPOL_BIND, not MPOL_PREFERRED: a pool that silently spills to another node is the error this is for. A bound node without room
gets the process killed, an interleaved one has the kernel take the rest from other nodes; so what a node has left is looked at
first, and a pool that would do either is refused (`budget.require_node_room`).
Source of the numbers: include/uapi/linux/mempolicy.h.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hicachectl.errors import UsageError
from hicachectl.linux_calls import MPOL_BIND

__all__ = ["POLICY_NAMES", "Placed", "PlacementMode", "nodes_of_mode", "policy_number", "weights_text"]

MPOL_INTERLEAVE, MPOL_WEIGHTED_INTERLEAVE = 3, 6
POLICY_NAMES = {
    0: "default", 1: "preferred", MPOL_BIND: "bind", MPOL_INTERLEAVE: "interleave", 4: "local", 5: "preferred-many",
    MPOL_WEIGHTED_INTERLEAVE: "weighted-interleave",
}  # fmt: skip


class PlacementMode(Enum):
    """Where the memory of a pool comes from."""

    LOCAL = "local"
    ONE_TO_ONE = "one-to-one"
    SOCKET = "socket"
    INTERLEAVE = "interleave"
    WEIGHTED = "weighted"

    @classmethod
    def parse(cls, text: str) -> PlacementMode:
        """Read a mode's name. Pure. Raises UsageError with the nearest name.

        >>> PlacementMode.parse("one-to-one")
        <PlacementMode.ONE_TO_ONE: 'one-to-one'>
        """
        names = [mode.value for mode in cls]
        if text not in names:
            near = difflib.get_close_matches(text, names, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"placement mode {text!r} is not known", hint=f"{hint}one of {', '.join(names)}")
        return cls(text)


@dataclass(frozen=True, slots=True)
class Placed:
    """A mode with the nodes it means on this host, ascending. `weights` are (node, weight) that weighted interleave should
    have; empty: whatever the kernel has. They are the kernel's own, one set a host, so they are looked at, never set."""

    mode: PlacementMode
    nodes: tuple[int, ...]
    weights: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        found = f"{self.mode.value} on node{'s' if len(self.nodes) > 1 else ''} {', '.join(map(str, self.nodes))}"
        return f"{found} with weights {weights_text(self.weights)}" if self.weights else found

    def shares(self, kernel_weights: Mapping[int, int]) -> dict[int, float] | None:
        """Return the part of the pages each node should have; None where that is not known. Pure.

        >>> Placed(PlacementMode.WEIGHTED, (0, 1)).shares({0: 3, 1: 1})
        {0: 0.75, 1: 0.25}
        """
        if self.mode is not PlacementMode.WEIGHTED:
            return {node: 1 / len(self.nodes) for node in self.nodes} if len(self.nodes) > 1 else None
        if any(node not in kernel_weights for node in self.nodes):
            return None
        total = sum(kernel_weights[node] for node in self.nodes)
        return {node: kernel_weights[node] / total for node in self.nodes}


def weights_text(weights: Iterable[tuple[int, int]]) -> str:
    """Write weights as they are given. Pure.

    >>> weights_text([(0, 3), (1, 1)])
    '0=3,1=1'
    """
    return ",".join(f"{node}={weight}" for node, weight in weights)


def policy_number(mode: PlacementMode) -> int:
    """Return the kernel's number of the policy that makes a mode. Pure."""
    if mode is PlacementMode.WEIGHTED:
        return MPOL_WEIGHTED_INTERLEAVE
    return MPOL_BIND if mode in (PlacementMode.LOCAL, PlacementMode.ONE_TO_ONE) else MPOL_INTERLEAVE


def nodes_of_mode(
    mode: PlacementMode,
    *,
    own_node: int | None,
    index: int,
    socket_nodes: tuple[int, ...],
    memory_nodes: tuple[int, ...],
) -> Placed:
    """Say which nodes a mode means for one accelerator. Pure.

    `own_node` is the accelerator's node (None: the host does not say), `index` its number among the accelerators,
    `socket_nodes` the nodes of its socket, `memory_nodes` all nodes with memory that the process may use.
    Raises UsageError when the mode needs what is not known or names a node outside `memory_nodes`.

    >>> nodes_of_mode(PlacementMode.ONE_TO_ONE, own_node=0, index=3, socket_nodes=(0, 1), memory_nodes=(0, 1, 2, 3)).nodes
    (3,)
    """
    if mode is PlacementMode.LOCAL:
        if own_node is None:
            raise UsageError("placement local, and the accelerator's node is not known", hint="give interleave")
        wanted: tuple[int, ...] = (own_node,)
    elif mode is PlacementMode.ONE_TO_ONE:
        if index >= len(memory_nodes):
            raise UsageError(
                f"placement one-to-one, accelerator {index} of a host with {len(memory_nodes)} memory nodes",
                why="each accelerator needs a node of its own",
                hint="give local, socket or interleave",
            )
        wanted = (sorted(memory_nodes)[index],)
    elif mode is PlacementMode.SOCKET:
        wanted = socket_nodes
    else:
        wanted = memory_nodes
    outside = sorted(set(wanted) - set(memory_nodes))
    if outside or not wanted:
        raise UsageError(
            f"placement {mode.value} means nodes {sorted(wanted)}, usable are {sorted(memory_nodes)}",
            why="a node is offline, without memory, or outside the cpuset of this process",
            hint="see Mems_allowed_list in /proc/self/status",
        )
    return Placed(mode, tuple(sorted(set(wanted))))
