"""Runs the command line in this process or a new one; `fakes` is a command that ends as its argument says."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hicachectl.app import run_cli
from hicachectl.registry import COMMANDS, Entry

QUIET = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/"), "TERM": "xterm"}
FAKES = (*COMMANDS, Entry("fake", "End as told.", "Look up", package="fakes"))


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def call(*argv: str, env: Mapping[str, str] | None = None, stdin: str = "", tty: bool = False) -> Ran:
    """Run a command line in this process, the fake command included."""
    make = Terminal if tty else io.StringIO
    out, err = make(), make()
    code = run_cli(argv, {**QUIET, **(env or {})}, make(stdin), out, err, commands=FAKES)
    return Ran(code, out.getvalue(), err.getvalue())


def spawn(*argv: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line in a new process."""
    return subprocess.run(
        command_line(*argv),
        env={**QUIET, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def signalled(number: int, *argv: str, when: Callable[[], object]) -> Ran:
    """Run a command line in a new process and send it a signal as soon as `when` says something true."""
    process = subprocess.Popen(
        command_line(*argv), env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 50
        while not when() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=50)
    finally:
        process.kill()
    return Ran(process.returncode, out, err)


def command_line(*argv: str) -> Sequence[str]:
    return [sys.executable, "-m", "hicachectl", *argv]
