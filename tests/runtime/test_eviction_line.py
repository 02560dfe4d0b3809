"""The eviction queue hands out the smallest key among the leaves nobody holds, and touching leaves nothing stale behind."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hicachectl.runtime.eviction import Eviction, order_key
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import Node, RadixTree


def leaf(tree: RadixTree, *ids: int, slot: int) -> Node:
    """Insert `ids` (pages of one token) and return the end of their path; it is untouched."""
    tokens = np.array(ids, dtype="<u4").tobytes()
    match = tree.match(tokens)
    n = match.n_pages - match.device_pages
    with tree.lease(match):
        slots = np.arange(slot, slot + n, dtype=np.int32)
        return tree.insert(tokens, slots, start_page=match.device_pages, start_node=match.node).node


@pytest.mark.parametrize("eviction", list(Eviction), ids=lambda e: e.value)
def test_the_victim_is_always_the_smallest_key_of_the_free_leaves(eviction: Eviction) -> None:
    rng = random.Random(7)
    tree = RadixTree(1, eviction=eviction)
    key = order_key(eviction, Tier.DEVICE)
    held = []
    n_evicted = 0
    for step in range(600):
        path = [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
        node = leaf(tree, *path, slot=10 * step)
        held.append(tree.lease_node(node))
        if rng.random() < 0.8:
            tree.touch(node, priority=rng.randrange(3))
        while len(held) > 3:
            held.pop(rng.randrange(len(held))).release()
        if step % 3 == 0:
            free = [n for n in tree.nodes() if not n.leases and not n.children]
            if not free:
                continue
            smallest = min(key(n) for n in free)
            tails = [int(n.slots[Tier.DEVICE][-1]) for n in free if key(n) == smallest]
            assert tree.evict(Tier.DEVICE, 1).slots.tolist()[0] in tails
            n_evicted += 1
        tree.check()
    assert n_evicted > 50


def test_leaves_touched_again_and_again_have_one_entry_each() -> None:
    tree = RadixTree(1)
    leaves = [leaf(tree, i, slot=i) for i in range(50)]
    for _ in range(20):
        for node in leaves:
            with tree.lease_node(node):
                tree.touch(node)
    assert len(tree._queues[Tier.DEVICE]) == 50
    assert tree.evict(Tier.DEVICE, 50).slots.tolist() == list(range(50))
    assert len(tree._queues[Tier.DEVICE]) == 0


def test_new_leaves_that_are_touched_at_once_leave_no_entry_behind() -> None:
    tree = RadixTree(1)
    for i in range(50):
        node = leaf(tree, i, slot=i)
        with tree.lease_node(node):
            tree.touch(node)
    assert len(tree._queues[Tier.DEVICE]) == 50


def test_a_dropped_node_leaves_the_queues() -> None:
    tree = RadixTree(1)
    nodes = [leaf(tree, i, slot=i) for i in range(3)]
    tree.drop(nodes[1], Tier.DEVICE)
    assert len(tree._queues[Tier.DEVICE]) == 2
    assert tree.evict(Tier.DEVICE, 3).slots.tolist() == [0, 2]
