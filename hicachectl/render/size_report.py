"""A sizing as one HTML page: curve with its band, steps, economics, choice, flags. No script, no network."""

from __future__ import annotations

import os
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicachectl.errors import UsageError
from hicachectl.render.html_style import HATCHES, STYLE
from hicachectl.render.live import live_steps_table, live_words
from hicachectl.render.size_memory import memory_table, pool_cost_words, restores_table
from hicachectl.render.size_tiers import (
    POLICIES_NOTE,
    economics_table,
    economics_words,
    policies_table,
    pool_words,
    tiers_words,
)
from hicachectl.render.svg import Plot, empty_plot, nice_ticks
from hicachectl.render.table import Table
from hicachectl.render.tune_size import (
    curve_table,
    explanation,
    flags_table,
    flags_without_value,
    steps_table,
    waterfall_table,
)
from hicachectl.units import format_bytes, format_count

if TYPE_CHECKING:
    from hicachectl.size_data import SizeFound

__all__ = ["curve_plot", "size_page", "write_size_html"]

_POINTS = 200


def write_size_html(found: SizeFound, data: dict[str, Any], path: Path) -> None:
    """Write the page whole or not at all. Raises UsageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(size_page(data, curve_plot(found, data)), encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # the first error says more
            temporary.unlink()
        raise UsageError(
            f"cannot write the report: {error.strerror}",
            where=str(path),
            why="--report names it; the record of the run is whole",
            hint="free room there or name another file, with --resume --force: its steps are taken from the record",
            code="HC-OUTPUT",
        ) from error


def curve_plot(found: SizeFound, data: dict[str, Any]) -> str:
    """Plot the hit rate over the pool size, its band of one standard error, the steps measured, and the choice. Pure."""
    curve, levels = found.prediction.curve, found.prediction.levels
    label = "Hit rate by pool size"
    end = float(max(1, curve.largest_distance, *(step["pages"] for step in data["steps"])))
    top = curve.rate()
    if not top:
        return empty_plot(label, "Nothing in this trace comes back.")
    ticks = nice_ticks(min(1.0, top * 1.1))
    plot = Plot(label, lambda x: x / end, lambda y: y / ticks[-1])
    sizes = [round(end * i / _POINTS) for i in range(_POINTS + 1)]
    rates = [levels.rate(pages) for pages in sizes]
    if found.prediction.sure.jackknife is not None:
        errors = [found.prediction.error(levels.reach(pages)) or 0.0 for pages in sizes]
        low = [max(0.0, rate - error) for rate, error in zip(rates, errors, strict=True)]
        high = [rate + error for rate, error in zip(rates, errors, strict=True)]
        plot.steps([float(s) for s in sizes], low[:-1], high[:-1], "reuse", "one standard error over sessions")
    plot.line([(float(s), rate) for s, rate in zip(sizes, rates, strict=True)], "curve")
    for step in data["steps"]:
        if step["measured_hit_rate"] is not None:
            x, y = plot.px(step["pages"]), plot.py(step["measured_hit_rate"])
            title = f"{format_count(step['pages'])} pages measured {100 * step['measured_hit_rate']:.2f} %"
            plot.over.append(f'<circle class="axis" cx="{x}" cy="{y}" r="4"><title>{escape(title)}</title></circle>')
    chosen = data["choice"]["pages"]
    if chosen:
        plot.mark(float(chosen), f"chosen {format_count(chosen)} pages, {format_bytes(data['choice']['bytes'])}", 0)
    xs = [(value, format_count(round(value))) for value in nice_ticks(end) if value <= end]
    plot.axes(xs, [(value, f"{100 * value:.0f} %") for value in ticks], "host pool, pages")
    return plot.svg()


def size_page(data: dict[str, Any], plot: str) -> str:
    """Return the whole page. Pure."""
    choice = data["choice"]
    size = (
        f"{format_count(choice['pages'])} pages, {format_bytes(choice['bytes'])}" if choice["pages"] else "no host pool"
    )
    title = f"hicachectl tune size: {data['trace']}"
    body = [
        f"<header><h1>{escape(data['trace'])}</h1><p class=about>{escape(data['format'])}, {format_count(data['requests'])} requests, "
        f"{escape(data['geometry'])}, page {data['page_tokens']} tokens {format_bytes(data['page_bytes'])}; {escape(data['id'])}</p></header>",
        f"<section class=verdict><h2><span class=word>{escape(size)}</span> bound by {escape(choice['bound'])}</h2>"
        f"<p>{escape(choice['reason'])}</p><p>host: {escape(data['host'])}</p></section>",
        f"<figure><figcaption><h2>Hit rate by pool size</h2><p>line: predicted, exact for this trace; band: one standard error over "
        f"sessions; dots: measured on real pools</p></figcaption>{plot}</figure>",
        _section("Curve", curve_table(data), tiers_words(data)),
        _section("Economics", economics_table(data), economics_words(data["costs"], data["page_tokens"]))
        if data["costs"] is not None
        else f"<section><h2>Economics</h2><p>The costs are not known: {escape(data['costs_reason'])}. The rule was "
        f"{data['choice']['points']:g} point below the ceiling.</p></section>",
        _section("Steps", steps_table(data), f"ended: {data['ended']}") if data["steps"] else "",
        _section("Live traffic", live_steps_table(data["live"]), live_words(data["live"]))
        if data["live"] is not None
        else "",
        _section("Memory", memory_table(data), pool_cost_words(data["pool_costs"])) if data["steps"] else "",
        _section("The same restores, larger pool", restores_table(data)) if data["pool_costs"]["restores"] else "",
        _section(
            "Against L1 alone",
            waterfall_table(data),
            f"prefill is modelled, waits are measured{'' if data['costs'] else '; the direction only: ' + str(data['costs_reason'])}",
        )
        if data["waterfall"]
        else "",
        _section("Policies", policies_table(data), POLICIES_NOTE) if data["policies"] else "",
        _section("Engines", flags_table(data), ". ".join((pool_words(data), *flags_without_value(data))))
        if data["flags"]
        else "",
        "<section><h2>How</h2><ul>"
        + "".join(f"<li>{escape(text)}</li>" for text in explanation(data))
        + "</ul></section>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{HATCHES}<main>{''.join(body)}</main></body></html>\n"
    )


def _section(title: str, table: Table, note: str = "") -> str:
    kinds = ["num" if column.right else "text" for column in table.columns]
    head = "".join(
        f"<th scope=col class={kind}>{escape(column.title.lower())}</th>"
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    rows = "".join(
        "<tr>" + "".join(f"<td class={kind}>{escape('-' if cell is None else cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in table.rows
    )  # fmt: skip
    after = f"<p class=about>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2><div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{after}</section>"
