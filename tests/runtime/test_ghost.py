"""The ghost list: the deepest page remembered, first in first out, no allocation an entry."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.runtime.ghost import GhostList

small = st.lists(st.integers(0, 20), max_size=8)


def u64(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(st.tuples(st.booleans(), small, small), max_size=20))
def test_the_deepest_found_is_that_of_an_exact_list(
    capacity: int, steps: list[tuple[bool, list[int], list[int]]]
) -> None:
    ghost, model = GhostList(capacity), OrderedDict[int, None]()
    for adding, batch, request in steps:
        if adding:
            ghost.add(u64(batch))
            model.update((key, None) for key in batch)
            while len(model) > capacity:
                model.popitem(last=False)
        else:
            assert ghost.discard(u64(batch)) == sum(key in model for key in set(batch))
            for key in batch:
                model.pop(key, None)
        found = [index for index, key in enumerate(request) if key in model]
        assert ghost.deepest(u64(request)) == (found[-1] if found else None)
        assert len(ghost) == len(model) <= ghost.capacity


def test_the_first_page_is_found_as_index_0_and_no_page_as_none() -> None:
    ghost = GhostList(4)
    assert ghost.deepest(u64([1])) is None
    ghost.add(u64([1]))
    assert ghost.deepest(u64([1, 2])) == 0
    assert ghost.deepest(u64([])) is None


def test_adding_again_does_not_make_a_page_younger() -> None:
    ghost = GhostList(2)
    for key in (1, 2, 1, 3):
        ghost.add(u64([key]))
    assert [ghost.deepest(u64([key])) for key in (1, 2, 3)] == [None, 0, 0]


@pytest.mark.parametrize("capacity", [1, 100, 65_537])
def test_an_entry_costs_at_most_64_bytes(capacity: int) -> None:
    ghost = GhostList(capacity)
    ghost.add(np.arange(capacity, dtype=np.uint64))
    assert len(ghost) == capacity
    assert ghost.nbytes <= 64 * capacity
