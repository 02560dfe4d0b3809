"""Signals that must not cut a clean-up short: the first one ends the work as ever, those during the clean-up wait for its end."""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["held_signals", "let_signals_come", "run_in_finalizer"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FINALIZE = weakref.finalize.__call__.__code__
"""What runs a finalizer, whoever drops the last reference."""
_senders: list[threading.Thread] = []
"""Those that send again what finalizers held back."""


@contextmanager
def held_signals(*, at_once: bool = False) -> Iterator[Callable[[], None]]:
    """Give SIGINT, SIGTERM and SIGHUP to their handlers once; hold back those that follow, and all after `hold()`, which is yielded.

    With `at_once` all are held from the start. What was held back is handled in its order when the block is left, up to the first
    that raises, unless an earlier one ends the work already. A signal that no Python function handles is left alone. Puts the old
    handlers back, or those functions that they put in their own place. Does nothing outside the main thread. While signals are
    held only SIGKILL ends a block that does not end by itself.
    """
    held: list[int] = []
    holding, raised = at_once, False
    before: dict[int, Any] = {}

    def hold() -> None:
        nonlocal holding
        holding = True

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal holding, raised
        if holding:
            held.append(number)
            return
        holding = True
        try:
            before[number](number, frame)
        except BaseException:
            raised = True
            raise
        finally:
            holding = raised
            now = signal.getsignal(number)
            if now is not handler:
                if callable(now):  # the next one is for it; the default would end the process in the block
                    before[number] = now
                signal.signal(number, handler)

    if threading.current_thread() is not threading.main_thread():
        yield hold
        return
    try:
        for one in _SIGNALS:
            if callable(was := signal.getsignal(one)):
                before[one] = was
                signal.signal(one, handler)
        yield hold
    finally:
        holding = True
        for number, was in reversed(before.items()):  # SIGINT last: what raises here would leave the others held
            signal.signal(number, was)
        if not raised:
            for number in held:
                signal.raise_signal(number)


def run_in_finalizer(act: Callable[[], object]) -> None:
    """Do `act` as the whole of a `weakref.finalize`: the signals that come meanwhile are handled when no finalizer runs any more.

    What a handler raises inside a finalizer is printed and lost, and the rest of the finalizer with it. So they are held back, and
    sent again, each kind once, by a thread that has seen the main thread leave: within milliseconds. A signal that no Python function
    handles is left alone. Outside the main thread, where no handler runs, it is `act` and nothing more. In the microseconds in which
    handlers are exchanged a signal is printed and lost as ever; afterwards the old handlers are there, or one that hands on to them.
    """
    if threading.current_thread() is not threading.main_thread():
        act()
        return
    held: list[int] = []
    before: dict[int, Any] = {}
    sender: threading.Thread | None = None
    is_over = False

    def hold(number: int, frame: FrameType | None) -> None:
        if not is_over:
            held.append(number)
            return
        signal.signal(number, before[number])  # it was not put back: a signal of another kind came in between
        before[number](number, frame)

    try:
        for one in _SIGNALS:
            if callable(was := signal.getsignal(one)):
                before[one] = was
                signal.signal(one, hold)
        act()
    finally:
        try:
            if held:  # while they are held: a signal that comes while the thread starts is sent too
                sender = _sender(held)
        finally:
            is_over = True
            try:
                _put_back(before)
            finally:
                if held and sender is None:
                    _sender(held)


def _put_back(handlers: dict[int, Any]) -> None:
    """Set these handlers, also when one that is set already raises in between; that is raised at the end."""
    error: BaseException | None = None
    for number, was in reversed(handlers.items()):
        while signal.getsignal(number) is not was:
            try:
                signal.signal(number, was)
            except BaseException as raised:  # noqa: BLE001 - a signal of another kind, which must not leave this one held
                error = raised
    if error is not None:
        raise error


def let_signals_come() -> None:
    """Wait for the signals that finalizers held back, before a result says that nothing came. Their handlers may raise here."""
    while _senders:
        _senders.pop().join()


def _sender(held: list[int]) -> threading.Thread:
    thread = threading.Thread(target=_send_again, args=(held,), name="hicache-signals")
    _senders[:] = [one for one in _senders if one.is_alive()]
    thread.start()
    _senders.append(thread)
    return thread


def _send_again(held: list[int]) -> None:
    """Send the signals to this process, each kind once, when the main thread is in no finalizer."""
    main = threading.main_thread().ident
    assert main is not None
    sent: set[int] = set()
    while True:
        while _is_in_finalizer(sys._current_frames().get(main)):
            time.sleep(0.001)
        number = next((one for one in held if one not in sent), None)
        if number is None:
            return
        sent.add(number)
        signal.pthread_kill(main, number)


def _is_in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _FINALIZE:
        frame = frame.f_back
    return frame is not None
