"""The benchmark of `topo` runs, on a host of 500 functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_bench_topo_measures_this_host_and_500_functions(tmp_path: Path) -> None:
    target = tmp_path / "topo.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_topo.py"), "--quick", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(target.read_text())["rows"]}
    assert rows["read_machine"]["note"] == "500 functions"
    assert rows["topo -o table, this host, CPU"]["limit"] == 0.4
    assert rows["topo -o json, 500 functions, wall"]["limit"] == 1.0
