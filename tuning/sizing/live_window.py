"""What a window holds while it is collected: requests, distinct pages, the unlimited hit rate and how the plateau grows.

Memory follows the distinct pages and the runs of one pass (`extents`), never the references: those are in the window's file.
"""

from __future__ import annotations

import numpy as np

from hicachectl.runtime.replay.key_numbers import KeyNumbers
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.stored_paths import MOST_BLOCKS
from hicachectl.tuning.sizing.confidence import Grown, growth_of
from hicachectl.tuning.sizing.extents import ExtentPass
from hicachectl.tuning.sizing.numbering import Ids, Numbering
from hicachectl.tuning.sizing.window import Counts, Definition, Window

__all__ = ["MOST_REFERENCES", "MOST_REQUESTS", "LiveWindow"]

MOST_REFERENCES = 100_000_000
"""Block references of a window: about 2 GB of file, and what a pass is measured for."""
MOST_REQUESTS = 1 << 20
"""Requests of a window: a pass keeps a few runs of each, about 1 GB."""


class LiveWindow:
    """Counts full pages (D3) of requests whose blocks are page keys. Not thread-safe."""

    def __init__(
        self,
        block_tokens: int,
        page_tokens: int,
        *,
        most_blocks: int = MOST_BLOCKS,
        most_references: int = MOST_REFERENCES,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self.numbers = KeyNumbers(most_blocks)
        self.n_requests = self.n_references = self.total_pages = self.distinct_pages = self.hit_pages = 0
        self.last_s = 0.0
        self._is_full = False
        self.block_tokens = block_tokens
        self._page_tokens, self._each = page_tokens, block_tokens // page_tokens
        self._most_references, self._most_requests = most_references, most_requests
        self._offsets = np.arange(self._each, dtype=np.int64)
        self._numbering, self._passed = Numbering(), ExtentPass()
        self._lengths: Counts = np.zeros(1024, np.int64)

    @property
    def full(self) -> str | None:
        """The bound that is reached, None while there is room. Pure."""
        if self._is_full or len(self.numbers) >= self.numbers.most:
            return f"{self.numbers.most} different blocks, the most that are kept"
        if self.n_references >= self._most_references:
            return f"{self._most_references} block references, the most of a window"
        if self.n_requests >= self._most_requests:
            return f"{self._most_requests} requests, the most of a window"
        return None

    @property
    def ceiling(self) -> float | None:
        """The unlimited hit rate so far, 0 to 1; None without a full page. Pure."""
        return self.hit_pages / self.total_pages if self.total_pages else None

    def add(self, request: TraceRequest) -> bool:
        """Take the next request; False where its blocks are more than the window may hold, which then is full.

        Raises UsageError for ids that name no prefixes (`Numbering.add`).
        """
        if len(self.numbers) + len(request.blocks) > self.numbers.most:
            new = int((self.numbers.find(request.blocks) < 0).sum())
            if len(self.numbers) + new > self.numbers.most:
                self._is_full = True
                return False
        row = self._pages(request)
        warm = int((row < self.distinct_pages).sum())  # numbers are handed out in order, and what is new is a suffix
        self.hit_pages += warm
        self.total_pages += len(row)
        self.distinct_pages += len(row) - warm
        self._passed.add(row, 0)
        if self.n_requests == len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])
        self._lengths[self.n_requests] = len(row)
        self.n_requests += 1
        self.n_references += len(request.blocks)
        self.last_s = max(self.last_s, request.time_s)
        return True

    def growth(self, points: float) -> tuple[Grown, ...]:
        """Return ceiling and plateau of the first 25, 50, 75 and 100 % of the requests: as `growth_of` of the file."""
        starts = np.concatenate([[0], np.cumsum(self._lengths[: self.n_requests])]).astype(np.int64)
        size, none = self._page_tokens, np.zeros(0, np.int32)
        last = np.where(np.diff(starts) > 0, size, 0)
        window = Window(none, starts, last, np.zeros(0, np.int64), size, self.distinct_pages)
        return growth_of(self._passed.runs(), window, Definition.D1, points)

    def _pages(self, request: TraceRequest) -> Ids:
        numbers = self.numbers.number(request.blocks)
        whole = request.input_tokens // self._page_tokens
        pages = (numbers[:, None] * self._each + self._offsets).reshape(-1)[:whole]
        return self._numbering.add_one(0, pages)
