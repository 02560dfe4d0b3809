"""From a trace and the tiers it is sized for to a choice: L1 less what runs, L2 inclusive or exclusive, L3 below."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_traces import conversations, write_trace

from hicachectl.errors import UsageError
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.core import PrefetchWait
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import Replay, ReplayConfig
from hicachectl.runtime.replay.workload import TraceFile, open_trace
from hicachectl.runtime.storage.file import disk_bytes
from hicachectl.runtime.storage.prefetch import PrefetchPolicy
from hicachectl.runtime.write_policy import WritePolicy
from hicachectl.tuning.sizing.budget import Budget
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.prediction import Prediction, assumption_of, predict, remedy_of

BASE = ReplayConfig(
    preset("tiny-4k", 512), CacheConfig(restore="always", strict=True, settle_storage=True, seen_keys=1 << 10,
    prefetch=PrefetchWait(PrefetchPolicy.WAIT_COMPLETE)), Layout.PAGE_FIRST_DIRECT, Backend.CPU, None, 0,
    CostModel(RecomputeCost(1e-3, 1e-4, 0.0)),
)  # fmt: skip
ROOM = Budget((), 1 << 40, "nothing")


@pytest.fixture
def trace(tmp_path: Path) -> TraceFile:
    # 40 chats of 6 pages, of which the last 25 come back in turn: all fit in 240 pages
    return open_trace(write_trace(tmp_path / "t.jsonl", [*conversations(40, 6, 1), *conversations(25, 6, 2)]))


def predicted(trace: TraceFile, *, device_pages: int = 60, budget: Budget = ROOM, **asked: Any) -> Prediction:
    return predict(trace, trace.info(), BASE, budget, device_pages=device_pages, longest_pages=6, **asked)


def test_requests_that_run_hold_their_pages_in_l1_which_is_smaller_for_the_others(trace: TraceFile) -> None:
    alone, three, full = (predicted(trace, concurrency=n) for n in (0, 3, 100))
    assert (alone.busy_pages, three.busy_pages, full.busy_pages) == (0, 19, 60)  # 6 pages and a token of output each
    assert alone.levels.device_pages == 60
    assert three.levels.device_pages == 41
    assert full.levels.tiers(240).device == 0.0
    assert alone.device_rate_idle == three.device_rate_idle


def test_with_a_request_in_l1_a_session_less_fits_there_and_the_host_tier_serves_it(tmp_path: Path) -> None:
    # two chats in turn: L1 of 12 pages holds both while nothing else runs
    trace = open_trace(write_trace(tmp_path / "two.jsonl", conversations(2, 6, 20)))
    alone, busy = (predicted(trace, device_pages=12, concurrency=n) for n in (0, 1))
    assert alone.choice.host_pages == 0
    assert busy.levels.tiers(0).device < 0.5 < busy.device_rate_idle
    assert busy.choice.host_pages == 12
    assert busy.levels.tiers(12).host > 0.4


def test_an_exclusive_host_pool_is_chosen_smaller_by_the_pages_of_l1_that_are_free(trace: TraceFile) -> None:
    inclusive, exclusive = predicted(trace), predicted(trace, exclusive=True)
    assert (inclusive.choice.host_pages, exclusive.choice.host_pages) == (240, 180)
    assert exclusive.levels.inclusive_pages(180) == 240
    assert (inclusive.plateau_d1_pages, exclusive.plateau_d1_pages) == (240, 180)
    assert predicted(trace, exclusive=True, concurrency=3).choice.host_pages == 199
    assert exclusive.choice.rate == inclusive.choice.rate


def test_a_step_is_held_to_what_the_runtime_does_and_exclusive_tiers_are_named_as_what_it_does_not(
    trace: TraceFile,
) -> None:
    exclusive = predicted(trace, exclusive=True)
    assert exclusive.hits(180) == exclusive.curve.at(180) < exclusive.levels.hits_at(180)
    named = assumption_of(BASE, 60, 180, exclusive=True)
    assert named is not None
    assert "inclusive" in named
    assert "180 pages in all, not 240" in named
    assert "--l2 inclusive" in str(remedy_of(str(named)))
    assert assumption_of(BASE, 60, 0, exclusive=True) is None
    assert assumption_of(BASE, 60, 180) is None


def test_a_plateau_that_l1_holds_already_is_a_host_pool_of_none_with_incomplete_last_pages_too(
    trace: TraceFile,
) -> None:
    found = predicted(trace, device_pages=240)
    assert (found.choice.plateau_pages, found.plateau_d1_pages) == (0, 0)
    assert found.sure.growth[-1].plateau_pages == 240


def test_storage_below_needs_host_pages_to_read_into_beside_the_longest_request(trace: TraceFile) -> None:
    assert predicted(trace).limits.bounce_pages == 0
    assert predicted(trace, storage_pages=1000).limits.bounce_pages == 6
    assert predicted(trace, storage_pages=None, concurrency=4).limits.bounce_pages == 24
    tight = Budget((), 14 * 4096, "memory")
    assert predicted(trace, budget=tight, storage_pages=1000).choice.host_pages == 14
    raised = predicted(trace, device_pages=234, storage_pages=1000, concurrency=40)
    assert raised.limits.least_pages == 246
    assert "longest request (6 pages) and 240 that reads from storage pass through" in raised.choice.reason


def test_the_answer_takes_off_what_unlimited_storage_would_serve_once_its_cost_is_known(trace: TraceFile) -> None:
    below = predicted(trace, storage_pages=None)
    assert below.levels.storage_pages == below.curve.largest_distance
    assert below.levels.tiers(60).storage == pytest.approx(below.curve.rate() - below.curve.rate(60))
    costs = Costs(33e-6, 3e-6, 0.1, 1e6, 24, storage_restore_s=3e-6)
    from hicachectl.tuning.sizing.plateau import choose

    found = choose(below.levels_for(costs), 1 << 30, costs=costs, limits=below.limits)
    assert found.host_pages == below.limits.least_pages == 12


@pytest.mark.parametrize("host_pages", [30, 100, 240])
def test_a_replay_with_storage_below_hits_every_tier_as_predicted(
    trace: TraceFile, tmp_path: Path, host_pages: int
) -> None:
    found = predicted(trace, device_pages=12, storage_pages=None)
    config = replace(
        BASE, device_slots=12, host_slots=host_pages, storage_path=tmp_path / "l3",
        storage_bytes=10_000 * disk_bytes(BASE.geometry.page_bytes),
    )  # fmt: skip
    (tmp_path / "l3").mkdir()
    with Replay(trace, config) as replay:
        replay.run()
        hit = list(replay.cache.counters.hit_pages)
    assert hit[0] + hit[1] == found.hits(host_pages)
    assert hit[2] == found.storage_hits(host_pages)
    rates = found.levels.tiers(host_pages)
    assert [n / found.curve.total for n in hit] == pytest.approx([rates.device, rates.host, rates.storage])


def test_restores_shorter_than_the_crossover_are_left_out_of_the_levels(trace: TraceFile) -> None:
    found = predicted(trace)
    costs = Costs(33e-6, 3e-6, 0.1, 1e6, 24)
    assert found.levels_for(costs).paying is None
    assert found.levels_for(replace(costs, crossover_tokens=512)).paying is None
    six, seven = (found.levels_for(replace(costs, crossover_tokens=512 * n)) for n in (6, 7))
    assert six.paying_rates[-1] == pytest.approx(found.levels.host_rates[-1])
    assert seven.paying_rates[-1] == 0.0


def test_more_references_than_can_be_kept_are_refused_with_what_to_give(
    trace: TraceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hicachectl.tuning.sizing.prediction.SAMPLE_ABOVE", 500)
    with pytest.raises(UsageError, match="540 page references, at most 500") as caught:
        predicted(trace)
    assert "--limit" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("changed", "host_pages", "remedy"),
    [
        ({"eviction": Eviction.LFU}, 180, "--eviction lru"),
        ({"write_policy": WritePolicy.WRITE_BACK}, 180, "--write-policy write_through"),
        ({}, 30, "--steps of pools larger than L1"),
    ],
)
def test_every_assumption_has_its_own_remedy(changed: dict[str, object], host_pages: int, remedy: str) -> None:
    base = replace(BASE, cache=replace(BASE.cache, **changed))  # type: ignore[arg-type]
    named = assumption_of(base, 60, host_pages)
    assert named is not None
    assert remedy in str(remedy_of(named))
    assert remedy_of("the traffic drifted") is None
