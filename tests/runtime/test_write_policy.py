"""What a write policy chooses of a path, in small numbers."""

from __future__ import annotations

import pytest

from hicachectl.runtime.write_policy import PathSegment, WritePolicy, choose

THROUGH, SELECTIVE, BACK = WritePolicy


def test_write_through_takes_every_page_from_the_first_that_is_not_backed_up() -> None:
    path = [PathSegment(4, 3, 4, 4), PathSegment(2, 2, 1, 2), PathSegment(3, 1, 0, 3)]
    assert choose(path, THROUGH) == (5, 9)


def test_selective_stops_at_the_first_page_with_too_few_hits() -> None:
    path = [PathSegment(4, 3, 0, 4), PathSegment(2, 2, 0, 2), PathSegment(3, 1, 0, 3)]
    assert choose(path, SELECTIVE) == (0, 6)
    assert choose(path, SELECTIVE, selective_hits=3) == (0, 4)
    assert choose(path, SELECTIVE, selective_hits=4) == (0, 0)


def test_the_ghost_list_reaches_past_the_hits_and_into_the_middle_of_a_segment() -> None:
    path = [PathSegment(4, 2, 0, 4), PathSegment(4, 1, 0, 4)]
    assert choose(path, SELECTIVE, ghost_pages=6) == (0, 6)
    assert choose(path, SELECTIVE, ghost_pages=2) == (0, 4)


def test_write_back_never_chooses_at_a_publish() -> None:
    assert choose([PathSegment(4, 9, 0, 4)], BACK, ghost_pages=4) == (0, 0)


@pytest.mark.parametrize("policy", [THROUGH, SELECTIVE])
def test_a_path_wholly_backed_up_gives_an_empty_range(policy: WritePolicy) -> None:
    start, end = choose([PathSegment(4, 9, 4, 4), PathSegment(2, 9, 2, 2)], policy)
    assert start == end == 6
    assert choose([], policy) == (0, 0)


def test_pages_that_left_the_device_are_not_chosen() -> None:
    assert choose([PathSegment(4, 2, 4, 4), PathSegment(4, 2, 2, 3)], THROUGH) == (6, 7)
