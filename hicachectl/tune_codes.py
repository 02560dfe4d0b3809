"""The exit code of an apply that neither failed nor was undone: 0 is said only when something became, or was, as planned. Pure."""

from __future__ import annotations

from hicachectl.errors import ExitCode
from hicachectl.tuning.outcome import ApplyReport, ItemResult
from hicachectl.tuning.rehearsal import WOULD_CHANGE

__all__ = ["apply_code"]


def apply_code(report: ApplyReport) -> ExitCode:
    """Return 9 where --prove had no probe to try anything with, 5 where no function implements what was written, else 0. Pure.

    One change that holds, or would be written in a dry run, makes it 0: what the others came to is said beside them.
    """
    results = {outcome.result for outcome in report.items if outcome.reason != WOULD_CHANGE}
    would = any(outcome.reason == WOULD_CHANGE for outcome in report.items)
    if would or results & {ItemResult.OK, ItemResult.ALREADY, ItemResult.NO_GAIN}:
        return ExitCode.OK
    if ItemResult.NOT_TRIED in results:
        return ExitCode.NO_RESULT
    return ExitCode.UNSUPPORTED if ItemResult.UNSUPPORTED in results else ExitCode.OK
