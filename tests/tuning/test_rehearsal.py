"""What apply and rollback say they would do is what they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuned_host import THP, choose, make_host

from hicachectl.errors import PlanStale, UsageError
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.outcome import ItemResult, RunOutcome, UndoResult
from hicachectl.tuning.rehearsal import rehearse_apply, rehearse_rollback


def test_a_rehearsal_writes_nothing_and_names_what_apply_then_does(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    before = host.everything()
    foreseen = rehearse_apply(host.session, plan, ApplyOptions())
    assert (host.everything(), host.kernel.log, host.state.path.exists()) == (before, [], False)
    report = host.session.apply(plan, ApplyOptions())
    assert [o.item.id for o in foreseen.items] == [o.item.id for o in report.items]
    assert {o.result for o in foreseen.items} == {ItemResult.NOT_TRIED}
    assert report.outcome is RunOutcome.APPLIED


def test_a_rehearsal_refuses_what_apply_refuses(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    host.root.at("/proc/sys/kernel/random/boot_id").write_text("another\n")
    with pytest.raises(PlanStale):
        rehearse_apply(host.session, plan, ApplyOptions())


@pytest.mark.parametrize("force", [False, True])
def test_a_rehearsed_rollback_ends_as_the_real_one(tmp_path: Path, force: bool) -> None:
    host = make_host(tmp_path)
    report = host.session.apply(host.session.plan(choose()), ApplyOptions())
    host.root.at(f"{THP}/enabled").write_text("always madvise [never]\n")
    host.root.at("/proc/sys/kernel/numa_balancing").write_text("0\n")
    before = host.everything()
    foreseen = rehearse_rollback(host.session, report.run_id, force=force)
    assert host.everything() == before
    real = host.session.rollback(report.run_id, force=force)
    assert [(u.id, u.result) for u in foreseen.items] == [(u.id, u.result) for u in real.items]
    assert any(u.result is UndoResult.CHANGED_SINCE for u in real.items) is not force


def test_of_an_earlier_boot_everything_is_expired_and_of_no_run_nothing_is_foreseen(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    with pytest.raises(UsageError, match="no run is recorded"):
        rehearse_rollback(host.session, None)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    host.root.at("/proc/sys/kernel/random/boot_id").write_text("another\n")
    foreseen = rehearse_rollback(host.session, None)
    assert {undo.result for undo in foreseen.items} == {UndoResult.EXPIRED}
