"""`hicachectl tune verify`, `status` and `history`: what is in place, of which boot, on which host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tune_desk import BOOT_ID, THP, Desk, document


def test_a_value_changed_since_is_3_for_verify_and_is_left_by_rollback_unless_forced(desk: Desk) -> None:
    desk.make_plan()
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    path = desk.host.root.at(f"{THP}/defrag")
    path.write_text("always defer defer+madvise madvise [never]\n")
    found = desk.call("tune", "verify")
    assert found.code == 3
    assert "x thp.defrag  want defer+madvise, see never" in found.out
    data = document(desk.call("tune", "verify", "-o", "json"), "tune-verify")
    assert data["counts"]["differs"] == 1
    skipped = desk.call("tune", "rollback", "--yes")
    assert (skipped.code, "[never]" in path.read_text()) == (3, True)
    assert desk.call("tune", "rollback", "j-0001", "--yes", "--force").code == 0
    assert "[never]" not in path.read_text()


def test_verify_never_calls_an_unread_value_ok(desk: Desk) -> None:
    desk.make_plan()
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    desk.host.root.hidden[f"{THP}/defrag"] = "permission denied"
    ran = desk.call("tune", "verify", "-o", "json")
    data = document(ran, "tune-verify")
    assert (ran.code, data["counts"]["unknown"], data["counts"]["differs"]) == (3, 1, 0)


def test_a_run_of_an_earlier_boot_is_expired(desk: Desk) -> None:
    desk.make_plan()
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    desk.host.root.at(BOOT_ID).write_text("aaaaaaaa-2b1f-4c6e-9d8a-0123456789ab\n")
    assert desk.call("tune", "verify").code == 3
    ran = desk.call("tune", "rollback", "j-0001", "--yes")
    assert (ran.code, "HC-EXPIRED" in ran.err) == (8, True)
    assert "nothing of tune is in place" in desk.call("tune", "status").out


def test_status_says_why_no_run_is_in_place(desk: Desk) -> None:
    def why() -> str:
        data = document(desk.call("tune", "status", "-o", "json"), "tune-status")
        assert data["current"] is None
        return str(data["current_reason"])

    assert why() == "no run is recorded in this folder"
    desk.make_plan()
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    assert desk.call("tune", "rollback", "--yes").code == 0
    assert why() == "the last run, j-0001, has nothing in place: rolled-back"
    desk.host.root.at(BOOT_ID).write_text("another\n")
    assert why() == "the last run, j-0001, was made in another boot"


def test_verify_of_a_plan_that_was_never_applied_blames_nobody(desk: Desk) -> None:
    desk.make_plan()
    before = desk.call("tune", "verify", "PLAN")
    assert before.code == 3
    assert f"x -> not applied yet: sudo hicachectl tune apply {desk.plan}" in before.out
    assert "must stop first" not in before.out
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    desk.host.root.at(f"{THP}/defrag").write_text("always defer defer+madvise madvise [never]\n")
    assert "whoever else writes it must stop first" in desk.call("tune", "verify", "PLAN").out


def test_verify_of_another_hosts_plan_says_so_and_does_not_send_to_sudo(desk: Desk) -> None:
    desk.make_plan()
    desk.host.root.at(BOOT_ID).write_text("another\n")
    assert "STALE" not in desk.call("tune", "verify", "PLAN").out
    desk.host.root.at("/proc/sys/kernel/hostname").write_text("other\n")
    shutil.rmtree(desk.host.root.at(f"/sys/bus/pci/devices/{desk.addresses()[0]}").resolve())
    ran = desk.call("tune", "verify", "PLAN")
    assert "STALE" in ran.out
    assert "host small -> other" in ran.out
    assert "may not be here" in ran.out
    moved = document(desk.call("tune", "verify", "PLAN", "-o", "json"), "tune-verify")["moved"]
    assert [line.split()[0] for line in moved] == ["host", "PCI"]


@pytest.mark.parametrize("command", ["status", "history", "verify"])
def test_this_machines_runs_are_not_held_against_a_recording(desk: Desk, command: str, tmp_path: Path) -> None:
    ran = desk.call("tune", command, "--root", str(desk.host.root.path))
    assert (ran.code, "needs --state-dir" in ran.err) == (2, True)
    told = desk.call("tune", command, "--root", str(desk.host.root.path), "--state-dir", str(tmp_path / "other"))
    assert "needs --state-dir" not in told.err
