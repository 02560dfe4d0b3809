"""The host memory that loads of links take, against what the host has: refused before anything is taken."""

from __future__ import annotations

from collections.abc import Mapping

from hicachectl.runtime.memory.budget import Ask, HostMemory, ledger, require_node_room

__all__ = ["REGION_BYTES", "RESERVE_BYTES", "require_link_room"]

REGION_BYTES = 256 << 20
"""The least of the host's memory that a direction of one accelerator walks over: caches hold little of it."""
RESERVE_BYTES = 512 << 20
"""Left to the rest of the machine."""


def require_link_room(
    host: HostMemory, n_accelerators: int, most_bytes: int, hint: str, n_by_node: Mapping[int, int] | None = None
) -> None:
    """Refuse a load of so many accelerators with copies of at most `most_bytes` that the host has no memory for. Pure.

    `n_by_node` says how many take theirs from which node, where that is settled. Raises CapacityError with every term of the sum.
    """
    each = 2 * max(most_bytes, REGION_BYTES)
    asks = [Ask(f"memory to copy to and from, of {n_accelerators} accelerators", n_accelerators * each)]
    ledger(host, asks, reserve_bytes=RESERVE_BYTES).require(hint)
    for node, n in sorted((n_by_node or {}).items()):
        require_node_room(host.node_free_bytes, n * each, (node,))
