"""`hicachectl tune apply` and `rollback`: what is written, put back, refused and asked. Writes go to made-up hosts only."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET, Terminal
from fakes.kernel import FakeKernel, FakeRoot, Temper
from hosts.builder import write_shape
from tune_desk import BOOT_ID, THP, Desk, change_of, document
from tuned_host import TunedHost

from hicachectl.app import run_cli
from hicachectl.context import Context
from hicachectl.tune_session import make_session
from hicachectl.tuning.lock import hold_lock
from hicachectl.tuning.session import Session
from hicachectl.tuning.state import StateDir


def test_a_plan_is_applied_verified_and_rolled_back_to_what_was_there(desk: Desk) -> None:
    before = desk.host.everything()
    changes = [item for item in desk.make_plan()["data"]["items"] if item["kind"] == "change"]
    applied = desk.call("tune", "apply", "PLAN", "--yes")
    assert applied.code == 0, applied.err
    lines = [line for line in applied.out.splitlines() if line.startswith("ok ")]
    assert len(lines) == len(changes)
    assert f"1/{len(changes)} {changes[0]['id']}" in lines[0]
    assert "journal j-0001#2" in applied.out
    assert "APPLY j-0001" in applied.out
    assert desk.host.text(f"{THP}/defrag").split("[")[1].startswith("defer+madvise]")
    assert desk.call("tune", "verify").code == 0
    status = document(desk.call("tune", "status", "-o", "json"), "tune-status")
    assert (status["current"], status["runs"][0]["n_applied"]) == ("j-0001", len(changes))
    assert "in place" in desk.call("tune", "status").out
    back = desk.call("tune", "rollback", "--yes")
    assert back.code == 0, back.err
    assert f"{len(changes)} undone" in back.out
    assert desk.host.everything() == before
    assert "rolled-back" in desk.call("tune", "history").out
    assert document(desk.call("tune", "status", "-o", "json"), "tune-status")["current"] is None


def test_apply_as_json_is_one_document_and_the_lines_go_to_stderr(desk: Desk) -> None:
    desk.make_plan()
    ran = desk.call("tune", "apply", "PLAN", "--yes", "-o", "json")
    data = document(ran, "tune-apply")
    assert {item["result"] for item in data["items"]} == {"ok"}
    assert len([line for line in ran.err.splitlines() if line.startswith("ok ")]) == len(data["items"])
    back = document(desk.call("tune", "rollback", "--yes", "-o", "json"), "tune-rollback")
    assert {item["result"] for item in back["items"]} == {"undone"}


def test_apply_asks_on_a_terminal_and_no_answer_writes_nothing(desk: Desk) -> None:
    desk.make_plan()
    no = desk.call("tune", "apply", "PLAN", tty=True, stdin="n\n")
    assert (no.code, desk.host.kernel.log) == (2, [])
    assert "thp.defrag" in no.err
    assert desk.call("tune", "apply", "PLAN", tty=True, stdin="y\n").code == 0


def test_ctrl_c_at_the_question_is_130_and_writes_nothing(desk: Desk) -> None:
    desk.make_plan()

    class Interrupted(Terminal):
        def readline(self, *_: Any) -> str:
            raise KeyboardInterrupt

    out, err = Terminal(), Terminal()
    line = ["tune", "apply", str(desk.plan)]
    assert run_cli(line, QUIET, Interrupted(), out, err, open_session=desk.session) == 130
    assert desk.host.kernel.log == []


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_during_apply_puts_everything_back_and_is_6(desk: Desk, number: str) -> None:
    import signal

    desk.make_plan()
    before = desk.host.everything()
    real = desk.host.kernel.write_text

    def write_and_signal(path: str, text: str) -> None:
        real(path, text)
        os.kill(os.getpid(), getattr(signal, number))

    desk.host.kernel.write_text = write_and_signal  # type: ignore[method-assign]
    ran = desk.call("tune", "apply", "PLAN", "--yes", "-o", "json")
    data = document(ran, "tune-apply") if ran.code == 6 else None
    assert data is not None, ran.err
    assert (data["outcome"], data["stopped_by"]) == ("undone", number)
    assert desk.host.everything() == before


def test_a_dry_run_checks_and_writes_neither_host_nor_state(desk: Desk) -> None:
    desk.make_plan()
    ran = desk.call("tune", "apply", "PLAN", "--dry-run", "-o", "json")
    data = document(ran, "tune-apply")
    assert (ran.code, data["dry_run"], data["run_id"], desk.host.kernel.log) == (0, True, None, [])
    assert {item["result"] for item in data["items"]} == {"not-tried"}
    assert all(item["seen"] == item["old"] for item in data["items"])
    assert not desk.host.state.path.exists()
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    n_writes = len(desk.host.kernel.log)
    back = desk.call("tune", "rollback", "--dry-run")
    assert (back.code, len(desk.host.kernel.log)) == (0, n_writes)
    assert "would undo" in back.out


def test_until_stops_after_the_named_change(desk: Desk) -> None:
    changes = [item["id"] for item in desk.make_plan()["data"]["items"] if item["kind"] == "change"]
    ran = desk.call("tune", "apply", "PLAN", "--yes", "--until", changes[1], "-o", "json")
    assert [item["id"] for item in document(ran, "tune-apply")["items"]] == changes[:2]


def test_a_denied_write_is_4_names_the_file_and_writes_nothing(desk: Desk) -> None:
    import errno

    desk.make_plan()
    desk.host.kernel.refused[f"{THP}/defrag"] = errno.EACCES
    ran = desk.call("tune", "apply", "PLAN", "--yes")
    assert (ran.code, desk.host.kernel.log) == (4, [])
    assert f"{THP}/defrag" in ran.err


def test_without_the_capability_apply_is_4_and_names_it(desk: Desk) -> None:
    desk.make_plan()
    status = desk.host.root.at("/proc/self/status")
    status.write_text(re.sub(r"CapEff:.*", f"CapEff:\t{0:016x}", status.read_text()))
    ran = desk.call("tune", "apply", "PLAN", "--yes")
    assert (ran.code, desk.host.kernel.log) == (4, [])
    assert "CAP_SYS_ADMIN" in ran.err


def test_lockdown_is_5_before_anything_is_written(desk: Desk) -> None:
    desk.make_plan()
    lockdown = desk.host.root.at("/sys/kernel/security/lockdown")
    lockdown.parent.mkdir(parents=True, exist_ok=True)
    lockdown.write_text("none [integrity] confidentiality\n")
    ran = desk.call("tune", "apply", "PLAN", "--yes")
    assert (ran.code, desk.host.kernel.log) == (5, [])
    assert "lockdown" in ran.err


def test_a_change_that_does_not_stay_is_6_with_all_put_back(desk: Desk) -> None:
    desk.make_plan()
    before = desk.host.everything()
    desk.host.kernel.tempers[change_of(desk)] = Temper.REVERTS
    ran = desk.call("tune", "apply", "PLAN", "--yes")
    assert ran.code == 6
    assert "undone" in ran.out
    assert "HC-APPLY-FAILED" in ran.err
    assert desk.host.everything() == before


def test_a_function_that_ignores_its_change_is_unsupported_and_the_rest_stays(desk: Desk) -> None:
    desk.make_plan()
    desk.host.kernel.tempers[change_of(desk)] = Temper.REFUSES
    data = document(desk.call("tune", "apply", "PLAN", "--yes", "-o", "json"), "tune-apply")
    results = {item["result"] for item in data["items"]}
    assert (data["outcome"], results) == ("applied", {"ok", "unsupported"})


def test_a_device_that_falls_off_is_7_and_named(desk: Desk) -> None:
    desk.make_plan()
    address = change_of(desk)
    desk.host.kernel.tempers[address] = Temper.FALLS_OFF
    ran = desk.call("tune", "apply", "PLAN", "--yes")
    assert ran.code == 7
    assert "between two states" in ran.out
    assert address in ran.err
    status = desk.call("tune", "status")
    assert status.code == 3
    assert desk.call("tune", "rollback", "--yes").code == 7


@pytest.mark.parametrize("what", ["boot", "lock", "use"])
def test_a_moved_host_a_held_lock_and_a_device_in_use_are_8(desk: Desk, what: str) -> None:
    desk.make_plan()
    if what == "boot":
        desk.host.root.at(BOOT_ID).write_text("aaaaaaaa-2b1f-4c6e-9d8a-0123456789ab\n")
    elif what == "use":
        desk.in_use = "process 77 (engine) holds /dev/nvidia0"
    desk.host.state.path.mkdir(mode=0o700)
    if what == "lock":
        with hold_lock(
            desk.host.state, desk.host.root, who="somebody", pid=1, clock_text="now", sleep=lambda seconds: None
        ):
            ran = desk.call("tune", "apply", "PLAN", "--yes")
    else:
        ran = desk.call("tune", "apply", "PLAN", "--yes")
    assert (ran.code, desk.host.kernel.log) == (8, [])
    allowed = {"boot": "--after-boot", "use": "--online"}.get(what)
    if allowed:
        assert desk.call("tune", "apply", "PLAN", "--yes", allowed).code == 0


def test_a_file_of_the_screen_holds_every_line(desk: Desk, tmp_path: Path) -> None:
    desk.make_plan()
    report = tmp_path / "report.txt"
    ran = desk.call("tune", "apply", "PLAN", "--yes", "--output-file", str(report))
    assert (ran.code, ran.out) == (0, "")
    assert report.read_text().count("\nok ") >= 1


def test_the_knobs_and_recipes_there_are_plan_apply_verify_and_undo_on_a_made_up_host(desk: Desk) -> None:
    """Everything real but the kernel; processes of a made-up host cannot be looked at, hence --online."""
    root = FakeRoot(write_shape("8n8x-4up16", desk.folder / "8n8x-4up16"))
    root.at(f"{THP}/defrag").write_text("always defer defer+madvise [madvise] never\n")
    kernel, state = FakeKernel(root), StateDir(desk.folder / "real")
    host = TunedHost(root, kernel, desk.host.session)

    def session(cli: Context, state_dir: Path | None, online: bool, plans: bool) -> Session:
        return make_session(root, kernel, state, online=online, plans=plans)

    desk.session = session  # type: ignore[method-assign]
    before = host.everything()
    plan = desk.make_plan()["data"]
    changes = {item["id"]: item for item in plan["items"] if item["kind"] == "change"}
    assert {"thp.defrag", "thp.shmem", "pcie.ido-request@0000:63:00.0"} <= set(changes)
    assert {i["knob"] for i in plan["items"]} >= {"pcie.ido-request", "rc.ordering-policy", "limits.memlock"}
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 8
    applied = desk.call("tune", "apply", "PLAN", "--yes", "--online", "-o", "json")
    data = document(applied, "tune-apply")
    assert [item["id"] for item in data["items"]] == list(changes)
    assert {item["result"] for item in data["items"]} == {"ok"}
    assert all(item["seen"] == changes[item["id"]]["new"] for item in data["items"])
    assert len(kernel.log) == len(changes)
    assert desk.call("tune", "verify").code == 0
    assert desk.call("tune", "verify", "PLAN").code == 0
    assert desk.call("tune", "plan", "--exit-code").code == 0
    assert desk.call("tune", "rollback", "--yes").code == 0
    assert host.everything() == before


def test_prove_without_a_probe_is_9_and_says_so_unless_something_else_was_applied(desk: Desk) -> None:
    desk.make_plan("--only", "pcie.ido-request")
    for flag, word in (("--dry-run", "it would not be tried"), ("--yes", "Nothing was measured")):
        ran = desk.call("tune", "apply", "PLAN", "--prove", flag)
        assert (ran.code, desk.host.kernel.log) == (9, [])
        assert word in ran.out
    desk.make_plan()
    assert desk.call("tune", "apply", "PLAN", "--prove", "--yes").code == 0


def test_where_no_function_implements_it_apply_is_5(desk: Desk) -> None:
    desk.make_plan("--only", "pcie.ido-request")
    desk.host.kernel.tempers |= dict.fromkeys(desk.addresses(), Temper.REFUSES)
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 5


def test_a_dry_run_says_what_would_change(desk: Desk) -> None:
    changes = desk.make_plan()["data"]["items"]
    out = desk.call("tune", "apply", "PLAN", "--dry-run").out
    n = sum(item["kind"] == "change" for item in changes)
    assert f"dry run, nothing was written  {n} would change" in out
    assert "not tried" not in out


def test_a_dry_rollback_ends_as_the_real_one_would(desk: Desk) -> None:
    desk.make_plan()
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    path = desk.host.root.at(f"{THP}/defrag")
    path.write_text("always defer defer+madvise madvise [never]\n")
    assert desk.call("tune", "rollback", "--dry-run").code == 3
    desk.host.root.hidden[f"{THP}/defrag"] = "permission denied"
    assert desk.call("tune", "rollback", "--dry-run").code == 7
    desk.host.root.at(BOOT_ID).write_text("another\n")
    ran = desk.call("tune", "rollback", "j-0001", "--dry-run")
    assert (ran.code, "HC-EXPIRED" in ran.err) == (8, True)


def test_the_plan_and_the_apply_say_what_a_boot_takes_away(desk: Desk) -> None:
    planned = desk.call("tune", "plan", "--output-file", "PLAN").out
    assert f"lost at the next boot; to keep it: hicachectl tune unit {desk.plan}" in planned
    assert (
        "lost at the next boot; to keep them: hicachectl tune unit PLAN"
        in desk.call("tune", "apply", "PLAN", "--yes").out
    )


def test_nobody_is_asked_about_what_would_be_refused(desk: Desk) -> None:
    desk.make_plan()
    status = desk.host.root.at("/proc/self/status")
    status.write_text(re.sub(r"CapEff:.*", f"CapEff:\t{0:016x}", status.read_text()))
    ran = desk.call("tune", "apply", "PLAN")
    assert (ran.code, "needs an answer" in ran.err, "--yes" in ran.err) == (4, False, False)


class Full(io.StringIO):
    """A stdout on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_host_between_two_states_is_7_also_where_stdout_is_full(desk: Desk) -> None:
    desk.make_plan()
    desk.host.kernel.tempers[change_of(desk)] = Temper.FALLS_OFF
    ran = desk.call("tune", "apply", "PLAN", "--yes", stdout=Full())
    assert ran.code == 7
    assert change_of(desk) in ran.err
