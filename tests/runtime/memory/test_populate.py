"""Populating: every byte once, by all threads, and no thread left behind whatever happens."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from itertools import pairwise

import pytest
from fake_memory import MIB, FakeKernel

from hicachectl.runtime.memory.populate import populate, threads_for

AT = 1 << 40


class Counting(FakeKernel):
    """Remembers the ranges populated."""

    def __init__(self, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.ranges: list[tuple[int, int]] = []

    def _populate(self, address: int, n_bytes: int) -> None:
        self.ranges.append((address, address + n_bytes))


def left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hicache-populate")]


@pytest.mark.parametrize("n_bytes", [4096, 64 * MIB, 65 * MIB, 1000 * MIB])
@pytest.mark.parametrize("n_threads", [1, 5])
def test_slices_tile_the_range_whatever_the_number_of_threads(n_bytes: int, n_threads: int) -> None:
    kernel = Counting()
    done = populate(kernel, AT, n_bytes, 2 * MIB, n_threads=n_threads)
    ranges = sorted(kernel.ranges)[1:]  # the first page is tried before the threads start
    assert (ranges[0][0], ranges[-1][1]) == (AT, AT + n_bytes)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert (done.n_bytes, done.error) == (n_bytes, None)
    assert not left()


def test_a_kernel_without_the_advice_gets_zeros_written_and_the_method_is_told() -> None:
    def old(call: str) -> None:
        if call == "populate":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), call)

    kernel = Counting(refuse=old)
    done = populate(kernel, AT, 100 * MIB, 2 * MIB, n_threads=2)
    assert done.n_bytes == 100 * MIB
    assert done.method.startswith("zeros written")
    assert kernel.calls.count("touch") == 2


@pytest.mark.parametrize("at", [1, 2, 4])
def test_the_first_refusal_ends_it_and_is_returned(at: int) -> None:
    calls: list[str] = []
    number = itertools.count(1)  # next() of it is one step, whatever the threads do

    def full(call: str) -> None:
        calls.append(call)
        if next(number) >= at:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), call)

    done = populate(Counting(refuse=full), AT, 1000 * MIB, 2 * MIB, n_threads=3)
    assert done.error is not None
    assert done.error.errno == errno.ENOMEM
    assert done.n_bytes == max(0, at - 2) * 64 * MIB
    assert len(calls) <= at + 3
    assert not left()


def test_an_exception_in_a_thread_reaches_the_caller() -> None:
    def odd(call: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        populate(Counting(refuse=odd), AT, 100 * MIB, 2 * MIB, n_threads=2)
    assert not left()


def test_threads_run_on_the_nodes_in_turn_and_say_where_they_could_not() -> None:
    asked: list[int] = []

    def narrow(node: int) -> str | None:
        asked.append(node)
        return "node 1 has no CPU" if node == 1 else None

    done = populate(Counting(), AT, 1000 * MIB, 2 * MIB, n_threads=4, nodes=(0, 1), narrow=narrow)
    assert sorted(asked) == [0, 0, 1, 1]
    assert done.unbound == "node 1 has no CPU"
    assert done.n_bytes == 1000 * MIB


def test_the_callers_own_affinity_is_not_touched() -> None:
    before = os.sched_getaffinity(0)
    populate(Counting(), AT, 1000 * MIB, 2 * MIB, n_threads=2, nodes=(0,))
    assert os.sched_getaffinity(0) == before


def test_no_more_threads_than_slices_or_processors() -> None:
    assert threads_for(1, n_cpus=64) == 1
    assert threads_for(1 << 40, n_cpus=3) == 3
    assert threads_for(1 << 40) >= 1
