"""What the screen and the page of a sizing say of its tiers, its pool and its economics."""

from __future__ import annotations

from typing import Any

from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes, format_count, format_seconds

__all__ = [
    "POLICIES_NOTE", "assumptions", "columns_words", "economics_table", "economics_words", "policies_table", "pool_words", "tiers_words",
]  # fmt: skip

POLICIES_NOTE = (
    "simulated by the runtime's own tree on pages of a byte a token, one request at a time, nothing below L2: hits and copies, no "
    "times. The first one is the policy of the curve."
)
"""What the table of policies is, and is not."""


def tiers_words(data: dict[str, Any]) -> str:
    """Say what each tier hits at the size chosen, and what storage would serve without it. Pure."""
    tiers, choice = data["tiers"], data["choice"]
    found = [f"L1 {format_count(data['device_pages'])} pages hit {_percent(tiers['device_hit_rate_idle'])}"]
    if tiers["concurrency"]:
        held = format_count(data["device_pages_held_by_running"])
        found[0] += (
            f", {_percent(tiers['device_hit_rate'])} with {held} held by {tiers['concurrency']} running requests"
        )
    found.append(f"L2, {tiers['l2']}, adds {_percent(choice['host_hit_rate'])}")
    if tiers["storage"]:
        size = "without a limit" if tiers["storage_pages"] is None else f"{format_count(tiers['storage_pages'])} pages"
        found.append(
            f"L3, {size}, adds {_percent(choice['storage_hit_rate'])} and would serve {100 * choice['served_by_storage_anyway']:.2f} of L2's "
            f"{100 * choice['host_hit_rate']:.2f} points anyway, at its cost; its reads pass through {format_count(tiers['bounce_pages'])} host pages (room to bounce)"
        )
    return "; ".join(found)


def columns_words(data: dict[str, Any]) -> str:
    """Say what the columns of the curve and the words above it mean, and why a column is empty. Pure."""
    rows = data["curve"]["rows"]
    words = ["TO CEILING is in points"]
    if any(row["hit_rate_error"] is not None for row in rows):
        words.insert(0, "+- is one standard error over sessions, in points")
    elif data["curve"].get("ceiling_error_reason"):
        words.insert(0, f"no +- is known: {data['curve']['ceiling_error_reason']}")
    if data["costs"] is None:
        words.append(f"PAYBACK h is - because {data['costs_reason']}")
    else:
        words.append(
            "PAYBACK h: hours until the size has saved, over the one above it, what making it took; - where it never does"
        )
    words.append("D1 counts incomplete last pages too")
    if len(data["curve"]["growth"]) > 1:
        words.append(
            "window: how far the plateau of the whole curve, L1 and host pool together, moved when the last quarter of the requests was added"
        )
    return "; ".join(words)


def pool_words(data: dict[str, Any]) -> str:
    """Say the pool in pages, on the host, and a rank; and an inclusive one that hits as much. Pure."""
    pool = data["pool"]
    ranks = f"{pool['n_ranks']} TP ranks" if pool["n_ranks"] > 1 else "1 TP rank"
    if pool["shared"]:
        ranks += " that share it"
    text = (
        f"{format_count(pool['pages'])} pages: {format_bytes(pool['host_bytes'])} on the host, "
        f"{format_bytes(pool['rank_bytes'])} a TP rank ({ranks})"
    )
    if data["tiers"]["l2"] == "exclusive":
        inclusive = pool["pages"] + data["tiers"]["device_pages_free"]
        size = format_bytes(inclusive * pool["host_bytes"] // pool["pages"])
        text += f"; an engine whose L2 holds what L1 holds too needs {format_count(inclusive)} pages, {size}, to hit as much"
    return text


def economics_words(costs: dict[str, Any], page_tokens: int) -> str:
    """Say the costs that economics chose by. Pure."""
    carry = costs["carry_s_per_gib_h"]
    carried = "carry not measured, counted as 0" if carry is None else f"{carry:.3g} s/h to carry"
    parts = [
        f"a token computed {format_seconds(costs['prefill_s'])}, restored {format_seconds(costs['restore_s'])} (by {costs['source']})",
        f"a GiB of pool {format_seconds(costs['make_s_per_gib'])} to make, {carried}, {costs['lives_h']:g} h to live",
        f"{format_count(round(costs['tokens_per_h']))} input tokens in whole pages an hour",
    ]
    if costs["storage_restore_s"] is not None:
        parts[0] += f", from L3 {format_seconds(costs['storage_restore_s'])}"
    crossover = costs["crossover_tokens"]
    if crossover is None:
        parts.append("no restore of any length is cheaper than computing")
    elif crossover > page_tokens:
        parts.append(
            f"restores of fewer than {format_count(crossover)} tokens are dearer than computing and do not count"
        )
    return "; ".join(parts)


def economics_table(data: dict[str, Any]) -> Table:
    """A row a size: device-seconds an hour saved, spent, left, and the hours until growing to it has paid. Pure."""
    rows = []
    for row in data["curve"]["rows"]:
        note = "<- chosen" if row["capacity_pages"] == data["choice"]["pages"] else ""
        rows.append([
            format_count(row["capacity_pages"]), format_bytes(row["capacity_bytes"]), _rate(row["saved_s_per_h"]),
            _rate(row["spent_s_per_h"]), _rate(row["net_s_per_h"]),
            None if row["payback_h"] is None else f"{row['payback_h']:.3g}", note,
        ])  # fmt: skip
    columns = (
        Column("PAGES", right=True), Column("POOL", right=True), Column("SAVED s/h", right=True), Column("SPENT s/h", right=True),
        Column("NET s/h", right=True), Column("PAYBACK h", right=True), Column("NOTE", keep=1),
    )  # fmt: skip
    return Table(columns, rows)


def policies_table(data: dict[str, Any]) -> Table:
    """A row a policy at the size chosen: hits of L1 and L2, points against the first row, pages copied down. Pure."""
    first = data["policies"][0]["hit_rate"]
    rows = [
        [
            one["policy"], _percent(one["hit_rate"]), f"{100 * (one['hit_rate'] - first):+.2f}",
            format_count(one["backed_up_pages"]),
        ]
        for one in data["policies"]
    ]  # fmt: skip
    columns = (
        Column("POLICY"), Column("HIT L1+L2", right=True), Column("POINTS", right=True), Column("COPIED DOWN", right=True),
    )  # fmt: skip
    return Table(columns, rows)


def assumptions(data: dict[str, Any]) -> list[str]:
    """What the steps took for granted and were not held to the page for, each once. Pure."""
    named = [step["assumption"] for step in data["steps"] if step["assumption"] is not None]
    return list(dict.fromkeys(named))


def _rate(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.3g}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f} %"
