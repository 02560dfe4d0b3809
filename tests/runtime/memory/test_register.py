"""Registrations: chunks that tile a pool on slot boundaries, all of it or none, taken back in reverse order, once."""

from __future__ import annotations

import os
import threading
from itertools import pairwise

from fake_memory import FakeDriver
from hypothesis import assume, given
from hypothesis import strategies as st

from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Layout, PoolMap
from hicachectl.runtime.memory.host_pool import slot_boundary_bytes
from hicachectl.runtime.memory.register import (
    LARGEST_REGISTRATION_BYTES,
    Refusal,
    Registration,
    chunk_edges,
    register,
)

PAGE, HUGE = 4096, 2 << 20


@given(
    n_slots=st.integers(1, 400),
    slot=st.sampled_from([1, 512, 4096, 12288, 73728, 5_750_784, 1_000_000]),
    page=st.sampled_from([PAGE, HUGE]),
    largest=st.sampled_from([HUGE, 64 << 20, 1 << 30, 64 << 30]),
)
def test_chunks_tile_the_pool_exactly_and_end_on_slots_and_pages(
    n_slots: int, slot: int, page: int, largest: int
) -> None:
    mapped = -(-n_slots * slot // page) * page
    edges = chunk_edges(mapped, slot, page, largest)
    assume(edges is not None)
    assert edges is not None
    assert (edges[0], edges[-1]) == (0, mapped)
    sizes = [b - a for a, b in pairwise(edges)]
    assert sum(sizes) == mapped
    assert all(0 < size <= largest for size in sizes)
    assert all(edge % slot == 0 and edge % page == 0 for edge in edges[1:-1])


def test_a_terabyte_pool_of_the_reference_case_is_cut_below_the_largest_registration() -> None:
    geometry = preset("mla-78", 64)
    for layout in Layout:
        slots = (1 << 40) // geometry.page_bytes
        mapped = -(-PoolMap(layout, geometry, slots).n_bytes // HUGE) * HUGE
        edges = chunk_edges(mapped, slot_boundary_bytes(geometry, layout), HUGE, LARGEST_REGISTRATION_BYTES)
        assert edges is not None
        assert len(edges) == 18
        assert all(edge % geometry.chunk_bytes == 0 for edge in edges[1:-1])


def test_a_slot_that_no_chunk_can_end_on_is_not_registered_in_part() -> None:
    assert chunk_edges(1 << 30, slot_bytes=4097 * 4099, page_bytes=PAGE, largest_bytes=1 << 29) is None
    driver = FakeDriver()
    answer = register(
        Registration(driver, 0), 1 << 30, slot_bytes=4097 * 4099, page_bytes=(HUGE, PAGE), largest_bytes=1 << 29
    )
    assert isinstance(answer, str)
    assert "no chunk" in answer
    assert not driver.log


def test_chunks_end_on_huge_pages_where_they_can_else_on_base_pages() -> None:
    driver = FakeDriver()
    assert (
        register(Registration(driver, 0), 40 << 20, slot_bytes=12288, page_bytes=(HUGE, PAGE), largest_bytes=16 << 20)
        is None
    )
    assert all(at % (3 * HUGE) == 0 for at in driver.registered)
    driver = FakeDriver()
    assert (
        register(Registration(driver, 0), 8 << 20, slot_bytes=12288, page_bytes=(HUGE, PAGE), largest_bytes=3 << 20)
        is None
    )
    assert any(at % HUGE for at in driver.registered)
    assert sum(driver.registered.values()) == 8 << 20


def test_a_registration_is_taken_back_in_reverse_and_once() -> None:
    driver = FakeDriver()
    held = Registration(driver, 1 << 20)
    for start in range(0, 40960, 4096):
        assert held.add(start, start + 4096) is None
    assert held.ranges[0] == (0, 4096)
    held.close()
    held.close()
    taken = [at for call, at in driver.log if call == "unregister"]
    assert taken == [(1 << 20) + start for start in range(36864, -1, -4096)]
    assert held.ranges == ()


def test_what_the_driver_refuses_to_take_back_is_told_and_the_rest_is_taken_back() -> None:
    lost = Refusal("cuMemHostUnregister", 999, "UNKNOWN", "")
    gone = Refusal("cuMemHostUnregister", 713, "NOT_REGISTERED", "")
    driver = FakeDriver(lambda call, n: {1: lost, 2: gone}.get(n) if call == "unregister" else None)
    held = Registration(driver, 0)
    for start in (0, 4096, 8192):
        held.add(start, start + 4096)
    assert held.close() == (lost,)
    assert not driver.registered


def test_two_threads_that_close_take_each_range_back_once() -> None:
    driver = FakeDriver()
    held = Registration(driver, 0)
    for start in range(0, 4096 * 200, 4096):
        held.add(start, start + 4096)
    threads = [threading.Thread(target=held.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([1 for call, _ in driver.log if call == "unregister"]) == 200


def test_a_forked_child_leaves_its_parents_registrations_alone() -> None:
    driver = FakeDriver()
    held = Registration(driver, 0)
    held.add(0, 4096)
    held._process = os.getpid() + 1
    assert held.close() == ()
    assert driver.registered
