"""`hicachectl tune`: a plan saved and applied, exit codes, streams, and what refuses. Writes go to made-up hosts only."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_runner import QUIET, Ran, Terminal
from fakes.kernel import FakeKernel, FakeRoot, Temper
from hosts.builder import write_shape
from small_traces import conversations, write_trace
from tune_values import save_plan
from tuned_host import KNOBS, TunedHost, accelerators, ido_knob, make_host

from hicachectl.app import run_cli
from hicachectl.commands.tune_unit import running_program
from hicachectl.context import Context
from hicachectl.envelope import unexplained_nulls
from hicachectl.schemas_io import document_schema
from hicachectl.tune_session import make_session
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.lock import hold_lock
from hicachectl.tuning.session import Session
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.state import StateDir
from hicachectl.tuning.target import Target

THP = "/sys/kernel/mm/transparent_hugepage"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class IdoWords:
    """The made-up knob of both IDO bits under the name and with the words of the real one."""

    name = "pcie.ido-request"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        return ido_knob().targets(machine, self._in_bits(choices))

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        found = ido_knob().items(sight, self._in_bits(choices))
        return tuple(
            replace(i, knob=self.name, id=f"{self.name}@{i.subject}", uplink="U0", probe="d2h-concurrent")
            for i in found
        )

    def _in_bits(self, choices: Choices) -> Choices:
        on = choices.wanted.get(self.name)
        wanted = {} if on is None else {"pcie.ido": Choice("0x0300" if on.value == "on" else "0", on.reason, on.origin)}
        return replace(choices, wanted=wanted)


class Desk:
    """A made-up host and an operator at it: `call` runs a command line there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host: TunedHost = make_host(folder, knobs=(*KNOBS[:4], IdoWords()))
        self.host.root.at(f"{THP}/enabled").write_text("[always] madvise never\n")
        self.host.root.at(f"{THP}/defrag").write_text("always defer defer+madvise [madvise] never\n")
        self.plan = folder / "plan.json"
        self.in_use: str | None = None

    def session(self, cli: Context, state_dir: Path | None, online: bool, plans: bool) -> Session:
        refuse = lambda item: None if online or not item.ordering else self.in_use  # noqa: E731
        made = replace(self.host.session, refuse=refuse, knobs=self.host.session.knobs if plans else ())
        if not cli.flags.root:
            return made if state_dir is None else replace(made, state=StateDir(state_dir))
        return replace(made, root=cli.host_root())

    def call(
        self, *argv: str, tty: bool = False, stdin: str = "", stdout: io.StringIO | None = None, **env: str
    ) -> Ran:
        make = Terminal if tty else io.StringIO
        out, err = stdout or make(), make()
        words = [str(self.plan) if word == "PLAN" else word for word in argv]
        config = ["--config", str(self.folder / "hicache.yaml")]
        environ = {**QUIET, "COLUMNS": "200", **env}
        code = run_cli([*words, *config], environ, make(stdin), out, err, open_session=self.session)
        return Ran(code, out.getvalue(), err.getvalue())

    def make_plan(self, *flags: str) -> Any:
        ran = self.call("tune", "plan", "--output-file", "PLAN", *flags)
        assert ran.code == 0, ran.err
        return json.loads(self.plan.read_text())

    def addresses(self) -> list[str]:
        return accelerators(read_machine(self.host.root))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "hicache.yaml").touch()
    return Desk(tmp_path)


def document(ran: Ran, name: str) -> Any:
    found = ran.json
    jsonschema.validate(found, document_schema(name)[1])
    assert (found["schema"], found["exit_code"]) == (f"hicachectl.{name}/1", ran.code)
    assert unexplained_nulls(found["data"] or {}) == []
    return found["data"]


# -- plan and show ----------------------------------------------------------------------------------------------------


def test_plan_prints_the_screen_and_saves_a_private_document_that_fits_its_schema(desk: Desk) -> None:
    before = desk.host.everything()
    ran = desk.call("tune", "plan", "--output-file", "PLAN")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("PLAN p-")
    assert f"Saved {desk.plan} (0600). Next: " in ran.out
    assert stat.S_IMODE(desk.plan.stat().st_mode) == 0o600
    saved = json.loads(desk.plan.read_text())
    jsonschema.validate(saved, document_schema("tune-plan")[1])
    assert unexplained_nulls(saved["data"]) == []
    assert desk.host.everything() == before
    assert not desk.host.kernel.log


