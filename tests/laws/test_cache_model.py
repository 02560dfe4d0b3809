"""Two tiers against two dictionaries, request by request: hits by tier and residency are equal to the page.

Requests come one after the other and the order is strict, so what the cache holds must not depend on when copies end:
they end at random here. write_back is left to the state machine: which pages of a victim go down together depends on
how the tree is cut into nodes, and a dictionary of pages does not know that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from cache_driver import NAMESPACES, CacheDriver, Setup, key_of

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.keys import Namespace
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.write_policy import WritePolicy

DEVICE, HOST = Tier.DEVICE, Tier.HOST
STEMS = ((0, 0, 0, 0, 0, 0), (0, 0, 1, 0, 1, 1), (1, 0, 0, 2, 2, 2), (1, 1, 1, 1, 1, 1))
Name = tuple[Namespace, tuple[int, ...]]


@dataclass
class Page:
    """A page that some tier holds."""

    tiers: set[Tier] = field(default_factory=set)
    hits: int = 0
    touched: int = 0
    priority: int = 0
    entered: list[int] = field(default_factory=lambda: [0, 0])
    uses: list[int] = field(default_factory=lambda: [0, 0])


class TwoTiers:
    """The semantics that decide the numbers, in the plainest words."""

    def __init__(self, eviction: Eviction, threshold: int, sizes: tuple[int, int]) -> None:
        self.eviction, self.threshold, self.sizes = eviction, threshold, sizes
        self.pages: dict[Name, Page] = {}
        self.stamp = 0

    def held(self, tier: Tier) -> set[Name]:
        return {name for name, page in self.pages.items() if tier in page.tiers}

    def lead(self, names: list[Name], *tiers: Tier) -> int:
        here = set().union(*(self.held(tier) for tier in tiers))
        return next((i for i, name in enumerate(names) if name not in here), len(names))

    def rank(self, name: Name, tier: Tier) -> tuple[int, ...]:
        page = self.pages[name]
        return {
            Eviction.LRU: (page.touched,),
            Eviction.FIFO: (page.entered[tier],),
            Eviction.LFU: (page.uses[tier], page.touched),
            Eviction.SLRU: (int(page.uses[tier] >= 2), page.touched),
            Eviction.PRIORITY: (page.priority, page.touched),
        }[self.eviction]

    def make_room(self, tier: Tier, n: int, pinned: set[Name]) -> int:
        """Free up to `n` places and return how many of the wanted ones there are."""
        while (free := self.sizes[tier] - len(self.held(tier))) < n:
            held = self.held(tier)
            inner = {(namespace, path[:-1]) for namespace, path in held}
            leaves = held - inner - pinned
            if not leaves:
                return free
            victim = min(leaves, key=lambda name: self.rank(name, tier))
            self.pages[victim].tiers.discard(tier)
            if not self.pages[victim].tiers:
                del self.pages[victim]
        return n

    def enter(self, name: Name, tier: Tier) -> None:
        page = self.pages.setdefault(name, Page())
        page.tiers.add(tier)
        page.entered[tier], page.uses[tier] = self.stamp + 1, 0

    def serve(self, namespace: Namespace, path: tuple[int, ...], priority: int) -> tuple[int, int]:
        names = [(namespace, path[: n + 1]) for n in range(len(path))]
        device, logical = self.lead(names, DEVICE), self.lead(names, DEVICE, HOST)
        pinned = set(names[:logical])
        assert self.make_room(DEVICE, len(names) - device, pinned) == len(names) - device
        for name in names[device:]:
            self.enter(name, DEVICE)
        self.stamp += 1
        for name in names:
            page = self.pages[name]
            page.hits, page.touched, page.priority = page.hits + 1, self.stamp, max(page.priority, priority)
            for tier in page.tiers:
                page.uses[tier] += 1
        start = self.lead(names, HOST)
        end = next((i for i, name in enumerate(names) if self.pages[name].hits < self.threshold), len(names))
        if end > start:
            room = self.make_room(HOST, end - start, set(names))
            for name in names[start : start + room]:
                self.enter(name, HOST)
        return device, logical


@pytest.mark.parametrize("eviction", Eviction)
@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE])
def test_hits_and_residency_of_both_tiers_are_those_of_the_plain_model(policy: WritePolicy, eviction: Eviction) -> None:
    host_hits = host_evictions = 0
    for round_ in range(3):
        draw = random.Random(f"{policy} {eviction} {round_}")
        sizes = (draw.choice([8, 9, 12]), draw.choice([6, 10, 14, 18]))
        config = CacheConfig(write_policy=policy, eviction=eviction, restore="always", strict=True)
        driver = CacheDriver(Setup(config, device_slots=sizes[0], host_slots=sizes[1]))
        threshold = policy.threshold(2)
        assert threshold is not None
        model = TwoTiers(eviction, threshold, sizes)
        for _ in range(100):
            path = (*draw.choice(STEMS)[: draw.randint(1, 6)], *draw.choice([(), (0,), (1,), (2, 2)]))
            namespace, priority = draw.choice([NAMESPACES[0], NAMESPACES[0], NAMESPACES[1]]), draw.randint(0, 2)
            caller = driver.serve(path, namespace=namespace, priority=priority)
            device, logical = model.serve(namespace, path, priority)
            found = caller.request.match
            assert (found.device_pages, found.logical_pages) == (device, logical)
            host_hits += logical - device
            if driver.control.pending and draw.random() < 0.4:
                draw.choice(driver.control.pending).finish()
            here = {tier: set() for tier in (DEVICE, HOST)}  # type: dict[Tier, set[bytes]]
            for node in driver.cache.tree.nodes():
                whole = b"".join(n.tokens for n in driver.cache.tree.path(node))
                symbols = tuple(whole[12::16])
                for tier in (DEVICE, HOST):
                    for i in range(node.resident(tier)):
                        here[tier].add(key_of(node.namespace, symbols[: node.depth + i + 1]))
            for tier in (DEVICE, HOST):
                assert here[tier] == {key_of(*name) for name in model.held(tier)}
        host_evictions += driver.cache.counters.evicted_pages[HOST]
        driver.close()
    assert host_hits > 3, "a run without host hits proves nothing"
    assert host_evictions > 3


def test_write_back_and_selective_hit_otherwise_than_write_through() -> None:
    hits = {}
    for policy in WritePolicy:
        draw = random.Random(5)
        config = CacheConfig(write_policy=policy, restore="always", strict=True)
        driver = CacheDriver(Setup(config, device_slots=8, host_slots=10))
        for _ in range(150):
            path = (*draw.choice(STEMS)[: draw.randint(1, 6)], *draw.choice([(), (0,), (1,), (2, 2)]))
            driver.serve(path, namespace=NAMESPACES[0])
        hits[policy] = sum(driver.cache.counters.hit_pages)
        driver.close()
    assert len(set(hits.values())) == 3, hits
