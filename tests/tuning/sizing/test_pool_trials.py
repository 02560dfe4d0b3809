from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_trials import made_trial
from small_traces import conversations, write_trace

from hicachectl.errors import CapacityError
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.workload import TraceFile, open_trace
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing import pool_trials
from hicachectl.tuning.sizing.pool_trials import PoolTrials
from hicachectl.tuning.sizing.trial import Trial

OPEN = ReplayConfig(
    preset("tiny-4k", 512), CacheConfig(restore="always"), Layout.PAGE_FIRST_DIRECT, None, None, 0,
    CostModel(RecomputeCost(1e-3, 1e-4, 0.0)),
)  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> TraceFile:
    return open_trace(write_trace(tmp_path / "t.jsonl", conversations(10, 4, 3)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Backend | None]:
    """Backends that pools were made with; where none was named, "strided" is what was measured to be best."""
    found: list[Backend | None] = []

    def tried(_trace: Any, _info: Any, config: ReplayConfig, pages: int, **_: Any) -> Trial:
        found.append(config.backend)
        return made_trial(pages, backend="strided" if config.backend is None else config.backend.value)

    monkeypatch.setattr(pool_trials, "try_pool", tried)
    return found


def test_all_pools_copy_with_what_the_first_one_chose(trace: TraceFile, asked: list[Backend | None]) -> None:
    trials = PoolTrials(trace, trace.info(), OPEN, root=HostRoot("/"))
    reasons = [trials.step(pages).backend_reason for pages in (0, 10, 20)]
    assert asked == [None, None, Backend.STRIDED]
    assert reasons == ["made up", "made up", "as in the step of 10 pages"]


def test_a_named_backend_and_that_of_a_run_that_goes_on_are_kept(trace: TraceFile, asked: list[Backend | None]) -> None:
    PoolTrials(trace, trace.info(), replace(OPEN, backend=Backend.TORCH), root=HostRoot("/")).step(10)
    PoolTrials(trace, trace.info(), OPEN, root=HostRoot("/"), backend="batch").step(10)
    assert asked == [Backend.TORCH, Backend.BATCH]


def test_the_host_is_looked_at_before_each_pool(trace: TraceFile) -> None:
    def refuse(pages: int) -> None:
        if pages > 10:
            raise CapacityError("no room", terms=())

    trials = PoolTrials(trace, trace.info(), OPEN, root=HostRoot("/"), require_room=refuse)
    assert trials.step(10).backend == "cpu"
    with pytest.raises(CapacityError):
        trials.step(20)
