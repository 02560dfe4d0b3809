"""A cache under test beside its plain model: every operation is checked against dictionaries, every page byte for byte.

A page is a symbol; its four tokens differ from those of another symbol in the last one only. A path is (namespace,
symbols). The model knows, from what the cache tells its observer, which pages each tier holds, and from the requests how
often each page was touched. After every operation `verify` compares:

    laws           cache.check()
    residency      pages found by walking the tree = pages announced and not removed, in both tiers
    bytes          each of them holds what its path says, whatever copies are under way
    hits           of each page = distinct requests that touched it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from held_copies import SPOILED, Control, HeldEngine, HeldReads, HeldWrites, spoil
from memory_storage import MemoryStorage

from hicachectl.runtime.cache import CacheConfig, HierarchicalCache, Restored
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.keys import KEY_BYTES, Namespace, key64, page_keys
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.replay.content import PageContent
from hicachectl.runtime.request import Phase, Request
from hicachectl.runtime.storage.base import StorageBackend
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectSpec, whole
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.tree import NO_SLOTS

__all__ = ["GEOMETRY", "NAMESPACES", "PAGE_TOKENS", "CacheDriver", "Caller", "Setup", "tokens_of"]

PAGE_TOKENS = 4
GEOMETRY = KVGeometry("law", KVKind.GQA, n_layers=2, token_plane_bytes=2, page_tokens=PAGE_TOKENS)
NAMESPACES = (Namespace(), Namespace(extra_key="a"), Namespace(cache_salt="a"))
CONTENT = PageContent(GEOMETRY.n_planes, GEOMETRY.chunk_bytes)
DEVICE, HOST, STORAGE = Tier.DEVICE, Tier.HOST, Tier.STORAGE

Path_ = tuple[Namespace, tuple[int, ...]]
_KEYS: dict[Path_, bytes] = {}
_PATHS: dict[bytes, Path_] = {}


def tokens_of(symbols: tuple[int, ...], tail: int = 0) -> bytes:
    """Return the tokens of a path and `tail` more (fewer than a page)."""
    pages = [[7, 7, 7, symbol] for symbol in symbols]
    return np.array([t for page in pages for t in page] + [7] * tail, dtype="<u4").tobytes()


def key_of(namespace: Namespace, symbols: tuple[int, ...]) -> bytes:
    """Return the key of the last page of a path."""
    key = _KEYS.get((namespace, symbols))
    if key is None:
        keys = page_keys(tokens_of(symbols), PAGE_TOKENS, namespace=namespace)
        for n in range(1, len(symbols) + 1):
            at = keys[(n - 1) * KEY_BYTES : n * KEY_BYTES]
            _KEYS[namespace, symbols[:n]] = at
            _PATHS[at] = (namespace, symbols[:n])
        key = _KEYS[namespace, symbols]
    return key


def keys_of(namespace: Namespace, symbols: tuple[int, ...]) -> list[bytes]:
    """Return the keys of every page of a path."""
    return [key_of(namespace, symbols[: n + 1]) for n in range(len(symbols))]


@dataclass
class Setup:
    """Sizes and switches of one run."""

    config: CacheConfig
    device_slots: int = 8
    host_slots: int = 12
    layout: Layout = Layout.PAGE_FIRST_DIRECT
    storage: str = "none"
    """none | memory | file"""
    storage_pages: int = 24
    folder: Path | None = None
    verify: bool = True


@dataclass
class Caller:
    """A request and what the model knows of it."""

    request: Request
    namespace: Namespace
    symbols: tuple[int, ...]
    keys: list[bytes]
    logical: int
    counted: set[bytes] = field(default_factory=set)
    touched: bool = False


class CacheDriver:
    """Makes the calls an engine makes, in any order that is allowed, and verifies after each."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.control = Control()
        self.device_pool = DevicePool(GEOMETRY, setup.device_slots)
        spoil(self.device_pool, np.arange(setup.device_slots))
        self.host_pool = HostPool(GEOMETRY, setup.host_slots, setup.layout) if setup.host_slots else None
        self.engine = None
        if self.host_pool is not None:
            self.host_pool.array[:] = SPOILED
            self.engine = HeldEngine(self.device_pool, self.host_pool, self.control)
        self.storage = self._make_storage() if self.host_pool is not None else None
        self.cache = HierarchicalCache(
            self.device_pool,
            self.host_pool,
            self.engine,  # type: ignore[arg-type]
            CostModel(RecomputeCost(1e-4, 1e-6, 0.0)),
            setup.config,
            storage=self.storage,
            observer=self,
            verify_restored=self._verify_restored if setup.verify else None,
        )
        if self.storage is not None:
            self._hold_storage_threads(self.storage)
        self.held: tuple[set[bytes], set[bytes]] = (set(), set())
        """Keys of the pages of DEVICE and HOST, as announced."""
        self.hits: dict[bytes, int] = {}
        self.open: list[Caller] = []
        self.n_steps = 0
        self.n_bytes_checked = 0
        self.restored_from = {HOST: 0, STORAGE: 0}

    def _make_storage(self) -> StorageBackend | None:
        if self.setup.storage == "memory":
            return MemoryStorage(GEOMETRY.page_bytes, self.setup.storage_pages, self._object_of)
        if self.setup.storage == "file":
            assert self.setup.folder is not None
            spec = ObjectSpec("law", "bf16", "gqa", PAGE_TOKENS, self.setup.layout.object_layout.value, n_layers=2)
            return FileStorage(self.setup.folder, self.setup.storage_pages * 4096, whole(spec, GEOMETRY.page_bytes))
        return None

    def _object_of(self, key: bytes) -> bytes:
        """Return the bytes of a page as its layout writes them."""
        page = CONTENT.page(int(key64(key)[0]))
        if self.setup.layout is Layout.PAGE_FIRST:
            page = page.reshape(GEOMETRY.n_planes, PAGE_TOKENS, -1).transpose(1, 0, 2)
        return page.tobytes()

    def _hold_storage_threads(self, storage: StorageBackend) -> None:
        """Put held operations where the storage threads were: the only private names this driver touches."""
        cache = self.cache
        cache._prefetcher.close()  # type: ignore[union-attr]
        cache._store_queue.close()  # type: ignore[union-attr]
        reads = HeldReads(storage, self.control)
        writes = HeldWrites(storage, self.setup.config.storage_queue_pages, self.control)
        cache._prefetcher = cache._restores._prefetcher = reads  # type: ignore[assignment]
        cache._store_queue = cache._backups._store_queue = writes  # type: ignore[assignment]

    # -- what the cache tells ---------------------------------------------------------------------------------------

    def stored(self, keys: bytes, parent_key: bytes | None, tokens: bytes, tier: Tier, namespace: Namespace) -> None:
        symbols = np.frombuffer(tokens, "<u4")[PAGE_TOKENS - 1 :: PAGE_TOKENS].tolist()
        names = [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]
        assert len(names) == len(symbols)
        above: tuple[int, ...] = () if parent_key is None else _PATHS[parent_key][1]
        for name, symbol in zip(names, symbols, strict=True):
            above = (*above, symbol)
            assert _PATHS[name] == (namespace, above), "an event names another page"
            self.held[tier].add(name)

    def removed(self, keys: bytes, tier: Tier) -> None:
        for i in range(0, len(keys), KEY_BYTES):
            name = keys[i : i + KEY_BYTES]
            assert name in _PATHS, "a removal names no page that ever was"
            self.held[tier].discard(name)
            if name not in self.held[DEVICE] and name not in self.held[HOST]:
                self.hits.pop(name, None)

    def _verify_restored(self, restored: Restored) -> None:
        assert restored.keys is not None
        assert len(restored.keys) == KEY_BYTES * len(restored.device_slots) == KEY_BYTES * len(restored.host_slots)
        wrong = CONTENT.first_mismatch(self.device_pool.planes_numpy(), restored.device_slots, key64(restored.keys))
        assert wrong is None, f"{restored.source.label} gave a wrong byte: {wrong}"
        self.restored_from[restored.source] += len(restored.device_slots)

    # -- the calls of an engine -------------------------------------------------------------------------------------

    def arrive(self, symbols: tuple[int, ...], *, namespace: Namespace, tail: int = 0, priority: int = 0) -> Caller:
        """Match, and compare the lengths with the model's."""
        self.cache.tick()
        keys = keys_of(namespace, symbols)
        device = _lead(keys, self.held[DEVICE])
        logical = _lead(keys, self.held[DEVICE] | self.held[HOST])
        stored = 0 if self.storage is None else _exists(self.storage, keys[logical:])
        request = self.cache.match(tokens_of(symbols, tail), b"".join(keys), namespace=namespace, priority=priority)
        found = request.match
        assert (found.device_pages, found.logical_pages, request.storage_pages) == (device, logical, stored)
        assert found.n_pages == len(symbols)
        caller = Caller(request, namespace, symbols, keys, logical)
        self.open.append(caller)
        self.verify()
        return caller

    def restore(self, caller: Caller) -> None:
        if caller.request.phase is Phase.MATCHED:
            self.cache.restore(caller.request)
            self.verify()

    def wait(self, caller: Caller, *, patient: bool = True) -> None:
        """Wait for the restore; impatient, or with stuck copies, take what is there."""
        if caller.request.phase is not Phase.RESTORING:
            return
        ready = self.cache.wait_restored(caller.request, None if patient and not self.control.stuck else 0.0)
        assert caller.request.match.device_pages <= ready <= len(caller.symbols)
        held = self.held[DEVICE]
        assert all(key in held for key in caller.keys[:ready]), "ready pages are resident"
        self.verify()

    def allocate(self, caller: Caller, n_pages: int) -> None:
        request = caller.request
        if request.phase is not Phase.READY or request.allocated is not None:
            return
        slots = self.cache.allocate(request, min(n_pages, request.n_pages - request.ready_pages))
        if slots is not None:
            spoil(self.device_pool, slots)
        self.verify()

    def publish(self, caller: Caller) -> None:
        """Compute what was allocated and make it visible; with nothing allocated this is a second insertion."""
        request = caller.request
        if request.phase is not Phase.READY:
            return
        if request.allocated is not None and len(request.allocated):
            start = request.ready_pages
            keys = b"".join(caller.keys[start : start + len(request.allocated)])
            CONTENT.fill(self.device_pool.planes_numpy(), request.allocated, key64(keys))
        # Counted before the call: a page the call itself takes out and brings back must not keep its count.
        reach = max(caller.logical, request.ready_pages + (0 if request.allocated is None else len(request.allocated)))
        fresh = [key for key in caller.keys[:reach] if key not in caller.counted]
        for key in fresh:
            self.hits[key] = self.hits.get(key, 0) + 1
        caller.counted.update(fresh)
        self.cache.publish(request)
        self.verify()

    def release(self, caller: Caller) -> None:
        self.open.remove(caller)
        account = self.cache.release(caller.request)
        assert account.pages_total == len(caller.symbols)
        assert account.hit_pages == caller.logical + caller.request.storage_pages
        assert sum(account.missed_tokens.values()) + account.used_pages * PAGE_TOKENS == caller.request.input_tokens
        self.verify()

    def serve(self, symbols: tuple[int, ...], *, namespace: Namespace, chunk: int = 99, priority: int = 0) -> Caller:
        """Take one request through all its steps."""
        caller = self.arrive(symbols, namespace=namespace, priority=priority)
        self.restore(caller)
        self.wait(caller)
        while True:
            missing = len(symbols) - caller.request.ready_pages
            if missing:
                self.allocate(caller, min(chunk, missing))
            had = caller.request.allocated
            self.publish(caller)
            if had is None or caller.request.ready_pages == len(symbols):
                break
        self.release(caller)
        return caller

    def drain(self) -> None:
        """End everything under way."""
        self.control.stuck = False
        assert self.cache.drain()
        assert not self.control.pending
        self.verify()

    def close(self) -> None:
        """Release and drain: nothing is leased or under way, and the pools are tree and free slots alone."""
        self.control.stuck = False
        for caller in list(self.open):
            self.release(caller)
        self.drain()
        tree = self.cache.tree
        assert tree.active_leases == 0
        for node in [*tree.roots(), *tree.nodes()]:
            assert node.leases == 0
            assert node.backup is None
            assert node.load is None
            assert node.store is None
        assert len(self.cache.private_slots(DEVICE)) == len(self.cache.private_slots(HOST)) == 0
        self.cache.close()
        if self.storage is not None:
            self.storage.close()

    # -- the comparison ---------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Compare cache and model; this is a step."""
        self.n_steps += 1
        self.cache.check()
        found: tuple[set[bytes], set[bytes]] = (set(), set())
        slots: tuple[list[np.ndarray], list[np.ndarray]] = ([NO_SLOTS], [NO_SLOTS])
        names: tuple[list[bytes], list[bytes]] = ([], [])
        stack = [(child, root.namespace, ()) for root in self.cache.tree.roots() for child in root.children.values()]
        while stack:
            node, namespace, above = stack.pop()
            symbols = np.frombuffer(node.tokens, "<u4")[PAGE_TOKENS - 1 :: PAGE_TOKENS].tolist()
            path = (*above, *symbols)
            assert node.depth == len(above)
            keys = [key_of(namespace, path[: n + 1]) for n in range(len(above), len(path))]
            for key in keys:
                assert self.hits.get(key, 0) == node.hits, f"{node!r}: hits {node.hits}, model {self.hits.get(key, 0)}"
            for tier in (DEVICE, HOST):
                if tier == HOST and node.backup is not None:
                    continue
                here = keys[: node.resident(tier)]
                found[tier].update(here)
                names[tier].extend(here)
                slots[tier].append(node.slots[tier])
            stack.extend((child, namespace, path) for child in node.children.values())
        for tier in (DEVICE, HOST):
            lost, extra = self.held[tier] - found[tier], found[tier] - self.held[tier]
            assert not lost, f"{tier.label}: announced and gone without a word: {[_PATHS[k] for k in lost]}"
            assert not extra, f"{tier.label}: there and never announced: {[_PATHS[k] for k in extra]}"
        self._check_bytes(DEVICE, self.device_pool.planes_numpy(), slots[DEVICE], names[DEVICE])
        if self.host_pool is not None:
            self._check_bytes(HOST, self._host_planes(), slots[HOST], names[HOST])

    def _host_planes(self) -> np.ndarray:
        assert self.host_pool is not None
        view = self.host_pool.layer_view()
        return np.ascontiguousarray(view).reshape(GEOMETRY.n_planes, self.host_pool.n_slots, GEOMETRY.chunk_bytes)

    def _check_bytes(self, tier: Tier, planes: np.ndarray, slots: list[np.ndarray], names: list[bytes]) -> None:
        if names:
            wrong = CONTENT.first_mismatch(planes, np.concatenate(slots), key64(b"".join(names)))
            assert wrong is None, f"{tier.label}: {_PATHS[names[wrong.page]]} holds a wrong byte: {wrong}"
            self.n_bytes_checked += len(names) * GEOMETRY.page_bytes


def _lead(keys: list[bytes], held: set[bytes]) -> int:
    return next((i for i, key in enumerate(keys) if key not in held), len(keys))


def _exists(storage: StorageBackend, keys: list[bytes]) -> int:
    if isinstance(storage, MemoryStorage):
        return _lead(keys, set(storage.objects))
    return storage.exists_prefix(keys) if keys else 0
