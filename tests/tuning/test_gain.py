"""Gain from interleaved runs: what noise, drift, hiccups and a lost device do to the judgement."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hicachectl.tuning.gain import MIN_ROUNDS, Gain, Judgement, Sample, interval, judge

ROUNDS = 11
DEVICES = ("0000:b7:00.0", "0000:b8:00.0")


def samples(on: list[float], off: list[float]) -> list[Sample]:
    """Return off, on, off, ... of one device."""
    assert len(off) == len(on) + 1
    return [Sample(bool(at % 2), {DEVICES[0]: (on if at % 2 else off)[at // 2]}) for at in range(len(on) + len(off))]


def simulated(
    chance: random.Random, effect: float = 1.0, noise: float = 0.02, trend: Callable[[float], float] = lambda t: 1.0,
    rounds: int = ROUNDS, effects: tuple[float, ...] | None = None,
) -> list[Sample]:  # fmt: skip
    """Return runs of two devices whose speed has noise of its own and noise in common, and a trend over the whole series."""
    found = []
    for at in range(2 * rounds + 1):
        common = chance.gauss(1.0, noise / 2) * trend(at / (2 * rounds))
        gains = effects or (effect, effect)
        figures = {
            name: 25e9 * common * chance.gauss(1.0, noise) * (gain if at % 2 else 1.0)
            for name, gain in zip(DEVICES, gains, strict=True)
        }
        found.append(Sample(bool(at % 2), figures))
    return found


def share_kept(n: int, seed: int, min_gain: float = 1.0, max_loss: float = 0.03, **how: object) -> float:
    chance = random.Random(seed)
    kept = sum(judge(simulated(chance, **how), min_gain=min_gain, max_loss=max_loss).keep for _ in range(n))  # type: ignore[arg-type]
    return kept / n


# -- laws by simulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [7, 8, 11, 12, 14, 20, 40])
@pytest.mark.parametrize("noise", [0.002, 0.02, 0.2])
def test_a_change_without_effect_passes_in_fewer_than_five_of_a_hundred_cases(rounds: int, noise: float) -> None:
    assert share_kept(2000, seed=rounds, rounds=rounds, noise=noise) < 0.05


def test_a_real_effect_of_four_times_the_noise_is_found() -> None:
    assert share_kept(500, seed=1, effect=1.08, noise=0.02) > 0.97
    assert share_kept(500, seed=2, effect=4.0, noise=0.2, min_gain=1.10) > 0.99


def test_an_effect_below_the_smallest_gain_asked_for_is_not_kept_however_certain() -> None:
    assert share_kept(300, seed=3, effect=1.05, noise=0.001, min_gain=1.10) == 0.0
    assert share_kept(300, seed=3, effect=1.05, noise=0.001, min_gain=1.04) == 1.0


@pytest.mark.parametrize("by", [0.3, -0.3])
def test_a_linear_drift_does_not_pass_as_a_gain(by: float) -> None:
    def drift(t: float) -> float:
        return 1.0 + by * t

    assert share_kept(1000, seed=4, noise=0.01, trend=drift) < 0.05
    chance = random.Random(5)
    runs = simulated(chance, noise=0.01, trend=drift)
    first, second = runs[: len(runs) // 2], runs[len(runs) // 2 + 1 :]
    ratio = sum(s.total for s in second) / sum(s.total for s in first)
    assert abs(ratio - 1) > 0.1  # measured one after the other, the same drift would pass as a gain or a loss


def test_a_noiseless_linear_drift_cancels_exactly() -> None:
    line = [100.0 + 7.0 * at for at in range(2 * ROUNDS + 1)]
    found = judge(samples(line[1::2], line[::2]), min_gain=1.0, max_loss=0.0)
    assert found.total == Gain(1.0, 1.0, 1.0)
    assert (found.keep, found.reason) == (False, "no gain beyond the noise")


def test_a_step_in_the_middle_spoils_a_round_and_not_the_judgement() -> None:
    def step(t: float) -> float:
        return 1.0 if t < 0.5 else 0.6

    assert share_kept(500, seed=6, noise=0.01, trend=step) < 0.05
    assert share_kept(500, seed=6, noise=0.01, trend=step, effect=1.2, min_gain=1.1) > 0.97


def test_one_hiccup_of_eleven_rounds_decides_nothing() -> None:
    on, off = [110.0] * 11, [100.0] * 12
    on[4] = 20.0
    assert judge(samples(on, off), min_gain=1.05, max_loss=0.03).keep
    on = [100.0] * 11
    on[4] = 900.0
    assert not judge(samples(on, off), min_gain=1.0, max_loss=0.03).keep


# -- sum, slowest, loss -----------------------------------------------------------------------------------------------------


def test_a_device_that_loses_more_than_allowed_is_named_although_the_sum_gains() -> None:
    runs = simulated(random.Random(7), effects=(1.5, 0.9), noise=0.005)
    found = judge(runs, min_gain=1.1, max_loss=0.03)
    assert not found.keep
    assert (found.reason or "").startswith(f"{DEVICES[1]} loses 1") and "more than 3.0 %" in (found.reason or "")
    assert found.total is not None and found.total.low > 1.1
    assert judge(runs, min_gain=1.1, max_loss=0.2).keep


def test_the_sum_or_the_slowest_device_is_enough() -> None:
    both = simulated(random.Random(8), effects=(1.5, 1.0), noise=0.005)
    found = judge(both, min_gain=1.1, max_loss=0.03)
    assert found.keep and found.slowest is not None and found.slowest.ratio < 1.1
    slow = [
        Sample(s.on, {DEVICES[0]: 100.0, DEVICES[1]: (12.0 if s.on else 10.0) * s.by_device[DEVICES[1]] / 25e9})
        for s in simulated(random.Random(9), noise=0.005)
    ]
    found = judge(slow, min_gain=1.1, max_loss=0.03)
    assert found.keep and found.total is not None and found.total.ratio < 1.1


def test_a_gain_that_only_the_noisy_figure_reaches_is_not_enough() -> None:
    """The sum gains 2 % for certain; the slowest device swings widely: its median must not lend the sum its size."""
    chance = random.Random(10)
    runs = [
        Sample(on := bool(at % 2), {DEVICES[0]: 1000.0 * (1.02 if on else 1.0), DEVICES[1]: chance.uniform(1.0, 9.0)})
        for at in range(2 * ROUNDS + 1)
    ]
    assert not judge(runs, min_gain=1.10, max_loss=1.0).keep


# -- the interval -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k", "confidence"), [(7, 1, 0.984), (8, 1, 0.992), (9, 1, 0.996), (11, 2, 0.988), (14, 3, 0.987), (17, 4, 0.987), (20, 5, 0.988)]
)  # fmt: skip
def test_the_interval_is_that_of_the_published_table(n: int, k: int, confidence: float) -> None:
    low, high, sure = interval([float(at) for at in range(n, 0, -1)])
    assert (low, high) == (k, n + 1 - k)
    assert sure == pytest.approx(confidence, abs=0.0005)


def test_fewer_rounds_than_an_interval_needs_are_refused() -> None:
    assert interval([1.0] * (MIN_ROUNDS - 1))[2] < 0.98 < interval([1.0] * MIN_ROUNDS)[2]
    with pytest.raises(ValueError, match="at least 7"):
        judge(samples([1.0] * 6, [1.0] * 7), min_gain=1.0, max_loss=0.0)


# -- runs that cannot be compared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "figures", "said"),
    [
        (3, {DEVICES[0]: 1.0}, "0000:b8:00.0 was not measured in every run (run 4)"),
        (2, {DEVICES[0]: 1.0, DEVICES[1]: float("nan")}, "run 3 of 0000:b8:00.0 gave nan"),
        (2, {DEVICES[0]: 0.0, DEVICES[1]: 1.0}, "run 3 of 0000:b7:00.0 gave 0 bytes"),
        (1, {DEVICES[0]: -1.0, DEVICES[1]: 1.0}, "run 2 of 0000:b7:00.0 gave -1"),
        (1, {DEVICES[0]: float("inf"), DEVICES[1]: 1.0}, "run 2 of 0000:b7:00.0 gave inf"),
        (0, {}, "run 1 measured no device"),
    ],
)
def test_runs_that_cannot_be_compared_keep_nothing_and_say_which(at: int, figures: dict[str, float], said: str) -> None:
    runs = simulated(random.Random(0), effect=2.0)
    runs[at] = Sample(runs[at].on, figures)
    found = judge(runs, min_gain=1.0, max_loss=0.03)
    assert not found.keep
    assert said in (found.reason or "")
    assert found.total is None


def test_a_device_that_stops_with_the_change_is_a_loss_not_an_error() -> None:
    runs = [Sample(s.on, {**s.by_device, DEVICES[1]: 0.0 if s.on else 1.0}) for s in simulated(random.Random(0))]
    assert "loses 100.0 %" in (judge(runs, min_gain=1.0, max_loss=0.03).reason or "")


def test_runs_that_are_not_in_turn_are_a_mistake_of_the_caller() -> None:
    runs = simulated(random.Random(0))
    for wrong in (runs[:-1], [runs[0], *runs[2:]], runs[::2] + runs[1::2], []):
        with pytest.raises(ValueError, match="off, on, off"):
            judge(wrong, min_gain=1.0, max_loss=0.0)


def test_a_judgement_has_a_reason_exactly_when_it_is_against_the_change() -> None:
    for keep, reason in ((True, "x"), (False, None)):
        with pytest.raises(ValueError, match="reason"):
            Judgement(keep, "", reason)
