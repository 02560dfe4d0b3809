"""Waiting for threads whose memory is given back behind them, also when Ctrl-C is pressed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Event

__all__ = ["wait_through"]


def wait_through(
    ended: Iterable[Event], on_interrupt: Callable[[], object] = lambda: None, timeout_s: float | None = None
) -> bool:
    """Wait until all are set, or for `timeout_s` seconds, and say whether they are.

    What is raised into the wait (KeyboardInterrupt, or what a signal handler raises) does not end it: `on_interrupt` is called,
    once for each, and the first one is raised when the wait is over. Not `Thread.join`: one that is interrupted may take a thread
    that runs for ended (CPython issue 90882).
    """
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    first: BaseException | None = None
    left = list(ended)
    while left:
        try:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if left[0].wait(left_s):
                left = left[1:]
            elif until_s is not None:
                break
        except BaseException as interrupt:  # noqa: BLE001 - raised below
            first = first or interrupt
            on_interrupt()
    if first is not None:
        raise first
    return not left
