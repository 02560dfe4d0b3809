"""The radix tree in small numbers: what a match sees, what splits together, what the laws refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.keys import KEY_BYTES, Namespace, page_keys
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import Node, RadixTree

DEVICE, HOST = Tier.DEVICE, Tier.HOST


def tokens(*ids: int) -> bytes:
    return np.array(ids, "<u4").tobytes()


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def tree_with(*ids: int, page_tokens: int = 1) -> tuple[RadixTree, Node]:
    tree = RadixTree(page_tokens)
    n_pages = len(ids) // page_tokens
    return tree, tree.insert(tokens(*ids), np.arange(n_pages, dtype=np.int32)).node


def test_the_first_insertion_finds_nothing_and_the_second_finds_all() -> None:
    tree = RadixTree(2)
    first = tree.insert(tokens(1, 2, 3, 4), slots(0, 1))
    assert (first.n_new_pages, first.unused_slots.tolist()) == (2, [])
    second = tree.insert(tokens(1, 2, 3, 4, 5, 6), slots(2, 3, 4))
    assert (second.n_new_pages, second.unused_slots.tolist()) == (1, [2, 3])
    tree.check()


@pytest.mark.parametrize(
    ("ids", "pages"), [((1, 2, 3, 4), 2), ((1, 2, 3, 9), 1), ((1, 2, 3), 1), ((1, 9, 3, 4), 0), ((1,), 0), ((), 0)]
)
def test_a_match_counts_whole_equal_pages_only(ids: tuple[int, ...], pages: int) -> None:
    tree, _ = tree_with(1, 2, 3, 4, page_tokens=2)
    found = tree.match(tokens(*ids))
    assert (found.n_pages, found.device_pages, found.logical_pages) == (len(ids) // 2, pages, pages)


@pytest.mark.parametrize("other", [Namespace(extra_key="a"), Namespace(cache_salt=""), Namespace("a", "b")])
def test_equal_tokens_of_another_namespace_never_match(other: Namespace) -> None:
    tree, _ = tree_with(1, 2, 3)
    assert tree.match(tokens(1, 2, 3), other).logical_pages == 0
    tree.insert(tokens(1, 2, 3), slots(7, 8, 9), namespace=other)
    assert tree.n_pages[DEVICE] == 6
    tree.check()


def test_device_ready_and_logical_length_differ_where_the_device_lost_pages() -> None:
    tree, node = tree_with(1, 2, 3)
    tree.attach(node, HOST, 0, 3, slots(0, 1, 2))
    tree.evict(DEVICE, 2)
    found = tree.match(tokens(1, 2, 3, 4))
    assert (found.device_pages, found.logical_pages) == (1, 3)
    tree.check()


def test_device_ready_pages_end_at_the_first_hole_even_if_more_follow() -> None:
    tree, node = tree_with(1, 2)
    tree.attach(node, HOST, 0, 2, slots(0, 1))
    tree.evict(DEVICE, 1)
    found = tree.match(tokens(1, 2, 3))
    assert (found.device_pages, found.logical_pages) == (1, 2)


def test_the_tiers_leases_and_hits_split_together() -> None:
    tree, node = tree_with(1, 2, 3, 4)
    tree.attach(node, HOST, 0, 4, slots(10, 11, 12, 13))
    tree.touch(node)
    lease = tree.lease(tree.match(tokens(1, 2, 3, 4)))
    with tree.lease(tree.match(tokens(1, 2, 9))):
        tree.check()
        upper, lower = tree.path(lease.node)
        assert (upper.slots[DEVICE].tolist(), lower.slots[DEVICE].tolist()) == ([0, 1], [2, 3])
        assert (upper.slots[HOST].tolist(), lower.slots[HOST].tolist()) == ([10, 11], [12, 13])
        assert (upper.leases, lower.leases, upper.hits, lower.hits) == (2, 1, 1, 1)
    assert (upper.leases, lower.leases) == (1, 1)
    lease.release()
    tree.check()


def test_a_lease_ends_once() -> None:
    tree, node = tree_with(1, 2)
    lease = tree.lease_node(node)
    lease.release()
    with pytest.raises(InvariantBroken, match="twice"):
        lease.release()


def test_a_leased_path_is_never_taken() -> None:
    tree, node = tree_with(1, 2, 3)
    with tree.lease_node(node):
        assert len(tree.evict(DEVICE, 3).slots) == 0
    assert len(tree.evict(DEVICE, 3).slots) == 3


def test_pages_no_tier_holds_are_gone_and_so_is_a_node_without_pages() -> None:
    tree, _ = tree_with(1, 2, 3)
    tree.evict(DEVICE, 1)
    assert [node.n_pages for node in tree.nodes()] == [2]
    tree.evict(DEVICE, 2)
    assert tree.n_nodes == 0
    assert tree.match(tokens(1)).logical_pages == 0


def test_host_pages_below_a_page_that_left_every_tier_are_handed_back_not_lost() -> None:
    tree, node = tree_with(1, 2, 3)
    tree.attach(node, HOST, 2, 3, slots(12))  # write_back: the tail went down, its head did not
    assert tree.evict(DEVICE, 1).slots.tolist() == [2]
    evicted = tree.evict(DEVICE, 1)
    assert evicted.slots.tolist() == [1]
    assert evicted.dropped_host_slots.tolist() == [12]
    assert tree.n_pages == [1, 0]
    tree.check(host_closed=False)


def test_a_page_being_copied_down_stays_and_in_strict_order_names_what_holds_it() -> None:
    tree, node = tree_with(1, 2)
    tree.insert(tokens(9), slots(5))
    tree.touch(node)
    node.backup = "the copy"
    tree.touch(tree.match(tokens(9)).node)
    held = tree.evict(DEVICE, 1, strict=True)
    assert (len(held.slots), held.blocked_by) == (0, "the copy")
    passed = tree.evict(DEVICE, 3)
    assert passed.slots.tolist() == [5], "without strict order the next one goes"
    node.backup = None
    tree.settle([node])
    assert len(tree.evict(DEVICE, 3).slots) == 2


def test_one_request_counts_once_however_often_it_touches_and_two_count_twice() -> None:
    tree, node = tree_with(1, 2, 3)
    tree.touch(node)
    tree.touch(node, counted_pages=3)
    assert node.hits == 1
    tree.touch(node)
    assert node.hits == 2


def test_a_touch_counts_only_pages_that_were_not_counted() -> None:
    tree, node = tree_with(1, 2, 3, 4)
    tree.touch(node, counted_pages=3)
    assert [n.hits for n in tree.path(node)] == [0, 1]
    assert len({n.touched[DEVICE] for n in tree.path(node)}) == 1, "one timestamp for the whole path"


@pytest.mark.parametrize("page_tokens", [1, 4, 16, 64])
def test_keys_kept_sparsely_are_the_keys_of_the_whole_path(page_tokens: int) -> None:
    tree = RadixTree(page_tokens, keep_keys=True)
    ids = np.arange(page_tokens * 40, dtype="<u4")
    namespace = Namespace(extra_key="a")
    whole = page_keys(ids.tobytes(), page_tokens, namespace=namespace)
    tree.insert(ids.tobytes(), np.arange(40, dtype=np.int32), namespace=namespace, keys=whole)
    for cut in (7, 19, 33):
        with tree.lease(tree.match(ids[: cut * page_tokens].tobytes(), namespace)):
            pass
    tree.check()
    for node in tree.nodes():
        for start in range(node.depth, node.depth + node.n_pages):
            end = node.depth + node.n_pages
            assert tree.keys_of(node, start, end) == whole[start * KEY_BYTES : end * KEY_BYTES]


def test_a_tree_that_keeps_keys_asks_for_them() -> None:
    tree = RadixTree(1, keep_keys=True)
    with pytest.raises(UsageError, match="2 keys wanted, 0 given"):
        tree.insert(tokens(1, 2), slots(0, 1))


def test_pages_hang_only_under_pages_that_are_on_the_device() -> None:
    tree, node = tree_with(1, 2)
    tree.attach(node, HOST, 0, 2, slots(0, 1))
    tree.evict(DEVICE, 1)
    with pytest.raises(InvariantBroken, match="not device-resident"):
        tree.insert(tokens(1, 2, 3), slots(7), start_page=2, start_node=node)


def _host_under_nothing(tree: RadixTree, node: Node) -> None:
    tree.attach(node, HOST, 2, 3, slots(12))


def _slot_twice(tree: RadixTree, node: Node) -> None:
    node.slots[DEVICE] = slots(0, 0, 2)


def _lost_lease(tree: RadixTree, node: Node) -> None:
    tree.lease_node(node)
    node.parent.leases = 0  # type: ignore[union-attr]


def _page_count(tree: RadixTree, node: Node) -> None:
    tree.n_pages[DEVICE] += 1


def _hits_grow(tree: RadixTree, node: Node) -> None:
    tree.touch(node, counted_pages=2)
    tree.path(node)[0].hits = 0


@pytest.mark.parametrize(
    ("harm", "law"),
    [
        (_host_under_nothing, "parent wholly in HOST: 0 against 2"),
        (_slot_twice, "owned once: distinct = owned: 2 against 3"),
        (_lost_lease, "leases"),
        (_page_count, "pages of DEVICE over nodes = counter: 3 against 4"),
        (_hits_grow, "hits never grow with depth: 1 against 0"),
    ],
)
def test_check_names_the_broken_law_and_both_sides(harm: Callable[[RadixTree, Node], None], law: str) -> None:
    tree, node = tree_with(1, 2, 3)
    tree.check()
    harm(tree, node)
    with pytest.raises(InvariantBroken, match=law):
        tree.check()


@pytest.mark.parametrize("eviction", Eviction)
def test_a_restored_page_continues_its_node_or_is_cut_off_as_the_order_needs(eviction: Eviction) -> None:
    tree = RadixTree(1, eviction=eviction)
    node = tree.insert(tokens(1, 2, 3), slots(0, 1, 2)).node
    tree.attach(node, HOST, 0, 3, slots(10, 11, 12))
    tree.evict(DEVICE, 2)
    tree.extend(node, DEVICE, 1, 3, slots(5, 6))
    tree.check()
    assert tree.match(tokens(1, 2, 3)).device_pages == 3
    assert tree.slots_between(node, DEVICE, 0, 3).tolist() == [0, 5, 6]
