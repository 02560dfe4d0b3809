"""Signals that must not cut a clean-up short: the first one ends the work as ever, those during the clean-up wait for its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["held_signals"]


@contextmanager
def held_signals() -> Iterator[Callable[[], None]]:
    """Give SIGINT, SIGTERM and SIGHUP to their handlers once; hold back those that follow, and all after `hold()`, which is yielded.

    What was held back is handled when the block is left, unless an earlier one ends the work already. A signal that no Python function handles is left
    alone. Puts the old handlers back. Does nothing outside the main thread.
    """
    held: list[int] = []
    holding = raised = False

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
            old[number](number, frame)
        except BaseException:
            raised = True
            raise
        finally:
            holding = raised
            signal.signal(number, handler)  # the old one may have put another in its place

    if threading.current_thread() is not threading.main_thread():
        yield hold
        return
    found: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    old: dict[int, Callable[[int, FrameType | None], object]] = {n: was for n, was in found.items() if callable(was)}
    for number in old:
        signal.signal(number, handler)
    try:
        yield hold
    finally:
        for number, before in old.items():
            signal.signal(number, before)
        if held and not raised:
            old[held[0]](held[0], None)
