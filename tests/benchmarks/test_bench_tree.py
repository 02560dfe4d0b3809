"""The benchmark of the tree runs, and keeps what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_bench_tree_measures_every_case_of_a_page_size(page_tokens: int, tmp_path: Path) -> None:
    target = tmp_path / "tree.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_tree.py"), "--quick", "--json", str(target)]
    command += ["--pages", str(page_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
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
