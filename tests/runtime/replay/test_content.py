from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.replay.content import Mismatch, PageContent

# (planes, chunk bytes): less than a word, odd, a word-sized page, the direct path, plane by plane
SHAPES = [(4, 2), (3, 1), (1, 5), (5, 7), (2, 8), (4, 1024), (78, 64), (2, 256 << 10)]


def seeds(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def slots(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def filled(n_planes: int, chunk_bytes: int, n_slots: int = 3) -> tuple[PageContent, np.ndarray]:
    content = PageContent(n_planes, chunk_bytes)
    pool = np.zeros((n_planes, n_slots, chunk_bytes), np.uint8)
    content.fill(pool, slots(*range(n_slots)), seeds(*range(100, 100 + n_slots)))
    return content, pool


@pytest.mark.parametrize(("n_planes", "chunk_bytes"), SHAPES)
def test_what_was_filled_verifies_and_one_page_equals_its_slot(n_planes: int, chunk_bytes: int) -> None:
    content, pool = filled(n_planes, chunk_bytes)
    assert content.first_mismatch(pool, slots(2, 0, 1), seeds(102, 100, 101)) is None
    assert content.page(101).tobytes() == pool[:, 1, :].tobytes()


@pytest.mark.parametrize(("n_planes", "chunk_bytes"), SHAPES)
def test_fill_touches_the_named_slots_only(n_planes: int, chunk_bytes: int) -> None:
    content, pool = filled(n_planes, chunk_bytes)
    before = pool.copy()
    content.fill(pool, slots(1), seeds(7))
    assert (pool[:, [0, 2]] == before[:, [0, 2]]).all()
    assert content.first_mismatch(pool, slots(1), seeds(7)) is None


@settings(deadline=None, max_examples=100)
@given(shape=st.sampled_from(SHAPES), data=st.data())
def test_any_flipped_byte_is_named_by_page_plane_and_offset(shape: tuple[int, int], data: st.DataObject) -> None:
    n_planes, chunk_bytes = shape
    content, pool = filled(n_planes, chunk_bytes)
    slot, plane = data.draw(st.integers(0, 2)), data.draw(st.integers(0, n_planes - 1))
    offset, flip = data.draw(st.integers(0, chunk_bytes - 1)), data.draw(st.integers(1, 255))
    want = int(pool[plane, slot, offset])
    pool[plane, slot, offset] ^= flip
    got = content.first_mismatch(pool, slots(2, 1, 0), seeds(102, 101, 100))
    assert got == Mismatch(2 - slot, slot, plane, offset, want, want ^ flip)


def test_the_first_wrong_byte_is_first_by_page_then_plane_then_offset() -> None:
    content, pool = filled(4, 1024)
    pool[3, 0, 5] ^= 1
    pool[1, 0, 900] ^= 1
    pool[0, 2, 0] ^= 1
    found = content.first_mismatch(pool, slots(1, 0, 2), seeds(101, 100, 102))
    assert found is not None
    assert (found.page, found.plane, found.offset) == (1, 1, 900)


@pytest.mark.parametrize(("n_planes", "chunk_bytes"), [(4, 1024), (5, 7), (78, 64), (4, 2)])
def test_planes_taken_for_one_another_do_not_verify(n_planes: int, chunk_bytes: int) -> None:
    content, pool = filled(n_planes, chunk_bytes)
    for plane in range(1, n_planes):
        mixed = pool.copy()
        mixed[[0, plane]] = pool[[plane, 0]]
        assert content.first_mismatch(mixed, slots(0, 1, 2), seeds(100, 101, 102)) is not None


def test_pages_taken_for_one_another_do_not_verify() -> None:
    for n_planes, chunk_bytes in SHAPES:
        content, pool = filled(n_planes, chunk_bytes)
        assert content.first_mismatch(pool, slots(1), seeds(100)) is not None


def test_bytes_moved_inside_a_chunk_do_not_verify() -> None:
    content, pool = filled(4, 1024)
    for shift in (1, 2, 8, 64, 512):
        moved = np.roll(pool, shift, axis=2)
        assert content.first_mismatch(moved, slots(0), seeds(100)) is not None


def test_no_two_words_of_a_page_are_equal() -> None:
    words = PageContent(4, 1 << 14).page(12345).view(np.uint64)
    assert len(np.unique(words)) == len(words)


def test_seeds_that_differ_in_one_bit_differ_in_every_word() -> None:
    content = PageContent(2, 64)
    for bit in range(64):
        assert (content.page(0).view(np.uint64) != content.page(1 << bit).view(np.uint64)).all()


def test_a_strided_view_of_another_layout_fills_and_verifies() -> None:
    content = PageContent(4, 1024)
    page_first = np.zeros((3, 4, 1024), np.uint8)
    content.fill(page_first.transpose(1, 0, 2), slots(2), seeds(5))
    assert page_first[2].tobytes() == content.page(5).tobytes()
    scattered = np.zeros((4, 3, 1024, 2), np.uint8)[:, :, :, 0]
    content.fill(scattered, slots(1), seeds(5))
    assert content.first_mismatch(scattered, slots(1), seeds(5)) is None
    scattered[2, 1, 17] ^= 8
    found = content.first_mismatch(scattered, slots(1), seeds(5))
    assert found is not None
    assert (found.plane, found.offset) == (2, 17)


def test_temporaries_stay_below_a_few_pages() -> None:
    content, pool = filled(4, 1 << 16, n_slots=8)
    every, keys = slots(*range(8)), seeds(*range(100, 108))
    tracemalloc.start()
    try:
        content.fill(pool, every, keys)
        content.first_mismatch(pool, every, keys)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * content.page_bytes


def test_no_pages_is_no_work_and_no_mismatch() -> None:
    content, pool = filled(4, 2)
    content.fill(pool, slots(), seeds())
    assert content.first_mismatch(pool, slots(), seeds()) is None


def test_a_pool_of_another_shape_or_slots_outside_it_are_refused() -> None:
    content, pool = filled(4, 8)
    for wrong in (pool[:3], pool[:, :, :4], pool.view(np.int8)):
        with pytest.raises(InvariantBroken):
            content.fill(wrong, slots(0), seeds(1))
    for bad in (slots(3), slots(-1)):
        with pytest.raises(InvariantBroken):
            content.fill(pool, bad, seeds(1))
    with pytest.raises(InvariantBroken):
        content.first_mismatch(pool, slots(0, 1), seeds(1))
