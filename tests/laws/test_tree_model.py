"""The radix tree against a list of pages: same matches, same victims, page by page, in every eviction order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.keys import Namespace
from hicachectl.runtime.memory.slots import SlotAllocator
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import Match, RadixTree

DEVICE = Tier.DEVICE
PROTECTED_HITS = 2
STEMS = ((0, 0, 0, 0, 0, 0), (0, 0, 1, 0, 1, 1), (1, 0, 0, 2, 2, 2), (1, 1, 1, 1, 1, 1))
SPACES = (Namespace(), Namespace(), Namespace(extra_key="a"))
PageName = tuple[Namespace, tuple[int, ...]]


def tokens_of(path: tuple[int, ...], page_tokens: int) -> bytes:
    """Return a path's tokens: pages differ in their last token only."""
    return np.array([t for s in path for t in [9] * (page_tokens - 1) + [s]], "<u4").tobytes()


@dataclass
class NaivePage:
    """What the list knows of one page."""

    touched: int = 0
    entered: int = 0
    uses: int = 0
    priority: int = 0


@dataclass
class NaiveTier:
    """One tier as a dictionary of pages; everything is looked up by going through all of them."""

    eviction: Eviction
    pages: dict[PageName, NaivePage] = field(default_factory=dict)
    stamp: int = 0

    def match(self, namespace: Namespace, path: tuple[int, ...]) -> int:
        return next((n for n in range(len(path)) if (namespace, path[: n + 1]) not in self.pages), len(path))

    def rank(self, page: NaivePage) -> tuple[int, ...]:
        return {
            Eviction.LRU: (page.touched,),
            Eviction.FIFO: (page.entered,),
            Eviction.LFU: (page.uses, page.touched),
            Eviction.SLRU: (int(page.uses >= PROTECTED_HITS), page.touched),
            Eviction.PRIORITY: (page.priority, page.touched),
        }[self.eviction]

    def evict(self, n: int, pinned: set[PageName]) -> list[PageName]:
        """Take out `n` pages, each time the lowest ranked leaf that is not pinned."""
        gone = []
        for _ in range(n):
            inner = {(ns, path[:-1]) for ns, path in self.pages}
            leaves = [name for name in self.pages if name not in inner and name not in pinned]
            if not leaves:
                break
            gone.append(min(leaves, key=lambda name: self.rank(self.pages[name])))
            del self.pages[gone[-1]]
        return gone

    def add(self, namespace: Namespace, path: tuple[int, ...]) -> None:
        for n in range(len(path)):
            self.pages.setdefault((namespace, path[: n + 1]), NaivePage(entered=self.stamp + 1))

    def touch(self, namespace: Namespace, path: tuple[int, ...], priority: int) -> None:
        self.stamp += 1
        for n in range(len(path)):
            page = self.pages[namespace, path[: n + 1]]
            page.touched, page.uses, page.priority = self.stamp, page.uses + 1, max(page.priority, priority)


def names_in(tree: RadixTree, page_tokens: int) -> dict[PageName, int]:
    """Return the device slot of every page of the tree."""
    found = {}
    for node in tree.nodes():
        path = b"".join(n.tokens for n in tree.path(node))
        symbols = tuple(np.frombuffer(path, "<u4")[page_tokens - 1 :: page_tokens].tolist())
        for i, slot in enumerate(node.slots[DEVICE].tolist()):
            found[node.namespace, symbols[: node.depth + i + 1]] = slot
    return found


