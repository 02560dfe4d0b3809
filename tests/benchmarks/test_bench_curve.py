from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_bench_curve_runs_its_long_trace_small_and_keeps_raw_samples(tmp_path: Path) -> None:
    target = tmp_path / "curve.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_curve.py"), "--quick", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(target.read_text())["rows"]
    assert [row["name"] for row in rows if row["limit"] is not None] == [
        "agent shape: numbered, checked and passed",
        "agent shape: peak memory",
    ]
    assert all(row["name"] in done.stdout for row in rows)
