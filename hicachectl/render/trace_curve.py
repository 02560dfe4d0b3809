"""The screen of a hit-rate curve: a row a size (with a bar on a terminal), the plateau marked, and what the numbers mean."""

from __future__ import annotations

from typing import Any

from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes, format_count

__all__ = ["bar", "draw_curve", "growth_words"]

BAR_CELLS = 30
_COUNTS = {
    "D1": "hits / blocks, incomplete last ones too",
    "D2": "hit tokens / input tokens in blocks that have an id",
    "D3": "hits / full blocks",
}


def draw_curve(screen: Screen, data: dict[str, Any]) -> None:
    """Draw the document of `trace curve`."""
    how = "exact" if data["sampled_one_in"] is None else f"sampled, one block in {data['sampled_one_in']}"
    part = "all requests" if data["counted"] == "all" else "last half of the requests"
    screen.print(f"CURVE  {data['path']}  {data['format']}, {format_count(data['requests'])} requests counted", "bold")
    screen.paragraph(
        "  ",
        f"{data['definition']}: {_COUNTS[data['definition']]}; {part}; {data['policy']}, {how}; a page is "
        f"{data['page_tokens']} tokens; {format_count(data['distinct_pages'])} distinct pages",
    )
    screen.paragraph("  ", _ceiling(data))
    columns = (
        Column("PAGES", right=True), Column("SIZE", right=True, keep=1), Column("HIT %", right=True), Column("+-", right=True, keep=3),
        Column("TO CEILING", right=True), Column("CURVE", keep=2), Column("NOTE", keep=1),
    )  # fmt: skip
    has_size = data["page_bytes"] is not None
    left_out = {*(() if has_size else ("SIZE",)), *(() if screen.tty else ("CURVE",))}
    kept = [i for i, column in enumerate(columns) if column.title not in left_out]
    rows = [_cells(row, data) for row in data["curve"]]
    screen.table(Table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows]))
    if data.get("ceiling_error_reason"):
        screen.paragraph("  ", f"no +- is known: {data['ceiling_error_reason']}")
    if data["growth"]:
        screen.paragraph("  ", growth_words(data["growth"], too_short=bool(data["window_too_short"])))


def growth_words(growth: list[dict[str, Any]], *, too_short: bool, of: str = "plateau of") -> str:
    """Say how the plateau grew with the window; `of` names it. Pure."""
    pages = [grown["plateau_pages"] for grown in growth]
    plateaus = ", ".join(map(format_count, pages))
    end = "lower bound, window too short" if too_short else _settled(pages)
    return f"{of} the first 25, 50, 75, 100 % of the requests: {plateaus} pages: {end}"


def _settled(pages: list[int]) -> str:
    """What plateaus that no longer grow say."""
    if not pages[-1]:
        return "no cache is needed to be within the points"
    return "it has settled" if pages[-1] >= 0.9 * pages[-2] else "it fell over the last quarter, so it has not settled"


def bar(rate: float, cells: int = BAR_CELLS) -> str:
    """A bar as long as a rate of 0 to 1. Pure.

    >>> bar(0.5, 4)
    '██'
    """
    return "█" * round(cells * min(1.0, max(0.0, rate)))


def _ceiling(data: dict[str, Any]) -> str:
    error = f" +- {100 * data['ceiling_error']:.2f}" if data["ceiling_error"] is not None else ""
    text = f"without a limit {100 * data['ceiling']:.2f} %{error}"
    if data["plateau_pages"] is None:
        return text
    band = ""
    if data["plateau_low_pages"] is not None:
        band = f" ({format_count(data['plateau_low_pages'])} to {format_count(data['plateau_high_pages'])})"
    size = f", {format_bytes(data['plateau_pages'] * data['page_bytes'])}" if data["page_bytes"] else ""
    return f"{text}; within {data['points']:g} point from {format_count(data['plateau_pages'])} pages on{band}{size}"


def _cells(row: dict[str, Any], data: dict[str, Any]) -> list[str | None]:
    pages = row["capacity_pages"]
    notes = []
    if pages == data["plateau_pages"]:
        notes.append(f"<- smallest within {data['points']:g} point")
    if pages == data["longest_request_pages"]:
        notes.append("longest request")
    error = "-" if row["hit_rate_error"] is None else f"{100 * row['hit_rate_error']:.2f}"
    size = None if row["capacity_bytes"] is None else format_bytes(row["capacity_bytes"])
    return [
        format_count(pages), size, f"{100 * row['hit_rate']:.2f}", error, f"{100 * row['to_ceiling']:.2f}",
        bar(row["hit_rate"]), ", ".join(notes),
    ]  # fmt: skip
