"""`hicachectl tune size` that was killed, stopped or ran out of time goes on with --resume."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_runner import QUIET, command_line
from size_calls import run, size
from small_traces import conversations, write_trace

pytestmark = pytest.mark.usefixtures("chats_folder")


def killed(tmp_path: Path, mark: str, *argv: str) -> list[str]:
    """Start a sizing, kill it when its record holds `mark`, and return the kinds of records that were whole."""
    write_trace(tmp_path / "long.jsonl", [*conversations(400, 6, 3), *conversations(40, 6, 2)])
    line = [
        "tune",
        "size",
        "--trace",
        "long.jsonl",
        "--geometry",
        "tiny-4k",
        "--state-dir",
        "state",
        "--progress",
        "none",
    ]
    process = subprocess.Popen(
        command_line(*line, *argv), env=QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    records = tmp_path / "state" / "size" / "s-0001" / "steps.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (records.exists() and f'"kind": "{mark}"' in records.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return [json.loads(text)["kind"] for text in records.read_text().splitlines(keepends=True) if text.endswith("\n")]


def test_a_killed_run_leaves_its_record_alone_and_resume_goes_on(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    kind = ["--host-memory-kind", "tmpfs", "--host-memory-path", "/dev/shm/hicache-size-killed"]
    kinds = killed(tmp_path, "done", *kind)
    assert "end" not in kinds, "killed too late for this test"
    n_done = kinds.count("done")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chats.jsonl", "long.jsonl", "state"]
    assert set(Path("/dev/shm").iterdir()) == before
    data = size("--trace", "long.jsonl", "--resume", *kind)
    assert data["id"] == "s-0001"
    assert [data["base"], *data["steps"]][n_done - 1]["resumed"] is True
    assert data["steps"][-1]["resumed"] is False
    assert {step["difference_pages"] for step in data["steps"]} == {0}
    other = run("--trace", "chats.jsonl", "--resume", "--force", *kind)
    assert other.code == 2
    assert "asked for something else" in other.err
    (tmp_path / "hicache.yaml").unlink()  # it names the kind
    assert "host_memory" in run("--trace", "long.jsonl", "--resume").err


def test_a_run_killed_among_the_replays_beside_the_steps_makes_only_the_missing_ones(tmp_path: Path) -> None:
    kinds = killed(tmp_path, "stage")
    assert kinds.count("stage") == 1, "killed too late for this test"
    data = size("--trace", "long.jsonl", "--resume")
    assert all(step["resumed"] for step in data["steps"])
    records = [json.loads(line) for line in Path("state/size/s-0001/steps.jsonl").read_text().splitlines()]
    made = [record["name"] for record in records if record["kind"] == "stage"]
    assert made == ["the same again", "copy backend"]
    assert data["pool_costs"]["again"]["n_requests"] > 0


def test_a_run_that_goes_on_keeps_the_sizes_it_began_with(tmp_path: Path) -> None:
    begun = run("--trace", "chats.jsonl", "--time-budget", "0", "--max-bytes", "600KiB")
    assert (begun.code, begun.json["data"]["ended"]) == (9, "time budget")
    again = size("--trace", "chats.jsonl", "--resume", "--force", "--max-bytes", "900KiB")
    assert [step["pages"] for step in again["steps"]] == [75, 150]
    assert (again["choice"]["pages"], again["choice"]["bound"], again["config_host_pages"]) == (150, "memory", 150)


def test_memory_that_went_meanwhile_ends_the_steps_with_the_last_good_one(tmp_path: Path) -> None:
    run("--trace", "chats.jsonl", "--time-budget", "0", "--max-bytes", "600KiB")
    ran = run("--trace", "chats.jsonl", "--resume", "--force", "--max-bytes", "400KiB")
    data = ran.json["data"]
    assert (ran.code, data["ended"]) == (9, "a step failed")
    assert [step["state"] for step in data["steps"]] == ["done", "failed"]
    assert "--max-bytes" in data["steps"][1]["reason"]
    assert (data["choice"]["pages"], data["config_host_pages"]) == (150, 75)
    assert "host_slots: 75" in (tmp_path / "hicache.yaml").read_text()


def test_ctrl_c_ends_with_130_and_leaves_a_record_to_go_on_from(tmp_path: Path) -> None:
    write_trace(tmp_path / "long.jsonl", conversations(400, 6, 3))
    argv = [
        "tune",
        "size",
        "--trace",
        "long.jsonl",
        "--geometry",
        "tiny-4k",
        "--state-dir",
        "state",
        "--progress",
        "none",
    ]
    process = subprocess.Popen(
        command_line(*argv), env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    records = tmp_path / "state" / "size" / "s-0001" / "steps.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (records.exists() and '"step"' in records.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert '"end"' not in records.read_text()
    assert not (tmp_path / "hicache.yaml").exists()


def test_nothing_to_resume_is_said() -> None:
    assert run("--trace", "chats.jsonl", "--resume").code == 2
