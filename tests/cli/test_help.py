"""Speed, environment, root, help, completion, logs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET, call, command_line, spawn

from hicachectl.context import Context
from hicachectl.errors import UsageError
from hicachectl.flags import GLOBAL_FLAGS, GlobalFlags, from_environment, scan
from hicachectl.log import configure
from hicachectl.pages import page_of
from hicachectl.parser import load_command
from hicachectl.registry import COMMANDS, GROUPS
from hicachectl.render.screen import Screen

HEAVY = ("torch", "numpy", "yaml", "pydantic", "rich")  # typer itself loads pydantic once it parses a value


def command_paths() -> Iterator[str]:
    """Every command and subcommand that is there, and the groups above them."""

    def walk(command: Any, path: str) -> Iterator[str]:
        yield path
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    for entry in COMMANDS:
        if find_spec(entry.module) is not None:
            yield from walk(load_command(entry), entry.name)


PATHS = sorted(command_paths())


def loaded_by(*argv: str, env: dict[str, str] | None = None) -> set[str]:
    """The heavy libraries a command line loads."""
    program = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('LOADED', *[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr))\n"
        "from hicachectl.__main__ import main\nmain()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *argv],
        env={**QUIET, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return set(re.findall(r"^LOADED(.*)$", ran.stderr, re.M)[-1].split())


TAB = {"COMP_WORDS": "hicachectl expl", "COMP_CWORD": "1", "_HICACHECTL_COMPLETE": "complete_bash"}


@pytest.mark.parametrize(("argv", "env"), [(["--help"], {}), ([], TAB)], ids=["help", "completion"])
def test_help_and_completion_take_less_than_0_4_s(argv: list[str], env: dict[str, str]) -> None:
    times = []  # of the processor, so that other work on the machine does not count
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command_line(*argv), env={**QUIET, **env}, capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.4, times


def test_help_loads_no_heavy_library() -> None:
    assert loaded_by("--help") == set()


@pytest.mark.parametrize("path", PATHS)
def test_help_of_a_command_loads_neither_torch_nor_numpy_nor_yaml(path: str) -> None:
    assert loaded_by(*path.split(), "--help") & {"torch", "numpy", "yaml"} == set()


@pytest.mark.parametrize("name", ["explain", "schema", "version", "completion bash"])
def test_commands_that_only_look_up_load_nothing_heavy(name: str) -> None:
    assert loaded_by(*name.split()) <= {"pydantic"}


def complete(*words: str) -> list[str]:
    env = {
        "COMP_WORDS": " ".join(["hicachectl", *words]),
        "COMP_CWORD": str(len(words)),
        "_HICACHECTL_COMPLETE": "complete_bash",
    }
    ran = spawn(env=env)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


def test_completion_knows_commands_flags_words_and_codes() -> None:
    assert complete("") == [entry.name for entry in COMMANDS]
    assert complete("expl") == ["explain"]
    assert complete("version", "--out") == ["--output", "--output-file"]
    assert complete("version", "--color", "") == ["auto", "always", "never"]
    assert complete("explain", "HC-CAP") == ["HC-CAPACITY"]
    assert complete("schema", "run") == ["run/1", "run-check/1"]


def test_completion_loads_nothing_heavy_and_no_command() -> None:
    env = {"COMP_WORDS": "hicachectl r", "COMP_CWORD": "1", "_HICACHECTL_COMPLETE": "complete_bash"}
    assert loaded_by(env=env) <= {"pydantic"}


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda e: e.name)
def test_completion_below_a_command_loads_no_torch_numpy_or_yaml(entry: Any) -> None:
    env = {"COMP_WORDS": f"hicachectl {entry.name} --", "COMP_CWORD": "2", "_HICACHECTL_COMPLETE": "complete_bash"}
    assert loaded_by(env=env) & {"torch", "numpy", "yaml"} == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    assert "_HICACHECTL_COMPLETE" in call("completion", shell).out


def test_bash_accepts_its_completion_script() -> None:
    script = call("completion", "bash").out
    ran = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("path", PATHS)
def test_help_shows_three_examples_first_then_options_exit_codes_and_whether_the_host_changes(path: str) -> None:
    text = call(*path.split(), "--help").out
    places = [
        text.index(word)
        for word in ("Usage: hicachectl", "\nExamples:\n", "\nOptions:\n", "\nExit codes:\n", "\nChanges the host: ")
    ]
    assert places == sorted(places)
    assert len(re.findall(r"^  hicachectl ", text[places[1] : places[2]], re.M)) == 3
    assert re.search(r"^ +0  done", text, re.M)


@pytest.mark.parametrize("path", ["", *PATHS])
def test_the_examples_in_help_use_commands_and_options_that_exist(path: str) -> None:
    for example in page_of(path).examples:
        words = shlex.split(example.line.partition(">")[0])[1:]
        if find_spec(next(e.module for e in COMMANDS if e.name == words[0])) is None:
            continue
        called = next(p for p in sorted(PATHS, key=len, reverse=True) if words[: len(p.split())] == p.split())
        text = call(*called.split(), "--help").out
        for word in words:
            if word.startswith("-"):
                assert re.search(rf"(^|[ ,]){re.escape(word)}\b", text), (example.line, word)


def test_the_root_help_names_every_command_once_under_a_heading() -> None:
    text = call("--help").out
    for entry in COMMANDS:
        assert len(re.findall(rf"^  {entry.name}  +{re.escape(entry.summary[:30])}", text, re.M)) == 1
        assert entry.group in GROUPS
    assert call("-h").out == text


def test_no_command_is_a_usage_error_with_nothing_on_stdout() -> None:
    ran = call()
    assert (ran.code, ran.out) == (2, "")
    assert "--help" in ran.err


def test_a_command_of_another_build_says_so_instead_of_a_traceback() -> None:
    from hicachectl.registry import Entry

    with pytest.raises(UsageError, match="not in this build"):
        load_command(Entry("gone", "x", GROUPS[0]))


def test_a_flag_beats_the_environment_and_the_environment_beats_the_default() -> None:
    assert call("fake").out.startswith("机房-7")
    assert call("fake", env={"HICACHECTL_OUTPUT": "json"}).json["status"] == "ok"
    assert call("fake", "-o", "tsv", env={"HICACHECTL_OUTPUT": "json"}).out.startswith("pointer\tvalue")


def test_a_wrong_word_in_the_environment_names_the_variable() -> None:
    for name, value in (("OUTPUT", "xml"), ("ASCII", "maybe"), ("COLOR", "blue")):
        ran = call("fake", env={f"HICACHECTL_{name}": value})
        assert ran.code == 2
        assert f"HICACHECTL_{name}" in ran.err


def test_every_global_flag_can_come_from_the_environment_and_from_the_line() -> None:
    for flag in GLOBAL_FLAGS:
        value = flag.choices[-1] if flag.choices else "x" if flag.metavar else "1"
        from_line = GlobalFlags()
        scan([flag.spellings[-1], *([value] if flag.metavar else [])], from_line)
        assert from_environment({flag.variable: value}) == from_line, flag.name


def test_root_reads_a_snapshot_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    assert call("fake", "-o", "json", "--root", str(tmp_path)).json["source"] == tmp_path.name
    ran = call("fake", "--root", str(tmp_path / "missing"))
    assert ran.code == 2
    assert "missing" in ran.err


def test_a_command_that_changes_the_host_refuses_root_from_flag_and_environment(tmp_path: Path) -> None:
    for flags in (GlobalFlags(root=str(tmp_path)), from_environment({"HICACHECTL_ROOT": str(tmp_path)})):
        cli = Context(
            flags=flags, environ={}, stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO(), parsed_flags=flags
        )
        with pytest.raises(UsageError) as caught:
            cli.start("tune apply", changes_host=True)
        assert caught.value.code == "HC-ROOT-REFUSED"
        assert caught.value.what == "hicachectl tune apply changes this host and cannot work on a snapshot"
        cli.start("topo", changes_host=False)


@pytest.mark.parametrize(
    "command", ["run", "tune size", "bench pool", "bench link", "bench copy", "bench store", "bench model"]
)
def test_a_command_that_measures_the_host_refuses_root_and_is_not_said_to_change_it(
    command: str, tmp_path: Path
) -> None:
    ran = call(*command.split(), "--root", str(tmp_path))
    assert (ran.code, "HC-ROOT-REFUSED" in ran.err) == (2, True)
    assert f"{command} measures this host and cannot work on a snapshot" in ran.err
    assert "changes" not in ran.err


def test_schema_flag_takes_the_version_of_the_command_and_no_other() -> None:
    assert call("fake", "-o", "json", "--schema", "fake/1").code == 0
    ran = call("fake", "-o", "json", "--schema", "fake/2")
    assert ran.code == 2
    assert "fake/1" in ran.json["diagnostics"][0]["message"]


@pytest.mark.parametrize(
    ("verbose", "levels"), [(0, ["warning"]), (1, ["info", "warning"]), (2, ["debug", "info", "warning"])]
)
def test_verbose_lets_more_log_lines_through(verbose: int, levels: list[str]) -> None:
    stream = io.StringIO()
    configure(Screen(stream, width=80), verbose=verbose, as_json=True, subject=lambda: "r-08")
    logger = logging.getLogger("hicachectl.runtime.test")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        logger.log(level, "slow %s", "机房")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["level"] for line in lines] == levels
    assert {(line["id"], line["message"], line["logger"]) for line in lines} == {
        ("r-08", "slow 机房", "hicachectl.runtime.test")
    }


def test_text_log_lines_carry_the_id_and_stay_on_one_line() -> None:
    stream = io.StringIO()
    configure(Screen(stream, width=80), verbose=0, as_json=False, subject=lambda: "r-08")
    logging.getLogger("hicachectl").warning("a\nb")
    assert re.fullmatch(r"\S+Z warning r-08 hicachectl: a\\x0ab\n", stream.getvalue())


@pytest.mark.parametrize("path", PATHS)
def test_a_command_that_changes_the_host_offers_yes_and_dry_run(path: str) -> None:
    if page_of(path).changes_host:
        text = call(*path.split(), "--help").out
        assert "--yes" in text
        assert "--dry-run" in text


@pytest.mark.parametrize("path", PATHS)
def test_help_ends_with_one_full_stop_and_names_the_codes_of_what_the_command_takes(path: str) -> None:
    text = call(*path.split(), "--help").out
    assert re.search(r"[^.]\.\n\Z", text)
    if "  --device " in text:  # torch may not be able to use it
        assert 5 in page_of(path).exits
    if "  --host-memory-path " in text:  # a place this user may not write
        assert 4 in page_of(path).exits
    if path == "tune size":  # --resume of a run that is at work
        assert 8 in page_of(path).exits


NOBODY = """
import io, os, sys, hicachectl, typer
from hicachectl.app import run_cli

def run():
    out, err = io.StringIO(), io.StringIO()
    code = run_cli(sys.argv[1:], {}, io.StringIO(), out, err)
    return code, out.getvalue(), err.getvalue()

before = run()  # loads the modules, which may live where nobody may look
os.setgroups([]); os.setgid(65534); os.setuid(65534)
if not all(os.access(m.__file__, os.R_OK) for m in (hicachectl, typer)):
    sys.exit(77)
after = run()
assert before[0] == after[0] == 0, after
assert len(before[1].splitlines()) == len(after[1].splitlines()), after
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("line", ["version -o json", "explain HC-DENIED", "schema", "--help"])
def test_looking_up_needs_no_privilege(line: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", NOBODY, *line.split()], capture_output=True, text=True, timeout=60, check=False
    )
    if ran.returncode == 77:
        pytest.skip("the checkout or its libraries are in a folder that only root may read")
    assert ran.returncode == 0, ran.stderr
