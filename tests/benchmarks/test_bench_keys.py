"""A benchmark prints a table with its method and writes raw samples, commit and hardware."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_bench_keys_prints_its_table_and_keeps_raw_samples(tmp_path: Path) -> None:
    target = tmp_path / "keys.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_keys.py"), "--quick", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads(target.read_text())
    assert {"benchmark", "method", "environment", "rows"} <= set(content)
    assert {"commit", "cpu", "n_cpus", "memory", "kernel", "python"} <= set(content["environment"])
    for row in content["rows"]:
        assert row["samples"]
        assert row["name"] in done.stdout
        assert min(row["samples"]) <= row["p50"] <= max(row["samples"])
    assert content["method"] in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]
