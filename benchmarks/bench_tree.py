"""The radix tree: match, insert, evict and publish at 32,768 tokens, and its memory a cached token.

Run: python benchmarks/bench_tree.py [--json FILE] [--quick] [--pages 1,16,64] [--rounds N]
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter, thread_time

import numpy as np
import numpy.typing as npt
from _bench import Row, arguments, report

from hicachectl.runtime.cache import CacheConfig, HierarchicalCache
from hicachectl.runtime.cache_events import CacheEvents
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.departures import Departures
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.ghost import GhostList
from hicachectl.runtime.keys import page_keys
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import SlotAllocator
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.backends import make_backend
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.tree import RadixTree

METHOD = (
    "200 sequences of 32,768 random token ids share their first 16,384; everything on: page keys kept, ghost list, seen keys; "
    "wall time of each single call in one thread, the cyclic collector resting; all rounds together (a round = a fresh tree). "
    "insert: the whole sequence from the root, the first sequence not counted. evict: 41,000 leaves of 64 tokens under a shared "
    "1,024, both tiers resident, 1,000 leaves' worth of pages in one call, refilled after it. publish: through the whole cache, "
    "device tier of 50 and host tier of 100 sequences, so that it evicts host slots; copies drained between requests; the longest "
    "is in processor time, because other work on the machine interrupts. "
    "Memory: tracemalloc between the empty and the full tree (token bytes, keys, slot arrays of both tiers, nodes, queues), "
    "divided by the distinct tokens; bounded tables (ghost, seen keys) and the pools are not in it"
)
UP, DOWN = Tier.DEVICE, Tier.HOST
KEY_BYTES = 32
LIMIT_MATCH_US, LIMIT_INSERT_US, LIMIT_EVICT_US = 20.0, 80.0, 5000.0
Slots = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    n_sequences: int
    n_tokens: int
    n_shared: int
    n_leaves: int
    n_evict: int
    rounds: int


class Sequences:
    """The tokens and page keys of the sequences at one page size."""

    def __init__(self, size: Size, page_tokens: int) -> None:
        rng = np.random.default_rng(11)
        shared = _ids(rng, size.n_shared)
        own = size.n_tokens - size.n_shared - 1
        self.tokens = [shared + _first(i) + _ids(rng, own) for i in range(size.n_sequences)]
        head = page_keys(shared, page_tokens)
        self.keys = [
            head + page_keys(tokens[len(shared) :], page_tokens, parent=head[-KEY_BYTES:]) for tokens in self.tokens
        ]
        # Leaves the path at three quarters, inside the run of tokens that is one sequence's own.
        cut = 4 * (size.n_shared + (size.n_tokens - size.n_shared) // 2)
        self.diverging = [tokens[:cut] + _ids(rng, (len(tokens) - cut) // 4) for tokens in self.tokens]
        self.n_pages = size.n_tokens // page_tokens
        self.n_distinct_tokens = size.n_shared + size.n_sequences * (size.n_tokens - size.n_shared)


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0], _add)
    rounds = options.rounds or (1 if options.quick else 5)
    size = Size(8, 2048, 1024, 400, 20, rounds) if options.quick else Size(200, 32_768, 16_384, 41_000, 1000, rounds)
    rows: list[Row] = []
    for page_tokens in options.pages:
        rows += measure(page_tokens, size)
    report("bench_tree", METHOD, rows, options)


def measure(page_tokens: int, size: Size) -> list[Row]:
    """Return the rows of one page size."""
    sequences = Sequences(size, page_tokens)
    rows = [
        *_walks(page_tokens, size, sequences),
        *_publishes(page_tokens, size, sequences),
        *_memory(page_tokens, size, sequences),
    ]
    del sequences
    rows += _evictions(page_tokens, size)
    return [Row(f"page {page_tokens}: {row.name}", row.unit, row.samples, row.limit, row.note) for row in rows]


def _walks(page_tokens: int, size: Size, sequences: Sequences) -> Iterator[Row]:
    found: dict[str, list[float]] = {name: [] for name in ("insert", "behind", "match", "diverge", "gather", "pin")}
    n = sequences.n_pages
    for _ in range(size.rounds):
        tree = _tree(page_tokens)
        slots = [np.arange(i * n, (i + 1) * n, dtype=np.int32) for i in range(size.n_sequences)]
        with _resting():
            for i, (tokens, keys) in enumerate(zip(sequences.tokens, sequences.keys, strict=True)):
                began = perf_counter()
                inserted = tree.insert(tokens, slots[i], keys=keys)
                _took(found["insert"], began, i > 0)
                end = inserted.node
                tree.attach(end, DOWN, end.depth, end.depth + end.n_pages, slots[i][: end.n_pages])
                tree.touch(end)
            for tokens in sequences.tokens:
                began = perf_counter()
                tree.match(tokens)
                _took(found["match"], began)
            for tokens in sequences.diverging:
                began = perf_counter()
                tree.match(tokens)
                _took(found["diverge"], began)
            for tokens in sequences.tokens:
                began = perf_counter()
                match = tree.match(tokens)
                gathered = tree.slots_between(match.node, UP, 0, match.device_pages)
                _took(found["gather"], began)
                assert len(gathered) == n
            for tokens in sequences.tokens:
                began = perf_counter()
                match = tree.match(tokens)
                lease = tree.lease(match)
                tree.touch(match.node)
                lease.release()
                _took(found["pin"], began)
            fresh = [mine + size.n_sequences * n for mine in slots]
            for tokens, keys, mine in zip(sequences.diverging, _keys_of(sequences, page_tokens), fresh, strict=True):
                match = tree.match(tokens)
                with tree.lease(match):
                    began = perf_counter()
                    tree.insert(
                        tokens,
                        mine[match.device_pages :],
                        start_page=match.device_pages,
                        start_node=match.node,
                        keys=keys,
                    )
                    _took(found["behind"], began)
        tree.check()
    yield Row("match", "us", tuple(found["match"]), LIMIT_MATCH_US)
    yield Row("match then diverge", "us", tuple(found["diverge"]), LIMIT_MATCH_US, "the last quarter is new")
    yield Row("match and gather slots", "us", tuple(found["gather"]))
    yield Row("match, lease, touch, release", "us", tuple(found["pin"]))
    yield Row("insert", "us", tuple(found["insert"]), LIMIT_INSERT_US)
    yield Row(
        "insert behind a match", "us", tuple(found["behind"]), LIMIT_INSERT_US, "the last quarter, pages above leased"
    )


def _evictions(page_tokens: int, size: Size) -> Iterator[Row]:
    """Evict from both tiers, refill, again; with copies in the other tier, without (ghost list), with an event log, after touches."""
    forest = _Forest(page_tokens, size)
    wanted = size.n_evict * forest.leaf_pages
    samples: dict[str, list[float]] = {"device": [], "host": [], "touched": [], "ghost": [], "events": []}
    for events in (False, True):
        departures = Departures(GhostList(200_000), CacheEvents(page_tokens) if events else None)
        tree = RadixTree(page_tokens, keep_keys=True, observer=departures)
        departures.tree = tree
        forest.fill(tree, size.n_leaves)
        with _resting():
            for _ in range(4 * size.rounds):
                for name, tier in (("device", UP), ("host", DOWN)):
                    took = _evict(tree, departures, tier, wanted)
                    samples["events" if events else name].append(took)
                forest.fill(tree, size.n_evict)
            if events:
                continue
            for _ in range(2 * size.rounds):
                _touch_leaves(tree)
                samples["touched"].append(_evict(tree, departures, UP, wanted))
                _evict(tree, departures, DOWN, wanted)
                forest.fill(tree, size.n_evict)
            forest.fill(tree, size.n_leaves, host=False)
            tree.evict(UP, tree.n_pages[UP] - size.n_leaves * forest.leaf_pages)
            tree.evict(DOWN, tree.n_pages[DOWN] - forest.head_pages)
            departures.settle()
            for _ in range(2 * size.rounds):
                samples["ghost"].append(_evict(tree, departures, UP, wanted))
                forest.fill(tree, size.n_evict, host=False)
        tree.check()
    what = f"evict {size.n_evict:,} of {size.n_leaves:,} leaves, "
    yield Row(
        what + "device", "us", tuple(samples["device"]), LIMIT_EVICT_US, f"{wanted:,} pages, the host tier keeps them"
    )
    yield Row(what + "host", "us", tuple(samples["host"]), LIMIT_EVICT_US, "nodes leave the tree")
    yield Row(
        what + "all touched before",
        "us",
        tuple(samples["touched"]),
        LIMIT_EVICT_US,
        "every leaf pinned, touched, released",
    )
    yield Row(what + "last copy", "us", tuple(samples["ghost"]), None, "keys of all pages into the ghost list")
    yield Row(
        what + "event log", "us", tuple(samples["events"]), None, "keys of all pages into the event log, either tier"
    )


def _evict(tree: RadixTree, departures: Departures, tier: Tier, wanted: int) -> float:
    began = perf_counter()
    evicted = tree.evict(tier, wanted)
    departures.settle()
    took = (perf_counter() - began) * 1e6
    assert len(evicted.slots) == wanted
    return took


def _touch_leaves(tree: RadixTree) -> None:
    for node in [n for n in tree.nodes() if not n.children]:
        with tree.lease_node(node):
            tree.touch(node)


class _Forest:
    """Makes leaves of 64 tokens under 1,024 shared ones, each different from all before."""

    def __init__(self, page_tokens: int, size: Size) -> None:
        self._rng = np.random.default_rng(12)
        self._page_tokens = page_tokens
        self._head = _ids(self._rng, 1024)
        self._head_keys = page_keys(self._head, page_tokens)
        self._n = 0
        self.head_pages = 1024 // page_tokens
        self.leaf_pages = 64 // page_tokens

    def fill(self, tree: RadixTree, n: int, *, host: bool = True) -> None:
        """Insert `n` new leaves."""
        n_pages = self.head_pages + self.leaf_pages
        head = np.arange(self.head_pages, dtype=np.int32)
        for _ in range(n):
            first = self.head_pages + self._n * self.leaf_pages
            slots = np.concatenate([head, np.arange(first, first + self.leaf_pages, dtype=np.int32)])
            own = _first(self._n) + _ids(self._rng, 63)
            keys = self._head_keys + page_keys(own, self._page_tokens, parent=self._head_keys[-KEY_BYTES:])
            node = tree.insert(self._head + own, slots, keys=keys).node
            if node.parent is not None and node.parent.parent is None and node.n_pages > self.leaf_pages:
                tree.isolate(node, 0, self.head_pages)
            with tree.lease_node(node):
                if host:
                    start = self.head_pages if tree.n_pages[DOWN] else 0
                    tree.attach(node, DOWN, start, n_pages, slots[start:])
                tree.touch(node)
            self._n += 1


def _publishes(page_tokens: int, size: Size, sequences: Sequences) -> Iterator[Row]:
    geometry = KVGeometry("bench", KVKind.MLA, n_layers=1, token_plane_bytes=2, page_tokens=page_tokens)
    own = (size.n_tokens - size.n_shared) // page_tokens
    for events in (False, True):
        samples: list[float] = []
        largest: list[float] = []
        for _ in range(size.rounds if not events else 1):
            device, host = (
                DevicePool(geometry, sequences.n_pages + own * size.n_sequences // 4),
                HostPool(geometry, sequences.n_pages + own * size.n_sequences // 2, Layout.PAGE_FIRST_DIRECT),
            )
            engine = TransferEngine(device, host, make_backend(Backend.CPU, Layout.PAGE_FIRST_DIRECT))
            config = CacheConfig(restore="always", ghost_entries=200_000, seen_keys=1 << 20)
            observer = CacheEvents(page_tokens) if events else None
            costs = CostModel(RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10))
            cache = HierarchicalCache(device, host, engine, costs, config, observer=observer)
            took: list[float] = []
            own_time: list[float] = []
            with _resting():
                for tokens, keys in zip(sequences.tokens, sequences.keys, strict=True):
                    request = cache.match(tokens, keys)
                    cache.restore(request)
                    ready = cache.wait_restored(request)
                    assert cache.allocate(request, request.n_pages - ready) is not None
                    began, spent = perf_counter(), thread_time()
                    cache.publish(request)
                    own_time.append((thread_time() - spent) * 1e6)
                    _took(took, began)
                    cache.release(request)
                    cache.drain()
                    if observer is not None:
                        observer.take()
            cache.check()
            cache.close()
            engine.close()
            host.close()
            device.close()
            samples += took[1:]
            largest.append(max(own_time[1:]))
        if events:
            yield Row("publish with an event log", "us", tuple(samples), None, "stores and removals of every page told")
        else:
            yield Row("publish", "us", tuple(samples), None, f"{own:,} new pages, as many leave the host tier")
            yield Row(
                "publish, longest of a round", "us", tuple(largest), LIMIT_EVICT_US, "processor time of its thread"
            )


def _memory(page_tokens: int, size: Size, sequences: Sequences) -> Iterator[Row]:
    n_slots = sequences.n_distinct_tokens // page_tokens
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        allocators = [SlotAllocator(n_slots, name=tier.name.lower()) for tier in (UP, DOWN)]
        of_slots = tracemalloc.get_traced_memory()[0] - before
        tree = _tree(page_tokens)
        before_tree = tracemalloc.get_traced_memory()[0]
        for tokens, keys in zip(sequences.tokens, sequences.keys, strict=True):
            match = tree.match(tokens)
            with tree.lease(match) as lease:
                new = match.n_pages - match.logical_pages
                up, down = (allocator.alloc(new) for allocator in allocators)
                assert up is not None and down is not None
                node = tree.insert(tokens, up, start_page=match.device_pages, start_node=match.node, keys=keys).node
                tree.extend_lease(lease, node)
                tree.attach(node, DOWN, match.device_pages, match.n_pages, down)
                tree.touch(node)
        del match, lease, node, up, down
        gc.collect()
        of_tree = tracemalloc.get_traced_memory()[0] - before_tree
    finally:
        tracemalloc.stop()
    assert tree.n_pages[UP] == tree.n_pages[DOWN]
    n_tokens = tree.n_pages[UP] * page_tokens
    limit = 16.0 if page_tokens == 1 else 8.0
    yield Row(
        "memory a cached token, tree",
        "bytes",
        (of_tree / n_tokens,),
        limit,
        f"{n_tokens:,} tokens, {tree.n_nodes} nodes",
    )
    yield Row(
        "memory a cached token, tree and slot allocators", "bytes", ((of_tree + of_slots) / n_tokens,),
        limit, "free lists and bitmaps of both tiers, as large as the pools",
    )  # fmt: skip


def _tree(page_tokens: int) -> RadixTree:
    departures = Departures(GhostList(1000), None)
    tree = RadixTree(page_tokens, keep_keys=True, observer=departures)
    departures.tree = tree
    return tree


def _keys_of(sequences: Sequences, page_tokens: int) -> list[bytes]:
    keys = []
    for tokens, known, other in zip(sequences.diverging, sequences.keys, sequences.tokens, strict=True):
        same = int(np.argmax(np.frombuffer(tokens, "<u4") != np.frombuffer(other, "<u4"))) // page_tokens
        head = known[: same * KEY_BYTES]
        keys.append(head + page_keys(tokens[same * 4 * page_tokens :], page_tokens, parent=head[-KEY_BYTES:]))
    return keys


def _ids(rng: np.random.Generator, n: int) -> bytes:
    return rng.integers(0, 150_000, n, dtype=np.uint32).astype("<u4").tobytes()


def _first(n: int) -> bytes:
    """A first token of its own, so that pages of one token branch where the others do."""
    return np.array([150_000 + n], dtype="<u4").tobytes()


def _took(into: list[float], began: float, counts: bool = True) -> None:
    took = (perf_counter() - began) * 1e6
    if counts:
        into.append(took)


class _resting:
    """The cyclic collector does not run inside."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pages", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16, 64], metavar="N,N"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="fresh trees a case, 5 by default")


if __name__ == "__main__":
    main()
