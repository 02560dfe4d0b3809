"""Any order of an engine's calls, copies that end late, out of step or not at all, and tiers that fail: a state machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from cache_driver import NAMESPACES, CacheDriver, Caller, Setup
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from memory_storage import MemoryStorage

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.core import PrefetchWait
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.storage.prefetch import PrefetchPolicy
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["CacheMachine"]

STEMS = ((0, 0, 0, 0, 0, 0), (0, 0, 1, 0, 1, 1), (1, 0, 0, 2, 2, 2), (1, 1, 1, 1, 1, 1))
PATHS = st.tuples(st.sampled_from(STEMS), st.integers(2, 6), st.lists(st.integers(0, 1), max_size=1)).map(
    lambda parts: (*parts[0][: parts[1]], *parts[2])
)
SPACES = st.sampled_from([NAMESPACES[0]] * 3 + list(NAMESPACES))  # most requests share
ANY = st.integers(0, 11)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    host_slots = draw(st.sampled_from([0, 2, 4, 8, 9, 10, 12, 16, 40]))
    storage = draw(st.sampled_from(["none", "memory", "memory", "memory", "file"])) if host_slots else "none"
    config = CacheConfig(
        write_policy=draw(st.sampled_from(WritePolicy)),
        restore=draw(st.sampled_from(["always", "always", "always", "cost"])),
        eviction=draw(st.sampled_from([Eviction.LRU, *Eviction])),
        free_list=draw(st.sampled_from(["lifo", "fifo"])),
        ghost_entries=draw(st.sampled_from([0, 0, 6])),
        seen_keys=draw(st.sampled_from([0, 8, 512])),
        strict=draw(st.booleans()),
        prefetch=draw(st.sampled_from([PrefetchWait()] * 3 + [PrefetchWait(PrefetchPolicy.BEST_EFFORT)])),
        storage_queue_pages=draw(st.sampled_from([3, 64, 64])),
    )
    return Setup(
        config,
        device_slots=draw(st.sampled_from([8, 8, 10, 14])),
        host_slots=host_slots,
        layout=draw(st.sampled_from(Layout)),
        storage=storage,
        storage_pages=draw(st.sampled_from([4, 24, 99])),
        verify=draw(st.booleans()),
    )


class CacheMachine(RuleBasedStateMachine):
    """At most three requests at once. `total_steps` counts verified calls over all examples."""

    total_steps: ClassVar[int] = 0
    total_restored: ClassVar[dict[str, int]] = {"host": 0, "storage": 0}

    def __init__(self) -> None:
        super().__init__()
        self.driver: CacheDriver | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    @initialize(setup=setups())
    def start(self, setup: Setup) -> None:
        if setup.storage == "file":
            self.folder = tempfile.TemporaryDirectory()
            setup.folder = Path(self.folder.name)
        self.driver = CacheDriver(setup)

    @property
    def d(self) -> CacheDriver:
        assert self.driver is not None
        return self.driver

    def one(self, pick: int) -> Caller:
        return self.d.open[pick % len(self.d.open)]

    def has_open(self) -> bool:
        return self.driver is not None and bool(self.driver.open)

    def has_room(self) -> bool:
        return self.driver is not None and len(self.driver.open) < 3

    def has_pending(self) -> bool:
        return self.driver is not None and bool(self.driver.control.pending)

    # -- requests ---------------------------------------------------------------------------------------------------

    @precondition(has_room)
    @rule(path=PATHS, namespace=SPACES, tail=st.integers(0, 3), priority=st.integers(0, 2))
    def arrive(self, path: tuple[int, ...], namespace: object, tail: int, priority: int) -> None:
        self.d.arrive(path, namespace=namespace, tail=tail, priority=priority)  # type: ignore[arg-type]

    @precondition(has_room)
    @rule(path=PATHS, namespace=SPACES, chunk=st.sampled_from([1, 2, 99]), priority=st.integers(0, 2))
    def serve(self, path: tuple[int, ...], namespace: object, chunk: int, priority: int) -> None:
        self.d.serve(path, namespace=namespace, chunk=chunk, priority=priority)  # type: ignore[arg-type]

    @precondition(has_room)
    @rule(paths=st.lists(PATHS, min_size=3, max_size=8), namespace=SPACES)
    def traffic(self, paths: list[tuple[int, ...]], namespace: object) -> None:
        for path in paths:
            self.d.serve(path, namespace=namespace)  # type: ignore[arg-type]

    @precondition(has_room)
    @rule(paths=st.lists(PATHS, min_size=3, max_size=8))
    def come_back(self, paths: list[tuple[int, ...]]) -> None:
        for path in [*paths, *paths]:
            self.d.serve(path, namespace=NAMESPACES[0])

    @precondition(lambda self: self.driver is not None and len(self.driver.open) < 2)
    @rule(paths=st.tuples(PATHS, PATHS), namespace=SPACES)
    def two_at_once(self, paths: tuple[tuple[int, ...], tuple[int, ...]], namespace: object) -> None:
        pair = [self.d.arrive(path, namespace=namespace) for path in paths]  # type: ignore[arg-type]
        for caller in pair:
            self.d.restore(caller)

    @precondition(has_open)
    @rule(pick=ANY)
    def restore(self, pick: int) -> None:
        self.d.restore(self.one(pick))

    @precondition(has_open)
    @rule(pick=ANY, patient=st.booleans())
    def wait(self, pick: int, patient: bool) -> None:
        self.d.restore(self.one(pick))
        self.d.wait(self.one(pick), patient=patient)

    @precondition(has_open)
    @rule(pick=ANY, n_pages=st.integers(0, 7))
    def allocate(self, pick: int, n_pages: int) -> None:
        self.d.allocate(self.one(pick), n_pages)

    @precondition(has_open)
    @rule(pick=ANY)
    def publish(self, pick: int) -> None:
        self.d.publish(self.one(pick))

    @precondition(has_open)
    @rule(pick=ANY, n_pages=st.integers(1, 7))
    def compute(self, pick: int, n_pages: int) -> None:
        self.d.allocate(self.one(pick), n_pages)
        self.d.publish(self.one(pick))

    @precondition(has_open)
    @rule(pick=ANY)
    def release(self, pick: int) -> None:
        self.d.release(self.one(pick))

    # -- copies and tiers -------------------------------------------------------------------------------------------

    @precondition(has_pending)
    @rule(pick=ANY, fails=st.sampled_from([False, False, True]))
    def finish_one(self, pick: int, fails: bool) -> None:
        control = self.d.control
        control.fates.appendleft(fails)
        control.pending[pick % len(control.pending)].finish()
        self.d.verify()
        self.d.cache.tick()
        self.d.verify()

    @precondition(has_pending)
    @rule()
    def finish_all_unseen(self) -> None:
        self.d.control.finish_all()
        self.d.verify()

    @rule(fates=st.lists(st.booleans(), max_size=3))
    def plan_failures(self, fates: list[bool]) -> None:
        self.d.control.fates.extend(fates)

    @rule(stuck=st.sampled_from([False, False, False, True]), hurried=st.booleans())
    def stick(self, stuck: bool, hurried: bool) -> None:
        self.d.control.stuck, self.d.control.hurried = stuck, hurried

    @rule()
    def tick(self) -> None:
        self.d.cache.tick()
        self.d.verify()

    @precondition(lambda self: self.driver is not None and isinstance(self.driver.storage, MemoryStorage))
    @rule(pick=ANY, harm=st.sampled_from(["corrupt", "lose", "lose all"]))
    def harm_storage(self, pick: int, harm: str) -> None:
        storage = self.d.storage
        assert isinstance(storage, MemoryStorage)
        if storage.objects:
            key = list(storage.objects)[pick % len(storage.objects)]
            if harm == "corrupt":
                storage.corrupt.add(key)
            elif harm == "lose":
                del storage.objects[key]
            else:
                storage.objects.clear()

    @precondition(lambda self: self.driver is not None and not self.driver.open)
    @rule()
    def drain(self) -> None:
        self.d.drain()

    def teardown(self) -> None:
        try:
            if self.driver is not None:
                self.driver.close()
                type(self).total_steps += self.driver.n_steps
                counters = self.driver.cache.counters
                restored, read = type(self).total_restored, counters.storage_read_pages
                restored["storage"] += read
                restored["host"] += counters.loaded_pages - min(read, counters.loaded_pages)
        finally:
            if self.folder is not None:
                self.folder.cleanup()
