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
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
