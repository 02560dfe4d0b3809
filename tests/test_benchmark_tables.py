"""The page of measured numbers says what the JSON files beside it say, and these come from whole runs of committed code."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hicachectl.bench_data import LEAST_SAMPLES

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
RESULTS = BENCHMARKS / "results"
FILES = sorted(RESULTS.glob("bench_*.json"))


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_tables", BENCHMARKS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_json_files_make() -> None:
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == tables().page(RESULTS)


def test_a_changed_number_changes_the_page(tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    changed = json.loads(FILES[0].read_text(encoding="utf-8"))
    changed["rows"][0]["p50"] = 987654.0
    (tmp_path / FILES[0].name).write_text(json.dumps(changed), encoding="utf-8")
    page = tables().page(tmp_path)
    assert "987,654" in page
    assert page != (RESULTS / "README.md").read_text(encoding="utf-8")


def test_a_quick_run_of_an_unknown_commit_is_told_as_such(tmp_path: Path) -> None:
    content = json.loads((RESULTS / "bench_copy.json").read_text(encoding="utf-8")) | {"quick": True}
    content["environment"] |= {"commit": None}
    (tmp_path / "bench_copy.json").write_text(json.dumps(content), encoding="utf-8")
    page = tables().page(tmp_path)
    assert "commit unknown." in page
    assert "(--quick): no measurement" in page
    assert ">= 0.985 kept" in page
    assert "one with >= when it is at or above" in page


def test_there_is_a_result_of_every_benchmark_and_besides_only_of_one_on_a_device() -> None:
    results, scripts = {path.stem for path in FILES}, {path.stem for path in BENCHMARKS.glob("bench_*.py")}
    assert scripts - results == set()
    assert results - scripts <= {f"{script}_device" for script in scripts}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_result_is_a_whole_run_of_committed_code_and_its_median_is_that_of_its_samples(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["benchmark"] == path.stem
    assert content["quick"] is False
    assert content["environment"]["uncommitted_changes"] is False
    assert len(content["environment"]["commit"]) == 40
    for row in content["rows"]:
        assert row["p50"] == statistics.median(row["samples"])


@pytest.mark.parametrize("name", tables().COMMANDS)
def test_the_line_that_repeats_a_result_stands_on_the_page_and_parses(name: str) -> None:
    command = tables().COMMANDS[name]
    assert f"Repeat: `{command}`" in (RESULTS / "README.md").read_text(encoding="utf-8")
    script, *words = shlex.split(command)[1:]
    told = subprocess.run(
        [sys.executable, BENCHMARKS.parent / script, "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    known = set(re.findall(r"--[a-z-]+", told))
    assert {word for word in words if word.startswith("--")} <= known


def test_few_samples_are_as_few_as_bench_has_it() -> None:
    assert tables().LEAST_SAMPLES == LEAST_SAMPLES


def test_a_result_that_says_how_it_was_made_is_taken_at_its_word_and_few_samples_are_told(tmp_path: Path) -> None:
    content = json.loads((RESULTS / "bench_pool.json").read_text(encoding="utf-8"))
    (tmp_path / "bench_pool.json").write_text(
        json.dumps(content | {"command": "python benchmarks/bench_pool.py --gib 3"})
    )
    page = tables().page(tmp_path)
    assert "Repeat: `python benchmarks/bench_pool.py --gib 3`." in page
    assert "kept, by 2 samples" in page
    for row in content["rows"]:
        row["samples"] = [row["p50"]] * 3
    (tmp_path / "bench_pool.json").write_text(json.dumps(content))
    assert " by " not in "".join(re.findall(r"kept[^|]*", tables().page(tmp_path)))
