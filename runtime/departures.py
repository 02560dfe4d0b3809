"""Pages that leave a tier, told on in batches: to the ghost list those that leave unsaved, to the observer all.

The tree announces each piece while its keys can still be computed; an eviction of a thousand leaves is a thousand pieces,
and a vectorised table costs as much for one key as for a hundred. So keys are collected, and `settle` hands them over once
an eviction, before anything else happens in that tier. Keys nobody wants are not computed.
"""

from __future__ import annotations

from hicachectl.runtime.counters import CacheObserver
from hicachectl.runtime.ghost import GhostList
from hicachectl.runtime.keys import key64
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import Node, RadixTree

__all__ = ["Departures"]


class Departures:
    """The tree's observer: collects the keys of leaving pages until `settle`.

    `ghost` (None = off) notes pages that leave the device tier while no other tier holds them; `observer` (None = nobody)
    hears of every page. Set `tree` before the first eviction.
    """

    __slots__ = ("_gone", "_unsaved", "ghost", "observer", "tree")

    def __init__(self, ghost: GhostList | None, observer: CacheObserver | None) -> None:
        self.ghost = ghost
        self.observer = observer
        self.tree: RadixTree | None = None
        self._unsaved: list[bytes] = []
        self._gone: list[tuple[Tier, bytes]] = []

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return self.ghost is not None or self.observer is not None

    def leaving(self, node: Node, tier: Tier, start: int, end: int, last_copy: bool) -> None:
        """Hear from the tree that pages `[start, end)` of the path (absolute, inside `node`) are about to leave `tier`."""
        unsaved = self.ghost is not None and last_copy and tier == Tier.DEVICE
        if not unsaved and self.observer is None:
            return
        assert self.tree is not None
        keys = self.tree.keys_of(node, start, end)
        if unsaved:
            self._unsaved.append(keys)
        if self.observer is not None:
            self._gone.append((tier, keys))

    def settle(self) -> None:
        """Hand over what was collected, in the order it was announced."""
        if self._unsaved and self.ghost is not None:
            self.ghost.add(key64(b"".join(self._unsaved)))
            self._unsaved.clear()
        if self._gone and self.observer is not None:
            gone, self._gone = self._gone, []
            at = 0
            while at < len(gone):
                tier, upto = gone[at][0], at
                while upto < len(gone) and gone[upto][0] == tier:
                    upto += 1
                self.observer.removed(b"".join(keys for _, keys in gone[at:upto]), tier)
                at = upto
