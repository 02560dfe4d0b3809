"""An event whose wait is broken off by Ctrl-C, as often as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Interrupted"]


class Interrupted(threading.Event):
    """The first `times` waits for it end in KeyboardInterrupt; `then` is called at the last of them."""

    def __init__(self, times: int, then: Callable[[], object]) -> None:
        super().__init__()
        self.left, self._then = times, then

    def wait(self, timeout: float | None = None) -> bool:
        if self.left:
            self.left -= 1
            if not self.left:
                self._then()
            raise KeyboardInterrupt(self.left)
        return super().wait(timeout)