def test_plan_says_where_each_wanted_value_comes_from(desk: Desk) -> None:
    (desk.folder / "hicache.yaml").write_text("tune:\n  thp:\n    defrag: defer\n")
    ran = desk.call("tune", "plan", "--thp-enabled", "never", "-o", "json", HICACHECTL_TUNE_TMPFS_HUGE="within_size")
    items = {item["id"]: item for item in document(ran, "tune-plan")["items"]}
    assert items["thp.enabled"]["origin"] == "--thp-enabled"
    assert items["thp.defrag"]["origin"].endswith("hicache.yaml:3")
    assert items["tmpfs.huge"]["origin"] == "HICACHECTL_TUNE_TMPFS_HUGE"
    assert items["numa.balancing"]["origin"].startswith("kv-host.yaml:")


def test_plan_with_exit_code_is_3_while_something_would_change(desk: Desk) -> None:
    assert desk.call("tune", "plan", "--exit-code").code == 3
    nothing = desk.call("tune", "plan", "--exit-code", "--only", "numa.balancing", "--numa-balancing", "0")
    assert (nothing.code, "0 change, 1 same" in nothing.out) == (0, True)


def test_only_leaves_other_items_out(desk: Desk) -> None:
    address = desk.addresses()[0]
    ran = desk.call("tune", "plan", "--only", f"pcie.ido-request@{address}", "--only", "thp", "-o", "json")
    ids = [item["id"] for item in document(ran, "tune-plan")["items"]]
    assert f"pcie.ido-request@{address}" in ids
    assert {i.partition("@")[0].partition(".")[0] for i in ids} == {"pcie", "thp"}
    assert len([i for i in ids if i.startswith("pcie")]) == 1


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("nosuch", "the settings are "),
        ("thp.sizes", "did you mean --only thp.size?"),
        ("pcie.ido_request", "did you mean --only pcie.ido-request?"),
        ("tune.thp.enabled", "did you mean --only thp.enabled?"),
        ("--thp-enabled", "did you mean --only thp.enabled?"),
        ("pcie.ido-completion", "to plan it: --pcie-ido-completion VALUE"),
        ("thp.size.64kB", "to plan it: --thp-sizes VALUE"),
        ("pcie.ido-request@0000:ff:00.0", "its places are 0000:"),
        ("thp.enabled@node0", "one setting of the whole host"),
        ("pcie.ido-request@U0", "--only pcie.ido-request@0000:21:00.0 --only"),
    ],
)
@pytest.mark.parametrize("guide", [False, True])
def test_only_with_a_word_that_names_nothing_is_2_and_says_what_would(
    desk: Desk, word: str, says: str, guide: bool
) -> None:
    ran = desk.call("tune", *(["--dry-run"] if guide else ["plan"]), f"--only={word}", "--only", "thp.defrag")
    assert (ran.code, "Nothing to change" in ran.out) == (2, False)
    assert f"--only {word!r}" in ran.err
    assert says in ran.err


def test_what_comes_next_is_the_line_that_was_typed(desk: Desk) -> None:
    ran = desk.call("tune", "plan", "--only", "thp.defrag", "--thp-defrag", "defer")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("Next: ")]
    assert line.startswith("Next: hicachectl tune plan --only thp.defrag --thp-defrag defer")
    assert line.endswith(" --output-file plan.json")
    desk.make_plan()
    status = desk.host.root.at("/proc/self/status")
    status.write_text(re.sub(r"CapEff:.*", f"CapEff:\t{0:016x}", status.read_text()))
    refused = desk.call("tune", "apply", "PLAN", "--dry-run")
    assert refused.code == 4
    assert f"next: sudo hicachectl tune apply {desk.plan} --dry-run" in refused.err


def test_of_a_host_that_shows_nothing_no_plan_says_nothing_to_change(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    line = ("tune", "plan", "--root", str(tmp_path / "bare"))
    ran = desk.call(*line, "--exit-code")
    assert ran.code == 5
    assert "HC-NOTHING-READ" in ran.out
    assert "Nothing to change" not in ran.out
    assert desk.call(*line).code == 0
    assert document(desk.call(*line, "-o", "json"), "tune-plan") is not None


def test_the_guide_names_no_next_command_above_its_question(desk: Desk) -> None:
    ran = desk.call("tune", tty=True, stdin="n\n")
    assert ran.code == 2
    assert "Next:" not in ran.out


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["plan", "--only", "@x"], "names no setting"),
        (["plan", "--thp-enabled", "sometimes"], "not one of always"),
        (["plan", "--profile", "kv-hots"], "kv-host"),
        (["apply", "missing.json", "--yes"], "missing.json"),
        (["apply", "HICACHE", "--yes"], "not JSON"),
        (["apply", "PLAN"], "needs an answer"),
        (["apply", "PLAN", "--yes", "--until", "nothing"], "is not a change of this plan"),
        (["verify", "PLAN", "--run", "j-0001"], "exclude each other"),
        (["verify"], "no run is recorded"),
        (["rollback", "--yes"], "no run is recorded"),
        (["rollback", "j-0009", "--yes"], "j-0009"),
        ([], "tune alone asks"),
        (["--yes", "plan"], "stands before plan"),
        (["sice"], "sice"),
    ],
)
def test_a_line_that_cannot_be_used_is_2_and_writes_nothing(desk: Desk, argv: list[str], what: str) -> None:
    desk.make_plan()
    ran = desk.call("tune", *(str(desk.folder / "hicache.yaml") if word == "HICACHE" else word for word in argv))
    assert (ran.code, desk.host.kernel.log) == (2, [])
    assert what in ran.err


