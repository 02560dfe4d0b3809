"""The exit code of an apply that was not undone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tune_values import APPLIED, PLAN, ended

from hicachectl.errors import ExitCode
from hicachectl.tune_codes import apply_code
from hicachectl.tuning.outcome import ItemResult
from hicachectl.tuning.rehearsal import WOULD_CHANGE

OK, NOT_TRIED, UNSUPPORTED = ItemResult.OK, ItemResult.NOT_TRIED, ItemResult.UNSUPPORTED


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((), ExitCode.OK), ((OK, NOT_TRIED, UNSUPPORTED), ExitCode.OK), ((ItemResult.ALREADY,), ExitCode.OK), ((NOT_TRIED,), ExitCode.NO_RESULT),
        ((NOT_TRIED, UNSUPPORTED), ExitCode.NO_RESULT), ((UNSUPPORTED, UNSUPPORTED), ExitCode.UNSUPPORTED), ((ItemResult.NO_GAIN,), ExitCode.OK),
    ],
)  # fmt: skip
def test_0_is_said_only_when_something_holds(results: tuple[ItemResult, ...], code: ExitCode) -> None:
    items = tuple(ended(PLAN.changes[0], result, None, "why") for result in results)
    assert apply_code(replace(APPLIED, items=items)) is code


def test_in_a_dry_run_what_would_be_written_counts_as_written() -> None:
    would = ended(PLAN.changes[0], NOT_TRIED, None, WOULD_CHANGE)
    other = ended(PLAN.changes[1], NOT_TRIED, None, "no probe")
    assert apply_code(replace(APPLIED, items=(would, other))) is ExitCode.OK
    assert apply_code(replace(APPLIED, items=(other,))) is ExitCode.NO_RESULT
