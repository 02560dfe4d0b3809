from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.memory.slots import Order, SlotAllocator, n_runs, paired_runs, runs

ORDERS: tuple[Order, ...] = ("lifo", "fifo")


def slots_of(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def take(allocator: SlotAllocator, n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    slots = allocator.alloc(n)
    assert slots is not None
    return slots


@pytest.mark.parametrize("order", ORDERS)
def test_a_new_pool_hands_out_ascending_slots_of_int32(order: Order) -> None:
    allocator = SlotAllocator(8, order=order)
    first, second = take(allocator, 3), take(allocator, 2)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [3, 4])
    assert first.dtype == np.int32


@pytest.mark.parametrize("order", ORDERS)
def test_alloc_gives_all_or_nothing(order: Order) -> None:
    allocator = SlotAllocator(4, order=order)
    take(allocator, 3)
    assert allocator.alloc(2) is None
    assert (allocator.n_free, allocator.n_used) == (1, 3)
    assert take(allocator, 1).tolist() == [3]
    assert allocator.alloc(1) is None
    allocator.check()


def test_alloc_of_none_is_empty_and_of_less_is_refused() -> None:
    allocator = SlotAllocator(4)
    assert take(allocator, 0).tolist() == []
    with pytest.raises(InvariantBroken):
        allocator.alloc(-1)


def test_lifo_hands_out_the_most_recently_freed_and_fifo_the_longest_free() -> None:
    for order, expected in (("lifo", 5), ("fifo", 2)):
        allocator = SlotAllocator(6, order=order)  # type: ignore[arg-type]
        take(allocator, 6)
        allocator.free(slots_of(2))
        allocator.free(slots_of(0))
        allocator.free(slots_of(5))
        assert take(allocator, 1).tolist() == [expected]


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_near_the_front_is_preferred_to_scattered_slots(order: Order) -> None:
    allocator = SlotAllocator(40, order=order)
    take(allocator, 40)
    if order == "lifo":
        allocator.free(slots_of(30, 31, 32, 33))
        allocator.free(slots_of(1, 7, 20))
    else:
        allocator.free(slots_of(1, 7, 20))
        allocator.free(slots_of(30, 31, 32, 33))
    assert take(allocator, 4).tolist() == [30, 31, 32, 33]
    assert sorted(take(allocator, 3).tolist()) == [1, 7, 20]
    allocator.check()


@pytest.mark.parametrize("order", ORDERS)
def test_pages_freed_tail_to_head_one_by_one_come_back_as_one_run(order: Order) -> None:
    allocator = SlotAllocator(32, order=order)
    take(allocator, 32)
    for slot in (19, 18, 17, 16, 3, 2, 1, 0):
        allocator.free(slots_of(slot))
    assert n_runs(take(allocator, 4)) == 1
    assert n_runs(take(allocator, 4)) == 1


@pytest.mark.parametrize("order", ORDERS)
def test_without_a_run_the_next_slots_in_list_order_go_out(order: Order) -> None:
    allocator = SlotAllocator(10, order=order)
    take(allocator, 10)
    allocator.free(slots_of(0, 4, 8, 2, 6))
    assert take(allocator, 3).tolist() == ([2, 6, 8] if order == "lifo" else [0, 4, 8])


@pytest.mark.parametrize("order", ORDERS)
def test_freeing_twice_names_the_slots_and_changes_nothing(order: Order) -> None:
    allocator = SlotAllocator(8, order=order, name="host")
    slots = take(allocator, 4)
    allocator.free(slots[2:3])
    with pytest.raises(InvariantBroken, match=r"\[2\]") as caught:
        allocator.free(slots)
    assert caught.value.where == "host slots"
    assert allocator.n_used == 3
    allocator.check()


def test_freeing_a_slot_never_handed_out_names_it() -> None:
    allocator = SlotAllocator(8)
    take(allocator, 2)
    with pytest.raises(InvariantBroken, match=r"\[5, 7\]"):
        allocator.free(slots_of(0, 5, 7))
    assert allocator.n_used == 2


def test_listing_a_slot_twice_in_one_free_names_it() -> None:
    allocator = SlotAllocator(8)
    take(allocator, 4)
    with pytest.raises(InvariantBroken, match=r"\[3\] twice"):
        allocator.free(slots_of(3, 1, 3))
    assert allocator.n_used == 4
    allocator.check()


@pytest.mark.parametrize("bad", [-1, 8])
def test_freeing_outside_the_pool_names_the_slot(bad: int) -> None:
    allocator = SlotAllocator(8)
    take(allocator, 8)
    with pytest.raises(InvariantBroken, match=rf"\[{bad}\] outside \[0, 8\)"):
        allocator.free(slots_of(0, bad))
    assert allocator.n_used == 8


def test_slots_must_be_one_dimension_of_int32() -> None:
    allocator = SlotAllocator(8)
    take(allocator, 8)
    with pytest.raises(InvariantBroken, match="int64"):
        allocator.free(np.array([1], dtype=np.int64))  # type: ignore[arg-type]


def test_free_does_not_modify_the_slots_given() -> None:
    allocator = SlotAllocator(8)
    take(allocator, 8)
    slots = slots_of(5, 1, 3)
    allocator.free(slots)
    assert slots.tolist() == [5, 1, 3]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(4))
