"""The same laws with the real threads, files and a copy backend that stumbles: nothing here decides when a copy ends.

Only the order of calls is random by seed; timing is the machine's. What must hold at any timing is checked: laws while
idle and busy, every byte that comes up, and empty hands at the end.
"""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cache_driver import CONTENT, GEOMETRY, NAMESPACES, keys_of, tokens_of
from files import files_below

from hicachectl.runtime.cache import CacheConfig, HierarchicalCache, Restored
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.keys import KEY_BYTES, key64
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.request import Request
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectSpec, whole
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.backends import Direction, Submitted
from hicachectl.runtime.transfer.cpu import CpuBackend
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.write_policy import WritePolicy

STEMS = ((0, 0, 0, 0, 0, 0), (0, 0, 1, 0, 1, 1), (1, 0, 0, 2, 2, 2), (1, 1, 1, 1, 1, 1))


class StumblingBackend(CpuBackend):
    """Fails one copy in `one_in`; every copy first gives other threads a turn."""

    kind = Backend.CPU

    def __init__(self, one_in: int) -> None:
        super().__init__(staging_bytes=1 << 16)
        self._one_in = one_in
        self._lock = threading.Lock()
        self.n_copies = 0

    def copy(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        planes: range,
    ) -> Submitted:
        with self._lock:
            self.n_copies += 1
            fails = self.n_copies % self._one_in == 0
        threading.Event().wait(0.0005)
        if fails:
            raise OSError("a copy failed")
        return super().copy(direction, device_pool, host_pool, device_slots, host_slots, planes)


def harm(path: Path) -> None:
    """Change the last byte of an object that may be taken out meanwhile."""
    with suppress(FileNotFoundError):
        harmed = bytearray(path.read_bytes())
        harmed[-1] ^= 1
        path.write_bytes(bytes(harmed))


@pytest.mark.parametrize("policy", WritePolicy)
@pytest.mark.parametrize("strict", [True, False])
def test_real_threads_files_and_failing_copies_keep_the_laws_and_every_byte(
    policy: WritePolicy, strict: bool, tmp_path: Path
) -> None:
    draw = random.Random(f"{policy} {strict}")
    device_pool, host_pool = DevicePool(GEOMETRY, 12), HostPool(GEOMETRY, 14, Layout.PAGE_FIRST_DIRECT)
    planes = device_pool.planes_numpy()
    backend = StumblingBackend(one_in=11)
    engine = TransferEngine(device_pool, host_pool, backend)
    spec = ObjectSpec("law", "bf16", "gqa", 4, Layout.PAGE_FIRST_DIRECT.object_layout.value, n_layers=2)
    storage = FileStorage(tmp_path, 40 * 4096, whole(spec, GEOMETRY.page_bytes))
    proven = {Tier.HOST: 0, Tier.STORAGE: 0}

    def prove(restored: Restored) -> None:
        assert restored.keys is not None
        assert CONTENT.first_mismatch(planes, restored.device_slots, key64(restored.keys)) is None
        proven[restored.source] += len(restored.device_slots)

    config = CacheConfig(restore="always", strict=strict, write_policy=policy, seen_keys=256, restore_timeout_s=30)
    cache = HierarchicalCache(
        device_pool, host_pool, engine, CostModel(RecomputeCost(1e-4, 1e-6, 0.0)), config, storage=storage,
        verify_restored=prove,
    )  # fmt: skip
    busy: list[tuple[Request, list[bytes]]] = []

    def prove_ready(request: Request, keys: list[bytes]) -> None:
        ready = request.ready_pages
        slots = cache.tree.slots_between(request.lease.node, Tier.DEVICE, 0, ready) if ready else None
        if slots is not None:
            assert CONTENT.first_mismatch(planes, slots, key64(b"".join(keys[:ready]))) is None

    def end(request: Request, keys: list[bytes], patient: bool) -> None:
        cache.wait_restored(request, None if patient else 0.0)
        prove_ready(request, keys)
        start = request.ready_pages
        slots = cache.allocate(request, request.n_pages - start)
        if slots is not None:
            CONTENT.fill(planes, slots, key64(b"".join(keys)[start * KEY_BYTES :]))
        cache.publish(request)
        prove_ready(request, keys)
        cache.release(request)

    try:
        for step in range(400):
            symbols = (*draw.choice(STEMS)[: draw.randint(2, 6)], *draw.choice([(), (0,), (1,)]))
            namespace = draw.choice([NAMESPACES[0], NAMESPACES[0], *NAMESPACES])
            keys = keys_of(namespace, symbols)
            request = cache.match(tokens_of(symbols), b"".join(keys), namespace=namespace)
            cache.restore(request)
            busy.append((request, keys))
            cache.check()
            while busy and (len(busy) == 2 or draw.random() < 0.7):
                end(*busy.pop(draw.randrange(len(busy))), draw.random() < 0.7)
                cache.check()
            if step % 50 == 49:
                objects = files_below(tmp_path, ".page")
                if objects:
                    harm(draw.choice(objects))
        for request, keys in busy:
            end(request, keys, True)
        assert cache.drain(60)
        cache.check()
        assert cache.tree.active_leases == 0
        assert proven[Tier.HOST] > 0
        assert cache.counters.failures.get("transfer_backup", 0) + cache.counters.failures.get("transfer_load", 0) > 0
    finally:
        cache.close()
        engine.close()
        storage.close()
        host_pool.close()
        device_pool.close()
