"""Runs of a load without and with a change, in turn -> whether the change gained more than the noise. Pure.

    off  on  off  on  off  ...  on  off        a round: an on and the offs on both sides of it
    `-- r1 --'
             `-- r2 --'

Each run with the change is divided by the mean of the run before and the run after it without, so that a drift which is a
straight line over a round cancels exactly, and a hiccup spoils one or two rounds, not all. The gain is the median of these
ratios. The noise is the exact interval of that median by order statistics, which assumes no distribution: of n ratios the
interval from the k-th smallest to the k-th largest holds the true median with probability 1 - 2 P(Binomial(n, 1/2) < k)
(J.-Y. Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, chapter 2, confidence interval for the
median; recommended for runs by T. Hoefler and R. Belli, Scientific Benchmarking of Parallel Computing Systems, SC15). k is the
largest that keeps 98 %; below seven rounds there is none. 98 and not 95, because neighbouring rounds share a run and two
figures are looked at: by simulation (tests/tuning/test_gain.py) a change without effect then passes in fewer than 5 of 100 cases,
and with 95 in more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

__all__ = ["MIN_ROUNDS", "Gain", "Judgement", "Sample", "interval", "judge"]

_CONFIDENCE = 0.98
MIN_ROUNDS = 7
"""1 - 2 x 2^-7 = 98.4 % is the first above 98 %: fewer rounds cannot tell a gain from noise."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of the load: with the change (`on`) or without, bytes per second by device."""

    on: bool
    by_device: Mapping[str, float]

    @property
    def total(self) -> float:
        """All devices together, bytes per second. Pure."""
        return sum(self.by_device.values())

    @property
    def slowest(self) -> float:
        """The slowest device, bytes per second: what a group of ranks that waits for its last member gets. Pure."""
        return min(self.by_device.values())


@dataclass(frozen=True, slots=True)
class Gain:
    """A ratio with the change over without it, 1.1 is 10 % faster, and the interval of its noise."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a change is kept. `reason` says why not; the gains are None where the runs could not be compared."""

    keep: bool
    figures: str
    reason: str | None = None
    total: Gain | None = None
    slowest: Gain | None = None
    by_device: Mapping[str, Gain] = field(default_factory=dict)
    n_rounds: int = 0
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.keep == (self.reason is not None):
            raise ValueError(f"a change is kept or there is a reason against it: {self.keep}, {self.reason!r}")

    @property
    def text(self) -> str:
        """The reason and the figures in one sentence for screen and journal. Pure."""
        return self.figures if self.reason is None else f"{self.reason}: {self.figures}"


def judge(samples: Sequence[Sample], *, min_gain: float, max_loss: float) -> Judgement:
    """Keep a change when the sum over the devices or the slowest device gains beyond the noise, and nothing loses. Pure.

    "Gains" means: the lower end of the interval is above 1, and the median is `min_gain` (a ratio, 1.10) or more. "Loses"
    means: the median of the sum or of any device is below 1 - `max_loss`. The sum matters for a pool that all devices share, the
    slowest device for ranks that wait for each other.

    Runs that cannot be compared (a device missing in one, a figure that is no positive number) are a judgement against the
    change. Raises ValueError unless the samples are off, on, off, ..., off with at least MIN_ROUNDS rounds.
    """
    n_rounds = len(samples) // 2
    if len(samples) % 2 == 0 or any(sample.on != bool(at % 2) for at, sample in enumerate(samples)):
        raise ValueError("the runs are not off, on, off, ..., off")
    if n_rounds < MIN_ROUNDS:
        raise ValueError(f"{n_rounds} rounds cannot tell a gain from noise: at least {MIN_ROUNDS}")
    incomparable = _incomparable(samples)
    if incomparable is not None:
        return Judgement(False, f"{n_rounds} rounds that cannot be compared", incomparable, n_rounds=n_rounds)
    confidence = interval([0.0] * n_rounds)[2]
    total = _gain(samples, lambda sample: sample.total)
    slowest = _gain(samples, lambda sample: sample.slowest)
    by_device = {name: _gain(samples, _figure_of(name)) for name in samples[0].by_device}
    figures = (
        f"sum {_show(total)}, slowest device {_show(slowest)}; {n_rounds} rounds, {100 * confidence:.1f} % intervals"
    )
    reason = _against(total, slowest, by_device, min_gain, max_loss)
    return Judgement(reason is None, figures, reason, total, slowest, by_device, n_rounds, confidence)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return low, high and the confidence of the narrowest interval of the median that keeps 98 %; the extremes when none does. Pure.

    >>> interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 9.0, 8.0, 7.0, 11.0, 10.0])
    (2.0, 10.0, 0.98828125)
    """
    ordered, n = sorted(values), len(values)
    at, missed = 1, 2 * 0.5**n
    while True:
        more = missed + 2 * math.comb(n, at) * 0.5**n
        if 1 - more < _CONFIDENCE or at + 1 > n // 2:
            return ordered[at - 1], ordered[n - at], 1 - missed
        at, missed = at + 1, more


def _figure_of(device: str) -> Callable[[Sample], float]:
    return lambda sample: sample.by_device[device]


def _gain(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> Gain:
    values = [figure(sample) for sample in samples]
    ratios = [2 * values[at] / (values[at - 1] + values[at + 1]) for at in range(1, len(values), 2)]
    low, high, _ = interval(ratios)
    return Gain(median(ratios), low, high)


def _against(total: Gain, slowest: Gain, by_device: Mapping[str, Gain], min_gain: float, max_loss: float) -> str | None:
    worst = min(by_device, key=lambda name: by_device[name].ratio)
    for name, gain in (("the sum", total), (worst, by_device[worst])):
        if gain.ratio < 1 - max_loss:
            return f"{name} loses {_percent(1 - gain.ratio)}, more than {_percent(max_loss)}"
    beyond = [gain for gain in (total, slowest) if gain.low > 1]
    if not beyond:
        return "no gain beyond the noise"
    if max(gain.ratio for gain in beyond) < min_gain:
        return f"the gain is below {_percent(min_gain - 1)}"
    return None


def _incomparable(samples: Sequence[Sample]) -> str | None:
    devices = set(samples[0].by_device)
    if not devices:
        return "run 1 measured no device"
    for number, sample in enumerate(samples, start=1):
        other = devices ^ set(sample.by_device)
        if other:
            return f"{min(other)} was not measured in every run (run {number})"
        for name, value in sample.by_device.items():
            if not math.isfinite(value) or value < 0 or (value == 0 and not sample.on):
                return f"run {number} of {name} gave {value:g} bytes a second"
    return None


def _show(gain: Gain) -> str:
    return f"x{gain.ratio:.3f} ({gain.low:.3f} to {gain.high:.3f})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
