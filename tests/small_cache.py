"""A cache of a few slots with real pools, threads and files, and a caller who takes requests through it; imported by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hicachectl.runtime.account import Account
from hicachectl.runtime.cache import CacheConfig, HierarchicalCache
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.counters import CacheObserver
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, KEY_BYTES, Namespace, page_keys
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.storage.base import StorageBackend
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectSpec, whole
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.backends import CopyBackend, make_backend
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["PAGE_TOKENS", "SmallCache", "tokens_of"]

PAGE_TOKENS = 4
GEOMETRY = KVGeometry("small", KVKind.GQA, n_layers=2, token_plane_bytes=8, page_tokens=PAGE_TOKENS)
RECOMPUTE = RecomputeCost(0.01, 1e-3, 1e-6)


def tokens_of(pages: Sequence[int], tail: int = 0) -> bytes:
    """Return the tokens of pages named by small numbers, and `tail` tokens of an incomplete one."""
    return np.array([[page * 8 + i for i in range(PAGE_TOKENS)] for page in pages], "<u4").tobytes() + bytes(4 * tail)


class SmallCache:
    """A context manager; `storage` None = no L3, `host_slots` 0 = no host tier."""

    def __init__(
        self,
        device_slots: int,
        host_slots: int,
        storage: Path | StorageBackend | None = None,
        *,
        write_policy: WritePolicy = WritePolicy.WRITE_THROUGH,
        observer: CacheObserver | None = None,
        backend: CopyBackend | None = None,
        storage_pages: int = 1000,
        layout: Layout = Layout.PAGE_FIRST,
        **config: Any,
    ) -> None:
        """`config` are further fields of CacheConfig."""
        self.device_pool = DevicePool(GEOMETRY, device_slots)
        self.host_pool = HostPool(GEOMETRY, host_slots, layout) if host_slots else None
        self.engine = None
        if self.host_pool is not None:
            backend = backend if backend is not None else make_backend(Backend.CPU, layout)
            self.engine = TransferEngine(self.device_pool, self.host_pool, backend)
        self.storage: StorageBackend | None = None
        if storage is not None and not isinstance(storage, Path):
            self.storage = storage
        elif storage is not None:
            spec = ObjectSpec(
                model="small", dtype="bf16", kind="gqa", page_tokens=PAGE_TOKENS,
                object_layout=layout.object_layout.value, n_layers=2,
            )  # fmt: skip
            self.storage = FileStorage(storage, storage_pages * 8192, whole(spec, GEOMETRY.page_bytes))
        fields = {"write_policy": write_policy, "restore": "always", "strict": True, "seen_keys": 1000, **config}
        self.cache = HierarchicalCache(
            self.device_pool,
            self.host_pool,
            self.engine,
            CostModel(RECOMPUTE),
            CacheConfig(**fields),
            storage=self.storage,
            observer=observer,
        )

    def serve(self, pages: Sequence[int], *, namespace: Namespace = DEFAULT_NAMESPACE, tail: int = 1) -> Account:
        """Take one request through the cache."""
        tokens = tokens_of(pages, tail)
        request = self.cache.match(tokens, page_keys(tokens, PAGE_TOKENS, namespace=namespace), namespace=namespace)
        try:
            self.cache.restore(request)
            ready = self.cache.wait_restored(request)
            assert self.cache.allocate(request, request.n_pages - ready) is not None
            self.cache.publish(request)
        finally:
            account = self.cache.release(request)
        return account

    def resident(self, tier: Tier) -> dict[bytes, tuple[Namespace, bytes]]:
        """Return what `tier` holds: page key -> (namespace, the tokens of its whole path)."""
        found = {}
        width = 4 * PAGE_TOKENS
        for node in self.cache.tree.nodes():
            path = b"".join(n.tokens for n in self.cache.tree.path(node))
            for page in range(node.depth, node.depth + node.resident(tier)):
                tokens = path[: (page + 1) * width]
                key = page_keys(tokens, PAGE_TOKENS, namespace=node.namespace)[-KEY_BYTES:]
                found[key] = (node.namespace, tokens)
        return found

    def __enter__(self) -> SmallCache:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.cache.close()
        finally:
            if self.engine is not None:
                self.engine.close()
            if self.storage is not None:
                self.storage.close()
            if self.host_pool is not None:
                self.host_pool.close()
            self.device_pool.close()
