"""Signals that wait: work that may not be left half done asks between its steps, also when the terminal is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from hicachectl.interrupt import Terminated, asked_to_stop, stop_error, terminable


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_named_and_raises_nothing_while_the_work_goes_on(first: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with asked_to_stop() as stop:
        assert stop() is None
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop() == first.name
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_ends_on_either_signal_and_says_which(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(Terminated) as caught, terminable():
        os.kill(os.getpid(), number)
    assert caught.value.name == number.name
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)] == before
    assert (stop_error(number.name).exit_code, stop_error(number.name).why) == (143, f"{number.name} arrived")


@pytest.mark.parametrize("block", [terminable, asked_to_stop])
def test_under_nohup_a_lost_terminal_ends_nothing(block: Callable[[], AbstractContextManager[Any]]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with block() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop is None or stop() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
