"""The screen of `bench pool`: a row a case, rates of filling and registering beside the range expected, then what did not run."""

from __future__ import annotations

from typing import Any

from hicachectl.render.bench_words import (
    by_name,
    draw_head,
    draw_no_answer,
    draw_sources,
    marked,
    number,
    rate_range,
    rate_text,
    why_no_answer,
)
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes

__all__ = ["draw_pool"]


def draw_pool(screen: Screen, data: dict[str, Any]) -> None:
    """Draw the document of `bench pool`."""
    n_bytes = data["pool_bytes"]
    draw_head(screen, f"BENCH POOL  {format_bytes(n_bytes)}", data)
    columns = (
        Column("CASE"), Column("TOTAL s", right=True), Column("FILL GiB/s", right=True), Column("FILL (from..to)", keep=2),
        Column("REGISTER GiB/s", right=True), Column("REGISTER (from..to)", keep=3), Column("UNREGISTER GiB/s", right=True, keep=4),
        Column("GIVE BACK s", right=True, keep=5, wide=True), Column("HUGE %", right=True), Column("TORCH x", right=True, keep=1),
        Column("SPREAD %", right=True, keep=4),
    )  # fmt: skip
    rows = [_cells(case, data) for case in data["cases"] if case["refused"] is None]
    torch = by_name(data)["torch pinned", "total_s"]
    screen.table(Table(columns, rows if torch["p50"] is None else [*rows, _torch_cells(data)], rest="-o json"))
    draw_no_answer(screen, data)
    draw_sources(screen, data, "FILL and REGISTER, GiB/s")
    registered = (
        f"registered with {data['registrar']}"
        if data["registrar"] is not None
        else f"nothing registered: {data['not_registered']}"
    )
    screen.paragraph("  ", registered)
    if torch["p50"] is None:
        screen.paragraph("  ", f"not compared with torch's pinned memory: {torch['reason']}")
    for case in data["cases"]:
        if case["refused"] is not None:
            screen.paragraph(f"  {case['name']}: ", f"not measured: {case['refused']}")
        for note in case["notes"]:
            if note.startswith("verify"):
                screen.paragraph(f"  {case['name']}: ", note.removeprefix("verify: "))
    _draw_make(screen, data)


def _draw_make(screen: Screen, data: dict[str, Any]) -> None:
    """Say what making a pool costs a start, and what it takes once the memory is warm."""
    make = data["make"]
    if make is None:
        return
    threads = "1 thread fills" if make["threads"] == 1 else f"{make['threads']} threads fill"
    why_not_cold = why_no_answer(by_name(data)[make["case"], "cold_total_s"])
    cold, warm = ("? " if bad else "" for bad in (why_not_cold, make["case"] in data["no_answer"]))
    screen.paragraph(
        f"  {'make ?' if cold or warm else 'make':<9}",
        f"cold {cold}{number(make['cold_s_per_gib'])} s a GiB, warm (made and given back right before) {warm}"
        f"{number(make['warm_s_per_gib'])}: anonymous, huge pages, {threads} it, "
        f"{'registered' if make['registered'] else 'not registered'}",
    )
    if data["costs"]["make_s_per_gib"] is not None:
        screen.paragraph("  ", "a start pays the cold one (costs.make_s_per_gib)")
        return
    why = data["facts"]["/costs/make_s_per_gib"]["reason"]
    if why_not_cold is not None and why_not_cold not in why:
        screen.paragraph("  ", f"? no answer: {why_not_cold}")
    screen.paragraph("  ", f"no cost of a start: {why}")


def _cells(case: dict[str, Any], data: dict[str, Any]) -> list[str | None]:
    found, n_bytes, name = by_name(data), data["pool_bytes"], case["name"]
    total, fill, register = (found[name, part] for part in ("total_s", "populate_s", "register_s"))
    huge, back = found[name, "huge_share"], found[name, "unmap_s"]
    return [
        marked(data, name, name), _plain(total), rate_text(fill, n_bytes), rate_range(fill, n_bytes), rate_text(register, n_bytes),
        rate_range(register, n_bytes), rate_text(found[name, "unregister_s"], n_bytes), _plain(back),
        None if huge["p50"] is None else f"{100 * huge['p50']:.1f}",
        None if case["times_torch"] is None else f"{case['times_torch']:.1f}",
        None if total["spread"] is None else f"{100 * total['spread']:.0f}",
    ]  # fmt: skip


def _torch_cells(data: dict[str, Any]) -> list[str | None]:
    found = by_name(data)
    total, back = found["torch pinned", "total_s"], found["torch pinned", "unmap_s"]
    spread = None if total["spread"] is None else f"{100 * total['spread']:.0f}"
    return ["torch pinned", _plain(total), None, None, None, None, None, _plain(back), None, None, spread]


def _plain(measure: dict[str, Any]) -> str | None:
    return None if measure["p50"] is None else number(measure["p50"])
