"""A wait for threads that Ctrl-C does not break off."""

from __future__ import annotations

import threading

import pytest
from fakes.interrupted import Interrupted

from hicachectl.runtime.thread_ends import wait_through


def test_it_says_whether_all_ended_in_time() -> None:
    ended, running = threading.Event(), threading.Event()
    ended.set()
    assert wait_through([ended])
    assert wait_through([])
    assert not wait_through([ended, running], timeout_s=0.01)
    assert wait_through([ended], timeout_s=0)


def test_the_first_interrupt_is_raised_when_all_have_ended() -> None:
    told: list[int] = []
    first = Interrupted(2, lambda: first.set())
    second = Interrupted(1, lambda: second.set())
    with pytest.raises(KeyboardInterrupt) as raised:
        wait_through([first, second], lambda: told.append(first.left))
    assert raised.value.args == (1,)
    assert told == [1, 0, 0]
    assert first.is_set()
    assert second.is_set()


def test_an_interrupt_is_raised_also_when_the_time_is_over() -> None:
    with pytest.raises(KeyboardInterrupt):
        wait_through([Interrupted(1, lambda: None)], timeout_s=0.01)
