"""Signals that wait: work that may not be left half done asks between its steps, also when the terminal is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET

from hicachectl.interrupt import Terminated, asked_to_stop, stop_error, terminable


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_named_and_raises_nothing_while_the_work_goes_on(first: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with asked_to_stop() as stop:
        assert stop() is None
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop() == first.name
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_ends_on_either_signal_and_says_which(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(Terminated) as caught, terminable():
        os.kill(os.getpid(), number)
    assert caught.value.name == number.name
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)] == before
    assert (stop_error(number.name).exit_code, stop_error(number.name).why) == (143, f"{number.name} arrived")


@pytest.mark.parametrize("block", [terminable, asked_to_stop])
def test_under_nohup_a_lost_terminal_ends_nothing(block: Callable[[], AbstractContextManager[Any]]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with block() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop is None or stop() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("late", "code"),
    [
        ("app.run_cli = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)", 130),
        ("app.run_cli, app.signal.signal = lambda *_: 7, once", 7),
        ("app.run_cli = while_a_class_is_made", 130),
    ],
)
def test_one_more_ctrl_c_behind_the_end_ends_with_the_exit_code_and_no_traceback(
    late: str, code: int, tmp_path: Path
) -> None:
    program = (
        "import signal\n"
        "from hicachectl import app\n"
        "real = signal.signal\n"
        "def once(*args):\n"
        "    app.signal.signal = real\n"
        "    raise KeyboardInterrupt\n"
        "def while_a_class_is_made(*_):\n"
        "    try: exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt: return 130\n"
        f"{late}\n"
        "app.main()\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "program"],
        cwd=tmp_path,
        env=QUIET,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
