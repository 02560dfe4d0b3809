"""What a radix tree is made of: nodes, and the values its calls take and return. Pure.

A node is a run of pages that share their past: same parent, same touches, same leases. Its tokens are one bytes object
(4 bytes a token, little-endian uint32) and its children are keyed by the bytes of their first page.

Ownership of a node's pages, per tier (drawn for n_pages = 10):

    pages          0 1 2 3 4 5 6 7 8 9
    slots[DEVICE]  a b c d . . . . . .     resident: always a prefix of the node; freed by evict(DEVICE), tail first
    slots[HOST]    A B C D E F G . . .     same for the host tier
    pages 7, 8, 9 would be held by no tier: they are cut off at once, so n_pages == max(resident) for every node
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.keys import Namespace
from hicachectl.runtime.tiers import Tier

if TYPE_CHECKING:
    from hicachectl.runtime.tree import RadixTree

__all__ = ["NO_SLOTS", "Evicted", "Inserted", "Lease", "Match", "Node", "Slots", "TreeObserver", "join_slots"]

Slots = npt.NDArray[np.int32]
NO_SLOTS: Slots = np.empty(0, dtype=np.int32)
NO_SLOTS.setflags(write=False)


class Node:
    """A run of consecutive pages with one history. Fields are read by everyone, written by `RadixTree` alone."""

    __slots__ = (
        "backup", "children", "depth", "entered", "hits", "keys", "leases", "load", "n_pages", "namespace", "parent",
        "priority", "queued", "resident_children", "slots", "store", "tokens", "touched", "uses",
    )  # fmt: skip

    def __init__(self, tokens: bytes, n_pages: int, depth: int, parent: Node | None, namespace: Namespace) -> None:
        self.tokens = tokens
        self.n_pages = n_pages
        self.depth = depth
        """Pages above this node on its path."""
        self.parent = parent
        self.namespace = namespace
        self.children: dict[bytes, Node] = {}
        self.slots: list[Slots] = [NO_SLOTS, NO_SLOTS]
        self.keys = b""
        """Sparse trail of page keys, see `RadixTree.keys_of`."""
        self.leases = 0
        self.hits = 0
        """Distinct requests that touched these pages, the creator included."""
        self.touched = [0, 0]
        self.entered = [0, 0]
        self.uses = [0, 0]
        """Touches while resident, per tier."""
        self.priority = 0
        self.resident_children = [0, 0]
        self.queued: list[Any] = [None, None]
        self.backup: object | None = None
        self.load: object | None = None
        self.store: object | None = None

    def resident(self, tier: int) -> int:
        """Return how many pages, counted from the front, `tier` holds."""
        return len(self.slots[tier])

    def __repr__(self) -> str:
        return (
            f"<Node pages [{self.depth}, {self.depth + self.n_pages}) device {len(self.slots[0])} host {len(self.slots[1])} "
            f"leases {self.leases} hits {self.hits} children {len(self.children)}>"
        )


@dataclass(slots=True)
class Match:
    """What a walk found: `device_pages` may be used now, `logical_pages` may be restored; they are never mixed.

    `node` is the deepest node reached and `node_pages` how many of its pages matched (all, unless the walk ended inside).
    """

    namespace: Namespace
    tokens: bytes
    n_pages: int
    device_pages: int
    logical_pages: int
    node: Node
    node_pages: int


class Lease:
    """Pins a path: `node` and every ancestor, in both tiers, until `release`. A context manager."""

    __slots__ = ("_tree", "node", "released")

    def __init__(self, tree: RadixTree, node: Node) -> None:
        self._tree = tree
        self.node = node
        self.released = False

    @property
    def n_pages(self) -> int:
        """Pages on the pinned path."""
        return self.node.depth + self.node.n_pages

    def release(self) -> None:
        """End the lease. Raises InvariantBroken when it has ended already."""
        self._tree.end_lease(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.released:
            self.release()


@dataclass(frozen=True, slots=True)
class Inserted:
    """Result of `insert`: the deepest node of the path, and the caller's slots that were not needed because the pages were there."""

    node: Node
    n_new_pages: int
    unused_slots: Slots


@dataclass(frozen=True, slots=True)
class Evicted:
    """Result of `evict`. `slots` belong to the caller now.

    `blocked_by` is the ticket of the copy that keeps the next victim in place (strict order), `unbacked` the node that
    must be backed up before it may go (write_back), with `unbacked_pages` counted from its device tail.
    """

    slots: Slots
    dropped_host_slots: Slots
    blocked_by: object | None = None
    unbacked: Node | None = None
    unbacked_pages: int = 0


class TreeObserver(Protocol):
    """Told before pages leave a tier, while their keys can still be computed."""

    def leaving(self, node: Node, tier: Tier, start: int, end: int, last_copy: bool) -> None:
        """Pages `[start, end)` of the path (absolute) are about to leave `tier`; `last_copy` if no other tier holds them."""


def join_slots(pieces: list[Slots]) -> Slots:
    """Concatenate slot arrays; one alone is returned as it is. Pure."""
    if len(pieces) > 1:
        return np.concatenate(pieces)
    return pieces[0] if pieces else NO_SLOTS
