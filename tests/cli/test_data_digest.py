"""The digest of a result's values: an edited file is refused with its name, a file that was written in another form is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_files import bench_document
from cli_runner import call

from hicachectl.bench_data import Costs, LineCost
from hicachectl.bench_results import read_bench
from hicachectl.data_digest import digest_of, with_digest
from hicachectl.errors import UsageError

COSTS = Costs(host_read=LineCost(1e-4, 2e-11, 9))


def written(folder: Path, document: Any, **how: Any) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(document, **how))
    return path


def test_a_changed_value_is_refused_with_the_file_and_both_digests(tmp_path: Path) -> None:
    for change in (
        lambda data: data["costs"]["host_read"].update(per_byte_s=2e-12),
        lambda data: data["setting"].update(accelerator="NVIDIA H200"),
        lambda data: data["measures"][0].update(samples=[2.0, 2.0]),
        lambda data: data.update(later=1),
        lambda data: data["facts"].popitem(),
    ):
        made = bench_document(costs=COSTS)
        before = made["data"]["data_digest"]
        change(made["data"])
        with pytest.raises(
            UsageError, match=f"data_digest is '{before}', the values in the file give 'sha256:"
        ) as caught:
            read_bench(written(tmp_path, made))
        assert caught.value.where == str(tmp_path / "result.json")


def test_a_result_without_a_digest_is_refused(tmp_path: Path) -> None:
    made = bench_document(costs=COSTS)
    del made["data"]["data_digest"]
    with pytest.raises(UsageError, match="data_digest is None"):
        read_bench(written(tmp_path, made))


def test_another_form_of_the_same_values_is_read(tmp_path: Path) -> None:
    made = bench_document(costs=COSTS)
    assert made["data"]["measures"][0]["samples"] == [1.0, 3.0]
    made["data"]["measures"][0]["samples"] = [1, 3.0]  # as a tool that drops a zero writes it
    for how in ({"indent": 4}, {"sort_keys": True}, {"ensure_ascii": False}):
        assert read_bench(written(tmp_path, made, **how)).costs == COSTS


def test_the_digest_leaves_itself_out_and_tells_values_apart() -> None:
    data = {"b": [1.5, None], "a": {"x": "\u00b5"}}
    assert digest_of(with_digest(data)) == digest_of(data) == digest_of(dict(reversed(data.items())))
    assert len({digest_of(one) for one in ({"a": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"a": 1.5}, {})}) == 6


def test_an_edited_file_is_refused_by_the_command_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    small = (
        "bench",
        "pool",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--kind",
        "anonymous",
        "--size",
        "2MiB",
        "--rounds",
        "1",
    )
    ran = call(*small, "-o", "json", "--output-file", str(path))
    assert ran.code == 9, ran.err  # one sample: made an answer here, outside the digest
    path.write_text(json.dumps(json.loads(path.read_text()) | {"exit_code": 0, "status": "ok"}))
    document = json.loads(path.read_text())
    assert read_bench(path).data == document["data"]
    document["data"]["pool_bytes"] *= 2
    path.write_text(json.dumps(document))
    ran = call("run", "--check", "--costs", str(path))
    assert ran.code == 2
    assert "data.data_digest" in ran.err
    assert "pool.json" in ran.err
