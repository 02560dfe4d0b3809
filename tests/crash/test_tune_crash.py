"""Apply and rollback killed at every step: what status says is true, and one rollback puts every file back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("tune_child.py")


@pytest.fixture(scope="module", params=["apply", "rollback"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """Every case of one command, and a last line that counts them."""
    folder = tmp_path_factory.mktemp(f"tune-{request.param}")
    ran = subprocess.run(
        [sys.executable, str(CHILD), str(folder), request.param],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return request.param, [json.loads(line) for line in ran.stdout.splitlines()]


def test_every_step_was_a_case_and_every_child_died_of_sigkill(told: tuple[str, list[dict[str, Any]]]) -> None:
    _, (*cases, total) = told
    assert len(cases) == total["steps"] == 2 * total["records"]
    assert total["records"] >= 16
    assert {case["status"] for case in cases} == {-9}


def test_one_rollback_puts_back_every_file_whatever_the_step(told: tuple[str, list[dict[str, Any]]]) -> None:
    _, (*cases, _) = told
    wrong = [(case["case"], case["rolled_back"]) for case in cases if not case["identical"]]
    assert wrong == []
    assert {case["end"] for case in cases} <= {"rolled-back", "nothing"}


def test_what_the_host_holds_is_in_the_journal_before_it_is_there(told: tuple[str, list[dict[str, Any]]]) -> None:
    _, (*cases, _) = told
    for case in cases:
        assert len(case["host_changed"]) <= len(case["recorded"]), case["case"]


def test_status_names_the_item_that_was_cut_and_the_value_it_has(told: tuple[str, list[dict[str, Any]]]) -> None:
    what, (*cases, _) = told
    cut = [case for case in cases if case["open_item"]]
    if what == "rollback":
        assert cut == []
        assert any("its rollback was cut" in (case["reason"] or "") for case in cases)
        return
    assert len(cut) == 14  # seven changes, each before and after its write
    for before, after in zip(cut[::2], cut[1::2], strict=True):
        assert before["open_item"] == after["open_item"]
        assert "the host holds the old" in before["reason"]
        assert "the host holds the new" in after["reason"]
        assert len(after["host_changed"]) == len(before["host_changed"]) + 1


def test_nothing_is_applied_over_a_run_that_was_cut_short(told: tuple[str, list[dict[str, Any]]]) -> None:
    _, (*cases, _) = told
    for case in cases:
        between = case["outcome"] == "interrupted" and bool(case["recorded"])
        assert case["second_apply"] == ("HC-OPEN-RUN" if between else None), case
