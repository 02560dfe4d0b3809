"""One radix tree over the tokens themselves: what is cached, where, who holds it, and what leaves next. Pure.

A match is a few memory compares; no hash is trusted, nothing can collide. Namespaces (adapter, salt) have a root each.
What a node is and who owns its slots: `node.py`.

A lease pins its node and all ancestors in both tiers. A node whose backup is pending (`node.backup`) keeps its device and
host slots until the copy is over; one whose pages are being written to storage (`node.store`) keeps its host slots.
The tree never allocates or frees a slot: `insert` and `attach` take ownership of slots, `evict` and `drop` hand it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.eviction import Eviction, EvictionQueue, order_key
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, KEY_BYTES, Namespace
from hicachectl.runtime.node import NO_SLOTS, Evicted, Inserted, Lease, Match, Node, Slots, TreeObserver, join_slots
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree_keys import kept_bytes, keys_of, stride_of, trail
from hicachectl.runtime.write_policy import PathSegment

__all__ = ["NO_SLOTS", "Evicted", "Inserted", "Lease", "Match", "Node", "RadixTree", "Slots", "TreeObserver"]

DEVICE, HOST = Tier.DEVICE, Tier.HOST
TIERS = (DEVICE, HOST)


class RadixTree:
    """The radix tree of all namespaces; owns DEVICE and HOST residency."""

    def __init__(
        self,
        page_tokens: int,
        *,
        eviction: Eviction = Eviction.LRU,
        protected_hits: int = 2,
        keep_keys: bool = False,
        observer: TreeObserver | None = None,
    ) -> None:
        if page_tokens < 1:
            raise UsageError(
                f"page_tokens is {page_tokens}, must be at least 1", hint="use the page size of your engine, e.g. 64"
            )
        self.page_tokens = page_tokens
        self.page_width = 4 * page_tokens
        self.eviction = eviction
        self.observer = observer
        self.keep_keys = keep_keys
        self.key_stride = stride_of(page_tokens)
        """One key is kept every so many pages: at most 2 bytes a token; those between are hashed again when asked for."""
        self.n_nodes = 0
        self.n_pages = [0, 0]
        """Resident pages per tier."""
        self.active_leases = 0
        self._stamp = 0
        self._roots: dict[Namespace, Node] = {}
        self._queues = [EvictionQueue(t, order_key(eviction, t, protected_hits=protected_hits)) for t in TIERS]

    # -- finding ------------------------------------------------------------------------------------------------

    def root(self, namespace: Namespace = DEFAULT_NAMESPACE) -> Node:
        """Return the root of `namespace`, made on first use."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node(b"", 0, 0, None, namespace)
        return node

    def match(self, tokens: bytes, namespace: Namespace = DEFAULT_NAMESPACE) -> Match:
        """Walk `tokens` (little-endian uint32, 4 bytes each) down the tree once.

        Changes nothing: no split, no touch, no lease (`lease` does that). Only whole pages are looked at.
        """
        width = self.page_width
        node = self._roots.get(namespace) or self.root(namespace)
        n_pages = len(tokens) // width
        end = n_pages * width
        at = 0
        pages = node_pages = 0
        device_pages = 0
        device_open = True
        while at < end:
            child = node.children.get(tokens[at : at + width])
            if child is None:
                break
            run = child.tokens
            if tokens.startswith(run, at):
                node_pages = child.n_pages
            else:
                node_pages = self._common_pages(tokens, at, end, run)
            node = child
            if device_open:
                ready = len(child.slots[0])
                if ready < node_pages:
                    device_open = False
                    device_pages += ready
                else:
                    device_pages += node_pages
            pages += node_pages
            at += node_pages * width
            if node_pages < child.n_pages:
                break
        return Match(namespace, tokens, n_pages, device_pages, pages, node, node_pages)

    def _common_pages(self, tokens: bytes, at: int, end: int, run: bytes) -> int:
        """Return how many leading pages of `run` equal `tokens[at:end]`; the first one is known to."""
        width = self.page_width
        low, high = 1, min(len(run), end - at) // width
        while low < high:
            middle = (low + high + 1) // 2
            if tokens[at + low * width : at + middle * width] == run[low * width : middle * width]:
                low = middle
            else:
                high = middle - 1
        return low

    def path(self, node: Node) -> list[Node]:
        """Return the nodes from the root's child down to `node`."""
        nodes: list[Node] = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def nodes_between(self, node: Node, start: int, end: int) -> list[Node]:
        """Return, in path order, the nodes on the path to `node` that overlap pages `[start, end)` (absolute)."""
        found: list[Node] = []
        while node.parent is not None and node.depth + node.n_pages > start:
            if node.depth < end:
                found.append(node)
            node = node.parent
        found.reverse()
        return found

    def segments(self, node: Node) -> Iterator[PathSegment]:
        """Yield the path to `node` as the write policy wants it."""
        for n in self.path(node):
            yield PathSegment(n.n_pages, n.hits, len(n.slots[1]), len(n.slots[0]))

    def slots_between(self, node: Node, tier: Tier, start: int, end: int) -> Slots:
        """Return the slots of pages `[start, end)` of the path to `node` in `tier`. Raises InvariantBroken if one is not resident."""
        pieces = []
        for n in self.nodes_between(node, start, end):
            low, high = max(0, start - n.depth), min(n.n_pages, end - n.depth)
            pieces.append(n.slots[tier][low:high])
        slots = join_slots(pieces)
        if len(slots) != end - start:
            raise InvariantBroken(
                f"pages [{start}, {end}) are {end - start}, but {len(slots)} have slots in {tier.name}"
            )
        return slots

    # -- leases and touches -------------------------------------------------------------------------------------

    def lease(self, match: Match) -> Lease:
        """Pin what `match` found, splitting the node the walk ended in; `match.node` becomes the pinned end."""
        node = match.node
        if match.node_pages < node.n_pages and node.parent is not None:
            node = self._split(node, match.node_pages)
            match.node = node
        return self.lease_node(node)

    def lease_node(self, node: Node) -> Lease:
        """Pin `node` and its ancestors."""
        self.active_leases += 1
        root = node
        while root.parent is not None:
            root.leases += 1
            root = root.parent
        root.leases += 1
        if self._roots.setdefault(root.namespace, root) is not root:
            raise InvariantBroken(f"{node!r} was matched before its namespace was forgotten, and leased after")
        return Lease(self, node)

    def extend_lease(self, lease: Lease, node: Node) -> None:
        """Move `lease` down to `node`, a descendant of the node it pins."""
        below: Node | None = node
        while below is not lease.node:
            if below is None:
                raise InvariantBroken(f"{node!r} does not lie below the leased {lease.node!r}")
            below.leases += 1
            below = below.parent
        lease.node = node

    def end_lease(self, lease: Lease) -> None:
        """Unpin; what is now evictable enters the queues. Raises InvariantBroken on a second end."""
        if lease.released:
            raise InvariantBroken(f"lease on {lease.node!r} released twice")
        lease.released = True
        self.active_leases -= 1
        node: Node | None = lease.node
        while node is not None:
            node.leases -= 1
            if node.leases < 0:
                raise InvariantBroken(f"{node!r} has a negative lease count")
            if not node.leases and node.parent is not None:
                self._enqueue(node)
            elif node.parent is None:
                self._forget_root(node)
            node = node.parent

    def touch(self, node: Node, *, counted_pages: int = 0, priority: int = 0) -> int:
        """Touch the whole path to `node`, tail to head, with one new timestamp, in every tier that holds it.

        Pages from `counted_pages` on count one more request; those before were counted for this request already.
        Splits a node that straddles `counted_pages`. Returns the timestamp.
        """
        self._stamp += 1
        stamp = self._stamp
        walk: Node = node
        while walk.parent is not None:
            touched = walk.touched
            touched[0] = touched[1] = stamp
            if walk.priority < priority:
                walk.priority = priority
            if walk.depth >= counted_pages:
                self._count_request(walk)
            elif walk.depth + walk.n_pages > counted_pages:
                self._split(walk, counted_pages - walk.depth)
                self._count_request(walk)
                walk = walk.parent
                walk.touched[0] = walk.touched[1] = stamp
            above = walk.parent
            if above is None:
                break
            walk = above
        return stamp

    def _count_request(self, node: Node) -> None:
        node.hits += 1
        for tier in TIERS:
            if len(node.slots[tier]):
                node.uses[tier] += 1

    # -- adding -------------------------------------------------------------------------------------------------

    def insert(
        self,
        tokens: bytes,
        slots: Slots,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        start_page: int = 0,
        start_node: Node | None = None,
        keys: bytes | None = None,
    ) -> Inserted:
        """Make pages `[start_page, start_page + len(slots))` of `tokens` device-resident, all or nothing, and visible to `match`.

        `slots` are their device slots (int32); the tree owns them afterwards, except those returned as unused because
        the page was device-resident already. `start_node` is where the first `start_page` pages end (the caller holds a
        lease on it); without it the walk begins at the root with `start_page` 0. `keys` are the page keys of the whole
        path (32 bytes each), needed when the tree keeps keys. Raises InvariantBroken when the pages above are not
        device-resident, UsageError when keys are missing.
        """
        width = self.page_width
        node = start_node if start_node is not None else self.root(namespace)
        if node.depth + node.n_pages != start_page:
            raise InvariantBroken(f"start_node ends at page {node.depth + node.n_pages}, start_page is {start_page}")
        if node.parent is not None and len(node.slots[0]) < node.n_pages:
            raise InvariantBroken(f"pages above {start_page} are not device-resident: {node!r}")
        end_page = start_page + len(slots)
        if len(tokens) < end_page * width:
            raise UsageError(
                f"{len(slots)} slots from page {start_page} need {end_page * self.page_tokens} tokens, got {len(tokens) // 4}"
            )
        if self.keep_keys and (keys is None or len(keys) < end_page * KEY_BYTES):
            raise UsageError(
                f"the tree keeps page keys: {end_page} keys wanted, {len(keys or b'') // KEY_BYTES} given",
                hint="pass keys of the whole path",
            )
        at, end, taken = start_page * width, end_page * width, 0
        unused: list[Slots] = []
        while at < end:
            child = node.children.get(tokens[at : at + width])
            if child is None:
                break
            if at + len(child.tokens) <= end and tokens.startswith(child.tokens, at):
                pages = child.n_pages
            else:
                pages = self._common_pages(tokens, at, end, child.tokens)
                child = self._split(child, pages)
            have = len(child.slots[0])
            if have:
                unused.append(slots[taken : taken + have])
            if have < pages:
                if have and self.eviction.needs_uniform_entry:
                    self._split(child, have)
                self._attach(child, DEVICE, slots[taken + have : taken + pages])
            node = child
            taken += pages
            at += pages * width
        n_new = len(slots) - taken
        if n_new:
            parent = node
            node = Node(tokens[at:end], n_new, start_page + taken, parent, parent.namespace)
            if self.keep_keys and keys is not None:
                node.keys = trail(keys, node.depth, end_page, self.key_stride)
            parent.children[tokens[at : at + width]] = node
            self.n_nodes += 1
            self._attach(node, DEVICE, slots[taken:].copy())
        return Inserted(node, n_new, join_slots(unused))

    def attach(self, node: Node, tier: Tier, start: int, end: int, slots: Slots) -> list[Node]:
        """Give pages `[start, end)` of the path to `node` their `slots` in `tier`; returns the nodes that cover exactly this range.

        Splits the nodes at both ends. Raises InvariantBroken when the slots do not match the range or a page is resident already.
        """
        if len(slots) != end - start:
            raise InvariantBroken(f"pages [{start}, {end}) are {end - start}, slots are {len(slots)}")
        covering = self.isolate(node, start, end)
        taken = 0
        for n in covering:
            if len(n.slots[tier]):
                raise InvariantBroken(f"{n!r} has {len(n.slots[tier])} pages in {tier.name} already")
            self._attach(n, tier, slots[taken : taken + n.n_pages].copy())
            taken += n.n_pages
        return covering

    def extend(self, node: Node, tier: Tier, start: int, end: int, slots: Slots) -> None:
        """Give pages `[start, end)` of the path to `node` their `slots` in `tier`, continuing what is resident above them.

        Like `attach`, but under LRU it splits nothing: a node's residency just grows. Raises InvariantBroken when the
        pages before `start` are not resident or the slots do not match the range.
        """
        if self.eviction.needs_uniform_entry:
            self.attach(node, tier, start, end, slots)
            return
        if len(slots) != end - start:
            raise InvariantBroken(f"pages [{start}, {end}) are {end - start}, slots are {len(slots)}")
        at = start
        for n in self.nodes_between(node, start, end):
            if n.depth + len(n.slots[tier]) != at:
                raise InvariantBroken(
                    f"{n!r} is resident in {tier.name} up to {n.depth + len(n.slots[tier])}, pages from {at} were brought"
                )
            upto = min(n.depth + n.n_pages, end)
            self._attach(n, tier, slots[at - start : upto - start].copy())
            at = upto

    def isolate(self, node: Node, start: int, end: int) -> list[Node]:
        """Split the path to `node` so that pages `[start, end)` are whole nodes, and return them in path order."""
        covering: list[Node] = []
        for n in self.nodes_between(node, start, end):
            if n.depth < start:
                self._split(n, start - n.depth)
            covering.append(self._split(n, end - n.depth) if n.depth + n.n_pages > end else n)
        return covering

    def _attach(self, node: Node, tier: Tier, slots: Slots) -> None:
        """Append `slots` to the node's resident pages in `tier`."""
        before = len(node.slots[tier])
        if not before:
            node.slots[tier] = slots
            node.entered[tier] = self._stamp + 1
            node.uses[tier] = 0
            parent = node.parent
            if parent is not None:
                parent.resident_children[tier] += 1
        else:
            node.slots[tier] = np.concatenate([node.slots[tier], slots])
        self.n_pages[tier] += len(slots)
        if not node.leases:
            self._enqueue(node)

    def _split(self, node: Node, pages: int) -> Node:
        """Cut `node` after `pages` pages and return the new upper part; `node` itself stays as the lower part.

        The three tiers, keys, leases and pending copies split together: leases below pass through the upper part too.
        """
        if not 0 < pages < node.n_pages:
            raise InvariantBroken(f"cannot split {node!r} after {pages} pages")
        width, parent = self.page_width, node.parent
        if parent is None:
            raise InvariantBroken("a root is never split")
        upper = Node(node.tokens[: pages * width], pages, node.depth, parent, node.namespace)
        upper.leases, upper.hits, upper.priority = node.leases, node.hits, node.priority
        upper.touched, upper.entered, upper.uses = list(node.touched), list(node.entered), list(node.uses)
        upper.backup, upper.load, upper.store = node.backup, node.load, node.store
        if node.keys:
            cut = kept_bytes(node.depth, node.depth + pages, self.key_stride)
            upper.keys, node.keys = node.keys[:cut], node.keys[cut:]
        parent.children[node.tokens[:width]] = upper
        node.tokens = node.tokens[pages * width :]
        node.n_pages -= pages
        node.depth += pages
        node.parent = upper
        upper.children[node.tokens[:width]] = node
        for tier in TIERS:
            slots = node.slots[tier]
            upper.slots[tier] = slots[:pages].copy()
            node.slots[tier] = slots[pages:].copy() if len(slots) > pages else NO_SLOTS
            upper.resident_children[tier] = 1 if len(slots) > pages else 0
        self.n_nodes += 1
        if not upper.leases:
            self._enqueue(upper)
        return upper

    # -- evicting -----------------------------------------------------------------------------------------------

    def _enqueue(self, node: Node) -> None:
        for queue in self._queues:
            queue.push(node, self.n_nodes)

    def evict(self, tier: Tier, n_pages: int, *, strict: bool = False, back_up_first: bool = False) -> Evicted:
        """Take up to `n_pages` pages out of `tier`, oldest leaf tails first, and hand their slots to the caller.

        `strict` keeps the exact order: when the next victim is held by a running copy, stop and return its ticket
        in `blocked_by`; otherwise such a victim is passed over. `back_up_first` (write_back) stops at a device page that
        no lower tier holds and returns its node in `unbacked`. Leased pages are never taken.
        """
        queue, passed_over = self._queues[tier], []
        freed: list[Slots] = []
        dropped: list[Slots] = []
        need = n_pages
        blocked: object | None = None
        unbacked: Node | None = None
        unbacked_pages = coming = 0
        while need > 0:
            node = queue.pop()
            if node is None:
                break
            holder = node.backup or (node.store if tier == HOST else None)
            drops_below = tier == DEVICE and not back_up_first and len(node.slots[1]) < len(node.slots[0])
            if holder is None and drops_below and node.children:
                holder = self._busy_below(node)
            if holder is not None:
                passed_over.append(node)
                if strict:
                    blocked = holder
                    break
                coming += len(node.slots[tier])
                continue
            slots = node.slots[tier]
            have = len(slots)
            take = have if have < need else need
            if back_up_first and tier == DEVICE:
                safe = have - len(node.slots[1])
                if safe > 0:
                    passed_over.append(node)
                    if coming >= need:
                        continue
                    unbacked, unbacked_pages = node, min(safe, need - coming)
                    break
            need -= take
            freed.append(slots[have - take :])
            dropped_host = self._shrink(node, tier, have - take)
            if dropped_host is not None:
                dropped.append(dropped_host)
        for node in passed_over:
            queue.push(node, self.n_nodes)
        return Evicted(
            join_slots(freed),
            join_slots(dropped),
            blocked,
            unbacked,
            unbacked_pages,
        )

    def _shrink(self, node: Node, tier: Tier, keep: int) -> Slots | None:
        """Reduce the node's residency in `tier` to its first `keep` pages; slots of the rest are the caller's.

        Pages no tier holds any more are cut off the tree. When pages below were resident only in the host tier they
        could never be reached again: they are dropped and their host slots returned.
        """
        slots = node.slots[tier]
        other = len(node.slots[1 - tier])
        if self.observer is not None:
            self._announce(node, tier, keep, len(slots))
        orphans: Slots | None = None
        if other < len(slots) and node.children:
            orphans = self._drop_below(node)
        node.slots[tier] = slots[:keep] if keep else NO_SLOTS
        self.n_pages[tier] -= len(slots) - keep
        parent = node.parent
        if parent is None:
            raise InvariantBroken("a root holds no pages")
        if not keep:
            parent.resident_children[tier] -= 1
        remaining = keep if keep > other else other
        if remaining < node.n_pages:
            self._cut(node, remaining)
        if keep:
            self._queues[tier].push(node, self.n_nodes)
        elif parent.parent is not None:
            self._queues[tier].push(parent, self.n_nodes)
        return orphans

    def _cut(self, node: Node, pages: int) -> None:
        """Forget the pages of `node` from `pages` on, which no tier holds; remove the node when none is left."""
        parent, width = node.parent, self.page_width
        if node.children or parent is None:
            raise InvariantBroken(f"{node!r} would lose pages above its children")
        if pages:
            if node.keys:
                node.keys = node.keys[: kept_bytes(node.depth, node.depth + pages, self.key_stride)]
            node.tokens = node.tokens[: pages * width]
            node.n_pages = pages
            return
        del parent.children[node.tokens[:width]]
        for queue in self._queues:
            queue.discard(node)
        self.n_nodes -= 1
        node.n_pages = 0
        if parent.parent is None:
            self._forget_root(parent)

    def _forget_root(self, root: Node) -> None:
        """Drop the root of a namespace that holds nothing and that nobody leases: salts may come without end."""
        if not root.children and not root.leases:
            self._roots.pop(root.namespace, None)

    def _announce(self, node: Node, tier: Tier, keep: int, have: int) -> None:
        """Tell the observer which pages leave, split by whether another tier still holds them."""
        assert self.observer is not None
        other, depth = len(node.slots[1 - tier]), node.depth
        held = min(max(other, keep), have)
        if held < have:
            self.observer.leaving(node, tier, depth + held, depth + have, True)
        if keep < held:
            self.observer.leaving(node, tier, depth + keep, depth + held, False)

    def _drop_below(self, node: Node) -> Slots:
        """Drop every page below `node` from the host tier and the tree; returns their host slots."""
        below = list(node.children.values())
        for child in below:  # grows while it is walked: parents before children
            below.extend(child.children.values())
        freed: list[Slots] = []
        for child in reversed(below):
            if len(child.slots[0]) or child.backup is not None or child.store is not None or child.leases:
                raise InvariantBroken(f"{child!r} is in use while its parent leaves the last tier")
            freed.append(child.slots[1])
            self._shrink(child, HOST, 0)
        return join_slots(freed)

    def _busy_below(self, node: Node) -> object | None:
        """Return a ticket of a copy that still reads pages below `node`, which must not be dropped yet."""
        stack = list(node.children.values())
        while stack:
            child = stack.pop()
            ticket = child.backup or child.store
            if ticket is not None:
                return ticket
            stack.extend(child.children.values())
        return None

    def drop(self, node: Node, tier: Tier) -> Slots:
        """Take all pages of `node` out of `tier` whatever its place in the order, e.g. after a failed backup; returns their slots.

        Raises InvariantBroken if a child is resident in that tier.
        """
        if node.resident_children[tier]:
            raise InvariantBroken(f"{node!r} has {node.resident_children[tier]} children in {tier.name}")
        slots = node.slots[tier]
        if len(slots):
            self._shrink(node, tier, 0)
        return slots

    def settle(self, nodes: Sequence[Node]) -> None:
        """Enter nodes whose copy is over into the queues again."""
        for node in nodes:
            if not node.leases:
                self._enqueue(node)

    def keys_of(self, node: Node, start: int, end: int) -> bytes:
        """Return the page keys (32 bytes each) of pages `[start, end)` of the path (absolute), all inside `node`.

        Raises InvariantBroken in a tree that keeps no keys.
        """
        if not self.keep_keys:
            raise InvariantBroken("this tree keeps no page keys")
        return keys_of(node, start, end, self.page_tokens, self.key_stride)

    # -- laws ---------------------------------------------------------------------------------------------------

    def roots(self) -> Iterator[Node]:
        """Yield the root of every namespace."""
        yield from self._roots.values()

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the roots, parents first."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def owned_slots(self, tier: Tier) -> Slots:
        """Return all slots the tree owns in `tier`."""
        pieces = [n.slots[tier] for n in self.nodes() if len(n.slots[tier])]
        return join_slots(pieces)

    def check(self, *, host_closed: bool = True) -> None:
        """Verify the laws over the whole tree; raises InvariantBroken with both sides. Changes nothing.

        `host_closed` asks that a host-resident page never hangs under one that is not (not so under write_back).
        """
        from hicachectl.runtime.tree_check import check_tree

        check_tree(self, host_closed=host_closed)
