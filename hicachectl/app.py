"""The program's edge: parse, call one command, and turn whatever happens into an exit code.

Everything that ends a command passes through `run_cli`: results, errors, signals, a closed pipe, a fault of our own.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import typer

from hicachectl.context import Context, OpenSession
from hicachectl.errors import ExitCode, HicacheError, PermissionDenied, UsageError
from hicachectl.exits import combine
from hicachectl.flags import GlobalFlags, from_environment, scan
from hicachectl.interrupt import Terminated, signal_error, terminable
from hicachectl.registry import COMMANDS, Entry
from hicachectl.render.screen import StdoutClosed

__all__ = ["main", "run_cli"]

_COMPLETE = "_HICACHECTL_COMPLETE"
# typer's own errors, by the public class at their end: BadParameter -> UsageError -> ClickException
_ParseError: type[Exception] = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # started with the descriptor closed
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = int(ExitCode.INTERRUPTED)
    try:
        code = run_cli(sys.argv[1:], os.environ, sys.stdin, sys.stdout, sys.stderr)
        _ignore_signals()
    except KeyboardInterrupt:  # one more while the end was being reported
        _ignore_signals()
    # An interrupt that passed a string of code (how dataclasses are made), handled or not, makes `python -m` end by SIGINT
    # instead of with the code, unless another string ran since.
    exec("")
    sys.exit(_close_streams(code))


def _ignore_signals() -> None:
    """All is said: a late signal may not replace the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def run_cli(
    argv: Sequence[str],
    environ: Mapping[str, str],
    stdin: TextIO,
    stdout: TextIO,
    stderr: TextIO,
    *,
    commands: Sequence[Entry] = COMMANDS,
    open_session: OpenSession | None = None,
) -> int:
    """Run one command line and return its exit code. Raises nothing.

    `commands` and `open_session` replace the commands there are and the host that tune changes: tests give them.

    Writes to the given streams, to `--output-file`, and for a fault of our own to a trace file that it names.
    """
    cli = Context(flags=GlobalFlags(), environ=environ, stdin=stdin, stdout=stdout, stderr=stderr)
    cli.open_session, cli.argv = open_session, tuple(argv)
    try:
        return _guarded(cli, list(argv), commands)
    except StdoutClosed:
        return int(combine([*cli.causes, ExitCode.PIPE_CLOSED]))
    except HicacheError as error:  # the error itself could not be written: nobody is left to tell
        return int(combine([*cli.causes, error.exit_code]))
    except (KeyboardInterrupt, Terminated) as caught:  # again, while the first was being reported
        return int(combine([*cli.causes, signal_error(caught).exit_code]))


def _guarded(cli: Context, argv: list[str], commands: Sequence[Entry]) -> int:
    from hicachectl.parser import build_root

    try:
        with terminable():
            cli.flags = from_environment(cli.environ)
            cli.parsed_flags = from_environment(cli.environ)
            scan(argv, cli.flags)
            root = build_root(commands)
            if _COMPLETE in cli.environ:
                return _complete(root, argv)
            with root.make_context("hicachectl", argv, obj=cli) as ctx:
                root.invoke(ctx)
        return int(cli.exit_code)
    except typer.Exit as stop:
        return stop.exit_code or int(cli.exit_code)
    except _ParseError as error:
        return _ended(cli, cli.fail(_usage_error(error)))
    except typer.Abort:
        return _ended(cli, cli.fail(signal_error(KeyboardInterrupt(), cli.go_on)))
    except (KeyboardInterrupt, Terminated) as caught:
        return _ended(cli, cli.fail(signal_error(caught, cli.go_on)))
    except HicacheError as error:
        if isinstance(error, PermissionDenied) and re.match(r"sudo( hicachectl\b|$)", error.hint or ""):
            error.hint = f"sudo {cli.again()}"  # the same line: its flags and file are what was meant
        trace = _trace(cli, error, argv) if error.exit_code is ExitCode.BUG else None
        return _ended(cli, cli.fail(error, trace=trace))
    except Exception as error:  # noqa: BLE001 - the edge: reported with a trace file, exit code 1
        bug = HicacheError(f"unexpected {type(error).__name__}: {error}", code="HC-BUG")
        return _ended(cli, cli.fail(bug, trace=_trace(cli, error, argv)))


def _ended(cli: Context, code: ExitCode) -> int:
    """Choose among the error's code and what was settled before it: a host between two states is never hidden by a full disk."""
    return int(combine([*cli.causes, code]))


def _complete(root: Any, argv: list[str]) -> int:
    """Answer a shell's TAB; errors stay silent, they would land in the line being typed."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    try:
        root.main(args=argv, prog_name="hicachectl", complete_var=_COMPLETE)
    except SystemExit as stop:
        return int(stop.code or 0)
    except HicacheError as error:
        return int(error.exit_code)
    return 0


def _trace(cli: Context, error: BaseException, argv: Sequence[str]) -> str | None:
    from hicachectl.crash import write_trace

    if cli.debug:
        import traceback

        cli.stderr.write("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        return None
    return write_trace(error, argv)


def _usage_error(error: Any) -> UsageError:
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "hicachectl"
    what = error.format_message().strip().rstrip(".").replace(": Value error, ", ": ")  # the parser's own words
    return UsageError(what, where=path, why="the command line does not parse", hint=f"{path} --help")


def _close_streams(code: int) -> int:
    """Flush both streams so that nothing is left for the interpreter's exit; a closed pipe is 141, a full disk 2."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or int(ExitCode.PIPE_CLOSED if isinstance(error, BrokenPipeError) else ExitCode.USAGE)
    return code