@pytest.mark.parametrize("how", ["flag", "variable"])
@pytest.mark.parametrize("words", [["apply", "PLAN"], ["rollback"], []])
def test_what_changes_a_host_refuses_a_recording(desk: Desk, words: list[str], how: str) -> None:
    desk.make_plan()
    root = str(desk.host.root.path)
    line = ["tune", *words, "--yes", *(["--root", root] if how == "flag" else [])]
    ran = desk.call(*line, **({"HICACHECTL_ROOT": root} if how == "variable" else {}))
    assert (ran.code, desk.host.kernel.log) == (2, [])
    assert "HC-ROOT-REFUSED" in ran.err


def test_plan_verify_and_show_read_a_recording(desk: Desk, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(desk.host.root.path, copy, symlinks=True)
    planned = desk.call("tune", "plan", "--root", str(copy), "--output-file", "PLAN")
    assert (planned.code, "SNAPSHOT copy" in planned.out) == (0, True)
    assert "can be read, not applied" in planned.out
    assert desk.call("tune", "verify", "PLAN", "--root", str(copy)).code == 3
    assert "STALE" not in desk.call("tune", "show", "PLAN", "--root", str(copy)).out


def test_show_of_a_stale_plan_shows_it_under_a_banner(desk: Desk) -> None:
    desk.make_plan()
    assert "STALE" not in desk.call("tune", "show", "PLAN").out
    desk.host.root.at(BOOT_ID).write_text("aaaaaaaa-2b1f-4c6e-9d8a-0123456789ab\n")
    ran = desk.call("tune", "show", "PLAN")
    assert (ran.code, "STALE" in ran.out, "thp.enabled" in ran.out) == (0, True, True)
    shown = document(desk.call("tune", "show", "PLAN", "-o", "json"), "tune-show")
    assert not shown["fits"]
    assert "boot id" in shown["moved"][0]


def test_show_as_shell_prints_a_command_and_an_undo_for_every_change(desk: Desk) -> None:
    plan = desk.make_plan()["data"]
    changes = [item for item in plan["items"] if item["kind"] == "change"]
    lines = desk.call("tune", "show", "PLAN", "--as-shell").out.splitlines()
    commands = [line for line in lines if line and not line.startswith("#") and line != "set -eu"]
    undo = lines[lines.index("# Undo, last change first:") + 1 :]
    assert len(commands) == len(undo) == len(changes)
    steps = document(desk.call("tune", "show", "PLAN", "-o", "json"), "tune-show")["steps"]
    assert [step["command"] for step in steps] == commands
    assert [f"#   {step['undo']}" for step in reversed(steps)] == undo


# -- apply, verify, rollback ------------------------------------------------------------------------------------------


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


def change_of(desk: Desk) -> str:
    plan = json.loads(desk.plan.read_text())["data"]
    ids = [i["subject"] for i in plan["items"] if i["kind"] == "change" and i["knob"] == "pcie.ido-request"]
    return str(ids[-1])


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


def test_of_a_plan_that_no_longer_fits_no_command_is_printed(desk: Desk) -> None:
    desk.make_plan()
    desk.host.root.at("/proc/sys/kernel/hostname").write_text("other\n")
    ran = desk.call("tune", "show", "PLAN", "--as-shell")
    assert ran.code == 0
    assert all(line.startswith("#") for line in ran.out.splitlines())
    assert "STALE, the host has moved since: host small -> other" in ran.out
    assert document(desk.call("tune", "show", "PLAN", "-o", "json"), "tune-show")["steps"] == []


def test_show_of_a_recording_does_not_tell_to_apply(desk: Desk, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(desk.host.root.path, copy, symlinks=True)
    desk.call("tune", "plan", "--root", str(copy), "--output-file", "PLAN")
    out = desk.call("tune", "show", "PLAN", "--root", str(copy)).out
    assert "tune apply" not in out
    assert "can be read, not applied" in out


def test_the_plan_and_the_apply_say_what_a_boot_takes_away(desk: Desk) -> None:
    planned = desk.call("tune", "plan", "--output-file", "PLAN").out
    assert f"lost at the next boot; to keep it: hicachectl tune unit {desk.plan}" in planned
    assert (
        "lost at the next boot; to keep them: hicachectl tune unit PLAN"
        in desk.call("tune", "apply", "PLAN", "--yes").out
    )


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


@pytest.mark.skipif(os.getuid() != 0, reason="recipes of a host belong to root")
def test_a_broken_recipe_stops_nothing_that_does_not_name_it(desk: Desk) -> None:
    folder = desk.host.root.at("/etc/hicachectl/recipes.d")
    folder.mkdir(parents=True, mode=0o700)
    (folder / "vendor.yaml").write_text("id: [")
    ran = desk.call("tune", "plan", "--only", "thp", "-o", "json")
    assert ran.code == 0
    (finding,) = ran.json["diagnostics"]
    assert (finding["code"], finding["severity"]) == ("HC-PROFILE", "warn")
    assert "vendor.yaml" in finding["subject"]
    named = desk.call("tune", "plan", "--recipes", "vendor-order")
    assert (named.code, "vendor.yaml" in named.err) == (2, True)


def test_nobody_is_asked_about_what_would_be_refused(desk: Desk) -> None:
    desk.make_plan()
    status = desk.host.root.at("/proc/self/status")
    status.write_text(re.sub(r"CapEff:.*", f"CapEff:\t{0:016x}", status.read_text()))
    ran = desk.call("tune", "apply", "PLAN")
    assert (ran.code, "needs an answer" in ran.err, "--yes" in ran.err) == (4, False, False)


def test_a_plan_shown_as_yaml_is_saved_as_json_and_that_is_said(desk: Desk) -> None:
    ran = desk.call("tune", "plan", "--output-file", "PLAN", "-o", "yaml")
    assert ran.out.startswith("schema: hicachectl.tune-plan/1")
    assert f"{desk.plan} is JSON" in ran.err


# -- the guide and the unit -------------------------------------------------------------------------------------------


def test_tune_alone_plans_asks_applies_and_verifies(desk: Desk) -> None:
    ran = desk.call("tune", tty=True, stdin="y\n")
    assert ran.code == 0, ran.err
    order = [ran.out.index(word) for word in ("PLAN p-", "APPLY j-0001", "VERIFY against")]
    assert order == sorted(order)
    assert "Make these" in ran.err
    assert "0 differs" in ran.out
    again = desk.call("tune", tty=True)
    assert (again.code, "Nothing to change" in again.out) == (0, True)


def test_tune_alone_with_yes_is_one_document_for_a_program(desk: Desk) -> None:
    data = document(desk.call("tune", "--yes", "-o", "json"), "tune")
    assert data["apply"]["outcome"] == "applied"
    assert data["verify"]["counts"]["differs"] == 0
    assert data["plan"]["id"] == data["apply"]["plan_id"]
    assert desk.call("tune", "rollback", "--yes").code == 0
    report = desk.folder / "report.txt"
    told = desk.call("tune", "--yes", "--output-file", str(report))
    assert (told.code, told.out) == (0, "")
    assert all(word in report.read_text() for word in ("PLAN p-", "\nok ", "APPLY j-0002", "VERIFY against"))
    dry = document(desk.call("tune", "--dry-run", "-o", "json"), "tune")
    assert (dry["apply"], dry["verify"]) == (None, None)


def test_unit_prints_files_that_apply_the_plan_before_the_engine(desk: Desk) -> None:
    desk.make_plan()
    ran = desk.call("tune", "unit", "PLAN", "--engine", "sglang.service")
    assert ran.code == 0
    assert "Before=sglang.service\n" in ran.out
    assert "WantedBy=sglang.service\n" in ran.out
    assert (
        "RequiredBy=sglang.service\n"
        in desk.call("tune", "unit", "PLAN", "--engine", "sglang.service", "--require").out
    )
    assert f"tune apply {desk.plan} --yes --after-boot" in ran.out
    data = document(desk.call("tune", "unit", "PLAN", "-o", "json"), "tune-unit")
    assert [file["path"] for file in data["files"] if not file["instead"]] == [
        "/etc/systemd/system/hicachectl-tune.service",
        "/etc/systemd/system/hicachectl-tune-verify.service",
        "/etc/systemd/system/hicachectl-tune-verify.timer",
    ]
    assert f"w {THP}/defrag - - - - defer+madvise" in ran.out
    assert not desk.host.kernel.log
    for said in ("update of the kernel", "exit 8", "systemctl disable", "rollback lasts until the next boot"):
        assert said in ran.out


def test_unit_says_what_keeps_the_plan_from_coming_back(desk: Desk) -> None:
    desk.make_plan()
    fitting = document(desk.call("tune", "unit", "PLAN", "-o", "json"), "tune-unit")
    assert [w for w in fitting["warnings"] if "lies in a folder" not in w] == []
    desk.host.root.at(BOOT_ID).write_text("another\n")  # that is what it is for
    assert document(desk.call("tune", "unit", "PLAN", "-o", "json"), "tune-unit")["warnings"] == fitting["warnings"]
    desk.host.root.at("/proc/sys/kernel/osrelease").write_text("6.99.0\n")
    desk.host.root.at("/proc/sys/kernel/hostname").write_text("other\n")
    stale = desk.call("tune", "unit", "PLAN")
    assert "# WARNING: STALE, the unit will end with exit 8: kernel " in stale.out
    assert "# WARNING: the plan was made for host small, this is other" in stale.out
    for line, what in ((["--engine", "x"], "name of a unit"), (["--require"], "--require needs --engine")):
        ran = desk.call("tune", "unit", "PLAN", *line)
        assert (ran.code, what in ran.err) == (2, True)


def test_unit_writes_its_files_into_a_folder_and_replaces_none(desk: Desk) -> None:
    desk.make_plan()
    folder = desk.folder / "boot"
    ran = desk.call("tune", "unit", "PLAN", "--output-dir", str(folder))
    assert ran.code == 0, ran.err
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "hicachectl-tune.service",
        "hicachectl-tune-verify.service",
        "hicachectl-tune-verify.timer",
        "fstab",
    }
    assert f"sudo install -m 0644 -t /etc/systemd/system {folder}/hicachectl-tune.service" in ran.out
    again = desk.call("tune", "unit", "PLAN", "--output-dir", str(folder))
    assert (again.code, "replaces no file" in again.err) == (2, True)


def test_the_unit_starts_the_copy_that_made_it(tmp_path: Path) -> None:
    copy = tmp_path / "venv/bin/hicachectl"
    copy.parent.mkdir(parents=True)
    copy.touch()
    assert running_program(str(copy), "/usr/bin/python3") == (str(copy),)
    for started in ("/x/hicachectl/__main__.py", "/usr/bin/pytest", "-c"):
        assert running_program(started, "/usr/bin/python3") == ("/usr/bin/python3", "-m", "hicachectl")


# -- what it must do without ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["plan"], ["plan", "-o", "json"], ["show", "plan.json"], ["unit", "plan.json"], ["status"]]
)
def test_tune_works_where_torch_and_numpy_cannot_be_imported(tmp_path: Path, words: list[str]) -> None:
    save_plan(tmp_path / "plan.json")
    program = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from hicachectl.app import main\n"
        "sys.argv = ['hicachectl', 'tune', *sys.argv[1:]]\n"
        "main()"
    )
    line = [*words, *(["--state-dir", str(tmp_path / "state")] if words == ["status"] else [])]
    done = subprocess.run(
        [sys.executable, "-c", program, *line],
        cwd=tmp_path,
        env=QUIET,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_pool_is_not_sized_on_a_host_that_is_no_longer_as_tune_set_it(desk: Desk) -> None:
    trace = write_trace(desk.folder / "t.jsonl", conversations(4, 4, 2))
    size = (
        "tune", "size", "--trace", str(trace), "--geometry", "tiny-4k", "--steps", "none", "--progress", "none", "-o", "json",
        "--force", "--write", str(desk.folder / "size.yaml"), "--state-dir", str(desk.folder / "sizes"),
    )  # fmt: skip
    desk.make_plan("--only", "thp")
    assert document(desk.call(*size), "tune-size")["host"] == "nothing of tune is in place on this host"
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    assert document(desk.call(*size), "tune-size")["host"] == "as tune set it"
    desk.host.root.at(f"{THP}/enabled").write_text("always madvise [never]\n")
    refused = desk.call(*size)
    assert (refused.code, refused.json["data"]) == (3, None)
    assert "--anyway" in refused.err
    assert "differs" in document(desk.call(*size, "--anyway"), "tune-size")["host"]


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
