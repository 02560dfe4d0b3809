"""How much a sampled curve hangs on which sessions were recorded: the jackknife of `confidence`, beside the pass that samples.

Ten caches more, each without a tenth of the sessions, see the sampled blocks as they come by. Their hits are kept on a grid of
64 capacities a doubling, so memory follows the sampled blocks.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
import numpy.typing as npt

from hicachectl.tuning.sizing.confidence import TENTHS, standard_error
from hicachectl.tuning.sizing.numbering import Ids
from hicachectl.tuning.sizing.weighted_pass import WeightedPass
from hicachectl.tuning.sizing.window import Counts

__all__ = ["SessionBand"]

_GRID: Counts = np.unique(np.round(2.0 ** (np.arange(0, 64 * 40) / 64))).astype(np.int64)


class SessionBand:
    """Takes requests one by one; tells `widened` times the standard error over sessions.

    Fewer sessions fill less cache: a capacity of the whole is compared with that share of it which the kept ones are.
    """

    def __init__(self, n_blocks: int, widened: float) -> None:
        self._widened = widened
        self._passes = [WeightedPass(n_blocks) for _ in range(TENTHS)]
        self._hits: Counts = np.zeros((TENTHS, len(_GRID) + 1), np.int64)
        self._totals: Counts = np.zeros(TENTHS, np.int64)
        self._sessions: tuple[set[int], ...] = tuple(set() for _ in range(TENTHS))

    def add(self, session: str | int, row: Ids, size: Counts, value: Counts, *, counted: bool) -> None:
        """Take a request of a session, by name or root: its blocks, their weights, and what a hit of each is worth."""
        tenth = _tenth_of(session)
        self._sessions[tenth].add(hash(session))
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
        return all(self._sessions)

    def rate_error(self, capacity: int | None = None) -> float:
        """Return the error of the hit rate at a capacity, 0 to 1; None: of the ceiling. Pure."""
        rates = np.cumsum(self._hits, axis=1) / np.maximum(1, self._totals)[:, None]
        if capacity is None:
            return self._error(rates[:, -1])
        kept, n_sessions = self._kept()
        end = np.searchsorted(_GRID, capacity * kept // n_sessions, side="right")
        return self._error(np.where(end > 0, rates[np.arange(TENTHS), end - 1], 0.0))

    def plateau_error(self, points: float) -> float:
        """Return the error of the smallest capacity within `points` of the ceiling, in pages. Pure."""
        rates = np.cumsum(self._hits, axis=1) / np.maximum(1, self._totals)[:, None]
        first = np.argmax(rates >= rates[:, -1:] - points / 100 - 1e-12, axis=1)
        kept, n_sessions = self._kept()
        return self._error(_GRID[np.minimum(first, len(_GRID) - 1)] * n_sessions / kept)

    def _kept(self) -> tuple[Counts, int]:
        """Sessions that each of the ten caches sees, and all of them."""
        left_out = np.array([len(sessions) for sessions in self._sessions], np.int64)
        n_sessions = int(left_out.sum())
        return n_sessions - left_out, n_sessions

    def _error(self, values: npt.NDArray[np.float64]) -> float:
        kept, n_sessions = self._kept()
        return self._widened * standard_error(values.tolist(), (kept / n_sessions).tolist())


def _tenth_of(session: str | int) -> int:
    return crc32(session.encode() if isinstance(session, str) else session.to_bytes(8, "little")) % TENTHS
