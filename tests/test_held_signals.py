"""Signals during a clean-up: the first ends the work, those that follow wait for its end."""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from hicachectl import held_signals as module
from hicachectl.held_signals import held_signals, let_signals_come, run_in_finalizer
from hicachectl.interrupt import Terminated, first_interrupt_asks, terminable


@contextmanager
def raising(kind: type[BaseException]) -> Iterator[None]:
    """The block ends with that exception, somewhere."""
    with pytest.raises(kind):
        yield


def test_the_first_is_raised_at_once_and_those_that_follow_do_nothing() -> None:
    done = []
    with raising(KeyboardInterrupt), held_signals():
        try:
            signal.raise_signal(signal.SIGINT)
            done.append("not reached")
        finally:
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
            done.append("cleaned")
    assert done == ["cleaned"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_held_from_the_start_or_from_hold_on_they_come_behind_the_block() -> None:
    done = []
    for at_once in (True, False):
        with raising(KeyboardInterrupt), held_signals(at_once=at_once) as hold:
            hold()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append(at_once)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert done == [True, False]


def test_inside_another_block_it_is_raised_once_behind_the_inner_one() -> None:
    done = []
    with raising(KeyboardInterrupt), held_signals():
        with held_signals(at_once=True):
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("not reached")
    assert done == ["inner"]
    with raising(KeyboardInterrupt), held_signals(at_once=True):
        with held_signals(at_once=True):
            signal.raise_signal(signal.SIGINT)
        done.append("outer")
    assert done == ["inner", "outer"]


def test_a_handler_that_notes_is_followed_by_the_one_it_put_in_its_place() -> None:
    with first_interrupt_asks() as asked:
        with held_signals():
            signal.raise_signal(signal.SIGINT)
            assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with first_interrupt_asks() as asked, raising(KeyboardInterrupt), held_signals():
        signal.raise_signal(signal.SIGINT)
        assert asked()
        signal.raise_signal(signal.SIGINT)


def test_what_is_held_comes_in_its_order_up_to_the_first_that_raises() -> None:
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    old = signal.signal(signal.SIGINT, note)
    try:
        with terminable(), raising(Terminated), held_signals(at_once=True):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            assert came == []
    finally:
        signal.signal(signal.SIGINT, old)
    assert came == [signal.SIGINT]


def test_a_second_termination_ends_the_process_neither_in_the_block_nor_behind_it() -> None:
    with terminable():
        with raising(Terminated), held_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_outside_the_main_thread_nothing_is_changed() -> None:
    seen = []

    def elsewhere() -> None:
        with held_signals(at_once=True) as hold:
            hold()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


class Held:
    """What a finalizer looks after."""


def test_a_signal_inside_a_finalizer_is_handled_behind_it_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def act() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.02)
        done.append("given back")

    def dropped() -> None:
        held = Held()
        weakref.finalize(held, run_in_finalizer, act)

    with raising(KeyboardInterrupt):
        dropped()
        let_signals_come()
    assert done == ["given back"]
    with raising(KeyboardInterrupt):
        dropped()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.001)
    assert done == ["given back"] * 2
    assert lost == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_kind_of_signal_inside_a_finalizer_comes_once_also_where_it_is_asked_for_by_name() -> None:
    came = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    def act() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            signal.raise_signal(number)
        assert came == []

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        held = Held()
        weakref.finalize(held, run_in_finalizer, act)()
        deadline = time.monotonic() + 30
        while len(came) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    assert sorted(came) == [signal.SIGINT, signal.SIGTERM]


def test_a_signal_while_the_handlers_are_put_back_leaves_none_held(monkeypatch: pytest.MonkeyPatch) -> None:
    set_handler, lost = signal.signal, []

    def note(number: int, _frame: FrameType | None) -> None:
        raise Terminated(signal.Signals(number).name)

    def interrupted(number: int, handler: Any) -> Any:
        was = set_handler(number, handler)
        if handler is note:
            signal.raise_signal(number)
        return was

    before = set_handler(signal.SIGTERM, note)
    try:
        monkeypatch.setattr(sys, "unraisablehook", lost.append)
        held = Held()
        weakref.finalize(held, run_in_finalizer, lambda: monkeypatch.setattr(signal, "signal", interrupted))
        del held
        monkeypatch.setattr(signal, "signal", set_handler)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is note
        assert len(lost) == 1, "it is printed as ever"
        monkeypatch.setattr(signal, "signal", set_handler)
    finally:
        set_handler(signal.SIGTERM, before)


def test_a_finalizer_that_cannot_start_a_thread_leaves_no_signal_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        run_in_finalizer(lambda: signal.raise_signal(signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_was_not_put_back_hands_on_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_put_back(handlers: dict[int, Any]) -> None:
        raise Terminated

    monkeypatch.setattr(module, "_put_back", none_put_back)
    with raising(Terminated):
        run_in_finalizer(lambda: None)
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    with raising(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_finalizer_outside_the_main_thread_is_what_it_does() -> None:
    seen = []
    thread = threading.Thread(target=run_in_finalizer, args=(lambda: seen.append(signal.getsignal(signal.SIGINT)),))
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
