"""KV events: what a router believes must be what the cache holds, and the bytes must be SGLang's."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.runtime.events import (
    MEDIUM_OF_TIER,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    EventLog,
    Medium,
)
from hicachectl.runtime.keys import Namespace

PAGE = 2

# Recorded from msgspec 0.23.0 with the event classes of SGLang 0.5.23.
GOLDEN = bytes.fromhex(
    "93cb41d954fc402000009487a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392fecf7fffffffff"
    "ffffffb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473940102cd012cce00011170aa626c6f636b5f"
    "73697a6502a76c6f72615f6964c0a66d656469756da34750558aa474797065ab426c6f636b53746f726564ac626c6f636b5f"
    "6861736865739105b1706172656e745f626c6f636b5f68617368fea9746f6b656e5f69647392ceffffffff00aa626c6f636b"
    "5f73697a6502a76c6f72615f6964c0a66d656469756daa4350555f50494e4e4544aa63616368655f73616c74a674656e616e"
    "74aa73657373696f6e5f6964a27331a96c6f72615f6e616d65a16c83a474797065ac426c6f636b52656d6f766564ac626c6f"
    "636b5f68617368657391fea66d656469756da44449534b81a474797065b0416c6c426c6f636b73436c6561726564c0"
)
BATCH = EventBatch(
    1700000000.5,
    (
        BlockStored((-2, 2**63 - 1), None, (1, 2, 300, 70000), 2, medium="GPU"),
        BlockStored(
            (5,), -2, (4294967295, 0), 2, medium="CPU_PINNED", cache_salt="tenant", session_id="s1", lora_name="l"
        ),
        BlockRemoved((-2,), "DISK"),
        AllBlocksCleared(),
    ),
)


def i64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def tokens_of(*values: int) -> bytes:
    return b"".join(np.array([value, value + 1000], dtype="<u4").tobytes() for value in values)


def store(log: EventLog, *values: int, parent: int | None = None, medium: Medium = Medium.GPU, **more: object) -> None:
    log.stored(i64(*values), parent=parent, tokens=tokens_of(*values), medium=medium, **more)  # type: ignore[arg-type]


class Router:
    """What a router would believe; refuses what a router must never be told."""

    def __init__(self) -> None:
        self.held: dict[str | None, set[int]] = {}

    def follow(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.held.clear()
                continue
            held = self.held.setdefault(event.medium, set())
            hashes = set(event.block_hashes)
            assert len(hashes) == len(event.block_hashes)
            if isinstance(event, BlockStored):
                assert not held & hashes, "stored twice"
                assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                assert list(event.token_ids[::PAGE]) == list(event.block_hashes), "tokens of other pages"
                held |= hashes
            else:
                assert hashes <= held, "removed, never stored"
                held -= hashes


runs = st.tuples(st.integers(0, 15), st.integers(0, 6)).map(lambda r: list(range(r[0], r[0] + r[1])))
steps = st.lists(
    st.tuples(st.sampled_from(["store", "store", "remove", "clear", "take"]), runs, st.sampled_from(Medium)),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
def test_a_router_that_follows_the_events_knows_what_each_medium_holds(
    sequence: list[tuple[str, list[int], Medium]],
) -> None:
    log, router = EventLog(PAGE), Router()
    truth: dict[Medium, set[int]] = {medium: set() for medium in Medium}
    for verb, values, medium in sequence:
        if verb == "store":
            store(log, *values, parent=values[0] - 1 if values and values[0] else None, medium=medium)
            truth[medium] |= set(values)
        elif verb == "remove":
            log.removed(i64(*values), medium=medium)
            truth[medium] -= set(values)
        elif verb == "clear":
            log.cleared()
            truth = {medium: set() for medium in Medium}
        else:
            router.follow(log.take())
    router.follow(log.take())
    assert {medium: router.held.get(medium.value, set()) for medium in Medium} == truth
    assert all(log.held(medium) == len(held) for medium, held in truth.items())


def test_a_page_stored_twice_is_announced_once_and_counted() -> None:
    log = EventLog(PAGE)
    store(log, 1, 2)
    store(log, 1, 2)
    (event,) = log.take()
    assert isinstance(event, BlockStored)
    assert event.block_hashes == (1, 2)
    assert log.double_stores == 2


def test_a_page_never_stored_is_not_removed_and_counted() -> None:
    log = EventLog(PAGE)
    store(log, 1, medium=Medium.GPU)
    log.take()
    log.removed(i64(1), medium=Medium.CPU_PINNED)
    log.removed(i64(9), medium=Medium.GPU)
    assert log.take() == ()
    assert log.orphan_removals == 2


def test_what_a_medium_already_holds_splits_a_store_and_keeps_the_parents() -> None:
    log = EventLog(PAGE)
    store(log, 3, parent=2)
    log.take()
    store(log, 1, 2, 3, 4, 5, parent=None)
    first, second = log.take()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.block_hashes, first.parent_block_hash) == ((1, 2), None)
    assert (second.block_hashes, second.parent_block_hash) == ((4, 5), 3)
    assert second.token_ids == (4, 1004, 5, 1005)


def test_neighbouring_stores_of_one_chain_become_one_event() -> None:
    log = EventLog(PAGE)
    store(log, 1, 2)
    store(log, 3, parent=2)
    store(log, 7, parent=1)
    joined, other = log.take()
    assert isinstance(joined, BlockStored)
    assert joined.block_hashes == (1, 2, 3)
    assert isinstance(other, BlockStored)
    assert other.parent_block_hash == 1


def test_stores_of_different_media_or_namespaces_stay_apart() -> None:
    log = EventLog(PAGE)
    store(log, 1, namespace=Namespace(None, "a"))
    store(log, 2, parent=1, namespace=Namespace(None, "b"))
    store(log, 3, parent=2, namespace=Namespace(None, "b"), medium=Medium.DISK)
    events = log.take()
    assert [(e.cache_salt, e.medium) for e in events if isinstance(e, BlockStored)] == [
        ("a", "GPU"),
        ("b", "GPU"),
        ("b", "DISK"),
    ]


def test_neighbouring_removals_of_one_medium_become_one_event() -> None:
    log = EventLog(PAGE)
    store(log, 1, 2)
    store(log, 1, medium=Medium.DISK)
    log.take()
    log.removed(i64(2), medium=Medium.GPU)
    log.removed(i64(1), medium=Medium.GPU)
    log.removed(i64(1), medium=Medium.DISK)
    assert log.take() == (BlockRemoved((2, 1), "GPU"), BlockRemoved((1,), "DISK"))


def test_a_page_may_come_back_after_it_left() -> None:
    log, router = EventLog(PAGE), Router()
    store(log, 1)
    log.removed(i64(1), medium=Medium.GPU)
    store(log, 1)
    router.follow(log.take())
    assert router.held["GPU"] == {1}


def test_taking_forgets_the_events_and_not_what_is_held() -> None:
    log = EventLog(PAGE)
    store(log, 1)
    assert len(log.take()) == 1
    assert log.take() == ()
    assert log.held(Medium.GPU) == 1


def test_nothing_is_forgotten_however_many_pages_are_held() -> None:
    log = EventLog(1)
    n = 5000
    for start in range(0, n, 500):
        hashes = np.arange(start, start + 500, dtype=np.int64)
        log.stored(hashes, parent=None, tokens=hashes.astype("<u4").tobytes(), medium=Medium.DISK)
    assert log.held(Medium.DISK) == n
    log.removed(np.arange(n, dtype=np.int64), medium=Medium.DISK)
    assert log.held(Medium.DISK) == 0
    assert log.orphan_removals == 0


def test_later_changes_to_the_arrays_do_not_change_the_events() -> None:
    log = EventLog(PAGE)
    hashes = i64(1)
    log.stored(hashes, parent=None, tokens=tokens_of(1), medium=Medium.GPU)
    hashes[0] = 99
    assert log.take()[0] == BlockStored((1,), None, (1, 1001), PAGE, medium="GPU")


def test_tokens_of_other_length_are_refused_and_change_nothing() -> None:
    log = EventLog(PAGE)
    with pytest.raises(UsageError, match="8 bytes of tokens for 2 pages"):
        log.stored(i64(1, 2), parent=None, tokens=bytes(8), medium=Medium.GPU)
    assert log.take() == ()
    assert log.held(Medium.GPU) == 0


def test_a_batch_encodes_to_the_bytes_of_sglang() -> None:
    pytest.importorskip("msgpack")
    assert BATCH.encode() == GOLDEN


def test_the_rank_is_always_on_the_wire() -> None:
    msgpack = pytest.importorskip("msgpack")
    assert msgpack.unpackb(EventBatch(1.0, ()).encode()) == [1.0, [], None]
    assert msgpack.unpackb(EventBatch(1.0, (), 3).encode()) == [1.0, [], 3]


def test_without_msgpack_encoding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(UsageError) as caught:
        BATCH.encode()
    assert caught.value.hint == "pip install msgpack"


def test_the_media_of_the_three_tiers() -> None:
    assert [medium.value for medium in MEDIUM_OF_TIER] == ["GPU", "CPU_PINNED", "DISK"]
