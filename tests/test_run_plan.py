"""From settings to a replay: what a limit, a disk and a host pool mean before anything is allocated."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np

from hicachectl.config_models import RunConfig
from hicachectl.run_plan import plan_run
from hicachectl.runtime.replay.synthetic import synthetic


def trace_of(path: Path, *lengths: int) -> str:
    """Write a Mooncake trace of requests of these many blocks of 512 tokens, all different."""
    lines, first = [], 0
    for at, n in enumerate(lengths):
        blocks = list(range(first, first + n))
        lines.append({"timestamp": at, "input_length": 512 * n, "output_length": 1, "hash_ids": blocks})
        first += n
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_limit_replays_the_first_requests_of_the_same_synthetic_workload() -> None:
    plan = plan_run(RunConfig(limit=5))
    whole = synthetic("multi-turn")
    for ours, theirs in zip(islice(plan.trace, 5), whole, strict=False):
        assert np.array_equal(ours.blocks, theirs.blocks)
        assert (ours.time_s, ours.input_tokens, ours.session) == (theirs.time_s, theirs.input_tokens, theirs.session)
    assert (plan.info, plan.replay.limit) == (whole.info(), 5)


def test_auto_device_slots_hold_the_longest_request_that_will_be_replayed(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "trace.jsonl", 3, 5, 2, 40)
    assert plan_run(RunConfig(trace=trace)).replay.device_slots == 40
    assert plan_run(RunConfig(trace=trace, limit=3)).replay.device_slots == 5
    assert plan_run(RunConfig(trace=trace, limit=3)).longest_pages == 5
    assert plan_run(RunConfig(trace=trace, limit=9)).replay.device_slots == 40


def test_a_short_try_of_a_large_geometry_fits_where_the_whole_trace_would_not(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "trace.jsonl", 1, 1, 900_000)
    plan = plan_run(RunConfig(trace=trace, limit=2, geometry="qwen3-8b", host_slots=2))
    assert dict(plan.memory_terms)["device pool"] == 512 * 147_456
