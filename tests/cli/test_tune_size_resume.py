"""`hicachectl tune size` that was killed, stopped or ran out of time goes on with --resume."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_runner import QUIET, command_line
from size_calls import run, size
from small_traces import conversations, write_trace

from hicachectl.tuning.sizing import budget
from hicachectl.tuning.sizing.journal_lines import sealed
from hicachectl.tuning.sizing.size_journal import SizeJournal

REAL_BUDGET = budget.budget_of
LONG = (
    "tune", "size", "--trace", "long.jsonl", "--geometry", "tiny-4k", "--state-dir", "state", "--progress", "none",
)  # fmt: skip
"""A sizing long enough to be stopped while it is at work."""
pytestmark = pytest.mark.usefixtures("chats_folder")


def killed(tmp_path: Path, mark: str, *argv: str) -> list[str]:
    """Start a sizing, kill it when its record holds `mark`, and return the kinds of records that were whole."""
    write_trace(tmp_path / "long.jsonl", [*conversations(400, 6, 3), *conversations(40, 6, 2)])
    process = subprocess.Popen(
        command_line(*LONG, *argv), env=QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    records = tmp_path / "state" / "size" / "s-0001" / "steps.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (records.exists() and f'"kind": "{mark}"' in records.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return [json.loads(text)["kind"] for text in records.read_text().splitlines(keepends=True) if text.endswith("\n")]


def test_a_killed_run_leaves_its_record_alone_and_resume_goes_on(tmp_path: Path) -> None:
    name = f"hicache-size-killed-{os.getpid()}"
    kind = ["--host-memory-kind", "tmpfs", "--host-memory-path", f"/dev/shm/{name}"]
    kinds = killed(tmp_path, "done", *kind)
    assert "end" not in kinds, "killed too late for this test"
    n_done = kinds.count("done")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chats.jsonl", "long.jsonl", "state"]
    assert not any(name in path.name for path in Path("/dev/shm").iterdir())
    data = size("--trace", "long.jsonl", "--resume", *kind)
    assert data["id"] == "s-0001"
    assert [data["base"], *data["steps"]][n_done - 1]["resumed"] is True
    assert data["steps"][-1]["resumed"] is False
    assert {step["difference_pages"] for step in data["steps"]} == {0}
    other = run("--trace", "chats.jsonl", "--resume", "--force", *kind)
    assert other.code == 2
    assert "asked for something else" in other.err
    (tmp_path / "hicache.yaml").unlink()  # it names the kind
    assert "host_memory" in run("--trace", "long.jsonl", "--resume").err


def test_a_run_killed_among_the_replays_beside_the_steps_makes_only_the_missing_ones(tmp_path: Path) -> None:
    kinds = killed(tmp_path, "stage")
    assert kinds.count("stage") == 1, "killed too late for this test"
    data = size("--trace", "long.jsonl", "--resume")
    assert all(step["resumed"] for step in data["steps"])
    records = [json.loads(line) for line in Path("state/size/s-0001/steps.jsonl").read_text().splitlines()]
    made = [record["name"] for record in records if record["kind"] == "stage"]
    assert made == ["the same again", "copy backend"]
    assert data["pool_costs"]["again"]["n_requests"] > 0


def host_has(monkeypatch: pytest.MonkeyPatch, kib: int) -> None:
    """Let the host have so much memory to give."""

    def budget_of(memory: object, **more: object) -> object:
        return REAL_BUDGET(memory, **{**more, "max_bytes": kib << 10})  # type: ignore[arg-type]

    monkeypatch.setattr("hicachectl.tuning.sizing.budget.budget_of", budget_of)


def test_a_run_that_goes_on_keeps_the_sizes_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host_has(monkeypatch, 600)
    begun = run("--trace", "chats.jsonl", "--time-budget", "0")
    assert (begun.code, begun.json["data"]["ended"]) == (9, "time budget")
    host_has(monkeypatch, 900)
    again = size("--trace", "chats.jsonl", "--resume", "--force")
    assert [step["pages"] for step in again["steps"]] == [75, 150]
    assert (again["choice"]["pages"], again["choice"]["bound"], again["config_host_pages"]) == (150, "memory", 150)


def test_memory_that_went_meanwhile_ends_the_steps_with_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_has(monkeypatch, 600)
    run("--trace", "chats.jsonl", "--time-budget", "0")
    host_has(monkeypatch, 400)
    ran = run("--trace", "chats.jsonl", "--resume", "--force")
    data = ran.json["data"]
    assert (ran.code, data["ended"]) == (9, "a step failed")
    assert [step["state"] for step in data["steps"]] == ["done", "failed"]
    assert "--max-bytes" in data["steps"][1]["reason"]
    assert (data["choice"]["pages"], data["config_host_pages"]) == (150, 75)
    assert "host_slots: 75" in (tmp_path / "hicache.yaml").read_text()


def test_ctrl_c_ends_with_130_and_leaves_a_record_to_go_on_from(tmp_path: Path) -> None:
    write_trace(tmp_path / "long.jsonl", conversations(400, 6, 3))
    process = subprocess.Popen(
        command_line(*LONG), env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True
    )
    records = tmp_path / "state" / "size" / "s-0001" / "steps.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (records.exists() and '"step"' in records.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "s-0001 goes on with --resume" in said
    assert '"end"' not in records.read_text()
    assert not (tmp_path / "hicache.yaml").exists()


def test_a_run_that_goes_on_replaces_the_configuration_it_wrote_and_no_other(tmp_path: Path) -> None:
    asked = ("--trace", "chats.jsonl", "--no-waterfall")
    config = tmp_path / "hicache.yaml"
    begun = run(*asked, "--time-budget", "0")
    assert (begun.code, "host_slots: 0" in config.read_text()) == (9, True)
    assert size(*asked, "--resume")["config_host_pages"] > 0
    written = config.read_text()
    assert "host_slots: 0" not in written
    assert size(*asked, "--resume")["config"] == "hicache.yaml"
    config.write_text(written.replace("seed: 0", "seed: 1"))  # a person's change
    ran = run(*asked, "--resume")
    assert (ran.code, "there is a configuration already" in ran.err, "--force" in ran.err) == (2, True, True)
    assert "seed: 1" in config.read_text()
    config.write_text(written)
    (tmp_path / "other.yaml").write_text(written)  # the same text, and not where the run put it
    assert run(*asked, "--resume", "--write", "other.yaml").code == 2
    assert run(*asked).code == 2  # another run may not


def test_a_configuration_that_changes_while_the_sizing_runs_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, append = tmp_path / "hicache.yaml", SizeJournal.append

    def changed(journal: SizeJournal, kind: str, **fields: object) -> None:
        append(journal, kind, **fields)
        if kind == "config":
            config.write_text("# mine\n")

    asked = ("--trace", "chats.jsonl", "--no-waterfall")
    monkeypatch.setattr(SizeJournal, "append", changed)
    ran = run(*asked)
    monkeypatch.setattr(SizeJournal, "append", append)
    assert (ran.code, "the configuration changed while the sizing ran" in ran.err) == (2, True), ran.err
    assert config.read_text() == "# mine\n"
    assert size(*asked, "--resume", "--write", "other.yaml")["config"] == "other.yaml"


def test_a_kill_beside_the_write_of_the_configuration_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--trace", "chats.jsonl", "--no-waterfall")
    assert run(*asked, "--time-budget", "0").code == 9
    append = SizeJournal.append

    def killed_after(journal: SizeJournal, kind: str, **fields: object) -> None:
        append(journal, kind, **fields)
        if kind == "config":
            raise KeyboardInterrupt

    monkeypatch.setattr(SizeJournal, "append", killed_after)
    assert run(*asked, "--resume").code == 130
    monkeypatch.setattr(SizeJournal, "append", append)
    assert size(*asked, "--resume")["config_host_pages"] > 0


def test_the_configuration_of_a_run_of_the_same_name_elsewhere_is_kept(tmp_path: Path) -> None:
    asked = ("--trace", "chats.jsonl", "--no-waterfall")
    assert run(*asked, "--time-budget", "0").code == 9
    elsewhere = ("--state-dir", "other", "--write", "other.yaml")
    assert run(*asked, "--time-budget", "0", *elsewhere).code == 9
    ran = run(*asked, "--resume", "--state-dir", "other")
    assert (ran.code, "there is a configuration already" in ran.err) == (2, True), ran.err


def test_nothing_to_resume_is_said() -> None:
    assert run("--trace", "chats.jsonl", "--resume").code == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-bytes", "900KiB"), "max_bytes 614400, now 921600"),
        (("--ranks", "2"), "ranks 1, now 2"),
        (("--steps", "60"), 'steps_text "auto", now "60"'),
        (("--config", "compute.yaml"), "compute.a_s "),
        (("--l2", "exclusive"), "exclusive false, now true"),
        (("--config", "restore.yaml"), 'settings.ghost 0, now 77, settings.restore "cost", now "always"'),
    ],
)  # fmt: skip
def test_a_run_is_not_gone_on_with_other_options_and_both_values_are_named(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    (tmp_path / "compute.yaml").write_text("run:\n  compute:\n    a_s: 0.5\n")
    (tmp_path / "restore.yaml").write_text("run:\n  restore: always\n  ghost: 77\n")
    asked = ("--trace", "chats.jsonl", "--max-bytes", "600KiB")
    assert run(*asked, "--time-budget", "0").code == 9
    ran = run(*asked, "--resume", "--force", *flags)
    assert ran.code == 2
    assert words in ran.err


def test_another_trace_of_the_same_counts_is_not_gone_on_with(tmp_path: Path) -> None:
    assert run("--trace", "chats.jsonl", "--time-budget", "0").code == 9
    lines = (tmp_path / "chats.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "chats.jsonl").write_text("".join([*lines[:-2], lines[-1], lines[-2]]))
    ran = run("--trace", "chats.jsonl", "--resume", "--force")
    assert (ran.code, "window_sha256" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('{"kind": "step"', '{"kind": "step', 2), ('"pages": 0', '"pages": "168x"', 2), ('"kind": "step", "pages": 0', '"kind": "step"', 2),
        ('"total_pages": ', '"totals": ', 3), ('"chosen": ', '"selected": ', 1), ('"steps": [', '"steps": ["168x", ', 1),
    ],
)  # fmt: skip
def test_a_journal_whose_lines_no_sizing_writes_is_refused_with_its_line(old: str, new: str, line: int) -> None:
    asked = ("--trace", "chats.jsonl", "--no-waterfall")
    assert run(*asked).code == 0
    path = Path("state/size/s-0001/steps.jsonl")
    lines = path.read_text().splitlines()
    edited = unsealed(lines[line - 1]).replace(old, new, 1)
    lines[line - 1] = sealed(edited.encode()).decode()
    path.write_text("".join(f"{text}\n" for text in lines))
    ran = run(*asked, "--resume", "--force")
    assert ran.code == 2, ran.err
    assert f"steps.jsonl:{line}" in ran.err
    assert "seal" not in ran.err


def unsealed(line: str) -> str:
    return line[: line.rindex(', "seal": ')] + "}"


@pytest.mark.parametrize(
    ("kind", "pattern", "new"),
    [
        ("done", r'"fill_s": [^,]+', '"fill_s": 5000'), ("done", r'"device_hit_pages": \d+', '"device_hit_pages": 1'),
        ("step", r'"pages": \d+', '"pages": 169'), ("begin", r'"chosen": \d+', '"chosen": 1'), ("end", '"plateau confirmed"', '"net gain confirmed"'),
    ],
)  # fmt: skip
def test_a_value_that_was_edited_is_refused_with_its_line_and_nothing_is_written(
    kind: str, pattern: str, new: str
) -> None:
    asked = ("--trace", "chats.jsonl", "--no-waterfall")
    assert run(*asked).code == 0
    written = Path("hicache.yaml").read_text()
    path = Path("state/size/s-0001/steps.jsonl")
    lines = path.read_text().splitlines()
    number = next(n for n, text in enumerate(lines) if json.loads(text)["kind"] == kind)
    edited = re.sub(pattern, new, lines[number], count=1)
    assert edited != lines[number]
    path.write_text("".join(f"{text}\n" for text in [*lines[:number], edited, *lines[number + 1 :]]))
    ran = run(*asked, "--resume", "--force")
    assert (ran.code, f"steps.jsonl:{number + 1}" in ran.err, "its seal is" in ran.err) == (2, True, True), ran.err
    assert Path("hicache.yaml").read_text() == written


def test_a_journal_of_a_version_that_sealed_nothing_is_refused() -> None:
    assert run("--trace", "chats.jsonl", "--time-budget", "0").code == 9
    path = Path("state/size/s-0001/steps.jsonl")
    path.write_text("".join(f"{unsealed(line)}\n" for line in path.read_text().splitlines()))
    ran = run("--trace", "chats.jsonl", "--resume", "--force")
    assert (ran.code, "it has no seal" in ran.err, "another version wrote it" in ran.err) == (2, True, True), ran.err


def test_a_run_that_is_at_work_is_not_gone_on_with() -> None:
    assert run("--trace", "chats.jsonl", "--time-budget", "0").code == 9
    journal, _ = SizeJournal.go_on(Path("state/size"))
    ran = run("--trace", "chats.jsonl", "--resume", "--force")
    journal.close()
    assert (ran.code, "s-0001 is at work" in ran.err, f"pid {os.getpid()}" in ran.err) == (8, True, True)


def test_files_of_somebody_else_are_left_and_those_a_killed_step_left_are_not(tmp_path: Path) -> None:
    mine = tmp_path / "disk" / "hicachectl-s-0001-l3" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    asked = ("--trace", "chats.jsonl", "--l3", "infinite", "--l3-path", "disk", "--no-waterfall")
    assert run(*asked).code == 0
    assert mine.read_text() == "mine"
    (record,) = (
        json.loads(t) for t in Path("state/size/s-0001/steps.jsonl").read_text().splitlines() if '"storage"' in t
    )
    left = Path(record["folder"])
    left.mkdir()
    (left / ".hicachectl-step").write_text(record["marker"])
    ran = run(*asked, "--resume", "--force")
    assert ran.code == 0, ran.err
    assert f"removed {left}" in ran.err
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["hicachectl-s-0001-l3"]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_one_after_the_other_leave_no_file_of_the_storage_tier(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    write_trace(tmp_path / "long.jsonl", conversations(400, 6, 3))
    disk = tmp_path / "disk"
    disk.mkdir()
    process = subprocess.Popen(
        command_line(*LONG, "--l3", "infinite", "--l3-path", "disk", "--no-waterfall"), env=QUIET, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    end = time.monotonic() + 60
    while time.monotonic() < end and not any(disk.glob("*/pages/*")):
        time.sleep(0.01)
    assert any(disk.glob("*/pages/*")), "no step wrote a page in time"
    for _ in range(3):
        process.send_signal(sent)
        time.sleep(0.01)
    process.wait(timeout=60)
    assert (process.returncode, list(disk.iterdir())) == (code, [])
