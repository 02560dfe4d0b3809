"""How much a sampled curve hangs on which sessions were recorded: the jackknife of `confidence`, beside the pass that samples.

Ten caches more, each without a tenth of the sessions, see the sampled blocks as they come by. Their hits are kept on a grid of
64 capacities a doubling, so memory follows the sampled blocks.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from hicachectl.tuning.sizing.confidence import TENTHS, standard_error
from hicachectl.tuning.sizing.numbering import Ids
from hicachectl.tuning.sizing.weighted_pass import WeightedPass
from hicachectl.tuning.sizing.window import Counts

__all__ = ["SessionBand", "tenth_of"]

_GRID: Counts = np.unique(np.round(2.0 ** (np.arange(0, 64 * 40) / 64))).astype(np.int64)
_SHARE = (TENTHS - 1) / TENTHS
"""A tenth less traffic fills a tenth less cache: a capacity of the whole is compared with this much of it."""


def tenth_of(session: str | int) -> int:
    """Return which tenth a session is dealt to, by a hash of its name or root. Pure."""
    return crc32(session.encode() if isinstance(session, str) else session.to_bytes(8, "little")) % TENTHS


class SessionBand:
    """Takes requests one by one; tells `widened` times the standard error over sessions."""

    def __init__(self, n_blocks: int, widened: float) -> None:
        self._widened = widened
        self._passes = [WeightedPass(n_blocks) for _ in range(TENTHS)]
        self._hits: Counts = np.zeros((TENTHS, len(_GRID) + 1), np.int64)
        self._totals: Counts = np.zeros(TENTHS, np.int64)
        self._seen: set[int] = set()

    def add(self, tenth: int, row: Ids, size: Counts, value: Counts, *, counted: bool) -> None:
        """Take a request of a tenth: its blocks, their weights, and what a hit of each is worth."""
        self._seen.add(tenth)
        for t, cache in enumerate(self._passes):
            if t == tenth:
                continue
            distance = cache.add(row, size)
            if counted:
                self._totals[t] += int(value.sum())
                np.add.at(self._hits[t], np.searchsorted(_GRID, distance), value[: len(distance)])

    @property
    def is_known(self) -> bool:
        """Whether every tenth has sessions. Pure."""
        return len(self._seen) == TENTHS

    def rate_error(self, capacity: int | None = None) -> float:
        """Return the error of the hit rate at a capacity, 0 to 1; None: of the ceiling. Pure."""
        end = len(_GRID) + 1
        if capacity is not None:
            end = int(np.searchsorted(_GRID, int(_SHARE * capacity), side="right"))
        rates = self._hits[:, :end].sum(axis=1) / np.maximum(1, self._totals)
        return self._widened * standard_error(rates.tolist())

    def plateau_error(self, points: float) -> float:
        """Return the error of the smallest capacity within `points` of the ceiling, in pages. Pure."""
        rates = np.cumsum(self._hits, axis=1) / np.maximum(1, self._totals)[:, None]
        first = np.argmax(rates >= rates[:, -1:] - points / 100 - 1e-12, axis=1)
        pages = _GRID[np.minimum(first, len(_GRID) - 1)] / _SHARE
        return self._widened * standard_error(pages.tolist())
