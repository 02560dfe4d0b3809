"""The benchmarks of the tree and of a replay run, and keep what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shared_data import shared_path

ROOT = Path(__file__).resolve().parents[2]


def ran(name: str, target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), "--quick", "--json", str(target), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_bench_tree_measures_every_case_of_a_page_size(page_tokens: int, tmp_path: Path) -> None:
    target = tmp_path / "tree.json"
    done = ran("bench_tree.py", target, "--pages", str(page_tokens))
    assert done.returncode == 0, done.stderr
    names = [row["name"] for row in json.loads(target.read_text())["rows"]]
    assert all(name.startswith(f"page {page_tokens}: ") for name in names)
    for case in (
        "match",
        "match then diverge",
        "insert",
        "publish",
        "publish, longest of a round",
        "memory a cached token, tree",
    ):
        assert f"page {page_tokens}: {case}" in names
    assert sum(": evict" in name for name in names) == 5


@pytest.mark.shared
def test_bench_replay_replays_the_trace(tmp_path: Path) -> None:
    trace = shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz")
    target = tmp_path / "replay.json"
    done = ran("bench_replay.py", target, "--trace", str(trace))
    assert done.returncode == 0, done.stderr
    assert {row["name"] for row in json.loads(target.read_text())["rows"]} >= {"time a request", "requests a second"}


def test_bench_replay_without_the_trace_says_so_and_is_no_failure(tmp_path: Path) -> None:
    target = tmp_path / "replay.json"
    done = ran("bench_replay.py", target, "--trace", str(tmp_path / "absent.gz"))
    assert done.returncode == 0
    assert "absent.gz is not there" in done.stderr
    assert not target.exists()
