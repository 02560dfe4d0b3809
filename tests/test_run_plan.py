"""From settings to a replay: what a limit, a disk and a host pool mean before anything is allocated."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import jsonschema
import numpy as np
import pytest
from cli_runner import call

from hicachectl.config_keys import catalogue
from hicachectl.config_models import RunConfig
from hicachectl.disk_room import disk_warnings, require_disk_room
from hicachectl.errors import CapacityError
from hicachectl.run_plan import plan_run
from hicachectl.runtime.replay.synthetic import CLASSES, synthetic
from hicachectl.schemas_io import document_schema


class Usage(NamedTuple):
    total: int
    used: int
    free: int


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


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("page_tokens", [48, 64, 512])
def test_a_synthetic_workload_has_blocks_that_pages_can_be_cut_from(name: str, page_tokens: int) -> None:
    own = synthetic(name).block_tokens
    plan = plan_run(RunConfig(synthetic=name, page_tokens=page_tokens, limit=3))
    told = f" in blocks of {page_tokens} tokens"
    assert plan.info.block_tokens == (own if own % page_tokens == 0 else page_tokens)
    assert plan.replay.trace_name == f"synthetic {name} seed 0{told if own % page_tokens else ''}"


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


@pytest.mark.parametrize("columns", ["80", "100", "120"])
def test_the_preflight_is_a_table_at_80_columns_with_null_and_sizes_with_units(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = call("run", "--check", "--limit", "3", env={"COLUMNS": columns})
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    rows = {line.split()[0]: line.split() for line in lines if line.startswith("run.")}
    assert set(rows) == {key for key in catalogue() if key.startswith("run.")}
    assert rows["run.report"][1] == "null"
    assert rows["run.storage_bytes"][1:4] == ["536870912", "(512.0", "MiB)"]
    assert "None" not in ran.out


def test_a_storage_tier_larger_than_the_free_disk_is_warned_of_with_both_values(tmp_path: Path) -> None:
    run = RunConfig(storage_path=str(tmp_path / "not" / "there"), storage_bytes=2 << 30)
    seen: list[Path] = []

    def free(folder: Path) -> int:
        seen.append(folder)
        return 1 << 30

    (warning,) = disk_warnings(run, free_bytes=free)
    assert seen == [tmp_path]
    assert warning.code == "HC-L3-DISK"
    assert "2.0 GiB" in warning.message
    assert "1.0 GiB" in warning.message
    assert disk_warnings(run, free_bytes=lambda folder: 2 << 30) == ()
    assert disk_warnings(RunConfig(), free_bytes=lambda folder: 0) == ()


def test_a_tmpfs_without_a_limit_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = [("pages", 1 << 20)]
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, 0))  # size=0
    assert disk_warnings(RunConfig(storage_path=str(tmp_path))) == ()
    require_disk_room(tmp_path, terms, "smaller")
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(4096, 4096, 0))
    assert disk_warnings(RunConfig(storage_path=str(tmp_path))) != ()
    with pytest.raises(CapacityError):
        require_disk_room(tmp_path, terms, "smaller")


def test_nothing_said_of_the_model_is_null_with_a_reason_in_the_document(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "trace.jsonl", 3, 5)
    ran = call(
        "run", "--trace", trace, "--geometry", "tiny-4k", "-o", "json", env={"HICACHECTL_RUN_COMPUTE_B_S": "1e-5"}
    )
    data = ran.json["data"]
    assert (data["compute"]["model"], data["gain"]["at_model_size"]) == (None, None)
    assert "run.compute.model" in data["facts"]["/gain/at_model_size"]["reason"]
    jsonschema.validate(ran.json, document_schema("run")[1])
