"""`hicachectl tune`: plan, show and the guide, exit codes, streams, and what refuses. Writes go to made-up hosts only."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from cli_runner import QUIET
from tune_desk import BOOT_ID, Desk, document
from tune_values import save_plan

from hicachectl.envelope import unexplained_nulls
from hicachectl.schemas_io import document_schema


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


def test_a_plan_shown_as_yaml_is_saved_as_json_and_that_is_said(desk: Desk) -> None:
    ran = desk.call("tune", "plan", "--output-file", "PLAN", "-o", "yaml")
    assert ran.out.startswith("schema: hicachectl.tune-plan/1")
    assert f"{desk.plan} is JSON" in ran.err


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
