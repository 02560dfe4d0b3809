"""The online cost model: what a transfer on each path costs, and what computing tokens again costs.

A path costs `fixed_s + per_byte_s * bytes`, both learned from the transfers of this process, reads and writes apart.
Recomputing tokens [start, end) costs `a_s + b_s n + c_s (end^2 - start^2)`: attention makes a later token dearer.

Measured on one H200 with Qwen3-8B shapes, moving a token costs 2.7 us against 33-53 us to compute it (docs/facts.md#h200-prefill),
so bandwidth is not the break-even term: the fixed cost of a restore is, and recompute cost by position.

Predictions change nothing; only `observe` does, and only for its path. Pure: times come in as values. Not safe for two
threads at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hicachectl.errors import UsageError
from hicachectl.runtime.least_squares import nonnegative_least_squares

__all__ = [
    "DEFAULT_PRIORS",
    "CostModel",
    "CostState",
    "FitMethod",
    "LinearCost",
    "Path",
    "PathCost",
    "PathState",
    "RecomputeCost",
]

WINDOW = 32
"""Samples a path keeps: enough to see two sizes, few enough to follow a change within tens of requests (our choice)."""
EWMA_WEIGHT = 0.2
"""Weight of the newest sample where sizes do not vary (our choice: the last ~10 transfers count)."""
MARGIN = 1.1
"""A restore must win by this factor on what it moves: a wrong restore delays the request (our choice)."""
OUTLIER = 4.0
"""Times what is expected: a path's first sample beyond it waits for a second one, a later one counts as no more (our choice)."""
_MIN_FIT_SAMPLES = 4
_MIN_SIZE_SPREAD = 0.1  # standard deviation over mean: below it a line through the samples would follow their noise


class Path(Enum):
    """A way between two tiers and its direction."""

    HOST_READ = "host_read"
    """host -> device: a restore"""
    HOST_WRITE = "host_write"
    """device -> host: a backup"""
    STORAGE_READ = "storage_read"
    """storage -> host: a prefetch"""
    STORAGE_WRITE = "storage_write"
    """host -> storage: a backup to L3"""


