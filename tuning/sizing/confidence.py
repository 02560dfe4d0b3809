"""How far the curve of this window can be trusted. The pass itself is exact: the window is the error.

Two looks: the plateau of the first 25, 50, 75 and 100 % of the requests (is it still growing?), and the jackknife over
tenths of the sessions (how much does it hang on which conversations were recorded?). Single requests are never
resampled: that would tear conversations apart. What it says of recorded traces: docs/facts.md#session-error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import sqrt

import numpy as np

from hicachectl.tuning.sizing.curve import HitCurve, curve_from_runs, curve_of
from hicachectl.tuning.sizing.extents import Runs, runs_of
from hicachectl.tuning.sizing.window import Definition, Window

__all__ = [
    "GROWING", "LEAST_REQUESTS", "TENTHS", "Confidence", "Grown", "Jackknife", "confidence_of", "growth_of", "jackknife_of", "standard_error",
]  # fmt: skip

SHARES = (25, 50, 75, 100)
LEAST_REQUESTS = len(SHARES)
"""With fewer, the first three quarters of the requests cannot be told from all of them."""
TENTHS = 10
GROWING = 0.10
"""Share by which the plateau may move over the last quarter of the window before the window is called too short."""


@dataclass(frozen=True, slots=True)
class Grown:
    """The curve's two figures after the first `share` percent of the requests."""

    share: int
    n_requests: int
    ceiling: float
    plateau_pages: int


@dataclass(frozen=True, slots=True)
class Jackknife:
    """Curves with a tenth of the sessions left out each, which kept `kept` of `n_sessions`; errors are one standard error.

    Fewer sessions fill less cache, so a capacity of the whole is compared with that share of it which the kept ones are.
    """

    curves: tuple[HitCurve, ...]
    kept: tuple[int, ...]
    n_sessions: int

    def rate_error(self, capacity: int | None = None) -> float:
        """Return the standard error of the hit rate at a capacity, 0 to 1; None: of the ceiling. Pure."""
        return self._error(
            [
                curve.rate(None if capacity is None else capacity * kept // self.n_sessions)
                for curve, kept in zip(self.curves, self.kept, strict=True)
            ]
        )

    def plateau_error(self, points: float) -> float:
        """Return the standard error of the plateau, in pages. Pure."""
        return self._error(
            [
                curve.smallest_within(points) * self.n_sessions / kept
                for curve, kept in zip(self.curves, self.kept, strict=True)
            ]
        )

    def _error(self, values: list[float]) -> float:
        return standard_error(values, [kept / self.n_sessions for kept in self.kept])


@dataclass(frozen=True, slots=True)
class Confidence:
    """Both looks at one window. `jackknife` is None, with a reason, where there are fewer than ten sessions."""

    growth: tuple[Grown, ...]
    jackknife: Jackknife | None
    reason: str | None

    @property
    def moved(self) -> float | None:
        """The plateau's change over the last quarter, as a share; None where there was no plateau before. Pure."""
        before, after = self.growth[-2].plateau_pages, self.growth[-1].plateau_pages
        return after / before - 1 if before else None

    @property
    def too_short(self) -> bool:
        """Whether the plateau still grows with the window, so that it is a lower bound, or nothing can be told of so few requests. Pure."""
        if self.growth[-1].n_requests < LEAST_REQUESTS:
            return True
        moved = self.moved
        return self.growth[-1].plateau_pages > 0 if moved is None else moved > GROWING + 1e-9


def confidence_of(
    window: Window, definition: Definition, points: float, *, first: int = 0, runs: Runs | None = None
) -> Confidence:
    """Look both ways at a window, of which requests from `first` on are counted. Pure; as long as ten passes.

    `runs` are those of the window (of its full blocks for D3), where they are known.
    """
    if definition is Definition.D3:
        window = window.full_blocks()
    found = runs_of(window) if runs is None else runs
    growth = growth_of(found, window, definition, points, warm=bool(first))
    n_sessions = len(np.unique(window.session))
    if n_sessions < TENTHS:
        return Confidence(growth, None, f"{_few(n_sessions, window.sessions_named)}, fewer than {TENTHS}: no interval")
    return Confidence(growth, jackknife_of(window, definition, first=first), None)


def _few(n_sessions: int, named: bool) -> str:
    if named:
        return f"{n_sessions} session{'' if n_sessions == 1 else 's'}"
    ways = f"{n_sessions} way{'' if n_sessions == 1 else 's'}"
    return f"sessions cannot be told apart: not all are named, and requests begin in {ways} past what most share"


def growth_of(
    runs: Runs, window: Window, definition: Definition, points: float, *, warm: bool = False
) -> tuple[Grown, ...]:
    """Return ceiling and plateau of the first 25, 50, 75 and 100 % of the requests, `warm`: of the last half of each. Pure.

    What a request hits depends on the requests before it alone, so one pass serves all four.
    """
    grown = []
    for share in SHARES:
        n = max(1, window.n_requests * share // 100)
        curve = curve_from_runs(runs, window, definition, first=n // 2 if warm else 0, end=n)
        grown.append(Grown(share, n, curve.rate(), curve.smallest_within(points)))
    return tuple(grown)


def jackknife_of(window: Window, definition: Definition, *, first: int = 0) -> Jackknife:
    """Return the curves without each tenth of the sessions, of which there are ten or more; for D3 `window` is that of full blocks. Pure.

    Sessions are dealt in the order of a hash, one to each tenth in turn: a tenth without one would compare all of the
    traffic with less cache, and that is no spread.
    """
    sessions = np.unique(window.session)
    order = np.argsort([_hash(int(one)) for one in sessions])
    tenth = np.empty(len(sessions), np.int64)
    tenth[order] = np.arange(len(sessions)) % TENTHS
    plain = Definition.D1 if definition is Definition.D3 else definition
    curves = []
    for left_out in range(TENTHS):
        kept = window.without(sessions[tenth == left_out])
        n_before = int((~np.isin(window.session[:first], sessions[tenth == left_out])).sum())
        curves.append(curve_of(kept, plain, first=n_before))
    kept_sessions = len(sessions) - np.bincount(tenth, minlength=TENTHS)
    return Jackknife(tuple(curves), tuple(kept_sessions.tolist()), len(sessions))


def _hash(session: int) -> int:
    """A number without a pattern: the order of CRCs deals neighbours out evenly, and the spread comes out too small."""
    return int.from_bytes(blake2b(session.to_bytes(8, "little"), digest_size=7).digest(), "little")


def standard_error(values: Sequence[float], shares: Sequence[float] | None = None) -> float:
    """Return the standard error from estimates that each leave one group out. Pure.

    `shares` of the whole, below 1, are what each estimate keeps; None: groups of one size. For unlike ones it is the
    delete-m_j jackknife (Busing, Meijer and van der Leeden 1999), about the mean by shares.

    >>> standard_error([1.0, 2.0, 3.0]) == standard_error([1.0, 2.0, 3.0], [2 / 3] * 3)
    True
    """
    n = len(values)
    kept = [(n - 1) / n] * n if shares is None else shares
    mean = sum(share * value for share, value in zip(kept, values, strict=True)) / sum(kept)
    return sqrt(sum(share / (1 - share) * (value - mean) ** 2 for share, value in zip(kept, values, strict=True)) / n)
