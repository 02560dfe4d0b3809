"""Pages that leave a tier are told on once each, in order, with the keys they had."""

from __future__ import annotations

import numpy as np

from hicachectl.runtime.departures import Departures
from hicachectl.runtime.ghost import GhostList
from hicachectl.runtime.keys import Namespace, key64, page_keys
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import RadixTree


class Told:
    def __init__(self) -> None:
        self.calls: list[tuple[bytes, Tier]] = []

    def stored(self, keys: bytes, parent_key: bytes | None, tokens: bytes, tier: Tier, namespace: Namespace) -> None:
        raise AssertionError("nothing is stored here")

    def removed(self, keys: bytes, tier: Tier) -> None:
        self.calls.append((keys, tier))


def tokens(*ids: int) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()


def grown(departures: Departures, *, host: bool) -> tuple[RadixTree, list[bytes]]:
    """Two leaves of two pages of two tokens; device slots 0-3, and host slots 0-3 where asked."""
    tree = RadixTree(2, keep_keys=True, observer=departures if departures.wanted else None)
    departures.tree = tree
    keys = []
    for i in range(2):
        ids = tokens(*range(10 * i, 10 * i + 4))
        keys.append(page_keys(ids, 2))
        slots = np.arange(2 * i, 2 * i + 2, dtype=np.int32)
        node = tree.insert(ids, slots, keys=keys[i]).node
        if host:
            tree.attach(node, Tier.HOST, 0, 2, slots)
        tree.touch(node)
    return tree, keys


def test_an_eviction_of_many_leaves_is_one_call_with_the_keys_oldest_leaf_first() -> None:
    told = Told()
    departures = Departures(None, told)
    tree, keys = grown(departures, host=False)
    tree.evict(Tier.DEVICE, 4)
    assert told.calls == []
    departures.settle()
    assert told.calls == [(keys[0] + keys[1], Tier.DEVICE)]
    departures.settle()
    assert len(told.calls) == 1


def test_tiers_are_told_apart_in_the_order_pages_left_them() -> None:
    told = Told()
    departures = Departures(None, told)
    tree, keys = grown(departures, host=True)
    tree.evict(Tier.DEVICE, 2)
    tree.evict(Tier.HOST, 2)
    tree.evict(Tier.DEVICE, 2)
    departures.settle()
    assert told.calls == [(keys[0], Tier.DEVICE), (keys[0], Tier.HOST), (keys[1], Tier.DEVICE)]


def test_the_ghost_list_notes_only_pages_no_tier_holds_any_more() -> None:
    kept, lost = GhostList(8), GhostList(8)
    for ghost, host in ((kept, True), (lost, False)):
        departures = Departures(ghost, None)
        tree, keys = grown(departures, host=host)
        tree.evict(Tier.DEVICE, 4)
        departures.settle()
    assert len(kept) == 0
    assert len(lost) == 4
    assert [lost.deepest(key64(k)) for k in keys] == [1, 1]


def test_pages_that_leave_the_host_tier_are_no_ghosts() -> None:
    ghost = GhostList(8)
    departures = Departures(ghost, None)
    tree, _ = grown(departures, host=True)
    tree.evict(Tier.DEVICE, 4)
    tree.evict(Tier.HOST, 4)
    departures.settle()
    assert len(ghost) == 0


def test_nobody_listening_is_not_wanted() -> None:
    assert not Departures(None, None).wanted
    assert Departures(GhostList(1), None).wanted
    assert Departures(None, Told()).wanted