@pytest.mark.parametrize("page_tokens", [1, 4])
@pytest.mark.parametrize("eviction", Eviction)
def test_the_tree_matches_and_evicts_exactly_as_a_list_of_pages_does(eviction: Eviction, page_tokens: int) -> None:
    for round_ in range(6):
        draw = random.Random(f"{eviction} {page_tokens} {round_}")
        n_slots = draw.choice([8, 13, 24])
        tree = RadixTree(page_tokens, eviction=eviction, protected_hits=PROTECTED_HITS)
        naive = NaiveTier(eviction)
        slots = SlotAllocator(n_slots)
        n_hits = n_evicted = 0
        for _ in range(150):
            stem, suffix = draw.choice(STEMS), draw.choice([(), (0,), (1,), (2, 2)])
            path, namespace = (*stem[: draw.randint(1, 6)], *suffix), draw.choice(SPACES)
            priority = draw.randint(0, 2)
            tokens = tokens_of(path, page_tokens)
            found = tree.match(tokens, namespace)
            hit = naive.match(namespace, path)
            assert (found.device_pages, found.logical_pages) == (hit, hit)
            n_hits += hit
            lease = tree.lease(found)
            pinned = {(namespace, path[: n + 1]) for n in range(hit)}
            need = len(path) - hit
            if slots.n_free < need:
                short = need - slots.n_free
                before = names_in(tree, page_tokens)
                evicted = tree.evict(DEVICE, short)
                gone = naive.evict(short, pinned)
                assert set(before) - set(names_in(tree, page_tokens)) == set(gone)
                assert sorted(evicted.slots.tolist()) == sorted(before[name] for name in gone)
                slots.free(evicted.slots)
                n_evicted += len(gone)
            fresh = slots.alloc(need)
            if fresh is None:
                lease.release()
                continue
            inserted = tree.insert(tokens, fresh, namespace=namespace, start_page=hit, start_node=lease.node)
            tree.extend_lease(lease, inserted.node)
            naive.add(namespace, path)
            tree.touch(lease.node, priority=priority)
            naive.touch(namespace, path, priority)
            lease.release()
            tree.check()
            assert set(names_in(tree, page_tokens)) == set(naive.pages)
        assert n_hits > 50
        assert n_evicted > 50, "a run that evicts nothing proves nothing"


def test_leased_pages_are_never_taken_and_everything_else_can_be() -> None:
    for round_ in range(40):
        draw = random.Random(round_)
        tree = RadixTree(1)
        slots = SlotAllocator(64)
        leases = []
        for _ in range(6):
            path = (*draw.choice(STEMS)[: draw.randint(1, 6)], draw.randint(0, 2))
            found = tree.match(tokens_of(path, 1))
            fresh = slots.alloc(len(path) - found.device_pages)
            assert fresh is not None
            lease = tree.lease(found)
            inserted = tree.insert(tokens_of(path, 1), fresh, start_page=found.device_pages, start_node=lease.node)
            tree.extend_lease(lease, inserted.node)
            tree.touch(lease.node)
            if draw.random() < 0.5:
                leases.append((lease, path))
            else:
                lease.release()
        evicted = tree.evict(DEVICE, 64)
        kept = {path[: n + 1] for _, path in leases for n in range(len(path))}
        assert {path for _, path in names_in(tree, 1)} == kept
        assert len(evicted.slots) + len(kept) == 64 - slots.n_free
        for lease, path in leases:
            assert tree.match(tokens_of(path, 1)).device_pages == len(path)
            lease.release()
        tree.evict(DEVICE, 64)
        assert tree.n_nodes == 0
        assert tree.active_leases == 0


def _snapshot(tree: RadixTree) -> list[object]:
    def of(node: object) -> tuple[object, ...]:
        return tuple(
            getattr(node, name) if name not in ("slots", "children", "touched", "entered", "uses", "queued")
            else repr(getattr(node, name))
            for name in ("n_pages", "depth", "tokens", "leases", "hits", "touched", "entered", "uses", "priority", "slots")
        )  # fmt: skip

    return [tree.n_nodes, tree.active_leases, list(tree.n_pages), sorted(of(n) for n in tree.nodes())]  # type: ignore[type-var]


def test_match_changes_nothing() -> None:
    tree = RadixTree(1)
    for start, path in enumerate([(0, 0, 0, 0), (0, 0, 1), (2,)]):
        slots = np.arange(8 * start, 8 * start + len(path), dtype=np.int32)
        tree.insert(tokens_of(path, 1), slots)
    before = _snapshot(tree)
    for path in [(0,), (0, 0, 0), (0, 0, 0, 0, 5), (0, 0, 1, 1), (3,), ()]:
        found = tree.match(tokens_of(path, 1))
        assert isinstance(found, Match)
        assert _snapshot(tree) == before
