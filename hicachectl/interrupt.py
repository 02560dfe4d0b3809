"""Signals as exceptions: SIGTERM ends a command the way Ctrl-C does, with its own exit code."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hicachectl.errors import ExitCode, HicacheError

__all__ = ["Terminated", "signal_error", "terminable"]


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, so that only the program's edge catches it."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM while the block runs; puts the old handler back.

    A second SIGTERM during the clean-up is the default again: it ends the process.
    """

    def handler(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    old = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def signal_error(caught: KeyboardInterrupt | Terminated) -> HicacheError:
    """Describe a caught signal as an error with exit code 130 or 143. Pure."""
    if isinstance(caught, Terminated):
        error = HicacheError("stopped", why="SIGTERM arrived", hint="run it again when ready", code="HC-TERMINATED")
        error.exit_code = ExitCode.TERMINATED
    else:
        error = HicacheError(
            "interrupted", why="Ctrl-C or SIGINT arrived", hint="run it again when ready", code="HC-INTERRUPTED"
        )
        error.exit_code = ExitCode.INTERRUPTED
    return error
