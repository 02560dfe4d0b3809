from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_traces import conversations, write_trace

from hicachectl.errors import CapacityError
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.workload import TraceFile, open_trace
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.trial import Registered, Trial, touch, try_pool
from hicachectl.tuning.sizing.window import Definition, window_of

BASE = ReplayConfig(
    preset("tiny-4k", 512), CacheConfig(restore="always", strict=True, seen_keys=1 << 10), Layout.PAGE_FIRST_DIRECT,
    Backend.CPU, None, 0, CostModel(RecomputeCost(1e-3, 1e-4, 0.0)),
)  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> TraceFile:
    return open_trace(write_trace(tmp_path / "t.jsonl", conversations(10, 4, 3)))


def trial(trace: TraceFile, pages: int, **seams: Any) -> Trial:
    return try_pool(trace, trace.info(), BASE, pages, root=HostRoot("/"), **seams)


def test_a_real_pool_hits_what_the_curve_says(trace: TraceFile) -> None:
    curve = curve_of(window_of(trace, 512), Definition.D3)
    for pages in (0, 4, 30, 40):
        found = trial(trace, pages)
        assert (found.hit_pages, found.total_pages) == (curve.at(max(4, pages)), curve.total)
        assert (found.n_bytes, found.failures, found.dropped_pages) == (pages * 4096, {}, 0)


def test_its_memory_is_given_back_before_the_next_one_is_made(trace: TraceFile) -> None:
    held: list[weakref.ref[np.ndarray]] = []

    def fill(pool: np.ndarray) -> None:
        touch(pool)
        held.append(weakref.ref(pool.base if pool.base is not None else pool))

    trial(trace, 40, populate=fill)
    assert held[0]() is None


def test_filling_and_registering_are_timed_apart_and_come_before_the_replay(trace: TraceFile) -> None:
    order: list[str] = []
    now = iter([0.0, 2.0, 10.0, 13.0])
    found = trial(
        trace, 40, clock=lambda: next(now), populate=lambda pool: order.append("fill"),
        register=lambda pool: order.append("register") or Registered(7.5),
        progress=lambda recorder: order.append("replay"),
    )  # fmt: skip
    assert order[:3] == ["fill", "register", "replay"]
    assert (found.fill_s, found.register_s, found.replay_s) == (2.0, 7.5, 3.0)
    assert "register_s" not in found.reasons
    assert trial(trace, 40).reasons["register_s"] == "no device: nothing to register"


def test_touching_reaches_every_small_page() -> None:
    pool = np.full((5, 3, 1000), 7, np.uint8)
    touch(pool)
    assert np.flatnonzero(pool.reshape(-1) == 0).tolist() == list(range(0, 15000, 4096))


def test_a_pool_that_cannot_be_filled_gives_everything_back_and_says_so(trace: TraceFile) -> None:
    held: list[weakref.ref[np.ndarray]] = []

    def refuse(pool: np.ndarray) -> None:
        held.append(weakref.ref(pool.base if pool.base is not None else pool))
        raise CapacityError("no memory", terms=())

    with pytest.raises(CapacityError):
        trial(trace, 40, populate=refuse)
    import gc

    gc.collect()
    assert held[0]() is None
