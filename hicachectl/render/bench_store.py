"""The screen of `bench store`: a row an operation and case, then what was cold, what fsync adds and what did not run."""

from __future__ import annotations

from typing import Any

from hicachectl.render.bench_words import by_name, draw_head, draw_no_answer, draw_no_costs, marked, number, sizes, span
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import GIB, format_bytes, format_seconds

__all__ = ["draw_store"]

Data = dict[str, Any]


def draw_store(screen: Screen, data: Data) -> None:
    """Draw the document of `bench store`."""
    kv = data["geometry"]
    title = f"BENCH STORE  {data['n_pages']} pages of {format_bytes(kv['page_bytes'])} a round"
    draw_head(screen, title, data)
    screen.paragraph("  pages    ", f"{kv['name']}, {kv['page_tokens']} tokens, {kv['layout']}")
    screen.paragraph("  folder   ", f"{data['folder']} ({data['folder_reason']}){_system(data)}")
    columns = (
        Column("OPERATION"), Column("PAGES A CALL", right=True), Column("THREADS", right=True), Column("GiB/s", right=True),
        Column("GiB/s (from..to)", keep=4), Column("SPREAD %", right=True, keep=2), Column("PAGES/s", right=True, keep=1),
        Column("PAGE p50", right=True), Column("PAGE p99", right=True),
    )  # fmt: skip
    found = by_name(data)
    rows = [_cells(row, found, data) for row in data["rows"] if found[row["subject"], "pages_per_s"]["samples"]]
    screen.table(Table(columns, rows, rest="-o json"))
    draw_no_answer(screen, data)
    _draw_cold(screen, data)
    _draw_fsync(screen, data)
    scans = next(one for one in data["measures"] if one["quantity"] == "scan_s")
    if scans["p50"] is not None:
        screen.paragraph("  ", f"opening the folder with {data['n_pages']} objects took {format_seconds(scans['p50'])}")
    screen.paragraph(
        "  ",
        "(from..to): GiB/s that the checksum of every page allows on one core (docs/facts.md#checksum), other machines differ",
    )
    screen.paragraph("  ", f"{data['verified_pages']} pages read were compared byte for byte, none wrong")
    for row in data["rows"]:
        if row["refused"] is not None:
            screen.paragraph(f"  {row['subject']}: ", f"not measured: {row['refused']}")
    for path, cost in (("read", data["costs"]["storage_read"]), ("write", data["costs"]["storage_write"])):
        if cost is not None:
            rate = "" if cost["per_byte_s"] == 0 else f" + bytes / {number(1 / cost['per_byte_s'] / GIB)} GiB/s"
            of = data["costs_of"][f"storage_{path}"]
            warm = ": no read was cold, these are reads of the page cache" if of == "read warm" else ""
            screen.paragraph(
                "  ", f"a {of}{sizes(cost)} costs {format_seconds(cost['fixed_s'])}{rate} (costs.storage_{path}{warm})"
            )
    draw_no_costs(screen, data)
    for left in data["left"]:
        screen.paragraph("  not removed: ", left)


def _cells(row: Data, found: dict[tuple[str, str], Data], data: Data) -> list[str | None]:
    name = row["subject"]
    rate = found.get((name, "bytes_per_s"))
    spread = (found[name, "pages_per_s"] if rate is None else rate)["spread"]
    return [
        marked(data, name, row["operation"]), str(row["pages_a_call"]), str(row["threads"]),
        None if rate is None or rate["p50"] is None else number(rate["p50"] / GIB),
        None if rate is None or rate["expected"] is None else span(rate["expected"], 1 / GIB),
        None if spread is None else f"{100 * spread:.0f}",
        number(found[name, "pages_per_s"]["p50"]),
        format_seconds(found[name, "page_p50_s"]["p50"]), format_seconds(found[name, "page_p99_s"]["p50"]),
    ]  # fmt: skip


def _draw_cold(screen: Screen, data: Data) -> None:
    shares = [
        row["resident_share"] for row in data["rows"] if row["operation"] == "read cold" and row["refused"] is None
    ]
    if shares and None not in shares:
        screen.paragraph(
            "  ", f"read cold: {100 * max(shares):.1f} % of the files was left in the page cache right before"
        )


def _draw_fsync(screen: Screen, data: Data) -> None:
    for one in data["measures"]:
        if one["quantity"] == "fsync_s" and one["p50"] is not None:
            screen.paragraph("  ", f"{one['subject']}: {format_seconds(one['p50'])} more a page")


def _system(data: Data) -> str:
    system = data["file_system"]
    if system["kind"] is None:
        return ""
    return f", {system['kind']} on {system['device']} mounted at {system['mount']}"
