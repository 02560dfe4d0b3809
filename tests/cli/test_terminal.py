"""Colour, width, encoding, questions."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_runner import QUIET, call, command_line, spawn

from hicachectl.envelope import plain
from hicachectl.render.table import Column, Table, layout
from hicachectl.render.text import cell_width, pad, printable, real_text, wrap

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*argv: str, env: Mapping[str, str] | None = None, columns: int = 100) -> str:
    """Run on a pseudo-terminal of the given width and return what it showed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        command_line(*argv), env={**QUIET, **(env or {})}, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    process.wait(timeout=60)
    os.close(master)
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colour_and_it_is_never_the_only_signal() -> None:
    coloured = on_terminal("explain", "HC-BUG")
    assert ESCAPE.search(coloured)
    assert ESCAPE.sub("", coloured) == on_terminal("explain", "HC-BUG", "--color", "never")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"CI": "true"}])
def test_no_color_dumb_terminals_and_ci_get_none(env: dict[str, str]) -> None:
    assert not ESCAPE.search(on_terminal("explain", "HC-BUG", env=env))


def test_force_color_does_not_make_a_pipe_a_terminal() -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS"):
        ran = spawn("explain", "HC-BUG", env={name: "1"})
        assert not ESCAPE.search(ran.stdout + ran.stderr)


def test_color_always_colours_a_pipe_but_no_machine_format() -> None:
    assert ESCAPE.search(spawn("explain", "HC-BUG", "--color", "always").stdout)
    for form in ("json", "yaml", "tsv"):
        assert not ESCAPE.search(spawn("explain", "HC-BUG", "--color", "always", "-o", form).stdout)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_terminal_decides_the_width_and_a_pipe_follows_columns(columns: int) -> None:
    shown = on_terminal("explain", "HC-APPLY-FAILED", "--color", "never", columns=columns)
    assert columns - 12 < max(map(len, shown.splitlines())) <= columns
    assert spawn("explain", "HC-APPLY-FAILED", env={"COLUMNS": str(columns)}).stdout == shown


@pytest.mark.parametrize("text", ["", "0", "-3", "abc", "٣"])
def test_without_a_terminal_or_usable_columns_the_width_is_100(text: str) -> None:
    assert (
        call("explain", "HC-APPLY-FAILED", env={"COLUMNS": text}).out
        == call("explain", "HC-APPLY-FAILED", env={"COLUMNS": "100"}).out
    )


TABLE = Table(
    (Column("UPLINK"), Column("PORT"), Column("CAP GiB/s", right=True), Column("SHARED BY", keep=1), Column("NOTE", keep=2), Column("IDO", wide=True, keep=3)),
    [("U2", "0000:95:01.0", "58.7", "X4 X5", "[2] 机房", "off"), ("U3", "0000:b7:01.0", "29.3", "X6 X7", None, "on")],
)  # fmt: skip


@pytest.mark.parametrize("width", range(1, 90))
def test_a_table_never_cuts_a_value_and_fits_the_width_while_it_is_a_table(width: int) -> None:
    for wide in (False, True):
        lines = layout(TABLE, width, wide=wide)
        text = "\n".join(lines)
        assert all(value in text for row in TABLE.rows for value in row[:3] if value)
        if lines[0].startswith("UPLINK  PORT"):
            assert all(cell_width(line) <= width for line in lines if not line.startswith("(not shown"))


def test_columns_leave_by_priority_then_the_table_turns_vertical() -> None:
    heads = [layout(TABLE, width)[0].split("  ")[-1] for width in (90, 45, 35)]
    assert heads == ["NOTE", "SHARED BY", "CAP GiB/s"]
    assert "(not shown at 35 columns: SHARED BY, NOTE)" in layout(TABLE, 35)
    vertical = layout(TABLE, 20)
    assert vertical[0] == "UPLINK     U2"
    assert "NOTE       [2] 机房" in vertical


def test_wide_shows_the_columns_that_table_hides() -> None:
    assert "IDO" not in layout(TABLE, 200)[0]
    assert "IDO" in layout(TABLE, 200, wide=True)[0]


def test_padding_counts_cells_not_characters() -> None:
    assert cell_width("机房-7") == 6
    assert cell_width(pad("机房", 8)) == 8
    assert cell_width("e\u0301") == 1
    rows = layout(Table((Column("NAME"), Column("N", right=True)), [("机房", "1"), ("abcdef", "22")]), 80)
    assert {cell_width(row) for row in rows[1:]} == {10}


def test_file_names_that_python_could_not_decode_still_print() -> None:
    assert real_text("/l3/\udce6\udc9c\udcba") == "/l3/机"
    assert real_text("/l3/\udcff") == "/l3/\\xff"
    assert real_text("\ud800") == "\\ud800"
    assert json.loads(json.dumps(plain({"path": Path("/l3/\udcff")})))["path"].encode() == b"/l3/\\xff"


def test_a_value_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2J\nb\x9b") == "a\\x1b[2J\\x0ab\\x9b"


def test_wrapping_keeps_every_word_whole() -> None:
    text = "reseat 0000:95:01.0, then: hicachectl bench link U3"
    for width in range(1, 60):
        lines = wrap(text, width)
        assert " ".join(lines).split() == text.split()
        assert all(cell_width(line) <= width or " " not in line for line in lines)


@pytest.mark.parametrize("number", ["14 790", "1 043 212", "(1 043 212", "+14 790,", "182 790)."])
def test_wrapping_never_cuts_a_number_at_its_groups(number: str) -> None:
    text = f"within 1 point from {number} pages on, 25, 50, 75, 100 % of the requests"
    for width in range(1, 60):
        lines = wrap(text, width)
        assert sum(number in line for line in lines) == 1, lines
        assert " ".join(lines) == text


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_no_encoding_stops_the_program_and_json_stays_json(env: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "机房"
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/hostname").write_text("é机房😀", encoding="utf-8")
    for form in ("json", "yaml", "table"):
        ran = subprocess.run(
            command_line("--root", str(root), "version", "-o", form),
            env={**QUIET, **env},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
        if form == "json":
            document = json.loads(ran.stdout.decode("ascii" if "ascii" in env.values() else "utf-8"))
            assert (document["host"], document["source"]) == ("é机房😀", "机房")
    wrong = subprocess.run(
        command_line("explain", "机房"), env={**QUIET, **env}, capture_output=True, timeout=60, check=False
    )
    assert wrong.returncode == 2
    assert b"Traceback" not in wrong.stderr


def test_ascii_leaves_only_ascii_frames() -> None:
    from io import StringIO

    from hicachectl.render.screen import Screen

    stream = StringIO()
    Screen(stream, width=80, ascii=True).print("┌─┐ █░ → ≤ 机")
    assert stream.getvalue() == "+-+ #. -> <= 机\n"


def test_a_question_is_asked_on_a_terminal_only() -> None:
    asked = call("fake", "ask", stdin="y\n", tty=True)
    assert asked.code == 0
    assert asked.err.startswith("Change it? [y/N] ")
    assert call("fake", "ask", stdin="n\n", tty=True).code == 2
    assert call("fake", "ask", stdin="", tty=True).code == 2


def test_without_a_terminal_and_without_yes_the_code_is_2() -> None:
    for ran in (call("fake", "ask", stdin="y\n"), call("fake", "ask", stdin="y\n", tty=True, env={"CI": "1"})):
        assert ran.code == 2
        assert "HC-NEED-YES" in ran.err
        assert "[y/N]" not in ran.err


def test_yes_answers_for_scripts() -> None:
    assert call("fake", "ask", "--yes").code == 0
