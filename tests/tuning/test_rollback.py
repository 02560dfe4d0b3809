"""Rollback, verify and status: what is in place, whose it is, and how it is put back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.kernel import Temper
from tuned_host import CARDS, CONTROL_2, IDO, THP, TunedHost, choose, make_host, open_host

from hicachectl.errors import ExitCode, PlanStale, UsageError
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.item import Owner
from hicachectl.tuning.outcome import RunOutcome, UndoResult, Verdict

NEW_BOOT = "aaaaaaaa-2b1f-4c6e-9d8a-0123456789ab\n"


def tuned(tmp_path: Path) -> TunedHost:
    host = make_host(tmp_path)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    return host


def test_rollback_puts_back_every_file_newest_first(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    before = host.everything()
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    report = host.session.rollback()
    assert report.outcome is RunOutcome.ROLLED_BACK
    assert [undo.id for undo in report.items][-1] == "thp.enabled"
    assert {undo.result for undo in report.items} == {UndoResult.UNDONE}
    assert host.everything() == before


def test_a_second_rollback_has_nothing_to_do_and_writes_nothing(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    host.session.rollback()
    writes = len(host.kernel.log)
    assert host.session.rollback("j-0001").items == ()
    assert len(host.kernel.log) == writes


def test_an_item_changed_since_is_left_with_the_reason_unless_forced(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    host.root.at(f"{THP}/enabled").write_text("always madvise [never]\n")
    report = host.session.rollback()
    (kept,) = (undo for undo in report.items if undo.result is UndoResult.CHANGED_SINCE)
    assert kept.id == "thp.enabled"
    assert "holds never, neither ours (always) nor the old value (madvise)" in str(kept.reason)
    assert host.text(f"{THP}/enabled") == "always madvise [never]\n"
    forced = host.session.rollback("j-0001", force=True)
    assert [(undo.id, undo.result) for undo in forced.items] == [("thp.enabled", UndoResult.UNDONE)]
    assert host.text(f"{THP}/enabled") == "always [madvise] never\n"


def test_bits_of_others_that_changed_since_stay(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    config = host.root.at(f"/sys/bus/pci/devices/{CARDS[0]}/config")
    raw = bytearray(config.read_bytes())
    raw[CONTROL_2] |= 0x40
    config.write_bytes(raw)
    host.session.rollback()
    assert host.word(CARDS[0]) & (IDO | 0x40) == 0x40


def test_what_cannot_be_put_back_is_named_and_the_rest_is_put_back(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    host.kernel.tempers[CARDS[1]] = Temper.REFUSES
    report = host.session.rollback()
    assert report.outcome is RunOutcome.PARTIAL
    assert [undo.id for undo in report.items if undo.result is UndoResult.LEFT] == [f"pcie.ido@{CARDS[1]}"]
    assert [host.word(card) & IDO for card in CARDS] == [0, IDO, 0]
    host.kernel.tempers.clear()
    again = host.session.rollback("j-0001")
    assert [(undo.id, undo.result) for undo in again.items] == [(f"pcie.ido@{CARDS[1]}", UndoResult.UNDONE)]


def test_a_run_of_another_boot_is_expired_for_rollback_and_verify(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    host.root.at("/proc/sys/kernel/random/boot_id").write_text(NEW_BOOT)
    writes = len(host.kernel.log)
    with pytest.raises(PlanStale) as caught:
        host.session.rollback("j-0001")
    assert (caught.value.code, caught.value.exit_code) == ("HC-EXPIRED", ExitCode.STALE)
    assert len(host.kernel.log) == writes
    assert {item.verdict for item in host.session.verify("j-0001").items} == {Verdict.EXPIRED}
    assert host.session.states()[0].expired


def test_without_any_run_there_is_nothing_to_roll_back_or_verify(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    for call in (host.session.rollback, host.session.verify):
        with pytest.raises(UsageError, match="no run is recorded here"):
            call()


def test_verify_says_ok_only_of_what_it_read(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    assert {item.verdict for item in host.session.verify().items} == {Verdict.OK}
    for item in host.session.verify().items:
        path = "/proc/self/mountinfo" if item.id == "tmpfs.huge" else item.target.path
        host.root.hidden = {path: "permission denied"}
        (checked,) = (one for one in host.session.verify().items if one.id == item.id)
        assert (checked.verdict, checked.seen) == (Verdict.UNKNOWN, None)
        assert "permission denied" in str(checked.reason)
    host.root.hidden = {}


def test_verify_names_what_differs_when_it_was_written_and_who_likely_did_it(tmp_path: Path) -> None:
    owners = {
        f"{THP}/enabled": (Owner("sysctl.d", "/etc/x", "never"), Owner("tuned", "throughput-performance", "madvise"))
    }
    tuned(tmp_path)
    host = open_host(tmp_path / "host", read_owners=lambda root, paths: owners)
    host.root.at(f"{THP}/enabled").write_text("always [madvise] never\n")
    (wrong,) = (item for item in host.session.verify().items if item.verdict is not Verdict.OK)
    assert (wrong.id, wrong.seen, wrong.wanted) == ("thp.enabled", "madvise", ("always",))
    assert wrong.writer == "tuned (throughput-performance)"
    assert "j-0001 wrote always at 2026-11-29T" in str(wrong.reason)


def test_a_plan_is_verified_against_the_host_and_skips_are_unknown(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.root.at(f"/sys/bus/pci/devices/{CARDS[0]}/config").write_bytes(bytes(64))
    plan = host.session.plan(choose())
    before = {item.id: item.verdict for item in host.session.verify_plan(plan).items}
    assert before[f"pcie.ido@{CARDS[0]}"] is Verdict.UNKNOWN
    assert before["thp.enabled"] is Verdict.DIFFERS
    host.session.apply(plan, ApplyOptions())
    after = {item.id: item.verdict for item in host.session.verify_plan(plan).items}
    assert [name for name, verdict in after.items() if verdict is not Verdict.OK] == [f"pcie.ido@{CARDS[0]}"]


def test_a_journal_somebody_changed_is_told_and_not_followed(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    path = host.state.folder("j-0001") / "records.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = "{}"
    path.write_text("\n".join(lines) + "\n")
    (state,) = host.session.states()
    assert state.outcome is RunOutcome.INTERRUPTED
    assert "records.jsonl:4" in str(state.reason)


def test_the_plan_is_kept_beside_its_journal(tmp_path: Path) -> None:
    host = tuned(tmp_path)
    kept = json.loads((host.state.folder("j-0001") / "plan.json").read_text())
    assert kept["choices"]["wanted"]["thp.enabled"]["value"] == "always"
