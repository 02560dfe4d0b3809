"""A signal while a probe gives memory back, which a finalizer does: the command ends with its code and prints no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import QUIET, Ran

PROGRAM = """
import signal, sys
from hicachectl.app import main
from hicachectl.linux_calls import LinuxCalls

release, mapped = LinuxCalls.release, []
asked = signal.Signals[sys.argv.pop(1)]

def signalled(calls, *given):
    number = asked if not mapped else None
    mapped.append(given)
    if number is not None:
        signal.raise_signal(number)
    release(calls, *given)
    mapped.remove(given)
    if number is not None:
        mapped.append("once")

LinuxCalls.release = signalled
code = 1
try:
    code = main()
except SystemExit as end:
    code = end.code
finally:
    print("left", [one for one in mapped if one != "once"], file=sys.stderr)
sys.exit(code)
"""
"""The program, with a signal that comes when it gives back the first of its memory; it says what it did not give back."""

PAGES = ("--geometry", "tiny-4k", "--page-tokens", "64", "--device", "cpu")
LINES = [
    ("pool", "--size", "4MiB", "--rounds", "3", "--device", "cpu"),
    ("copy", *PAGES, "--layout", "page_first_direct,layer_first", "--backend", "cpu", "--pages", "1", "--rounds", "3"),
    ("link", "--device", "cpu", "--seconds", "0.01", "--rounds", "3"),
    ("model", *PAGES, "--path", "none", "--rounds", "3"),
]


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_a_signal_while_memory_is_given_back_ends_the_command(
    tmp_path: Path, line: tuple[str, ...], name: str, code: int
) -> None:
    argv = [sys.executable, "-c", PROGRAM, name, "bench", *line, "-o", "json"]
    ended = subprocess.run(argv, env=QUIET, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    ran = Ran(ended.returncode, ended.stdout, ended.stderr)
    assert ran.code == code, ran.err
    assert ran.json["exit_code"] == code
    assert "Traceback" not in ran.err
    assert "left []" in ran.err
