"""Registrations and names of pool files that are alive, so that none is left when the process ends: at exit, and on SIGTERM or SIGINT.

A process killed with hundreds of GB registered holds the device for half a minute (sgl-project/sglang#31746). Python runs
`atexit` after SIGINT (KeyboardInterrupt) and wherever a program handles SIGTERM; where nobody does, SIGTERM would end it at
once, so a handler is put there while a registration is alive. A program's own handler is never replaced, and one that it puts
there later stays: then its own way out leads to `atexit`.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from types import FrameType
from typing import Protocol

__all__ = ["LIVE", "Closable", "LiveRegistrations"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Closable(Protocol):
    """A registration, or the name of a shared pool's file: what must be taken back before the process ends."""

    def close(self) -> object:
        """Take it back. May be called twice."""


class LiveRegistrations:
    """The registrations and file names of this process. `at_exit` False leaves out the hook of the interpreter's end (for tests)."""

    def __init__(self, *, at_exit: bool = True) -> None:
        self._held: dict[int, Closable] = {}
        self._handled: list[signal.Signals] = []
        self._at_exit = at_exit
        self._hooked = False

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, registration: Closable) -> None:
        """Take care that a registration is closed before the process ends. From the main thread, also on signals."""
        self._held[id(registration)] = registration
        if self._at_exit and not self._hooked:
            atexit.register(self.close_all)
            self._hooked = True
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._on_signal)
                    self._handled.append(number)

    def drop(self, registration: Closable) -> None:
        """Forget a registration that was closed; with the last one, signals mean again what they did. May be called twice."""
        self._held.pop(id(registration), None)
        if not self._held:
            self._give_signals_back()

    def close_all(self) -> None:
        """Close what is held, the last one first. May be called twice, and from a signal handler."""
        while self._held:
            try:
                _, registration = self._held.popitem()
            except KeyError:  # another thread took the last one
                return
            registration.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Close everything, then end the way the signal ends a process that handles nothing."""
        self.close_all()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _give_signals_back(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a handler that finds nothing to close ends the process all the same
        while self._handled:
            number = self._handled.pop()
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL)


LIVE = LiveRegistrations()
"""Of this process: signals and the end of the interpreter are its own, so there is one."""
