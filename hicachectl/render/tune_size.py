"""The screen of a sizing: budget, curve, steps, choice, and the flags of the engines."""

from __future__ import annotations

from typing import Any

from hicachectl.render.live import draw_live, draw_live_steps
from hicachectl.render.screen import Screen
from hicachectl.render.size_memory import memory_table, pool_cost_words, restores_table
from hicachectl.render.size_tiers import (
    POLICIES_NOTE,
    assumptions,
    columns_words,
    economics_table,
    economics_words,
    policies_table,
    pool_words,
    tiers_words,
)
from hicachectl.render.table import Column, Table
from hicachectl.render.trace_curve import bar, growth_words
from hicachectl.units import format_bytes, format_count, format_rate, format_seconds

__all__ = [
    "curve_table",
    "draw_size",
    "explanation",
    "flags_table",
    "flags_without_value",
    "steps_table",
    "waterfall_table",
]


def draw_size(screen: Screen, data: dict[str, Any], *, explain: bool = False) -> None:
    """Draw the document of `tune size`."""
    l1 = format_bytes(data["device_pages"] * data["page_bytes"])
    screen.paragraph(
        "SIZE    ",
        f"{data['id']}  {data['trace']}, {format_count(data['requests'])} requests, page {data['page_tokens']} tokens "
        f"{format_bytes(data['page_bytes'])}, L1 {l1} on {data['device']}",
        "bold",
    )
    screen.paragraph("HOST    ", data["host"])
    if data["live"] is not None:
        draw_live(screen, data["live"])
    screen.paragraph("BUDGET  ", _budget(data["budget"]))
    if data["budget_note"] is not None:
        screen.paragraph(" note: ", data["budget_note"])
    screen.paragraph("CURVE   ", _curve_words(data["curve"]))
    screen.table(curve_table(data, drawn=screen.tty), indent=" ")
    screen.paragraph(" note: ", columns_words(data))
    screen.paragraph("TIERS   ", tiers_words(data))
    if data["steps"]:
        screen.table(steps_table(data), indent=" ")
        screen.paragraph("ENDED   ", data["ended"])
        screen.table(memory_table(data), indent=" ")
        screen.paragraph("COST    ", pool_cost_words(data["pool_costs"]))
        if data["pool_costs"]["restores"]:
            screen.table(restores_table(data), indent=" ")
        for text in assumptions(data):
            screen.paragraph("NOTE    ", text)
    if data["live"] is not None:
        draw_live_steps(screen, data["live"])
    if len(data["waterfall"]) > 1:
        screen.table(waterfall_table(data), indent=" ")
        if data["costs"] is None:
            screen.paragraph(" note: ", f"times show the direction only: {data['costs_reason']}")
    for left in data["waterfall_left_out"]:
        screen.paragraph(" note: ", f"no row {left['stage']}: {left['reason']}")
    if data["costs"] is not None:
        screen.paragraph("COSTS   ", economics_words(data["costs"], data["page_tokens"]))
    choice = data["choice"]
    size = (
        f"{format_count(choice['pages'])} pages, {format_bytes(choice['bytes'])}" if choice["pages"] else "no host pool"
    )
    screen.paragraph("CHOICE  ", f"{size}, bound by: {choice['bound']} ({choice['reason']})", "ok")
    if data["config_host_pages"]:
        screen.paragraph("POOL    ", pool_words(data))
    if data["policies"]:
        screen.table(policies_table(data), indent=" ")
        screen.paragraph(" note: ", POLICIES_NOTE)
    if data["flags"]:
        screen.table(flags_table(data), indent=" ")
        for text in flags_without_value(data):
            screen.paragraph(" note: ", text)
    pages = data["config_host_pages"]
    last_good = (
        f" with {format_count(pages)} pages, the last good step" if pages else " without a host pool, as no step held"
    )
    instead = "" if pages == choice["pages"] else last_good
    config = data["config"]
    screen.paragraph(
        "CONFIG  ",
        "not written, as nothing was tried: --write FILE writes one"
        if config is None
        else f"{config}{instead}: hicachectl run --config {config}",
    )
    if explain:
        if data["costs"] is not None:
            screen.table(economics_table(data), indent=" ")
        for text in explanation(data):
            screen.paragraph("  ", text)


