"""Signals that wait: work that may not be left half done asks between its steps, also when the terminal is lost."""

from __future__ import annotations

import os
import signal

import pytest

from hicachectl.interrupt import asked_to_stop


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_named_and_raises_nothing_while_the_work_goes_on(first: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with asked_to_stop() as stop:
        assert stop() is None
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop() == first.name
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
