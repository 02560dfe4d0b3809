"""The bounded table against an ordered dictionary that does the same, slowly."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.keytable import KeyTable

# Few distinct keys, many of them with one home cell in a small table, and the extremes.
keys = st.one_of(st.integers(0, 12), st.integers(0, 6).map(lambda n: n << 40), st.sampled_from([2**64 - 1, 2**63]))
batches = st.lists(keys, max_size=9)
steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "discard", "clear"]), batches, st.integers(1, 255)), max_size=30
)


def u64(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


class Model:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: OrderedDict[int, int] = OrderedDict()

    def add(self, batch: list[int], flags: int) -> int:
        before = set(self.entries)
        for key in batch:
            self.entries[key] = self.entries.get(key, 0) | flags
        dropped = max(0, len(self.entries) - self.capacity)
        for _ in range(dropped):
            self.entries.popitem(last=False)
        assert dropped >= len(before - set(self.entries))
        return dropped

    def discard(self, batch: list[int]) -> int:
        return sum(self.entries.pop(key, None) is not None for key in batch)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9), steps)
def test_any_sequence_of_operations_equals_the_model(capacity: int, sequence: list[tuple[str, list[int], int]]) -> None:
    table, model = KeyTable(capacity), Model(capacity)
    for verb, batch, flags in sequence:
        if verb == "add":
            assert table.add(u64(batch), flags) == model.add(batch, flags)
        elif verb == "discard":
            assert table.discard(u64(batch)) == model.discard(batch)
        else:
            table.clear()
            model.entries.clear()
        table.check()
        assert len(table) == len(model.entries)
        assert table.keys().tolist() == list(model.entries)
        asked = u64([*range(13), *(n << 40 for n in range(7)), 2**64 - 1, 2**63])
        assert table.flags(table.find(asked)).tolist() == [model.entries.get(k, 0) for k in asked.tolist()]


def test_a_long_random_run_in_a_full_table_equals_the_model() -> None:
    rng = np.random.default_rng(7)
    table, model = KeyTable(500), Model(500)
    universe = rng.integers(0, 2**64, 1500, dtype=np.uint64)
    for step in range(400):
        batch = rng.choice(universe, rng.integers(0, 60))
        if step % 3 == 2:
            assert table.discard(batch) == model.discard(batch.tolist())
        else:
            assert table.add(batch, 1) == model.add(batch.tolist(), 1)
    table.check()
    assert table.keys().tolist() == list(model.entries)


def test_batches_that_leave_together_keep_their_order_whatever_numbers_they_have() -> None:
    rng = np.random.default_rng(3)
    table, model = KeyTable(5000), Model(5000)
    rows: list[int] = []
    for step in range(60):
        batch = rng.integers(0, 2**64, int(rng.choice([1, 30, 300, 2500])), dtype=np.uint64)
        assert table.add(batch, 1) == model.add(batch.tolist(), 1)
        if step % 4 == 3:
            gone = rng.choice(np.array(list(model.entries), dtype=np.uint64), 40)
            assert table.discard(gone) == model.discard(gone.tolist())
        assert table.keys().tolist() == list(model.entries)
        numbers = table.find(u64(list(model.entries))).astype(np.int64)
        rows += np.diff(numbers).tolist()
    table.check()
    assert min(rows.count(1), rows.count(-1), sum(abs(row) > 1 for row in rows)) > 1000, "rows up, down and broken"


def test_find_does_not_modify() -> None:
    table = KeyTable(4)
    table.add(u64([1, 2, 3]))
    before = table.keys().tolist()
    table.find(u64([3, 9, 1, 1]))
    assert table.keys().tolist() == before
    table.check()


def test_of_a_batch_longer_than_the_table_the_last_stay() -> None:
    table = KeyTable(3)
    table.add(u64([100]))
    assert table.add(u64([1, 2, 3, 4, 5])) == 3
    assert table.keys().tolist() == [3, 4, 5]


@pytest.mark.parametrize("capacity", [1, 1000, 1024, 1025, 100_000])
def test_an_entry_costs_at_most_53_bytes_and_nothing_grows(capacity: int) -> None:
    tracemalloc.start()
    try:
        table = KeyTable(capacity)
        empty, _ = tracemalloc.get_traced_memory()
        for start in range(0, 2 * capacity, 4096):
            table.add(np.arange(start, start + 4096, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        full, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.nbytes <= 53 * capacity
    assert full - empty < 2048
    assert empty <= 53 * capacity + 4096


def test_impossible_sizes_and_flags_are_refused() -> None:
    for capacity in (0, -1, 1 << 40):
        with pytest.raises(UsageError):
            KeyTable(capacity)
    for flags in (0, 256):
        with pytest.raises(UsageError):
            KeyTable(1).add(u64([1]), flags)


def test_check_names_a_lost_entry() -> None:
    table = KeyTable(4)
    table.add(u64([1, 2]))
    table._cells[:] = 0
    with pytest.raises(InvariantBroken):
        table.check()