def curve_table(data: dict[str, Any], *, drawn: bool = True) -> Table:
    """A row a size: predicted hits of L1 and L2, of L3 where there is one, and a bar where it is `drawn`. Pure."""
    chosen, plateau = data["choice"]["pages"], data["curve"]["plateau_pages"]
    rows = []
    for row in data["curve"]["rows"]:
        pages = row["capacity_pages"]
        notes = []
        if pages == plateau:
            notes.append(f"<- smallest within {data['choice']['points']:g} point")
        if pages == chosen and chosen != plateau:
            notes.append("<- chosen")
        rows.append([
            format_count(pages), format_bytes(row["capacity_bytes"]), f"{100 * row['hit_rate']:.2f}",
            None if row["hit_rate_error"] is None else f"{100 * row['hit_rate_error']:.2f}", f"{100 * row['to_ceiling']:.2f}",
            None if row["payback_h"] is None else f"{row['payback_h']:.3g}", f"{100 * row['storage_hit_rate']:.2f}", bar(row["hit_rate"], 20), ", ".join(notes),
        ])  # fmt: skip
    columns = (
        Column("PAGES", right=True), Column("POOL", right=True), Column("HIT L1+L2 %", right=True), Column("+-", right=True, keep=4),
        Column("TO CEILING", right=True), Column("PAYBACK h", right=True, keep=2), Column("HIT L3 %", right=True), Column("CURVE", keep=3),
        Column("NOTE", keep=1),
    )  # fmt: skip
    left_out = {*(() if drawn else ("CURVE",)), *(() if data["tiers"]["storage"] else ("HIT L3 %",))}
    kept = [i for i, column in enumerate(columns) if column.title not in left_out]
    return Table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


def steps_table(data: dict[str, Any]) -> Table:
    """A row a pool that was really made. Pure."""
    rows = []
    for index, step in enumerate(data["steps"], start=1):
        trial = step["trial"]
        state = (
            step["state"]
            if step["state"] != "done"
            else "done, equal"
            if step["must_be_exact"]
            else "done, not compared"
            if step["predicted_hits"] is None
            else "done, within slack"
        )
        if step["measured_storage_hits"] is not None:
            state += (
                f", L3 {format_count(step['measured_storage_hits'])} of {format_count(step['predicted_storage_hits'])}"
            )
        state += ", from the journal" if step["resumed"] else ""
        if step["pages"] == data["choice"]["pages"]:
            state += ", chosen"
        if trial is None:
            rows.append([f"{index}/{len(data['steps'])}", format_count(step["pages"]), None, _percent(step["predicted_hit_rate"]), None, None, None, None, None, None, f"failed: {step['reason']}"])  # fmt: skip
            continue
        huge = None if trial["made"] is None else trial["made"]["huge_share"]
        made = trial["fill_s"] + (trial["register_s"] or 0.0)
        rows.append([
            f"{index}/{len(data['steps'])}", format_count(step["pages"]), format_bytes(trial["n_bytes"]), _percent(step["predicted_hit_rate"]),
            _percent(step["measured_hit_rate"]), None if huge is None else f"{int(100 * huge)} %", format_seconds(made),
            None if trial["restore_bytes_per_s"] is None else format_rate(trial["restore_bytes_per_s"]),
            None if trial["restore_p50_s"] is None else format_seconds(trial["restore_p50_s"]),
            None if trial["restore_p99_s"] is None else format_seconds(trial["restore_p99_s"]), state,
        ])  # fmt: skip
    columns = (
        Column("STEP"), Column("PAGES", right=True), Column("POOL", right=True, keep=1), Column("PREDICTED", right=True),
        Column("MEASURED", right=True), Column("HUGE", right=True, keep=3), Column("FILL+REGISTER", right=True, keep=4),
        Column("RESTORE", right=True, keep=2), Column("P50", right=True, keep=6), Column("P99", right=True, keep=5), Column("STATE"),
    )  # fmt: skip
    return Table(columns, rows)


