"""Tables that fit a width without cutting anything: columns leave by priority, then rows turn vertical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicachectl.render.text import cell_width, pad, printable, wrap

__all__ = ["Column", "Table", "layout"]

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `keep` 0 stays to the end, higher numbers leave first; `wide` columns show with -o wide only."""

    title: str
    right: bool = False
    keep: int = 0
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of ready text, one cell a column; None prints as "-"."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | None]]
    rest: str = ""
    """Where else the columns that do not fit are, such as "-o json"; the note then says at which width all fit too."""


def layout(table: Table, width: int, *, wide: bool = False, encoding: str = "utf-8") -> list[str]:
    """Lay a table out in at most `width` cells, or more where one value alone is longer. Pure.

    Columns with the highest `keep` go first, a note says which; when the `keep` 0 columns still do not fit,
    each row prints one "TITLE  value" line a column, all columns again.
    """
    shown = [i for i, c in enumerate(table.columns) if wide or not c.wide]
    cells = [[printable("-" if v is None else v, encoding) for v in row] for row in table.rows]
    widths = [
        max([cell_width(printable(c.title, encoding)), *(cell_width(row[i]) for row in cells)])
        for i, c in enumerate(table.columns)
    ]
    dropped: list[int] = []
    full = sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1)
    while sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1) > width:
        worst = max((table.columns[i].keep for i in shown), default=0)
        if worst == 0:
            return _vertical(table, sorted([*shown, *dropped]), cells)
        leaving = max(i for i in shown if table.columns[i].keep == worst)
        shown.remove(leaving)
        dropped.append(leaving)

    def line(row: Sequence[str]) -> str:
        parts = [pad(row[i], widths[i], right=table.columns[i].right) for i in shown]
        return _GAP.join(parts).rstrip()

    lines = [line([printable(c.title, encoding) for c in table.columns]), *(line(row) for row in cells)]
    if dropped:
        names = ", ".join(table.columns[i].title for i in sorted(dropped))
        rest = f"; all at {full}, or {table.rest}" if table.rest else ""
        note = f"(not shown at {width} columns: {names}{rest})"
        lines.extend(wrap(note, width, indent=" ") if rest else [note])
    return lines


def _vertical(table: Table, shown: Sequence[int], cells: Sequence[Sequence[str]]) -> list[str]:
    title_width = max(cell_width(table.columns[i].title) for i in shown)
    lines: list[str] = []
    for number, row in enumerate(cells):
        if number:
            lines.append("")
        lines.extend(f"{pad(table.columns[i].title, title_width)}  {row[i]}" for i in shown)
    return lines
