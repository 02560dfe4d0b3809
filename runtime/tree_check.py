"""The laws of the radix tree, checked over every node. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.tiers import Tier

if TYPE_CHECKING:
    from hicachectl.runtime.tree import Node, RadixTree

__all__ = ["check_tree"]


def _law(holds: bool, law: str, left: object, right: object) -> None:
    if not holds:
        raise InvariantBroken(f"{law}: {left} against {right}")


def check_tree(tree: RadixTree, *, host_closed: bool) -> None:
    """Verify structure, residency, leases and counters of `tree`; raises InvariantBroken naming the law and both sides."""
    n_nodes, pages = 0, [0, 0]
    for node in tree.nodes():
        n_nodes += 1
        pages[0] += node.resident(Tier.DEVICE)
        pages[1] += node.resident(Tier.HOST)
        _check_node(tree, node, host_closed)
    _law(n_nodes == tree.n_nodes, "nodes reached = nodes counted", n_nodes, tree.n_nodes)
    for tier in (Tier.DEVICE, Tier.HOST):
        _law(
            pages[tier] == tree.n_pages[tier],
            f"pages of {tier.name} over nodes = counter",
            pages[tier],
            tree.n_pages[tier],
        )
        slots = tree.owned_slots(tier)
        distinct = len(np.unique(slots))
        _law(distinct == len(slots), f"slots of {tier.name} are owned once: distinct = owned", distinct, len(slots))
    pinned = sum(root.leases for root in tree.roots())
    _law(pinned == tree.active_leases, "leases through the roots = active leases", pinned, tree.active_leases)


def _check_node(tree: RadixTree, node: Node, host_closed: bool) -> None:
    parent = node.parent
    assert parent is not None
    width = tree.page_width
    device, host = node.resident(Tier.DEVICE), node.resident(Tier.HOST)
    _law(
        len(node.tokens) == node.n_pages * width,
        f"{node!r}: token bytes = pages x width",
        len(node.tokens),
        node.n_pages * width,
    )
    _law(node.n_pages == max(device, host) > 0, f"{node!r}: pages = longest residency", node.n_pages, max(device, host))
    _law(parent.children.get(node.tokens[:width]) is node, f"{node!r}: parent knows it by its first page", parent, node)
    _law(
        node.depth == parent.depth + parent.n_pages,
        f"{node!r}: depth = end of parent",
        node.depth,
        parent.depth + parent.n_pages,
    )
    below = sum(c.leases for c in node.children.values())
    _law(node.leases >= below, f"{node!r}: leases >= leases of its children", node.leases, below)
    for tier in (Tier.DEVICE, Tier.HOST):
        seen = sum(1 for c in node.children.values() if c.resident(tier))
        _law(
            seen == node.resident_children[tier],
            f"{node!r}: resident children in {tier.name} = counter",
            seen,
            node.resident_children[tier],
        )
        closed = tier is Tier.DEVICE or host_closed
        if closed and parent.parent is not None and node.resident(tier):
            _law(
                parent.resident(tier) == parent.n_pages,
                f"{node!r}: parent wholly in {tier.name}",
                parent.resident(tier),
                parent.n_pages,
            )
        if node.resident(tier) and not node.leases and not node.resident_children[tier]:
            _law(
                node.queued[tier] is not None,
                f"{node!r}: an unleased leaf of {tier.name} is queued",
                node.queued[tier],
                "an entry",
            )
    if tree.keep_keys:
        want = (node.depth + node.n_pages) // tree.key_stride - node.depth // tree.key_stride
        _law(len(node.keys) == want * 32, f"{node!r}: kept keys", len(node.keys) // 32, want)
    hits = parent.hits if parent.parent is not None else node.hits
    _law(node.hits <= hits, f"{node!r}: hits never grow with depth", node.hits, hits)
