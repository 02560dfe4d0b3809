"""A hicache.yaml that lies in the folder is read, and the command says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runner import call
from run_calls import conversation_trace

_SMALL = ("--geometry", "tiny-4k", "--storage-path", "none", "--progress", "none")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    conversation_trace(tmp_path)
    (tmp_path / "hicache.yaml").write_text("run:\n  limit: 3\n  device_slots: 8\n  host_slots: 16\n")


def test_run_names_the_file_on_screen_and_in_json() -> None:
    line = "settings from ./hicache.yaml: limit 3, device_slots 8, host_slots 16"
    ran = call("run", "--trace", "trace.jsonl", *_SMALL)
    assert ran.code == 0, ran.err
    assert line in ran.out.split("\nRUN")[0].replace("\n", " ")
    assert line in ran.err
    told = call("run", "--trace", "trace.jsonl", *_SMALL, "-o", "json").json["settings_file"]
    assert told == {
        "path": "./hicache.yaml",
        "keys": {
            "run.limit": "hicache.yaml:2",
            "run.device_slots": "hicache.yaml:3",
            "run.host_slots": "hicache.yaml:4",
        },
    }


def test_without_a_file_nothing_is_said() -> None:
    Path("hicache.yaml").unlink()
    ran = call("run", "--trace", "trace.jsonl", "--limit", "3", "--host-slots", "16", *_SMALL, "-o", "json")
    assert "settings from" not in ran.err
    assert "settings_file" not in ran.json


def test_what_flags_replace_is_not_named() -> None:
    ran = call("run", "--trace", "trace.jsonl", "--limit", "2", *_SMALL, "-o", "json")
    assert "run.limit" not in ran.json["settings_file"]["keys"]


@pytest.mark.parametrize("command", [("run",), ("tune", "size", "--state-dir", "state", "--force")])
def test_an_error_of_a_value_names_its_line(command: tuple[str, ...]) -> None:
    Path("hicache.yaml").write_text("run:\n  limit: 3\n  device_slots: 2\n")
    small = _SMALL if command == ("run",) else ("--geometry", "tiny-4k", "--progress", "none")
    ran = call(*command, "--trace", "trace.jsonl", *small)
    assert ran.code == 10
    assert "run.device_slots 2 is set at hicache.yaml:3" in ran.err
    assert "--config FILE, or move ./hicache.yaml away" in ran.err
    assert "run.limit 3 is set" not in ran.err  # it is not what the error is about


def test_tune_size_names_the_file() -> None:
    ran = call(
        "tune", "size", "--trace", "trace.jsonl", "--geometry", "tiny-4k", "--state-dir", "state", "--steps", "none", "--force", "--progress",
        "none", "-o", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json["settings_file"]["keys"]["run.limit"] == "hicache.yaml:2"


def test_bench_names_the_file() -> None:
    Path("hicache.yaml").write_text("run:\n  geometry: tiny-4k\n  page_tokens: 64\n")
    ran = call(
        "bench", "copy", "--rounds", "1", "--pages", "8", "--backend", "cpu", "--layout", "page_first", "-o", "json"
    )
    assert "settings from ./hicache.yaml: geometry tiny-4k" in ran.err
    assert ran.json["settings_file"]["path"] == "./hicache.yaml"


def test_a_sum_that_does_not_fit_says_how_many_slots_do() -> None:
    Path("hicache.yaml").unlink()
    ask = (
        "run",
        "--trace",
        "trace.jsonl",
        "--geometry",
        "tiny-512k",
        "--page-tokens",
        "8",
        "--device-slots",
        "512",
        "--storage-path",
        "none",
    )
    ran = call(*ask, "--host-slots", "9000000000")
    assert ran.code == 10, ran.err
    assert re.search(r"device pool +4 194 304 +4\.0 MiB", ran.err)
    assert re.search(r"wanted, the sum of these +\d[\d ]+ +\d+\.\d TiB", ran.err)
    fit = re.search(r"give --host-slots (\d+) or fewer \(a page is 8\.0 KiB\)", ran.err)
    assert fit is not None
    assert call(*ask, "--check", "--host-slots", str(int(fit[1]) // 2)).code == 0
