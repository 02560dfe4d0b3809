"""Signals in the middle of `hicachectl run`: one whole document of what was done, the right code, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest
from cli_runner import QUIET, command_line
from files import files_below
from run_calls import replay
from small_traces import conversations, write_trace

from hicachectl.schemas_io import document_schema

N = 20_000
"""Requests that no machine serves between the first progress line and a signal sent when it is read."""
SIGNALS = [(signal.SIGINT, 130, "HC-INTERRUPTED"), (signal.SIGTERM, 143, "HC-TERMINATED")]

SLOW_BACKUPS = """
import sys, time
from hicachectl.app import main
from hicachectl.runtime.replay import driver
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.cpu import CpuBackend

class Slow(CpuBackend):
    def copy(self, direction, *rest):
        if direction is Direction.BACKUP:
            print("copying", file=sys.stderr, flush=True)
            time.sleep(0.5)
        return super().copy(direction, *rest)

driver.make_backend = lambda backend, layout, device: Slow()
stop = driver.Replay.stop
def told(self):
    stop(self)
    print("stopping", file=sys.stderr, flush=True)
driver.Replay.stop = told
main()
"""
"""The program with backups that take half a second each; it says when one starts and when it was asked to stop."""


@contextmanager
def running(folder: Path, argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    (folder / "tmp").mkdir(exist_ok=True)
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env={**QUIET, "TMPDIR": str(folder / "tmp")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    pytest.fail(f"the run ended without a line that says {word!r}")


def replay_words(folder: Path, *argv: str, n: int = N) -> list[str]:
    trace = write_trace(folder / "long.jsonl", conversations(n, pages=4, rounds=1))
    small = ("--geometry", "tiny-4k", "--host-slots", "400", "--restore", "always", "--progress", "plain", "-o", "json")
    return ["run", "--trace", str(trace), *small, *argv]


def temporary(folder: Path) -> list[str]:
    return os.listdir(folder / "tmp")


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_a_signal_in_the_middle_leaves_one_valid_document_and_no_temporary_folder(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    argv = command_line(*replay_words(tmp_path, "--storage-path", "auto", "--report", "out.html"))
    with running(tmp_path, [*argv]) as process:
        read_until(process, "started")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    document = json.loads(out)
    jsonschema.Draft202012Validator(document_schema("run")[1]).validate(document)
    assert process.returncode == document["exit_code"] == code
    assert document["status"] == "failed"
    assert document["diagnostics"][-1]["code"] == word
    data = document["data"]
    assert data["stop"] == "interrupted"
    assert data["requests"] < N
    assert f"after {data['requests']} of {N} requests" in document["diagnostics"][-1]["message"]
    assert data["checks_passed"] == 1
    assert "stopped after" in err
    assert "Traceback" not in err
    assert temporary(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == ["long.jsonl", "out.html", "tmp"]
    assert (tmp_path / "out.html").read_text().rstrip().endswith("</html>")


def test_an_interrupted_run_leaves_whole_objects_only_and_the_next_run_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = replay_words(tmp_path, "--storage-path", "l3")
    with running(tmp_path, [*command_line(*words)]) as process:
        read_until(process, "started")
        while not files_below(tmp_path / "l3", ".page"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert [path.name for path in (tmp_path / "l3").rglob("*") if path.is_file() and path.suffix != ".page"] == []
    monkeypatch.chdir(tmp_path)
    again = replay(*words[1:], "--limit", "5")
    assert again["pages_restored_by_tier"]["storage"] > 0
    assert again["failures_by_reason"] == {}


def test_after_kill_9_the_next_run_restores_from_the_folder_without_a_wrong_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = replay_words(tmp_path, "--storage-path", "l3")
    with running(tmp_path, [*command_line(*words)]) as process:
        read_until(process, "started")
        while len(files_below(tmp_path / "l3", ".page")) < 50:
            assert process.poll() is None
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    again = replay(*words[1:], "--limit", "10")
    assert again["pages_restored_by_tier"]["storage"] > 0
    assert again["pages_verified"] == again["pages_restored"]
    assert [path.name for path in (tmp_path / "l3").rglob("*") if path.is_file() and path.suffix != ".page"] == []


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_a_second_signal_ends_at_once_and_still_says_what_happened(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    """The device tier holds 200 requests, so their backups queue up: a minute and more of copies at half a second each."""
    argv = replay_words(
        tmp_path,
        "--storage-path",
        "auto",
        "--device-slots",
        "800",
        "--host-slots",
        "2000",
        "--report",
        "out.html",
        n=200,
    )
    argv += ["--verify", "all"]
    with running(tmp_path, [sys.executable, "-c", SLOW_BACKUPS, *argv]) as process:
        read_until(process, "copying")
        process.send_signal(number)
        read_until(process, "stopping")
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        took = time.monotonic() - began
    document = json.loads(out)
    assert process.returncode == document["exit_code"] == code
    assert document["diagnostics"][-1]["code"] == word
    assert "Traceback" not in err
    assert took < 20
    assert temporary(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == ["long.jsonl", "tmp"]
