"""How far the curve of this window can be trusted. The pass itself is exact: the window is the error.

Two looks: the plateau of the first 25, 50, 75 and 100 % of the requests (is it still growing?), and the jackknife over
tenths of the sessions (how much does it hang on which conversations were recorded?). Single requests are never
resampled: that would tear conversations apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from zlib import crc32

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
    """Curves with a tenth of the sessions left out each; errors are one standard error.

    A tenth less traffic fills a tenth less cache, so a capacity C of the whole is compared with 0.9 C of each.
    """

    curves: tuple[HitCurve, ...]

    def rate_error(self, capacity: int | None = None) -> float:
        """Return the standard error of the hit rate at a capacity, 0 to 1; None: of the ceiling. Pure."""
        share = (TENTHS - 1) / TENTHS
        return standard_error([c.rate(None if capacity is None else int(share * capacity)) for c in self.curves])

    def plateau_error(self, points: float) -> float:
        """Return the standard error of the plateau, in pages. Pure."""
        share = (TENTHS - 1) / TENTHS
        return standard_error([c.smallest_within(points) / share for c in self.curves])


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
        return Confidence(
            growth, None, f"{n_sessions} session{'' if n_sessions == 1 else 's'}, fewer than {TENTHS}: no interval"
        )
    return Confidence(growth, jackknife_of(window, definition, first=first), None)


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
    """Return the curves without each tenth of the sessions; for D3 `window` is that of full blocks. Pure."""
    sessions = np.unique(window.session)
    tenth = np.array([crc32(int(one).to_bytes(8, "little")) % TENTHS for one in sessions])
    plain = Definition.D1 if definition is Definition.D3 else definition
    curves = []
    for left_out in range(TENTHS):
        kept = window.without(sessions[tenth == left_out])
        n_before = int((~np.isin(window.session[:first], sessions[tenth == left_out])).sum())
        curves.append(curve_of(kept, plain, first=n_before))
    return Jackknife(tuple(curves))


def standard_error(values: list[float]) -> float:
    """Return the standard error from estimates that each leave one group out. Pure."""
    mean = sum(values) / len(values)
    return sqrt((len(values) - 1) / len(values) * sum((value - mean) ** 2 for value in values))