def waterfall_table(data: dict[str, Any]) -> Table:
    """What each measured pool does to the modelled time to the first token. Pure."""
    rows = [
        [
            row["stage"],
            format_count(row["host_pages"]),
            format_seconds(row["ttft_modelled_mean_s"]),
            _percent(row["hit_rate"]),
            f"{100 * row['relative']:+.2f} %",
            None if row["restore_bytes_per_s"] is None else format_rate(row["restore_bytes_per_s"]),
        ]
        for row in data["waterfall"]
    ]
    columns = (
        Column("STAGE"),
        Column("PAGES", right=True, keep=2),
        Column("TTFT, modelled", right=True),
        Column("HIT", right=True),
        Column("RELATIVE", right=True),
        Column("RESTORE", right=True, keep=1),
    )
    return Table(columns, rows)


def flags_table(data: dict[str, Any]) -> Table:
    """The chosen pool in each engine's own unit. Pure."""
    rows = [
        [
            flag["engine"],
            flag["flag"],
            flag["value"] or "none",
            flag["unit"],
            None if flag["pages"] is None else format_count(flag["pages"]),
            flag["scope"],
        ]
        for flag in data["flags"]
    ]
    return Table(
        (
            Column("ENGINE"),
            Column("FLAG"),
            Column("VALUE", right=True),
            Column("UNIT"),
            Column("PAGES", right=True, keep=1),
            Column("SCOPE", keep=2),
        ),
        rows,
    )


def flags_without_value(data: dict[str, Any]) -> list[str]:
    """Say why flags have no value, those of one reason together. Pure."""
    named: dict[str, list[str]] = {}
    for flag in data["flags"]:
        if flag["value"] is None:
            named.setdefault(flag["reason"], []).append(f"{flag['engine']} {flag['flag']}")
    return [f"no value for {', '.join(flags)}: {reason}" for reason, flags in named.items()]


def explanation(data: dict[str, Any]) -> list[str]:
    """Say how the size was chosen and what was not used. Pure."""
    curve = data["curve"]
    return [
        f"The curve counts full pages (D3, what an engine keeps); with incomplete last pages (D1) the plateau of the host pool is {format_count(curve['plateau_d1_pages'])} pages.",
        "It is read from the right: the curves of chat and agent traffic are S-shaped, so the first small step and a knee lie in a desert "
        "before the sessions that come back (docs/facts.md#rejected-knees).",
        "Economics chooses where the prefill is that of the model whose pages are moved (run.compute.model) and restores and filling were "
        f"measured: the smallest pool whose net gain is within 1 % or the interval of the best; here the rule was: {data['choice']['rule']}.",
        "Running requests are taken to hold their whole input and output in L1, each its own: shared prefixes make it less. Steps replay "
        "one request at a time, so they are held to the curve with all of L1.",
        growth_words(curve["growth"], too_short=curve["window_too_short"], of="plateau of the whole curve for"),
    ]


def _budget(budget: dict[str, Any]) -> str:
    parts = []
    for term in budget["terms"]:
        why = f" ({term['reason']})" if term["reason"] else ""
        amount = term["reason"] if term["n_bytes"] is None else f"{format_bytes(term['n_bytes'])}{why}"
        parts.append(f"{term['name']} {amount}")
    can_use = f"can use {format_bytes(budget['can_use_bytes'])}, bound by {budget['bound']}"
    in_trial = budget["trial_bytes"]
    if in_trial is not None and in_trial < budget["can_use_bytes"]:
        can_use += f"; a trial pool {format_bytes(in_trial)}"
    return f"{' | '.join(parts)} | {can_use}"


def _curve_words(curve: dict[str, Any]) -> str:
    error = "" if curve["ceiling_error"] is None else f" +- {100 * curve['ceiling_error']:.2f}"
    band = (
        ""
        if curve["plateau_error_pages"] is None or not curve["plateau_pages"]
        else f" +- {format_count(curve['plateau_error_pages'])}"
    )
    last = curve["growth"][-2:]
    moved = ""
    if len(last) == 2 and last[0]["plateau_pages"]:
        moved = f", window 75 -> 100 %: that of the whole curve {100 * (last[1]['plateau_pages'] / last[0]['plateau_pages'] - 1):+.0f} %"
    short = " (lower bound, window too short)" if curve["window_too_short"] else ""
    return (
        f"exact, D3 (full pages). ceiling {100 * curve['ceiling']:.2f}{error} %, plateau of the host pool {format_count(curve['plateau_pages'])}{band} pages "
        f"(D1 {format_count(curve['plateau_d1_pages'])}){moved}{short}"
    )


def _percent(rate: float | None) -> str | None:
    return None if rate is None else f"{100 * rate:.2f} %"
