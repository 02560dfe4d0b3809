"""Cache events: a router that follows them knows, page by page, what the device and the host tier hold."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from small_cache import PAGE_TOKENS, SmallCache, tokens_of

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.cache_events import CacheEvents
from hicachectl.runtime.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, KEY_BYTES, Namespace, key64, page_keys
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.backends import Direction, Submitted, make_backend
from hicachectl.runtime.tree import Slots
from hicachectl.runtime.write_policy import WritePolicy

NAMESPACES = (
    DEFAULT_NAMESPACE,
    Namespace(extra_key="lora"),
    Namespace(cache_salt="tenant"),
    Namespace(extra_key="lora", cache_salt="tenant"),
)
MEDIUM = {Tier.DEVICE: "GPU", Tier.HOST: "CPU_PINNED"}


def hash_of(tokens: bytes, namespace: Namespace) -> int:
    """The event hash of the last page of a path, with hashlib alone, as SGLang computes it."""
    extra, salt = namespace.extra_key, namespace.cache_salt
    digest = b"" if salt is None else sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest()
    for at in range(0, len(tokens), 4 * PAGE_TOKENS):
        digest = sha256(digest + tokens[at : at + 4 * PAGE_TOKENS]).digest()
    first = digest[:8]
    if extra is not None or salt is not None:
        seed = sha256(b"sglang-kv-event-namespace-v1")
        for part in (extra, salt):
            seed.update(b"\0" if part is None else b"\1" + len(part).to_bytes(8, "little") + part.encode())
        first = sha256(seed.digest() + first).digest()[:8]
    return int.from_bytes(first, "big", signed=True)


class Router:
    """Believes what it is told, and refuses what it must never be told."""

    def __init__(self) -> None:
        self.held: dict[str | None, dict[int, tuple[int | None, tuple[int, ...]]]] = {"GPU": {}, "CPU_PINNED": {}}
        self.n_events = 0

    def follow(self, batch: EventBatch | None) -> None:
        for event in batch.events if batch is not None else ():
            self.n_events += 1
            assert not isinstance(event, AllBlocksCleared)
            held = self.held[event.medium]
            if isinstance(event, BlockRemoved):
                for page in event.block_hashes:
                    del held[page]
                continue
            parent = event.parent_block_hash
            for i, page in enumerate(event.block_hashes):
                assert page not in held, "stored twice"
                held[page] = (parent, event.token_ids[i * PAGE_TOKENS : (i + 1) * PAGE_TOKENS])
                parent = page


def assert_believes_what_is_there(router: Router, small: SmallCache, events: CacheEvents) -> None:
    for tier, medium in MEDIUM.items():
        truth = {}
        for namespace, tokens in small.resident(tier).values():
            above = tokens[: -4 * PAGE_TOKENS]
            ids = tuple(np.frombuffer(tokens[-4 * PAGE_TOKENS :], "<u4").tolist())
            truth[hash_of(tokens, namespace)] = (hash_of(above, namespace) if above else None, ids)
        assert router.held[medium] == truth
        assert events.held(tier) == len(truth)


@pytest.mark.parametrize("policy", WritePolicy)
@pytest.mark.parametrize(("host_slots", "with_storage"), [(0, False), (24, False), (24, True)])
def test_a_router_that_follows_the_events_knows_what_device_and_host_hold(
    policy: WritePolicy, host_slots: int, with_storage: bool, tmp_path: Path
) -> None:
    random_ = random.Random(7)
    events, router = CacheEvents(PAGE_TOKENS), Router()
    with SmallCache(
        12, host_slots, tmp_path / "l3" if with_storage else None, write_policy=policy, observer=events
    ) as small:
        for step in range(250):
            head = random_.randrange(3)
            length = random_.randrange(1, 7)
            pages = [head] + [random_.randrange(2) + 2 * depth + 4 for depth in range(length)]
            small.serve(pages, namespace=random_.choice(NAMESPACES))
            if step % 5 == 0:
                router.follow(events.take())
            if step % 50 == 49:
                assert small.cache.drain(30)
                small.cache.check()
                router.follow(events.take())
                assert_believes_what_is_there(router, small, events)
        counters = small.cache.counters
        assert counters.evicted_pages[0] > 0
        if host_slots:
            assert counters.loaded_pages > 0
            assert counters.evicted_pages[1] > 0
        if with_storage:
            assert counters.storage_read_pages > 0
    assert events.orphan_removals == 0
    assert router.n_events > 100


def test_a_page_that_comes_back_from_storage_is_announced_on_host_and_device_with_its_parent(tmp_path: Path) -> None:
    salted = Namespace(cache_salt="tenant")
    with SmallCache(4, 4, tmp_path) as first:
        first.serve([1, 2, 3], namespace=salted)
        first.cache.drain(30)
    events, router = CacheEvents(PAGE_TOKENS), Router()
    with SmallCache(4, 4, tmp_path, observer=events) as again:
        account = again.serve([1, 2, 3, 4], namespace=salted)
        assert account.restored_storage_pages == 3
        again.cache.drain(30)
        router.follow(events.take())
        assert_believes_what_is_there(router, again, events)
        assert len(router.held["CPU_PINNED"]) == 4


def test_events_name_salt_size_and_medium_and_join_a_request_into_one_event() -> None:
    events = CacheEvents(PAGE_TOKENS, attn_dp_rank=3, clock=lambda: 12.5)
    salted = Namespace(cache_salt="tenant")
    with SmallCache(8, 0, observer=events) as small:
        small.serve([1, 2], namespace=salted)
    batch = events.take()
    assert batch is not None
    assert (batch.ts, batch.attn_dp_rank) == (12.5, 3)
    (event,) = batch.events
    assert isinstance(event, BlockStored)
    assert event.block_hashes == (hash_of(tokens_of([1]), salted), hash_of(tokens_of([1, 2]), salted))
    assert (event.parent_block_hash, event.block_size, event.medium, event.cache_salt) == (None, 4, "GPU", "tenant")
    assert event.token_ids == tuple(np.frombuffer(tokens_of([1, 2]), "<u4").tolist())


def test_equal_tokens_in_two_namespaces_are_two_pages_to_a_router() -> None:
    events, router = CacheEvents(PAGE_TOKENS), Router()
    with SmallCache(8, 0, observer=events) as small:
        for namespace in NAMESPACES:
            small.serve([1, 2], namespace=namespace)
        router.follow(events.take())
        assert len(router.held["GPU"]) == 8
        small.serve([3, 4, 5, 6, 7, 8, 9, 10])
        router.follow(events.take())
        assert_believes_what_is_there(router, small, events)


class FailsBackups:
    """A copy backend that fails the backups it is told to."""

    def __init__(self) -> None:
        self._real = make_backend(Backend.CPU, Layout.PAGE_FIRST)
        self.kind = self._real.kind
        self.fail = True

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        self._real.prepare(direction, device_pool, host_pool, n_planes)

    def copy(
        self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, device_slots: Slots,
        host_slots: Slots, planes: range,
    ) -> Submitted:  # fmt: skip
        if self.fail and direction is Direction.BACKUP:
            raise OSError("the link is down")
        return self._real.copy(direction, device_pool, host_pool, device_slots, host_slots, planes)


def test_a_page_whose_backup_failed_is_never_announced_on_the_host() -> None:
    events, router, backend = CacheEvents(PAGE_TOKENS), Router(), FailsBackups()
    with SmallCache(8, 8, observer=events, backend=backend) as small:
        small.serve([1, 2])
        assert small.cache.drain(30)
        router.follow(events.take())
        assert router.held["CPU_PINNED"] == {}
        assert_believes_what_is_there(router, small, events)
        assert events.orphan_removals == 2
        backend.fail = False
        small.serve([1, 2])
        assert small.cache.drain(30)
        router.follow(events.take())
        assert_believes_what_is_there(router, small, events)
        assert len(router.held["CPU_PINNED"]) == 2


def test_what_is_remembered_of_namespaced_pages_goes_with_them() -> None:
    events = CacheEvents(PAGE_TOKENS)
    salted = Namespace(cache_salt="tenant")
    tokens = tokens_of([1, 2])
    keys = page_keys(tokens, PAGE_TOKENS, namespace=salted)
    events.stored(keys, None, tokens, Tier.DEVICE, salted)
    events.stored(keys, None, tokens, Tier.HOST, salted)
    events.removed(keys, Tier.DEVICE)
    assert len(events._named) == 2
    events.removed(keys, Tier.HOST)
    assert len(events._named) == 0
    events.stored(keys, None, tokens, Tier.DEVICE, salted)
    events.cleared()
    assert len(events._named) == 0
    assert events.held(Tier.DEVICE) == 0


def test_the_hash_of_the_default_namespace_is_the_head_of_the_page_key() -> None:
    events = CacheEvents(PAGE_TOKENS)
    tokens = tokens_of([1, 2, 3])
    keys = page_keys(tokens, PAGE_TOKENS)
    events.stored(keys[KEY_BYTES:], keys[:KEY_BYTES], tokens[4 * PAGE_TOKENS :], Tier.DEVICE, DEFAULT_NAMESPACE)
    batch = events.take()
    assert batch is not None
    (event,) = batch.events
    assert isinstance(event, BlockStored)
    assert [event.parent_block_hash, *event.block_hashes] == key64(keys).view(np.int64).tolist()


def test_storage_pages_are_refused_since_no_removal_could_follow() -> None:
    events = CacheEvents(PAGE_TOKENS)
    with pytest.raises(InvariantBroken, match="evicts by itself"):
        events.stored(bytes(32), None, bytes(16), Tier.STORAGE, DEFAULT_NAMESPACE)
    with pytest.raises(InvariantBroken, match="evicts by itself"):
        events.removed(bytes(32), Tier.STORAGE)


def test_a_page_under_an_unknown_parent_in_a_namespace_is_a_bug_that_is_named() -> None:
    events = CacheEvents(PAGE_TOKENS)
    with pytest.raises(InvariantBroken, match="which no tier was told to hold"):
        events.stored(bytes(32), b"\1" * 32, bytes(16), Tier.DEVICE, Namespace(cache_salt="x"))
    assert events.take() is None