class FitMethod(Enum):
    """Where the numbers of a path come from."""

    PRIOR = "prior"
    """No transfer yet, or one alone that took `OUTLIER` times what the prior says."""
    SCALED = "scaled"
    """Sizes did not vary: the last known line, scaled by the moving average of measured over predicted."""
    FITTED = "fitted"
    """Sizes varied: constrained least squares over the window."""


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A cost of `fixed_s` for a transfer and `per_byte_s` for each byte; both >= 0, not both 0."""

    fixed_s: float
    per_byte_s: float

    def __post_init__(self) -> None:
        ok = all(math.isfinite(x) and x >= 0 for x in (self.fixed_s, self.per_byte_s))
        if not ok or self.fixed_s + self.per_byte_s == 0:
            raise UsageError(f"a cost of {self.fixed_s} s + {self.per_byte_s} s a byte", hint="both >= 0, one above 0")

    def seconds(self, n_bytes: int) -> float:
        """Return the cost of moving `n_bytes`; nothing costs nothing. Pure."""
        return self.fixed_s + self.per_byte_s * n_bytes if n_bytes > 0 else 0.0


DEFAULT_PRIORS: Mapping[Path, LinearCost] = {
    Path.HOST_READ: LinearCost(1e-4, 1e-10),
    Path.HOST_WRITE: LinearCost(1e-4, 1e-10),
    Path.STORAGE_READ: LinearCost(1e-3, 1e-9),
    Path.STORAGE_WRITE: LinearCost(1e-3, 1e-9),
}
"""Modest guesses without a source (10 GB/s to the host, 1 GB/s to storage); each rules until its first transfer."""


@dataclass(frozen=True, slots=True)
class PathState:
    """What the model knows of a path, for the report."""

    path: str
    method: FitMethod
    n_observed: int
    n_window: int
    fixed_s: float
    per_byte_s: float
    prior: LinearCost


class PathCost:
    """The learned cost of one path in one direction.

    While the sizes in the window vary (standard deviation over mean of at least 0.1, 4 samples), least squares with both
    numbers held >= 0, each sample weighted by 1 / wall^2: timing noise grows with the time, and a stalled transfer must
    not bend the line. Otherwise the last known line is scaled by the moving average of measured over predicted.

    A restore that is judged dearer is not done, and what is not done is not measured: one odd sample must not decide for good.
    So a first one beyond `OUTLIER` times the prior (it may hold a compilation) waits until a second one is there, and
    counts as no more than that one; in the moving average a sample counts as at most `OUTLIER` times the average.

    >>> cost = PathCost(LinearCost(0.001, 1e-9))
    >>> for n in (1_000_000, 2_000_000, 3_000_000, 4_000_000):
    ...     cost.observe(n, 0.0005 + n * 2e-9)
    >>> round(cost.fixed_s, 9), round(cost.per_byte_s, 15)
    (0.0005, 2e-09)
    """

    __slots__ = (
        "_base",
        "_current",
        "_doubted",
        "_ewma_weight",
        "_method",
        "_n_observed",
        "_ratio",
        "_window",
        "prior",
    )

    def __init__(self, prior: LinearCost, *, window: int = WINDOW, ewma_weight: float = EWMA_WEIGHT) -> None:
        if window < _MIN_FIT_SAMPLES or not 0 < ewma_weight <= 1:
            raise UsageError(
                f"a window of {window} samples and a weight of {ewma_weight}", hint="window >= 4, 0 < weight <= 1"
            )
        self.prior = prior
        self._base = self._current = prior
        self._ratio: float | None = None
        self._doubted: tuple[int, float] | None = None
        self._window: deque[tuple[int, float]] = deque(maxlen=window)
        self._ewma_weight = ewma_weight
        self._method = FitMethod.PRIOR
        self._n_observed = 0

    def observe(self, n_bytes: int, wall_s: float) -> None:
        """Learn from one finished transfer: bytes moved (> 0) and its own wall time (> 0, queueing excluded).

        Raises UsageError for anything else: a one-time allocation or an empty transfer is not a sample.
        """
        if n_bytes <= 0 or not (math.isfinite(wall_s) and wall_s > 0):
            raise UsageError(
                f"a transfer of {n_bytes} bytes in {wall_s} s is not a sample", hint="give bytes > 0, seconds > 0"
            )
        self._n_observed += 1
        ratio = wall_s / self._base.seconds(n_bytes)
        if self._ratio is None:
            if self._doubted is None and ratio > OUTLIER:
                self._doubted = (n_bytes, wall_s)
                return
            self._ratio = self._first_ratio(ratio)
        else:
            self._ratio += self._ewma_weight * (min(ratio, OUTLIER * self._ratio) - self._ratio)
        self._window.append((n_bytes, wall_s))
        self._refresh()

    def predict(self, n_bytes: int) -> float:
        """Return the seconds a transfer of `n_bytes` is expected to take, without margin."""
        return self._current.seconds(n_bytes)

    @property
    def fixed_s(self) -> float:
        """Seconds a transfer costs whatever its size."""
        return self._current.fixed_s

    @property
    def per_byte_s(self) -> float:
        """Seconds each byte adds."""
        return self._current.per_byte_s

    def state(self, path: Path) -> PathState:
        """Return what is known, for the report."""
        line = self._current
        return PathState(
            path.value, self._method, self._n_observed, len(self._window), line.fixed_s, line.per_byte_s, self.prior
        )

    def _first_ratio(self, ratio: float) -> float:
        """Return what the first sample says, or the lower of two where the first was in doubt. A line weighs both."""
        if self._doubted is None:
            return ratio
        self._window.append(self._doubted)
        return min(ratio, self._doubted[1] / self._base.seconds(self._doubted[0]))

    def _refresh(self) -> None:
        if len(self._window) >= _MIN_FIT_SAMPLES and _spread([n for n, _ in self._window]) >= _MIN_SIZE_SPREAD:
            self._current = self._base = _fit_line(self._window)
            self._ratio = 1.0
            self._method = FitMethod.FITTED
        else:
            ratio = 1.0 if self._ratio is None else self._ratio
            self._current = LinearCost(self._base.fixed_s * ratio, self._base.per_byte_s * ratio)
            self._method = FitMethod.SCALED


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """What computing tokens again costs: a prefill call, its tokens, and their attention to what is before them.

    `a_s` seconds a call, `b_s` a token, `c_s` times the difference of squared positions; all >= 0.

    >>> cost = RecomputeCost(a_s=0.01, b_s=3e-5, c_s=4e-10)
    >>> cost.seconds(8, 8), round(cost.seconds(0, 8192), 4), round(cost.seconds(8192, 16384), 4)
    (0.0, 0.2826, 0.3363)
    """

    a_s: float
    b_s: float
    c_s: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(x) and x >= 0 for x in (self.a_s, self.b_s, self.c_s)):
            raise UsageError(f"recompute cost {self.a_s} s, {self.b_s} s, {self.c_s} s", hint="all three >= 0")

    def seconds(self, start_token: int, end_token: int) -> float:
        """Return the seconds one call over tokens [start, end) takes; an empty range costs nothing. Pure."""
        return self.a_s + self.skipped_s(start_token, end_token) if end_token > start_token else 0.0

    def skipped_s(self, start_token: int, end_token: int) -> float:
        """Return what a call saves when [start, end) need not be computed and something after it must be. Pure.

        The call's fixed part is not saved: an engine computes at least the last token of every request.
        """
        n_tokens = max(0, end_token - start_token)
        return n_tokens * (self.b_s + self.c_s * (end_token + start_token))

    def request_s(self, used_tokens: int, input_tokens: int) -> float:
        """Return the prefill of a request whose first `used_tokens` are in the cache. Pure.

        The call's fixed part is paid even when all of them are: the last token is always computed. What that one token
        costs beyond the call is left out, as in `skipped_s`, so that what two requests differ by is what is skipped.
        """
        return self.a_s + self.skipped_s(used_tokens, input_tokens) if input_tokens else 0.0

    @classmethod
    def fit(cls, samples: Iterable[tuple[int, int, float]]) -> RecomputeCost:
        """Fit to measured calls (start token, end token, seconds > 0): least squares of relative errors, all >= 0. Pure.

        Raises UsageError without a sample, or with an empty range or time.
        """
        rows = list(samples)
        if not rows or any(end <= start or start < 0 or not (math.isfinite(s) and s > 0) for start, end, s in rows):
            raise UsageError(
                f"{len(rows)} prefill samples cannot be fitted", hint="give (start, end > start, seconds > 0)"
            )
        starts, ends, seconds = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
        columns = np.stack((np.ones_like(seconds), ends - starts, ends**2 - starts**2), axis=1)
        a_s, b_s, c_s = nonnegative_least_squares(columns / seconds[:, None], np.ones_like(seconds))
        return cls(float(a_s), float(b_s), float(c_s))


@dataclass(frozen=True, slots=True)
class CostState:
    """The whole model, for the report."""

    paths: tuple[PathState, ...]
    recompute: RecomputeCost
    margin: float


class CostModel:
    """The costs of every path and of recomputing, as `decide.restore` wants them.

    `margin` >= 1 multiplies what a restore moves when it is weighed, never what `predict` returns.
    """

    __slots__ = ("_paths", "margin", "recompute")

    def __init__(
        self,
        recompute: RecomputeCost,
        *,
        priors: Mapping[Path, LinearCost] = DEFAULT_PRIORS,
        margin: float = MARGIN,
        window: int = WINDOW,
        ewma_weight: float = EWMA_WEIGHT,
    ) -> None:
        if not (math.isfinite(margin) and margin >= 1):
            raise UsageError(f"a restore margin of {margin}", hint="give 1 or more")
        self.recompute = recompute
        self.margin = margin
        self._paths = {
            path: PathCost(priors.get(path, DEFAULT_PRIORS[path]), window=window, ewma_weight=ewma_weight)
            for path in Path
        }

    def observe(self, path: Path, n_bytes: int, wall_s: float) -> None:
        """Learn from one finished transfer; changes that path only."""
        self._paths[path].observe(n_bytes, wall_s)

    def predict(self, path: Path, n_bytes: int) -> float:
        """Return the seconds a transfer of `n_bytes` is expected to take, without margin."""
        return self._paths[path].predict(n_bytes)

    def restore_s(self, pages_host: int, pages_storage: int, page_bytes: int) -> float:
        """Return the seconds a restore is expected to take, without margin: storage to host, then all of it to the device.

        The steps are added up as if nothing overlapped: an upper bound.
        """
        read = self.predict(Path.STORAGE_READ, pages_storage * page_bytes)
        return read + self.predict(Path.HOST_READ, (pages_host + pages_storage) * page_bytes)

    def state(self) -> CostState:
        """Return everything known, for the report."""
        return CostState(tuple(cost.state(path) for path, cost in self._paths.items()), self.recompute, self.margin)


def _spread(sizes: list[int]) -> float:
    mean = sum(sizes) / len(sizes)
    return math.sqrt(sum((n - mean) ** 2 for n in sizes) / len(sizes)) / mean


def _fit_line(samples: Iterable[tuple[int, float]]) -> LinearCost:
    """Minimise sum(((fixed + slope x - y) / y)^2), fixed and slope >= 0. Pure.

    When the free optimum has one number negative, the constrained one lies where that number is 0: the problem is convex.
    Both cannot be negative, since every y is positive.
    """
    w = wx = wxx = wy = wxy = 0.0
    for x, y in samples:
        weight = 1.0 / (y * y)
        w += weight
        wx += weight * x
        wxx += weight * x * x
        wy += weight * y
        wxy += weight * x * y
    determinant = w * wxx - wx * wx
    if determinant <= 1e-12 * w * wxx:  # one tiny wall time outweighs all others: no second number can be told
        return LinearCost(0.0, wxy / wxx)
    fixed = (wy * wxx - wx * wxy) / determinant
    slope = (w * wxy - wx * wy) / determinant
    if fixed < 0:
        return LinearCost(0.0, wxy / wxx)
    if slope < 0:
        return LinearCost(wy / w, 0.0)
    return LinearCost(fixed, slope)
