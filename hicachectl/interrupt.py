"""Signals as exceptions: SIGTERM and SIGHUP (a lost terminal) end a command the way Ctrl-C does, with an exit code of their own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hicachectl.errors import ExitCode, HicacheError

__all__ = ["Terminated", "asked_to_stop", "first_interrupt_asks", "heard", "signal_error", "stop_error", "terminable"]


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; `name` says which. Not an Exception, so that only the program's edge catches it."""

    def __init__(self, name: str = "SIGTERM") -> None:
        super().__init__(name)
        self.name = name


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM and SIGHUP while the block runs; puts the old handlers back.

    A second one during the clean-up is the default again: it ends the process, but in and behind an end that holds signals back
    (`held_signals`). SIGHUP stays ignored where it was, as nohup leaves it.
    """

    def handler(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated(signal.Signals(number).name)

    old = [(number, signal.signal(number, handler)) for number in heard(signal.SIGTERM, signal.SIGHUP)]
    try:
        yield
    finally:
        for number, before in old:
            signal.signal(number, before)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], str | None]]:
    """Note SIGINT, SIGTERM and SIGHUP (a lost terminal) while the block runs instead of raising; what it yields names the first one, None before.

    For work that may not be left half done: it asks between its steps, puts things right, and ends by itself. Further
    signals change nothing. SIGHUP stays ignored where it was, as nohup leaves it. Puts the old handlers back. Only in the main thread.
    """
    names: list[str] = []

    def note(number: int, _frame: FrameType | None) -> None:
        names.append(signal.Signals(number).name)

    old = [(number, signal.signal(number, note)) for number in heard(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        yield lambda: names[0] if names else None
    finally:
        for number, handler in old:
            signal.signal(number, handler)


@contextmanager
def first_interrupt_asks() -> Iterator[Callable[[], bool]]:
    """Note the first SIGINT (Ctrl-C) while the block runs instead of raising; what it yields says whether it came.

    A second one raises KeyboardInterrupt as ever. Puts the old handler back. Only in the main thread.
    """
    came: list[int] = []
    old = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, old)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, old)


def signal_error(caught: KeyboardInterrupt | Terminated, go_on: str | None = None) -> HicacheError:
    """Describe a caught signal as an error with exit code 130 or 143; `go_on` says how the work is taken up again. Pure."""
    hint = go_on or "run it again when ready"
    if isinstance(caught, Terminated):
        error = HicacheError("stopped", why=f"{caught.name} arrived", hint=hint, code="HC-TERMINATED")
        error.exit_code = ExitCode.TERMINATED
    else:
        error = HicacheError("interrupted", why="Ctrl-C or SIGINT arrived", hint=hint, code="HC-INTERRUPTED")
        error.exit_code = ExitCode.INTERRUPTED
    return error


def stop_error(name: str) -> HicacheError:
    """Describe the signal that `asked_to_stop` noted: SIGINT is 130, the others 143. Pure."""
    return signal_error(KeyboardInterrupt() if name == "SIGINT" else Terminated(name))


def heard(*numbers: signal.Signals) -> tuple[signal.Signals, ...]:
    """Leave SIGHUP out where it is ignored: started by nohup, the work goes on when the terminal is gone."""
    return tuple(n for n in numbers if n is not signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN)
