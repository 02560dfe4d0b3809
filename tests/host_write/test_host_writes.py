"""Huge-page settings of the machine at hand: planned, applied, proven by mappings, verified, rolled back. Only through run.sh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hicachectl.tune_session import make_session
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import LiveKernel
from hicachectl.tuning.outcome import ItemResult, RunOutcome, Verdict
from hicachectl.tuning.session import Session
from hicachectl.tuning.state import StateDir

pytestmark = pytest.mark.host_write
THP = Path("/sys/kernel/mm/transparent_hugepage")
OTHER = {"enabled": ("madvise", "always"), "shmem_enabled": ("advise", "within_size"), "defrag": ("defer", "madvise")}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    if os.environ.get("HICACHECTL_ALLOW_HOST_WRITES") != "1":
        pytest.skip("changes this machine: run tests/host_write/run.sh with HICACHECTL_ALLOW_HOST_WRITES=1")
    root = HostRoot()
    return make_session(root, LiveKernel(root), StateDir(tmp_path / "state"))


def word(name: str) -> str:
    return (THP / name).read_text().partition("[")[2].partition("]")[0]


def mount_line() -> str:
    lines = [line for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == "/dev/shm"]
    return lines[-1]  # the mount on top hides the others


def wanted() -> Choices:
    """For each setting a word that it does not have now."""
    values = {f"thp.{name.split('_')[0]}": next(w for w in words if w != word(name)) for name, words in OTHER.items()}
    values["thp.shmem"] = values.pop("thp.shmem")
    values["tmpfs.huge"] = "within_size" if "huge=advise" in mount_line() else "advise"
    return Choices("test", 1, {name: Choice(value, "a test", "test") for name, value in values.items()})


def test_huge_page_words_and_the_mount_are_applied_proven_verified_and_rolled_back(session: Session) -> None:
    before = {name: word(name) for name in OTHER}, mount_line()
    plan = session.plan(wanted())
    assert [item.id for item in plan.changes] != []
    report = session.apply(plan, ApplyOptions())
    assert report.outcome is RunOutcome.APPLIED, report
    assert {outcome.result for outcome in report.items} == {ItemResult.OK}
    assert any(outcome.proof for outcome in report.items)
    assert {item.verdict for item in session.verify().items} == {Verdict.OK}
    session.rollback()
    assert ({name: word(name) for name in OTHER}, mount_line()) == before
