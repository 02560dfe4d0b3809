"""bench_size tries real pools by the library alone, and reports no step that is not what the curve says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_traces import conversations, write_trace

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "bench_size.py"
NOT_NEEDED = (
    "pydantic",
    "zstandard",
    "numa",
    "libnuma",
    "typer",
    "rich",
    "prometheus_client",
    "msgpack",
    "psutil",
    "yaml",
)
WITHOUT = """
import sys, runpy
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
sys.path.insert(0, sys.argv.pop(1))
sys.argv = sys.argv[1:]
SPOIL
runpy.run_path(sys.argv[0], run_name="__main__")
"""
OFF_BY_ONE = """
from hicachectl.tuning.sizing.prediction import Prediction
exact = Prediction.hits
Prediction.hits = lambda self, pages: exact(self, pages) + 1
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "t.jsonl", [*conversations(40, 6, 1), *conversations(25, 6, 2)])


def ran(trace: Path, target: Path, *words: str, spoil: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        WITHOUT.replace("SPOIL", spoil),
        ",".join(NOT_NEEDED),
        str(SCRIPT.parent),
        str(SCRIPT),
    ]
    command += ["--trace", str(trace), "--json", str(target), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_it_tries_half_the_plateau_it_and_twice_as_much_and_keeps_everything_in_its_file(
    trace: Path, tmp_path: Path
) -> None:
    done = ran(trace, tmp_path / "size.json", "--device", "cpu", "--geometry", "tiny-64k")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "size.json").read_text())
    found = content["environment"]["found"]
    assert [step["pages"] for step in found["steps"]] == [0, 120, 240, 480]
    assert {step["difference"] for step in found["steps"]} == {0}
    assert found["ended"] == "plateau confirmed"
    for step in found["steps"][1:]:
        assert step["trial"]["memory"]["resident_bytes"] == step["pages"] * 65536
        assert step["trial"]["made"]["steps"][-1]["state"] == "skipped"
    names = [row["name"] for row in content["rows"]]
    assert sum(name.endswith("populate") for name in names) == 3
    assert not any(name.endswith("register") for name in names)
    assert any(name.startswith("to the first token: L1 only") for name in names)
    assert found["waterfall"]["left_out"] == [{"stage": "a copy a chunk", "reason": "direct comes with an accelerator"}]


def test_steps_that_are_not_what_the_curve_says_are_not_reported(trace: Path, tmp_path: Path) -> None:
    done = ran(trace, tmp_path / "size.json", spoil=OFF_BY_ONE)
    assert done.returncode == 1
    assert "the exact curve says" in done.stderr
    assert not (tmp_path / "size.json").exists()


def test_without_its_trace_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    done = ran(tmp_path / "none.jsonl", tmp_path / "size.json")
    assert (done.returncode, "skipped" in done.stderr) == (0, True)