def test_slots_out_and_slots_free_make_up_the_capacity_after_every_step(order: Order, seed: int) -> None:
    rng = np.random.default_rng(seed)
    allocator = SlotAllocator(64, order=order)
    held: list[int] = []
    for _ in range(600):
        if rng.random() < 0.5:
            n = int(rng.integers(0, 20))
            slots = allocator.alloc(n)
            assert (slots is None) == (n > 64 - len(held))
            if slots is not None:
                got = slots.tolist()
                assert len(set(got)) == n
                assert got == sorted(got)
                assert not set(got) & set(held)
                held += got
        elif held:
            rng.shuffle(held)
            n = int(rng.integers(1, len(held) + 1))
            allocator.free(slots_of(*held[:n]))
            held = held[n:]
        assert allocator.n_used == len(held)
        assert allocator.is_used(np.arange(64, dtype=np.int32)).sum() == len(held)
        allocator.check()


def test_check_shows_both_sides_when_the_bitmap_and_the_free_list_disagree() -> None:
    allocator = SlotAllocator(8)
    take(allocator, 3)
    allocator._used[1] = False
    with pytest.raises(InvariantBroken, match=r"free 5 \+ handed out 2 = 7, capacity 8.*neither \[1\]"):
        allocator.check()


def test_check_finds_a_slot_twice_in_the_free_list() -> None:
    allocator = SlotAllocator(8)
    slots = allocator.alloc(8)
    assert slots is not None
    allocator.free(slots)
    allocator._list[0] = allocator._list[1]
    with pytest.raises(InvariantBroken, match="8 entries but 7 different"):
        allocator.check()


def test_an_allocator_with_everything_handed_out_takes_a_byte_a_slot() -> None:
    allocator = SlotAllocator(100_000)
    slots = allocator.alloc(100_000)
    assert slots is not None
    assert allocator.nbytes < 1.01 * 100_000
    allocator.free(slots)
    assert allocator.nbytes <= 5.01 * 100_000
    assert allocator.alloc(100_000) is not None
    assert allocator.nbytes < 1.01 * 100_000


def test_slots_never_handed_out_go_out_after_those_freed_and_before_none_is_left() -> None:
    allocator = SlotAllocator(8)
    first = allocator.alloc(3)
    assert first is not None
    allocator.free(first[1:2])
    assert allocator.alloc(1) == np.array([1])
    allocator.free(first)
    rest = allocator.alloc(8)
    assert rest is not None
    assert sorted(rest.tolist()) == list(range(8))
    assert allocator.alloc(1) is None
    allocator.check()


def test_a_pool_without_slots_or_with_an_unknown_order_is_refused() -> None:
    with pytest.raises(UsageError, match="0 slots"):
        SlotAllocator(0)
    with pytest.raises(UsageError, match="'random'"):
        SlotAllocator(4, order="random")  # type: ignore[arg-type]


def test_runs_are_half_open_and_cover_the_slots_in_order() -> None:
    slots = slots_of(4, 5, 6, 9, 1, 2)
    assert runs(slots).tolist() == [[4, 7], [9, 10], [1, 3]]
    assert n_runs(slots) == 3
    assert runs(slots_of()).tolist() == []
    assert n_runs(slots_of()) == 0


def test_paired_runs_end_where_either_side_ends() -> None:
    assert paired_runs(slots_of(4, 5, 6, 7), slots_of(0, 1, 7, 8)).tolist() == [[4, 0, 2], [6, 7, 2]]
    assert paired_runs(slots_of(), slots_of()).tolist() == []
    assert paired_runs(slots_of(3), slots_of(9)).tolist() == [[3, 9, 1]]
