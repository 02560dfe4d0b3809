"""Exit codes: their meaning for a runbook, and which one wins when a command has several causes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hicachectl.errors import ExitCode

__all__ = ["EXIT_TABLE", "PRECEDENCE", "ExitRow", "combine"]

# Host states that a person must hear about come first; a signal explains every milder cause; a closed pipe says only
# that the reader left, so what was found still counts. USAGE stands before the findings because nothing after it ran.
PRECEDENCE: tuple[ExitCode, ...] = (
    ExitCode.PARTIAL,
    ExitCode.UNDONE,
    ExitCode.BUG,
    ExitCode.TERMINATED,
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.STALE,
    ExitCode.DENIED,
    ExitCode.UNSUPPORTED,
    ExitCode.NOT_READY,
    ExitCode.DEGRADED,
    ExitCode.NO_RESULT,
    ExitCode.DIFFERS,
    ExitCode.PIPE_CLOSED,
    ExitCode.OK,
)


@dataclass(frozen=True, slots=True)
class ExitRow:
    """One line of the exit-code table that help and `explain` print."""

    code: ExitCode
    name: str
    meaning: str
    runbook: str


EXIT_TABLE: tuple[ExitRow, ...] = (
    ExitRow(ExitCode.OK, "OK", "done, all good", "go on"),
    ExitRow(ExitCode.BUG, "BUG", "unexpected exception, trace file named", "open an issue with the trace"),
    ExitRow(ExitCode.USAGE, "USAGE", "bad flag, file or profile, or --yes missing", "fix the command"),
    ExitRow(ExitCode.DIFFERS, "DIFFERS", "findings >= --fail-on, or something differs", "look, decide"),
    ExitRow(ExitCode.DENIED, "DENIED", "needs a privilege or capability", "rerun with sudo"),
    ExitRow(ExitCode.UNSUPPORTED, "UNSUPPORTED", "hardware, kernel or container lacks it", "skip host"),
    ExitRow(ExitCode.UNDONE, "UNDONE", "apply failed, all put back and verified", "read the report, retry"),
    ExitRow(ExitCode.PARTIAL, "PARTIAL", "apply or rollback failed, host between states", "stop, page a human"),
    ExitRow(ExitCode.STALE, "STALE", "plan fingerprint moved, or lock held", "replan or wait"),
    ExitRow(ExitCode.NO_RESULT, "NO RESULT", "sizing or bench ended without an answer", "raise the budget"),
    ExitRow(ExitCode.NOT_READY, "NOT READY", "preflight or health check failed", "see the diagnostics"),
    ExitRow(ExitCode.DEGRADED, "DEGRADED", "a tier or an uplink is out", "alert, keep serving"),
    ExitRow(ExitCode.INTERRUPTED, "INTERRUPTED", "Ctrl-C", "as told"),
    ExitRow(ExitCode.PIPE_CLOSED, "PIPE CLOSED", "the reader of stdout went away", "as told"),
    ExitRow(ExitCode.TERMINATED, "TERMINATED", "SIGTERM or SIGHUP", "as told"),
)


def combine(causes: Iterable[ExitCode]) -> ExitCode:
    """Choose the exit code of a command from all its causes. Pure.

    No cause is OK. The order is `PRECEDENCE`.

    >>> combine([ExitCode.DIFFERS, ExitCode.NOT_READY])
    <ExitCode.NOT_READY: 10>
    """
    return min(causes, key=PRECEDENCE.index, default=ExitCode.OK)
