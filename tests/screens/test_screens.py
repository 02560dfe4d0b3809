"""Golden text at 80, 100 and 120 columns, ASCII, no colour. UPDATE_SCREENS=1 rewrites the files; read them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runner import call
from fakes.fake import ENDINGS

from hicachectl.envelope import Diagnostic, Severity
from hicachectl.errors import HicacheError
from hicachectl.render.error import error_lines
from hicachectl.render.findings import print_findings
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table

FOLDER = Path(__file__).parent


def uplinks(screen: Screen) -> None:
    columns = (
        Column("UPLINK"), Column("PORT"), Column("LINK now/max"), Column("CAP GiB/s", right=True), Column("SHARED BY", keep=1),
        Column("IDO req/cpl", keep=3), Column("NODE", right=True, keep=2), Column("HOPS", right=True, keep=4), Column("NOTE", keep=1),
    )  # fmt: skip
    rows = [
        ("U2", "0000:95:01.0", "5x16 / 5x16", "58.7", "X4 X5", "off / off", "4", "2", "[2]"),
        ("U3", "0000:b7:01.0", "5x8 / 5x16", "29.3", "X6 X7", "on / on", "6", "2", "[1]"),
        (
            "U4",
            "0000:d9:01.0",
            "5x16 / 5x16",
            None,
            "X8 X9 X10 X11 and the network cards N0 N1",
            "on / on",
            None,
            "3",
            None,
        ),
    ]
    screen.table(Table(columns, rows))


def findings(screen: Screen) -> None:
    print_findings(
        screen,
        [
            Diagnostic("HC-IDO-OFF", Severity.WARN, "IDO off; others on.", subject="U2", hint="hicachectl tune plan"),
            Diagnostic(
                "HC-LINK-WIDTH", Severity.ERROR, "runs x8 of x16, so X6 and X7 share half of the capacity that the slot would give them.",
                subject="U3", hint="reseat the riser in slot 7, check both ends of the cable, then: hicachectl bench link U3",
            ),
            Diagnostic("HC-UPLINK-SHARED", Severity.NOTE, "X4 and X5 share it.", subject="U2"),
        ],
    )  # fmt: skip


def errors(screen: Screen) -> None:
    for how in ("usage", "bare", "capacity", "partial", "invariant"):
        error = ENDINGS[how]
        assert isinstance(error, HicacheError)
        for line, style in error_lines(error, trace="/tmp/hicachectl-trace-x1.txt" if how == "invariant" else None):
            screen.print(line, style)
        screen.print()


DRAWN: dict[str, Callable[[Screen], None]] = {"uplinks": uplinks, "findings": findings, "errors": errors}
CALLED = {
    "help": ["--help"],
    "help-version": ["version", "--help"],
    "explain-capacity": ["explain", "HC-CAPACITY"],
    "exit-codes": ["explain", "exit-codes"],
}


def draw(name: str, width: int) -> str:
    if name in CALLED:
        return call(*CALLED[name], "--ascii", env={"COLUMNS": str(width)}).out
    stream = io.StringIO()
    DRAWN[name](Screen(stream, width=width, ascii=True))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", sorted([*DRAWN, *CALLED]))
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    text, path = draw(name, width), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert "\x1b" not in text


def test_every_recorded_screen_is_drawn() -> None:
    ours = {f"{name}-{width}.txt" for name in (*DRAWN, *CALLED) for width in (80, 100, 120)}
    assert ours <= {path.name for path in FOLDER.glob("*.txt")}
