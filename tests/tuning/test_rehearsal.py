"""What apply and rollback say they would do is what they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.kernel import Temper
from tuned_host import KNOBS, THP, choose, ido_knob, make_host

from hicachectl.errors import PlanStale, UsageError
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.outcome import ItemResult, RunOutcome, UndoResult
from hicachectl.tuning.rehearsal import WOULD_CHANGE, rehearse_apply, rehearse_rollback

OTHER_BOOT = "0000beef-22c4-4e9e-8f2e-6a1d8d5f0c02"


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
    host.root.at("/proc/sys/kernel/random/boot_id").write_text(f"{OTHER_BOOT}\n")
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


def test_of_an_earlier_boot_nothing_is_foreseen_as_nothing_can_be_put_back(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    with pytest.raises(UsageError, match="no run is recorded"):
        rehearse_rollback(host.session, None)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    host.root.at("/proc/sys/kernel/random/boot_id").write_text(f"{OTHER_BOOT}\n")
    for roll_back in (rehearse_rollback, lambda session, run_id: session.rollback(run_id)):
        with pytest.raises(PlanStale) as caught:
            roll_back(host.session, None)
        assert caught.value.code == "HC-EXPIRED"


def test_what_could_not_be_put_back_makes_the_rehearsal_partial(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    report = host.session.apply(host.session.plan(choose()), ApplyOptions())
    host.root.hidden[f"{THP}/enabled"] = "permission denied"
    foreseen = rehearse_rollback(host.session, report.run_id)
    assert foreseen.outcome is RunOutcome.PARTIAL
    assert [undo.id for undo in foreseen.items if undo.result is UndoResult.LEFT] == ["thp.enabled"]


def test_a_rehearsal_with_prove_says_what_could_not_be_measured(tmp_path: Path) -> None:
    knobs = (*KNOBS[:1], ido_knob(probe="d2h-concurrent"))
    host = make_host(tmp_path, knobs=knobs)
    plan = host.session.plan(choose())
    foreseen = rehearse_apply(host.session, plan, ApplyOptions(prove=True))
    assert {o.item.knob: o.reason == WOULD_CHANGE for o in foreseen.items} == {"thp.enabled": True, "pcie.ido": False}
    assert "needs the probe d2h-concurrent" in (foreseen.items[-1].reason or "")


def test_a_rehearsal_refuses_a_host_between_two_states_as_apply_does(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    last = [item.subject for item in plan.changes if item.subject][-1]
    host.kernel.tempers[str(last)] = Temper.FALLS_OFF
    assert host.session.apply(plan, ApplyOptions()).outcome is RunOutcome.PARTIAL
    for try_it in (rehearse_apply, lambda session, *rest: session.apply(*rest)):
        with pytest.raises(PlanStale) as caught:
            try_it(host.session, plan, ApplyOptions())
        assert caught.value.code == "HC-OPEN-RUN"
