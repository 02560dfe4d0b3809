"""Orders of eviction, one sentence each; `tests/laws/test_tree_model.py` proves them page by page against a list."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import RadixTree

DEVICE = Tier.DEVICE


def tokens(*pages: int) -> bytes:
    return np.array(pages, "<u4").tobytes()


def tree_of(eviction: Eviction, *paths: tuple[tuple[int, ...], int], protected_hits: int = 2) -> RadixTree:
    """Insert and touch each path (pages, priority) in order, page size 1."""
    tree = RadixTree(1, eviction=eviction, protected_hits=protected_hits)
    at = 0
    for path, priority in paths:
        found = tree.match(tokens(*path))
        new = len(path) - found.device_pages
        lease = tree.lease(found)
        inserted = tree.insert(
            tokens(*path), np.arange(at, at + new, dtype=np.int32), start_page=found.device_pages, start_node=lease.node
        )
        tree.extend_lease(lease, inserted.node)
        tree.touch(lease.node, priority=priority)
        lease.release()
        at += new
    return tree


def left(tree: RadixTree) -> set[bytes]:
    return {node.tokens for node in tree.nodes()}


@pytest.mark.parametrize(
    ("eviction", "survivors"),
    [
        (Eviction.LRU, {1, 3}),
        (Eviction.FIFO, {2, 3}),
        (Eviction.LFU, {1, 3}),
        (Eviction.SLRU, {1, 3}),
        (Eviction.PRIORITY, {1, 2}),
    ],
)
def test_each_order_takes_its_own_victim(eviction: Eviction, survivors: set[int]) -> None:
    tree = tree_of(eviction, ((1,), 5), ((2,), 5), ((1,), 5), ((3,), 0))
    tree.evict(DEVICE, 1)
    assert left(tree) == {tokens(n) for n in survivors}


def test_slru_takes_probationary_pages_first_however_old_the_protected_ones_are() -> None:
    tree = tree_of(Eviction.SLRU, ((1,), 0), ((1,), 0), ((2,), 0), ((3,), 0))
    tree.evict(DEVICE, 2)
    assert left(tree) == {tokens(1)}


def test_lru_takes_pages_from_the_tail_of_a_leaf_and_leaves_its_head() -> None:
    tree = tree_of(Eviction.LRU, ((1, 2, 3, 4), 0), ((9,), 0))
    evicted = tree.evict(DEVICE, 3)
    assert sorted(evicted.slots.tolist()) == [1, 2, 3]
    assert left(tree) == {tokens(1), tokens(9)}


def test_an_inner_node_goes_only_after_everything_below_it() -> None:
    tree = tree_of(Eviction.LRU, ((1, 2), 0), ((1, 3), 0))
    order = [tree.evict(DEVICE, 1).slots.tolist() for _ in range(3)]
    assert order == [[1], [2], [0]]
    assert tree.evict(DEVICE, 1).slots.tolist() == []


def test_evicting_n_frees_n_or_all_there_is() -> None:
    tree = tree_of(Eviction.LRU, ((1, 2, 3), 0), ((4, 5), 0))
    assert len(tree.evict(DEVICE, 4).slots) == 4
    assert len(tree.evict(DEVICE, 4).slots) == 1


def test_an_eviction_costs_what_it_takes_and_not_what_there_is() -> None:
    """A heap rebuilt per eviction makes 10,000 single evictions of 10,000 leaves take minutes."""
    tree = RadixTree(1)
    for n in range(10_000):
        tree.insert(tokens(n), np.array([n], dtype=np.int32))
    began = time.process_time()
    while len(tree.evict(DEVICE, 1).slots):
        pass
    assert tree.n_nodes == 0
    assert time.process_time() - began < 5
