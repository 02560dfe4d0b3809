"""bench_replay on a CUDA device: a registered host pool, every restored page proven on the device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_traces import conversations, write_trace

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("backend", ["strided", "auto"])
def test_every_restored_page_is_compared_on_the_device_and_none_is_wrong(backend: str, tmp_path: Path) -> None:
    trace, target = write_trace(tmp_path / "t.jsonl", conversations(8, 8, 3)), tmp_path / "replay.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_replay.py"), "--device", "cuda", "--backend", backend]
    command += ["--trace", str(trace), "--quick", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads(target.read_text())
    rows = {row["name"]: row["p50"] for row in content["rows"]}
    assert content["benchmark"] == "bench_replay_device"
    assert (rows["pages hit"], rows["pages restored"], rows["pages compared"], rows["pages wrong"]) == (
        128,
        128,
        128,
        0,
    )
    assert content["environment"]["operands"]["host_memory"]["registered_with"]
    if backend != "auto":
        assert content["environment"]["operands"]["backend"] == backend
