"""The screen of `bench copy`: a row a layout and backend that ran, then what could not run here and why."""

from __future__ import annotations

from typing import Any

from hicachectl.bench_memory import memory_words
from hicachectl.render.bench_words import (
    by_name,
    draw_head,
    draw_no_answer,
    draw_no_costs,
    draw_sources,
    marked,
    number,
    rate_range,
    rate_text,
    sizes,
    span,
)
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes, format_count

__all__ = ["draw_copy"]

_RANGE, _RANGE_AT = "LOAD (from..to)", 4
"""Column of the expected range: none is known for a processor's own memory."""


def draw_copy(screen: Screen, data: dict[str, Any]) -> None:
    """Draw the document of `bench copy`."""
    accelerated = data["setting"]["accelerator"] is not None or data["setting"]["device"] != "cpu"
    draw_head(
        screen,
        f"BENCH COPY  {data['geometry']} {data['dtype']}, {format_count(data['pages'])} pages of {data['page_tokens']} tokens, {format_bytes(data['bytes'])}",
        data,
    )
    if data["host_memory"] is not None:
        screen.paragraph("  memory   ", memory_words(data["host_memory"]))
    ran = [row for row in data["rows"] if row["refused"] is None]
    if ran:
        screen.table(
            Table(
                _columns(accelerated=accelerated),
                [_cells(row, data, accelerated=accelerated) for row in ran],
                rest="-o json",
            )
        )
        draw_no_answer(screen, data)
        draw_sources(screen, data, "LOAD, in PEAK %, and of the peak in GiB/s")
        screen.paragraph(
            "  ", "FIRST: the first layer of a load is there; SUBMIT, CALLER: time of the submission thread and of the call; PRODUCTS: time "
            "of matrix products beside a transfer over their time alone",
        )  # fmt: skip
    _draw_peak(screen, data, accelerated=accelerated)
    _draw_costs(screen, data)
    draw_no_costs(screen, data)
    for row in ran:
        if row["cut"] is not None:
            screen.paragraph(f"  {row['subject']}: ", row["cut"])
    short = [row["subject"] for row in ran if not row["outlasted"]]
    if short:
        screen.paragraph(
            "  ", f"PRODUCTS is a lower bound where the transfer ended before them: {', '.join(short)}"
        )  # fmt: skip
    _draw_refused(screen, data)


def _columns(*, accelerated: bool) -> tuple[Column, ...]:
    peak = "PEAK %" if accelerated else "COPY %"
    columns = (
        Column("LAYOUT"), Column("BACKEND"), Column("LOAD GiB/s", right=True), Column(peak, right=True), Column(_RANGE, keep=2),
        Column("BACKUP GiB/s", right=True), Column(peak, right=True), Column("FIRST ms", right=True, keep=1),
        Column("SUBMIT ms", right=True, keep=3), Column("CALLER ms", right=True, keep=5), Column("PRODUCTS x", right=True, keep=4),
        Column("SPREAD %", right=True, keep=6),
    )  # fmt: skip
    return tuple(column for column in columns if accelerated or column.title != _RANGE)


def _cells(row: dict[str, Any], data: dict[str, Any], *, accelerated: bool) -> list[str | None]:
    found, n_bytes, name = by_name(data), data["bytes"], row["subject"]
    load, backup = found[name, "load_s"], found[name, "backup_s"]
    up, down = found[name, "load_share_of_peak"], found[name, "backup_share_of_peak"]
    products = [found[name, f"products_beside_{way}_times_alone"]["p50"] for way in ("load", "backup")]
    spreads = [one["spread"] for one in (load, backup) if one["spread"] is not None]
    is_best = row["best"] and name not in data["no_answer"]
    backend = f"{row['backend']} *" if is_best else row["backend"]
    cells = [
        marked(data, name, row["layout"]), backend, rate_text(load, n_bytes), f"{100 * up['p50']:.1f}", span(up["expected"], 100) or None,
        rate_text(backup, n_bytes), f"{100 * down['p50']:.1f}", number(1e3 * found[name, "load_first_layer_s"]["p50"]),
        number(1e3 * found[name, "load_submit_s"]["p50"]), number(1e3 * found[name, "load_held_s"]["p50"]),
        f"{max(products):.2f}", f"{100 * max(spreads):.0f}" if spreads else None,
    ]  # fmt: skip
    return cells if accelerated else [*cells[:_RANGE_AT], *cells[_RANGE_AT + 1 :]]


def _draw_peak(screen: Screen, data: dict[str, Any], *, accelerated: bool) -> None:
    """The peak of both directions, as a range over the rows: each row has its own."""
    words = []
    for way, title in (("load", "to the device"), ("backup", "from it")):
        peaks = [one for one in data["measures"] if one["quantity"] == f"{way}_peak_s"]
        rates = [data["bytes"] / one["p50"] / (1 << 30) for one in peaks]
        if rates:
            expected = rate_range(peaks[0], data["bytes"])
            beside = f" {expected}" if expected else ""
            words.append(f"{number(min(rates))} .. {number(max(rates))} GiB/s {title}{beside}")
    if words:
        what = "peak" if accelerated else "one contiguous copy within host memory"
        screen.paragraph(f"  {what}: ", ", ".join(words))


def _draw_costs(screen: Screen, data: dict[str, Any]) -> None:
    of, costs = data["costs_of"], data["costs"]
    if of is None:
        return
    told = [
        f"{title}{sizes(cost)} {number(1e6 * cost['fixed_s'])} us + {number(1e3 * cost['per_byte_s'] * (1 << 30))} ms a GiB"
        for title, cost in (("load", costs["host_read"]), ("backup", costs["host_write"]))
        if cost is not None
    ]
    screen.paragraph(
        "  ", f"* best of its layout, by the slower direction of those that leave compute alone, none where that is no answer or another is faster both ways; a transfer costs with {of['layout']} "
        f"{of['backend']}: {', '.join(told) or 'no answer'} (costs.host_read, costs.host_write)",
    )  # fmt: skip


def _draw_refused(screen: Screen, data: dict[str, Any]) -> None:
    """Say what was not measured, once a reason."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for row in data["rows"]:
        if row["refused"] is not None:
            by_reason.setdefault(row["refused"], {}).setdefault(row["backend"], []).append(row["layout"])
    if by_reason:
        screen.print("NOT MEASURED")
    n_layouts = len({row["layout"] for row in data["rows"]})
    for reason, backends in by_reason.items():
        for backend, layouts in backends.items():
            where = "every layout" if len(layouts) == n_layouts else ", ".join(layouts)
            screen.paragraph(f"  {backend:<7}  ", f"{where}: {reason}")
