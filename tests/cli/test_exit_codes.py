"""Every exit code, and the order among several causes."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import QUIET, Ran, call

from hicachectl.errors import ExitCode
from hicachectl.exits import EXIT_TABLE, PRECEDENCE, combine

ENDS = {
    "ok": 0, "bug": 1, "invariant": 1, "usage": 2, "bare": 2, "profile": 2, "verify": 3, "find-warn": 3, "find-note": 3,
    "host": 4, "denied": 4, "unsupported": 5, "gone": 5, "undone": 6, "partial": 7, "stale": 8, "capacity": 10,
    "storage": 11, "returns": 11, "int": 130, "term": 143,
}  # fmt: skip


@pytest.mark.parametrize(("how", "code"), ENDS.items())
def test_each_ending_has_its_exit_code(how: str, code: int) -> None:
    assert call("fake", how).code == code


def test_every_exit_code_is_reached_by_a_test_or_named_here() -> None:
    by_other_tests = {
        141: "test_a_closed_pipe_is_quiet_and_141",
        9: "test_no_time_is_no_answer_and_its_file_is_refused",
    }
    assert set(ENDS.values()) | set(by_other_tests) == {int(code) for code in ExitCode}


def test_causes_are_ordered_as_runbooks_expect() -> None:
    documented = [7, 6, 1, 8, 4, 5, 10, 11, 9, 3]
    for worse, milder in itertools.combinations(documented, 2):
        assert combine([ExitCode(milder), ExitCode(worse)]) == worse
    assert [c for c in PRECEDENCE if c in documented] == documented


def test_the_order_of_causes_does_not_matter_and_every_code_has_a_place() -> None:
    codes = list(ExitCode)
    assert sorted(PRECEDENCE) == sorted(codes)
    for seed in range(20):
        sample = random.Random(seed).sample(codes, 4)
        assert combine(sample) == combine(sample[::-1]) == combine([*sample, ExitCode.OK])
    assert combine([]) is ExitCode.OK


def test_an_interrupted_apply_that_left_something_pages_a_human() -> None:
    assert combine([ExitCode.INTERRUPTED, ExitCode.PARTIAL]) is ExitCode.PARTIAL


def test_the_table_of_exit_codes_names_each_once() -> None:
    assert [row.code for row in EXIT_TABLE] == sorted(ExitCode)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_from_outside_ends_a_working_command_with_one_document(number: signal.Signals, code: int) -> None:
    program = (
        "import sys, time, typer; sys.path.insert(0, sys.argv[1]); import fakes.fake as f\n"
        "def command(ctx: typer.Context):\n"
        "    print('ready', file=sys.stderr, flush=True); time.sleep(60)\n"
        "f.command = command\n"
        "from cli_runner import FAKES; from hicachectl.app import run_cli; import os\n"
        "sys.exit(run_cli(['fake', '-o', 'json'], os.environ, sys.stdin, sys.stdout, sys.stderr, commands=FAKES))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parents[1])],
        env=QUIET,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "ready\n"
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    ran = Ran(process.returncode, out, err)
    assert ran.code == ran.json["exit_code"] == code
    assert ran.json["schema"] == "hicachectl.fake/1"
    assert number.name in ran.json["diagnostics"][0]["message"]
    assert "Traceback" not in ran.err
