"""Stdout is the result, stderr the talk; formats; pipes."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runner import FAKES, QUIET, call, command_line, spawn

from hicachectl.app import run_cli
from hicachectl.output import yaml_text
from hicachectl.render.tsv import tsv_lines

ENDS = ["ok", "find", "usage", "bug", "capacity", "half", "int", "term"]


@pytest.mark.parametrize("how", ENDS)
def test_json_puts_exactly_one_document_on_stdout_whatever_happened(how: str, tmp_path: Path) -> None:
    ran = call("fake", how, "-o", "json", "--color", "always", env={"TMPDIR": str(tmp_path)})
    assert ran.json["exit_code"] == ran.code
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("how", ENDS)
def test_yaml_puts_exactly_one_document_on_stdout_whatever_happened(how: str) -> None:
    ran = call("fake", how, "-o", "yaml", "--color", "always")
    (document,) = yaml.safe_load_all(ran.out)
    assert document["exit_code"] == ran.code
    assert document == {
        **call("fake", how, "-o", "json").json,
        **{k: document[k] for k in ("collected_at", "diagnostics")},
    }


@pytest.mark.parametrize("how", ENDS)
def test_tsv_rows_all_have_as_many_cells_as_the_header(how: str) -> None:
    lines = call("fake", how, "-o", "tsv").out.rstrip("\n").split("\n")
    assert len(lines) > 1
    assert {line.count("\t") for line in lines} == {lines[0].count("\t")}


def test_tsv_of_a_list_has_a_header_and_escapes_tabs_and_leaves_null_empty() -> None:
    assert call("fake", "rows", "-o", "tsv").out == "a\tb\treason\n1\tx\\ty\t\n2\t\t?\n"


@pytest.mark.parametrize("rows", [None, "/rows"])
def test_tsv_shows_what_moves_a_cursor_as_escapes_and_stays_one_line_a_row(rows: str | None) -> None:
    hostile = "a\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\x00\u2028\ud800\udcff\tb\\c"
    data = {"rows": [{"name": hostile, "parts": [hostile]}], hostile: hostile}
    text = "\n".join(tsv_lines({"status": "ok", "data": data, "diagnostics": []}, rows))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)
    assert "a\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\x7f\\x00" in text
    assert "\\tb\\\\c" in text
    assert text.encode().decode().count("\n") == text.count("\n")


def test_yaml_is_written_by_libyaml_where_it_is_there_and_reads_the_same() -> None:
    document = {"a": ["é机", 1, None, 1.5], "b": {"yes": "yes", "c": "x: y\x1b\n", "long": "word " * 2000}}
    for unicode in (True, False):
        text = yaml_text(document, unicode=unicode)
        assert text == yaml.safe_dump(document, sort_keys=False, allow_unicode=unicode, width=4096)
        assert yaml.safe_load(text) == document
    calls: list[type] = []

    class Seen(str):
        """Text that says which dumper asked for it."""

    def told(dumper: Any, text: str) -> Any:
        calls.append(type(dumper))
        return dumper.represent_str(str(text))

    for one in (yaml.SafeDumper, yaml.CSafeDumper):
        one.add_representer(Seen, told)
    yaml_text({"a": Seen("x")}, unicode=True)
    assert calls == [yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper]


def test_yaml_of_a_file_name_that_is_no_text_is_still_a_document() -> None:
    text = yaml_text({"a": "x\ud800"}, unicode=True)
    assert text.encode() == b'a: "x\\uD800"\n'


def test_tsv_without_a_list_names_every_leaf_by_its_pointer() -> None:
    assert "/size_bytes\t3\n" in call("fake", "-o", "tsv").out


def test_a_parse_error_has_the_asked_format_too() -> None:
    for line in (
        ["fake", "--bogus", "-o", "json"],
        ["-o", "json", "nonsense"],
        ["--json"],
        ["fake", "-ojson", "--bogus"],
    ):
        ran = call(*line)
        assert ran.code == ran.json["exit_code"] == 2
        assert ran.json["status"] == "failed"
        assert ran.json["data"] is None


def test_json_is_short_for_output_json() -> None:
    assert call("fake", "--json").json["data"] == call("-o", "json", "fake").json["data"]


def test_the_innermost_flag_wins() -> None:
    assert call("-o", "yaml", "fake", "-o", "json").json["status"] == "ok"


def test_a_flag_after_two_dashes_is_not_a_global_flag() -> None:
    ran = call("fake", "--", "-ojson")
    assert ran.out.startswith("机房-7")


def test_talk_goes_to_stderr_and_findings_to_stdout() -> None:
    ran = call("fake", "find")
    assert "HC-LINK-WIDTH" in ran.out
    assert ran.err == ""
    failed = call("fake", "usage")
    assert failed.out == ""
    assert "page_tokens 7" in failed.err


def test_a_result_with_an_error_keeps_what_was_found() -> None:
    ran = call("fake", "half", "-o", "json")
    assert ran.code == 1
    assert ran.json["status"] == "failed"
    assert ran.json["data"]["size_bytes"] == 3


def test_a_command_emits_one_document() -> None:
    ran = call("fake", "twice")
    assert ran.code == 1
    assert "one document" in ran.err


def test_a_stream_is_one_json_object_a_line() -> None:
    ran = call("fake", "stream", "-o", "json")
    assert [json.loads(line)["n"] for line in ran.out.splitlines()] == [1, 2]


def test_each_record_of_a_stream_is_flushed() -> None:
    class Counting(io.StringIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    stream = Counting()
    run_cli(["fake", "stream"], QUIET, io.StringIO(), stream, io.StringIO(), commands=FAKES)
    assert stream.flushes == stream.getvalue().count("\n") == 2


def test_output_file_takes_the_document_and_stdout_stays_empty(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    ran = call("fake", "-o", "json", "--output-file", str(path))
    assert ran.out == ""
    assert json.loads(path.read_text())["data"]["size_bytes"] == 3
    assert str(path) in ran.err


def test_output_file_of_a_private_document_has_mode_0600(tmp_path: Path) -> None:
    call("fake", "private", "-o", "json", "--output-file", str(tmp_path / "plan.json"))
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_output_file_that_cannot_be_written_is_a_usage_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out.json"
    ran = call("fake", "-o", "json", "--output-file", str(path))
    assert ran.code == ran.json["exit_code"] == 2
    assert ran.json["diagnostics"][0]["code"] == "HC-OUTPUT"
    assert list(tmp_path.iterdir()) == []


def test_output_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    call("fake", "bug", "--output-file", str(path))
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    "argv", [["explain"], ["explain", "-o", "json"], ["--help"], ["version", "--help"], ["schema", "run"]]
)
def test_a_closed_pipe_is_quiet_and_141(argv: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = subprocess.run(
        command_line(*argv), env=QUIET, stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (141, b"")


@pytest.mark.parametrize("argv", [["version"], ["explain", "exit-codes", "-o", "yaml"], ["--help"]])
def test_a_reader_that_takes_one_line_hears_nothing_more(argv: list[str]) -> None:
    line = " ".join(command_line(*argv)) + " | head -1"
    ran = subprocess.run(["bash", "-c", line], env=QUIET, capture_output=True, timeout=60, check=False)
    assert ran.stderr == b""
    assert ran.stdout.count(b"\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("argv", [["version"], ["version", "-o", "json"], ["--help"]])
def test_a_full_disk_behind_stdout_is_an_error_not_a_bug(argv: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            command_line(*argv), env=QUIET, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ran.returncode == 2
    assert "No space left" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_closed_stdout_descriptor_does_not_stop_the_command() -> None:
    ran = subprocess.run(
        ["bash", "-c", " ".join(command_line("version")) + " >&-"],
        env=QUIET,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_python_dash_m_and_the_script_are_the_same_program() -> None:
    assert "hicachectl 0." in spawn("version").stdout
