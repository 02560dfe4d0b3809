"""Laws of the index: bytes balance after every step, the order is least recently used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.storage.file_index import FileIndex

CAPACITY = 20
STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 9), st.integers(1, 8)),
    st.tuples(st.just("abort"), st.integers(0, 9), st.integers(1, 8)),
    st.tuples(st.just("observe"), st.integers(0, 9), st.integers(1, 8)),
    st.tuples(st.just("forget"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("touch"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("stuck"), st.just(0), st.just(0)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_random_operations_equal_a_plain_list(steps: list[tuple[str, int, int]]) -> None:
    index = FileIndex(CAPACITY)
    model: list[tuple[str, int]] = []  # oldest first

    def drop(name: str) -> None:
        model[:] = [item for item in model if item[0] != name]

    for what, i, n_bytes in steps:
        name = f"o{i}"
        if what in ("write", "abort"):
            while not index.reserve(n_bytes):
                victim = index.begin_evict()
                assert victim == model.pop(0)[0]
                index.end_evict(victim, removed=True)
            if what == "write":
                drop(name)
                model.append((name, n_bytes))
                index.commit(name, n_bytes, 0.0)
            else:
                index.abort(n_bytes)
        elif what == "observe":
            drop(name)
            model.append((name, n_bytes))
            index.add(name, n_bytes, 0.0)
        elif what == "forget":
            assert index.forget(name) == any(item[0] == name for item in model)
            drop(name)
        elif what == "touch":
            index.touch([name])
            model.sort(key=lambda item: item[0] == name)
        elif model:
            victim = index.begin_evict()
            assert victim is not None
            index.end_evict(victim, removed=False)
            model.append(model.pop(0))
        index.check()
        assert len(index) == len(model)
        assert index.used_bytes == sum(n for _, n in model)
        assert index.used_bytes + index.free_bytes == CAPACITY
    order = []
    while (victim := index.begin_evict()) is not None:
        index.end_evict(victim, removed=True)
        order.append(victim)
    assert order == [name for name, _ in model]


def test_bytes_of_an_object_being_removed_stay_counted_until_it_is_gone() -> None:
    index = FileIndex(10)
    assert index.reserve(10)
    index.commit("a", 10, 0.0)
    victim = index.begin_evict()
    assert victim == "a"
    assert not index.reserve(1)
    index.end_evict(victim, removed=True)
    assert index.reserve(10)


def test_the_oldest_goes_that_is_not_kept() -> None:
    index = FileIndex(10)
    index.add("a", 5, 0.0)
    index.add("b", 5, 0.0)
    assert index.begin_evict(keep={"a", "b"}) is None
    assert index.begin_evict(keep={"a"}) == "b"
    assert index.begin_evict(keep={"b"}) == "a"


def test_giving_back_more_than_was_reserved_is_a_bug() -> None:
    index = FileIndex(10)
    index.reserve(3)
    with pytest.raises(InvariantBroken, match="4 bytes given back of 3 reserved"):
        index.abort(4)


def test_check_shows_both_sides() -> None:
    index = FileIndex(10)
    index.add("a", 5, 0.0)
    index.used_bytes = 7
    with pytest.raises(InvariantBroken, match=r"entries hold 5 \+ 0 leaving bytes, counted are 7 \+ 0"):
        index.check()
