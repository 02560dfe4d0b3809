"""`hicachectl explain`: the page of a code, the list of codes, or the table of exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from hicachectl.context import Context
from hicachectl.envelope import Result
from hicachectl.exits import EXIT_TABLE
from hicachectl.explanations import SECTIONS, Explanation, codes, explanation
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table

_EXITS = "exit-codes"


@dataclass(frozen=True, slots=True)
class Listed:
    """One code in the list."""

    code: str
    title: str


@dataclass(frozen=True, slots=True)
class ExitMeaning:
    """One exit code."""

    code: int
    name: str
    meaning: str
    runbook: str


@dataclass(frozen=True, slots=True)
class Explained:
    """What `explain` prints: pages, a list, or the exit codes; what was not asked is empty."""

    pages: tuple[Explanation, ...] = ()
    codes: tuple[Listed, ...] = ()
    exit_codes: tuple[ExitMeaning, ...] = ()


def _complete(incomplete: str) -> list[str]:
    return [name for name in [*codes(), _EXITS] if name.lower().startswith(incomplete.lower())]


def command(
    ctx: typer.Context,
    code: Annotated[
        str | None,
        typer.Argument(
            help="An HC- code, or exit-codes; all codes when left out.", autocompletion=_complete, show_default=False
        ),
    ] = None,
) -> None:
    """Print the page of an HC- code: what it is, why it matters here, how it was read, and one command."""
    cli: Context = ctx.obj
    if code is None:
        explained, rows = Explained(codes=tuple(Listed(c, explanation(c).title) for c in codes())), "/codes"
    elif code.lower() == _EXITS:
        meanings = tuple(ExitMeaning(int(row.code), row.name, row.meaning, row.runbook) for row in EXIT_TABLE)
        explained, rows = Explained(exit_codes=meanings), "/exit_codes"
    else:
        explained, rows = Explained(pages=(explanation(code),)), "/pages"
    cli.emit(Result("hicachectl.explain/1", explained, rows=rows), render=_render)


def _render(screen: Screen, explained: Explained) -> None:
    for page in explained.pages:
        screen.paragraph(f"{page.code}  ", page.title, "bold")
        for heading, body in zip(SECTIONS, (page.what, page.why, page.read, page.command), strict=True):
            screen.print()
            screen.print(heading, "bold")
            for paragraph in body.split("\n\n"):
                if paragraph.startswith("    "):
                    screen.print("\n".join(f"  {line.strip()}" for line in paragraph.splitlines()))
                else:
                    screen.paragraph("  ", paragraph)
    if explained.codes:
        screen.table(Table((Column("CODE"), Column("WHAT")), [(item.code, item.title) for item in explained.codes]))
    if explained.exit_codes:
        columns = (Column("CODE", right=True), Column("NAME"), Column("MEANING"), Column("RUNBOOK DOES", keep=1))
        screen.table(Table(columns, [(str(e.code), e.name, e.meaning, e.runbook) for e in explained.exit_codes]))
