"""Flows that run together: the window in which all run, errors, and what is drained when."""

from __future__ import annotations

import random
import threading

import pytest
from fakes.link_rig import FakeFlow, FakeRig

from hicachectl.errors import InvariantBroken, UsageError, Vanished
from hicachectl.runtime.probes.flows import STEPS_IN_FLIGHT, rate_in_window, run_together

STEP = 32 << 20


def flows(rig: FakeRig, n: int) -> list[FakeFlow]:
    return [rig.flow(f"cuda:{i}", 0, STEP, up=False) for i in range(n)]


def test_each_flow_gets_its_own_rate_whatever_the_threads_do() -> None:
    rig = FakeRig(lambda flow, batch: 1e9 * (1 + batch.index(flow)))
    found = run_together(flows(rig, 4), 2.0)
    assert [round(rate.bytes_per_s) for rate in found] == [1e9, 2e9, 3e9, 4e9]
    assert len({rate.window_s for rate in found}) == 1
    assert found[0].window_s >= 2.0


def test_only_the_time_in_which_all_run_counts() -> None:
    def speed(flow: FakeFlow, batch: list[FakeFlow]) -> float:
        if flow is batch[0]:  # the other one starts later: until then this one has the link to itself
            return 8e9 if flow.now < 0.3 else 2e9
        return 2e9

    found = run_together(flows(FakeRig(speed), 2), 5.0)
    assert [round(rate.bytes_per_s / 1e9, 2) for rate in found] == [2.0, 2.0]


def test_a_rate_is_that_of_the_window_for_any_window() -> None:
    chance = random.Random(3)
    times = [0.0]
    for _ in range(50):
        times.append(times[-1] + chance.uniform(0.5, 2.0))
    whole = rate_in_window(times, 10, times[0], times[-1])
    assert whole.bytes_per_s == pytest.approx(50 * 10 / times[-1])
    cut = chance.uniform(5.0, 20.0)
    first, second = rate_in_window(times, 10, 0.0, cut), rate_in_window(times, 10, cut, times[-1])
    assert first.bytes_per_s * cut + second.bytes_per_s * (times[-1] - cut) == pytest.approx(500)
    assert first.n_steps + second.n_steps == whole.n_steps == 50


def test_a_window_outside_the_flow_is_refused() -> None:
    for start, end in ((-1.0, 2.0), (1.0, 9.0), (2.0, 2.0)):
        with pytest.raises(InvariantBroken):
            rate_in_window([0.0, 1.0, 3.0], 1, start, end)


def test_the_first_flow_that_fails_is_raised_when_no_flow_runs_any_more() -> None:
    def fail(flow: FakeFlow) -> None:
        if flow.device == "cuda:1" and flow.n_waits == 5:
            raise Vanished("fell off the bus")

    rig = FakeRig(lambda flow, batch: 1e9, fails=fail)
    several = flows(rig, 3)
    with pytest.raises(Vanished, match="fell off the bus"):
        run_together(several, 1e9)  # longer than any test: only the failure ends it
    assert [flow.n_under_way for flow in several] == [0, 0, 0]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hicache-flow")]


def test_a_flow_that_fails_before_it_is_steady_ends_all() -> None:
    def fail(flow: FakeFlow) -> None:
        if flow.device == "cuda:0":
            raise Vanished("gone at once")

    seen: list[str] = []
    with pytest.raises(Vanished):
        run_together(
            flows(FakeRig(lambda flow, batch: 1e9, fails=fail), 2), 1e9, under_load=lambda: seen.append("asked")
        )
    assert seen == []


def test_what_is_asked_under_load_is_asked_once_and_what_it_raises_ends_the_load() -> None:
    seen: list[int] = []
    rig = FakeRig(lambda flow, batch: 1e9)
    several = flows(rig, 2)
    run_together(several, 1.0, under_load=lambda: seen.append(len(several)))
    assert seen == [2]

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        run_together(flows(rig, 2), 1e9, under_load=fail)
    assert all(flow.n_under_way == 0 for flow in rig.batches[-1])


def test_no_more_steps_are_under_way_than_said() -> None:
    most: list[int] = []

    class Counting(FakeFlow):
        def submit(self) -> None:
            super().submit()
            most.append(self.n_under_way)

    rig = FakeRig(lambda flow, batch: 1e9)
    run_together([Counting(rig, "cuda:0", 0, STEP, True, [])], 1.0)
    assert max(most) == STEPS_IN_FLIGHT


def test_no_flows_or_no_time_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        run_together([], 1.0)
    with pytest.raises(UsageError):
        run_together(flows(FakeRig(lambda flow, batch: 1e9), 1), 0.0)
