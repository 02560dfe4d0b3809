"""bench_copy runs on a processor, tiny, and has a row for every target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    "load, share of the pinned peak", "backup, share of the pinned peak", "at once, share of the bidirectional peak",
    "load, caller held", "backup, caller held", "load, submission thread", "backup, submission thread",
    "first layer group ready", "staging memory, both directions", "beside a load", "load of 1 pages", "load of 4 pages",
    "load of 16 pages",
)  # fmt: skip


def test_every_part_runs_on_a_processor_and_claims_no_target(tmp_path: Path) -> None:
    target = tmp_path / "copy.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_copy.py"), "--device", "cpu", "--quick"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--json", str(target), "--commit", "f" * 40],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads(target.read_text())
    names = [row["name"] for row in content["rows"]]
    for wanted in TARGETS:
        assert any(name.endswith(wanted) for name in names), wanted
    assert any("gqa-tiny page_first," in name for name in names)
    assert all(row["limit"] is None for row in content["rows"])
    assert content["environment"]["commit"] == "f" * 40
    assert content["environment"]["operands"]["options"]["staging_bytes"] == 256 << 20
    assert "strided comes with a CUDA device" in done.stdout
