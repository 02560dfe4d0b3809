"""Who leaves a tier first: one priority queue a tier over the tree's leaves. Pure: no clock, no files.

A queue entry is pushed when a node becomes a leaf of its tier (nothing below it is resident there) and nobody holds a
lease on it; entries that later events made stale are recognised when they surface. Nothing is ever re-sorted for one
eviction: a pop costs O(1) while keys come in order (lru, fifo), O(log n) otherwise, and stale entries are swept only when
they outnumber the live ones, which is O(1) amortised.

Orders (`Eviction`), all leaf-first and page by page from a leaf's tail, so that a tier stays closed under prefixes:

    lru       oldest last touch; exact LRU, the stack algorithm of the sizing curves
    fifo      oldest entry into the tier; a touch changes nothing
    lfu       fewest touches while resident, then oldest touch
    slru      pages touched less than `protected_hits` times go first, then oldest touch
    priority  lowest request priority, then oldest touch
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicachectl.runtime.node import Node

__all__ = ["Eviction", "EvictionQueue", "order_key"]

OrderKey = Any
"""int for lru and fifo, a tuple of ints otherwise: comparable within one queue."""


class Eviction(Enum):
    """Eviction order of a tier."""

    LRU = "lru"
    FIFO = "fifo"
    LFU = "lfu"
    SLRU = "slru"
    PRIORITY = "priority"

    @property
    def needs_uniform_entry(self) -> bool:
        """Whether pages of one node must have entered the tier together (their order depends on more than the last touch)."""
        return self is not Eviction.LRU


def order_key(eviction: Eviction, tier: int, *, protected_hits: int = 2) -> Callable[[Node], OrderKey]:
    """Return the function that ranks a node in `tier`; the smallest leaves first. Pure.

    >>> order_key(Eviction.LRU, 0).__name__
    'lru'
    """

    def lru(node: Node) -> OrderKey:
        return node.touched[tier]

    def fifo(node: Node) -> OrderKey:
        return node.entered[tier]

    def lfu(node: Node) -> OrderKey:
        return (node.uses[tier], node.touched[tier])

    def slru(node: Node) -> OrderKey:
        return (node.uses[tier] >= protected_hits, node.touched[tier])

    def priority(node: Node) -> OrderKey:
        return (node.priority, node.touched[tier])

    return {"lru": lru, "fifo": fifo, "lfu": lfu, "slru": slru, "priority": priority}[eviction.value]


class EvictionQueue:
    """The evictable leaves of one tier, in eviction order.

    Under lru and fifo nearly every key is the largest yet, or the smallest: those sit in `_line`, a linked list in key
    order, where a touched leaf moves to the end in O(1) and leaves nothing stale. Keys in between (a parent whose last
    child left; most keys of the other orders) go to `_heap`. A node has at most one valid entry: `node.queued` is its key, and it is in `_line` or
    in the heap.
    """

    __slots__ = ("_heap", "_key", "_last", "_line", "_next_uid", "_tier")

    def __init__(self, tier: int, key: Callable[[Node], OrderKey]) -> None:
        self._tier = int(tier)
        self._key = key
        self._heap: list[tuple[OrderKey, int, Node]] = []
        self._line: OrderedDict[Node, tuple[OrderKey, int]] = OrderedDict()
        self._last: OrderKey = None
        """The key at the end of `_line`, or an older, larger one."""
        self._next_uid = 0

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._heap) + len(self._line)

    def push(self, node: Node, n_nodes: int) -> None:
        """Enter `node` if it is a candidate now and not already entered with its present key.

        `n_nodes` is the number of nodes of the tree: it bounds how many entries can be live.
        """
        tier = self._tier
        if node.leases or node.resident_children[tier] or not len(node.slots[tier]):
            return
        key = self._key(node)
        queued = node.queued
        if queued[tier] == key:
            return
        self._next_uid += 1
        line = self._line
        if not line or key >= self._last:
            if queued[tier] is not None and node in line:
                line.move_to_end(node)
            line[node] = (key, self._next_uid)
            self._last = key
            queued[tier] = key
            return
        if queued[tier] is not None:
            line.pop(node, None)
        queued[tier] = key
        if line and key < line[next(iter(line))][0]:  # new and not touched yet: its touch moves it to the end
            line[node] = (key, self._next_uid)
            line.move_to_end(node, last=False)
            return
        heapq.heappush(self._heap, (key, self._next_uid, node))
        if len(self._heap) > 2 * n_nodes + 64:
            self._sweep()

    def pop(self) -> Node | None:
        """Take out the next candidate, or None when there is none. The caller evicts from it or pushes it again."""
        tier, heap, line = self._tier, self._heap, self._line
        while True:
            if line:
                node = next(iter(line))
                key, uid = line[node]
                if heap and heap[0][:2] < (key, uid):
                    key, _, node = heapq.heappop(heap)
                    if node.queued[tier] != key or node in line:
                        continue
                else:
                    del line[node]
            elif heap:
                key, _, node = heapq.heappop(heap)
                if node.queued[tier] != key:
                    continue
            else:
                return None
            node.queued[tier] = None
            if not (node.leases or node.resident_children[tier]) and len(node.slots[tier]) and self._key(node) == key:
                return node
            self.push(node, 1 << 62)

    def discard(self, node: Node) -> None:
        """Take out `node`, which is about to leave the tree, if it is here."""
        tier = self._tier
        if node.queued[tier] is not None:
            node.queued[tier] = None  # an entry in the heap is stale from here on
            self._line.pop(node, None)

    def _is_live(self, entry: tuple[OrderKey, int, Node]) -> bool:
        key, _, node = entry
        tier = self._tier
        return (
            node.queued[tier] == key
            and node not in self._line
            and not node.leases
            and not node.resident_children[tier]
            and bool(len(node.slots[tier]))
            and self._key(node) == key
        )

    def _sweep(self) -> None:
        """Drop stale entries; runs only after at least as many pushes as there are live entries."""
        live: list[tuple[OrderKey, int, Node]] = []
        seen: set[int] = set()
        for entry in self._heap:
            node = entry[2]
            if self._is_live(entry):
                if id(node) not in seen:
                    seen.add(id(node))
                    live.append(entry)
            elif node.queued[self._tier] == entry[0] and node not in self._line:
                node.queued[self._tier] = None
        heapq.heapify(live)
        self._heap = live
