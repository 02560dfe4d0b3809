"""bench_replay checks the work before it times it, tells of wrong bytes, and needs little beside torch and numpy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from shared_data import shared_path
from small_traces import conversations, write_trace

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.layout import Backend
from hicachectl.runtime.replay.content import Mismatch
from hicachectl.runtime.replay.pool_content import PoolContent

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "bench_replay.py"
N, PAGES = 8, 8  # conversations and their pages
NOT_NEEDED = ("pydantic", "zstandard", "numa", "libnuma", "typer", "rich", "prometheus_client", "msgpack", "psutil")
WITHOUT = """
import sys, runpy
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
sys.path.insert(0, sys.argv.pop(1))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ran(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, ",".join(NOT_NEEDED), str(SCRIPT.parent), str(SCRIPT)]
    command += ["--quick", "--json", str(target), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with host slots for all pages of the small trace but those of one conversation."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("bench_replay", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_replay", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HOST_SLOTS", N * PAGES)
    return module


def main(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> dict[str, Any]:
    """Run it on the small trace and return what it wrote; SystemExit passes."""
    trace, target = write_trace(tmp_path / "t.jsonl", conversations(N, PAGES, 3)), tmp_path / "replay.json"
    monkeypatch.setattr(sys, "argv", ["bench_replay", "--trace", str(trace), "--json", str(target), *words])
    bench.main()
    return json.loads(target.read_text())  # type: ignore[no-any-return]


def by_name(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in content["rows"]}


def test_every_restored_page_is_compared_and_the_pages_hit_are_those_of_the_exact_curve(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = main(bench, monkeypatch, tmp_path, "--runs", "2", "--commit", "c" * 40)
    rows = by_name(content)
    assert rows["pages hit"]["samples"] == [2 * N * PAGES] * 2
    assert rows["pages hit"]["limit"] == 2 * N * PAGES
    assert rows["pages restored"]["p50"] == 2 * N * PAGES
    assert rows["pages compared"]["samples"] == [2 * N * PAGES] * 2
    assert (rows["pages wrong"]["p50"], rows["pages wrong"]["limit"]) == (0, 0)
    assert rows["time a request"]["limit"] == 2.5
    assert 0 < rows["restore wait, p50"]["p50"] <= rows["restore wait, p99"]["p50"]
    where = content["environment"]
    assert (content["benchmark"], where["commit"], where["uncommitted_changes"]) == ("bench_replay", "c" * 40, False)
    assert where["operands"]["host_slots"] == N * PAGES
    assert [sum(run["restore_wait"]["counts"]) for run in where["runs"]] == [2 * N] * 2


def test_other_hits_than_the_curve_says_end_it_without_a_result(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "expected_hits", lambda *_: 17)
    with pytest.raises(InvariantBroken, match="128 pages hit, the exact curve says 17"):
        main(bench, monkeypatch, tmp_path)
    assert not (tmp_path / "replay.json").exists()


def test_a_wrong_byte_is_in_the_result_and_fails_it(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(PoolContent, "first_mismatch", lambda *_: Mismatch(1, 3, 0, 5, want=1, got=2))
    with pytest.raises(SystemExit, match=r"wrong bytes: .*byte 5 of plane 0 is 0x02, must be 0x01"):
        main(bench, monkeypatch, tmp_path)
    content = json.loads((tmp_path / "replay.json").read_text())
    wrong = by_name(content)["pages wrong"]
    assert (wrong["samples"], wrong["limit"]) == ([1], 0)
    assert "byte 5" in content["environment"]["runs"][0]["wrong"]


def test_a_sample_claims_no_comparison_of_every_page(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = main(bench, monkeypatch, tmp_path, "--verify", "sample:4", "--runs", "1")
    compared = by_name(content)["pages compared"]
    assert (compared["p50"], compared["limit"]) == (2 * N * PAGES / 4, None)
    assert "one restored page in 4" in content["method"]
    assert "every restored page" not in content["method"]


def test_on_a_device_pages_are_larger_the_pool_must_be_registered_and_the_limit_of_the_processor_is_none(
    bench: ModuleType,
) -> None:
    setup = bench.Setup("cuda", Backend.STRIDED, bench.Verify(1), None)
    config = setup.config()
    assert setup.name == "bench_replay_device"
    assert (config.device, config.geometry.name, config.geometry.page_bytes) == ("cuda", "tiny-512k", 512 << 10)
    assert config.host_memory.must_register
    assert (config.backend, config.verify.every, config.device_slots) == (Backend.STRIDED, 1, None)
    assert not bench.Setup("cpu", Backend.CPU, bench.Verify(1), None).config().host_memory.must_register


@pytest.mark.shared
@pytest.mark.parametrize("limit", [None, 300])
def test_the_pass_over_the_public_trace_says_what_is_recorded(bench: ModuleType, limit: int | None) -> None:
    trace, recorded = (shared_path(getattr(bench, name)) for name in ("TRACE", "EXPECTED"))
    bench.HOST_SLOTS = 16_000
    assert bench.expected_hits(trace, limit, recorded) == (77_277 if limit is None else 675)


@pytest.mark.shared
def test_a_recorded_curve_that_says_something_else_is_an_error(bench: ModuleType, tmp_path: Path) -> None:
    trace = shared_path(bench.TRACE)
    other = tmp_path / "curve.csv"
    other.write_text("capacity_blocks,lru_hit_blocks\n16000,77276\n")
    bench.HOST_SLOTS = 16_000
    with pytest.raises(InvariantBroken, match="77277 pages by this pass, 77276 recorded"):
        bench.expected_hits(trace, None, other)


def test_it_needs_no_library_of_the_command_line(tmp_path: Path) -> None:
    trace, target = write_trace(tmp_path / "t.jsonl", conversations(N, PAGES, 2)), tmp_path / "replay.json"
    done = ran(target, "--trace", str(trace))
    assert done.returncode == 0, done.stderr
    assert json.loads(target.read_text())["quick"] is True


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    trace, target = write_trace(tmp_path / "t.jsonl", conversations(1)), tmp_path / "replay.json"
    done = ran(target, "--trace", str(trace), "--device", "cuda:99")
    assert done.returncode == 1
    assert "cuda:99 cannot be used" in done.stderr
    assert not target.exists()


def test_without_the_trace_it_says_so_and_is_no_failure(tmp_path: Path) -> None:
    target = tmp_path / "replay.json"
    done = ran(target, "--trace", str(tmp_path / "absent.gz"))
    assert done.returncode == 0
    assert "absent.gz is not there" in done.stderr
    assert not target.exists()
