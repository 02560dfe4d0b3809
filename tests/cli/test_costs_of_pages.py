"""`--costs` of run and tune size: costs of these pages and no others, and economics from files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_files import bench_document
from cli_runner import call
from small_traces import conversations, write_trace

from hicachectl.bench_data import Costs, LineCost, RecomputeLine
from hicachectl.data_digest import with_digest
from hicachectl.errors import UsageError
from hicachectl.run_costs import read_costs, require_pages, sizing_costs
from hicachectl.runtime.cost import LinearCost
from hicachectl.runtime.geometry import preset

QWEN = preset("qwen3-8b", 16)
READ = Costs(host_read=LineCost(1e-4, 2e-11, 9))
TINY = {"geometry": {"name": "tiny-4k", "page_tokens": 512, "page_bytes": 4096}}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, kind: str, costs: Costs, **details: Any) -> str:
    """A file as bench writes it, with `details` of its own."""
    document = bench_document(kind, costs)
    document["data"] = with_digest(document["data"] | details)
    Path(name).write_text(json.dumps(document))
    return name


@pytest.mark.parametrize(
    ("name", "page_tokens", "page_bytes"),
    [("llama-3.1-8b", 16, 2097152), ("qwen3-8b", 64, 9437184), ("qwen3-8b", 16, 1179648)],
)
def test_costs_of_other_pages_are_refused_with_both(name: str, page_tokens: int, page_bytes: int) -> None:
    pages = {"page_tokens": page_tokens, "page_bytes": page_bytes}
    written("model.json", "model", READ, geometry={"name": name, **pages})
    written("copy.json", "copy", READ, geometry=name, **pages)
    for path in ("model.json", "copy.json"):
        with pytest.raises(UsageError) as caught:
            require_pages(read_costs(path), QWEN)
        assert f"pages of {name}, {page_tokens} tokens, {page_bytes} B" in caught.value.what
        assert "asked for are pages of qwen3-8b, 16 tokens, 2359296 B" in caught.value.what
        assert caught.value.where == path


def test_costs_of_these_pages_and_of_none_are_taken() -> None:
    written(
        "model.json", "model", READ, geometry={"name": "qwen3-8b", "page_tokens": 16, "page_bytes": QWEN.page_bytes}
    )
    written("pool.json", "pool", Costs(make_s_per_gib=0.25))
    written("later.json", "copy", Costs(host_read=LineCost(9e-4, 9e-11, 9)))
    results = read_costs("model.json,pool.json,later.json")
    require_pages(results, QWEN)
    given = sizing_costs(results)
    assert (given.host_read, given.storage_read, given.make_s_per_gib) == (LinearCost(1e-4, 2e-11), None, 0.25)


def test_a_file_without_a_cost_and_one_whose_pages_were_edited_are_refused() -> None:
    written("link.json", "link", Costs())
    with pytest.raises(UsageError, match="no cost was measured in this file"):
        read_costs("link.json")
    document = bench_document("store")
    why = "read cold by one thread: calls of one size, a line needs two --batch sizes (and --threads 1)"
    document["data"]["facts"]["/costs/storage_read"] = {"reason": why}
    document["data"] = with_digest(document["data"])
    Path("store.json").write_text(json.dumps(document))
    with pytest.raises(UsageError) as caught:
        read_costs("store.json")
    assert caught.value.why == why
    written("broken.json", "model", READ, geometry={"name": "qwen3-8b"})
    with pytest.raises(UsageError, match="the pages are given as 'qwen3-8b', None tokens, None bytes"):
        require_pages(read_costs("broken.json"), QWEN)


@pytest.mark.parametrize("command", ["run", "tune size"])
def test_a_command_refuses_a_file_of_other_pages_and_of_another_version(command: str) -> None:
    written("model.json", "model", READ, **TINY)
    ran = call(*command.split(), "--geometry", "tiny-64k", "--costs", "model.json")
    assert ran.code == 2
    assert "measured with pages of tiny-4k" in ran.err
    document = json.loads(Path("model.json").read_text()) | {"schema": "hicachectl.bench-model/9"}
    Path("model.json").write_text(json.dumps(document))
    ran = call(*command.split(), "--geometry", "tiny-4k", "--costs", "model.json")
    assert ran.code == 2
    assert "version 9 of bench-model, this release reads 1" in ran.err


def test_a_size_is_chosen_by_economics_from_files_alone() -> None:
    write_trace(Path("trace.jsonl"), conversations(20, 4, 2))
    line = ("tune", "size", "--trace", "trace.jsonl", "--geometry", "tiny-4k", "--steps", "none", "--state-dir", "s", "--device-slots", "8",
            "--device", "cpu", "--force", "-o", "json")  # fmt: skip
    assert call(*line).json["data"]["costs"] is None
    prefill = RecomputeLine(0.01, 3e-5, 0.0, "tiny-4k", "made up")
    written("model.json", "model", Costs(host_read=LineCost(0.015, 1e-12, 9), recompute=prefill), **TINY)
    without = call(*line, "--costs", "model.json")
    assert without.json["data"]["costs"] is None
    assert "bench pool" in without.json["data"]["costs_reason"]
    written("pool.json", "pool", Costs(make_s_per_gib=0.25))
    ran = call(*line, "--costs", "model.json,pool.json")
    assert ran.code == 0, ran.err
    costs = ran.json["data"]["costs"]
    assert costs["make_s_per_gib"] == 0.25
    assert costs["crossover_tokens"] == 501  # 15 ms over 30 us a token
    assert costs["storage_restore_s"] is None
    assert ran.json["data"]["choice"]["rule"] == "economics"
