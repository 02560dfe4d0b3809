"""The screen of `bench model`: both curves, where they break even, and what restores save by length."""

from __future__ import annotations

from typing import Any

from hicachectl.bench_memory import memory_words
from hicachectl.render.bench_words import draw_head, draw_no_answer, draw_no_costs, number
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes, format_count, format_seconds

__all__ = ["draw_model", "even_words"]

Data = dict[str, Any]
_AT = 16384
_TIERS = {"host": "L2 host", "storage": "L3 storage"}


def draw_model(screen: Screen, data: Data) -> None:
    """Draw the document of `bench model`."""
    kv = data["geometry"]
    draw_head(
        screen,
        f"BENCH MODEL  {kv['name']}, pages of {kv['page_tokens']} tokens, {format_bytes(kv['page_bytes'])}",
        data,
    )
    screen.paragraph("  copies   ", f"{kv['layout']} by {data['backend']} ({data['backend_reason']})")
    if data["host_memory"] is not None:
        screen.paragraph("  memory   ", memory_words(data["host_memory"]))
    _draw_storage(screen, data)
    columns = (
        Column("CURVE"), Column("FIXED a, ms"), Column("A TOKEN b, us"), Column("TOKENS", keep=1),
        Column("A TOKEN AT 16K, us", right=True, keep=3), Column("c, ps A TOKEN^2", right=True, keep=3), Column("OFF %", right=True, keep=2),
        Column("SAMPLES", right=True, keep=4),
    )  # fmt: skip
    rows = [
        _curve(_name(data, f"restore {_TIERS[fit['tier']]}", f"{fit['tier']} tier"), fit) for fit in data["restore"]
    ]
    recompute = data["recompute"]
    if recompute is not None:
        rows.append(_curve(_name(data, "recompute", "prefill"), recompute))
    screen.table(Table(columns, rows, rest="-o json"))
    draw_no_answer(screen, data)
    fits = [*data["restore"], *([] if recompute is None else [recompute])]
    if any(_is_beyond(fit, _AT) for fit in fits) or any(one["beyond_measured"] for one in data["saved"]):
        screen.paragraph("  ", "* outside the lengths measured (TOKENS): rests on the shape of the curves")
    for one in data["restore"]:
        if one["b_s"] <= 0 or (one["b_interval_s"] is not None and one["b_interval_s"]["low"] <= 0):
            screen.paragraph("  ", f"b of restore {_TIERS[one['tier']]} is not told apart from 0")
    if recompute is not None:
        hardware = "" if recompute["hardware"] is None else f" ({recompute['hardware']})"
        screen.paragraph("  recompute: ", f"{recompute['source']}{hardware}")
        for one in recompute["left_out"]:
            screen.paragraph(f"  prefill of {one['n_tokens']} tokens: ", f"not measured: {one['reason']}")
    else:
        screen.paragraph("  ", f"not set against a recompute: {data['recompute_reason']}")
    _draw_break_even(screen, data)
    if data["saved"]:
        screen.table(_saved_table(data))
    for one in data["measures"]:
        if one["quantity"] == "restore_s" and not one["samples"]:
            screen.paragraph(f"  {one['subject']}: ", f"not measured: {one['reason']}")
    screen.paragraph("  ", f"{data['verified_pages']} pages restored were compared byte for byte, none wrong")
    draw_no_costs(screen, data)
    screen.paragraph("  ", "for run --costs FILE and tune size --costs FILE: -o json --output-file FILE")


def _draw_break_even(screen: Screen, data: Data) -> None:
    demos = {even["reason"] for even in data["break_even"] if even["verdict"] == "demo"}
    for reason in demos:  # of all tiers, or of none
        screen.paragraph("BREAK-EVEN  ", f"DEMO: no break-even for your machine: {reason}")
    for even in data["break_even"]:
        if even["verdict"] != "demo":
            screen.paragraph(f"BREAK-EVEN {_TIERS[even['tier']]}  ", even_words(even))


def even_words(even: Data) -> str:
    """Say a break-even length with its interval. Pure."""
    if even["verdict"] == "never":
        text = f"never: {even['reason']}"
    elif even["verdict"] == "open":
        text = f"OPEN: {even['reason']}"
    elif even["verdict"] == "always":
        return f"always: {even['reason']}{'' if even['high_tokens'] is None else '; 95 of 100 refits say so too'}"
    else:
        text = f"from {format_count(even['n_tokens'])} tokens on ({even['reason']})"
    low, high = even["low_tokens"], even["high_tokens"]
    if low is None and high is None:
        return text
    ends = f"{'?' if low is None else format_count(low)} .. {'never' if high is None else format_count(high)}"
    return f"{text}; 95 of 100 refits: {ends} tokens"


def _curve(name: str, fit: Data) -> list[str | None]:
    at_16k = (fit["a_s"] + fit["b_s"] * _AT + fit["c_s"] * _AT**2) / _AT
    samples = str(fit["n_samples"]) if fit["n_samples"] else None
    span = (
        None
        if fit["from_tokens"] is None
        else f"{format_count(fit['from_tokens'])} .. {format_count(fit['to_tokens'])}"
    )
    return [
        name, _with_interval(fit["a_s"], fit["a_interval_s"], 1e3), _with_interval(fit["b_s"], fit["b_interval_s"], 1e6),
        span, f"{number(at_16k * 1e6)}{' *' if _is_beyond(fit, _AT) else ''}", number(fit["c_s"] * 1e12) if fit["c_s"] else None,
        None if fit["residual"] is None else f"{100 * fit['residual']:.1f}", samples,
    ]  # fmt: skip


def _is_beyond(fit: Data, n_tokens: int) -> bool:
    """Whether a fitted curve says nothing measured of a length; one that was given was not measured here at all."""
    return fit["from_tokens"] is not None and not fit["from_tokens"] <= n_tokens <= fit["to_tokens"]


def _name(data: Data, name: str, subject: str) -> str:
    """Name a curve, marked where a length of it is no answer."""
    return f"{name} ?" if any(one.startswith(f"{subject}, ") for one in data["no_answer"]) else name


def _with_interval(seconds: float, interval: Data | None, scale: float) -> str:
    text = number(seconds * scale)
    return (
        text
        if interval is None
        else f"{text} ({number(interval['low'] * scale)} .. {number(interval['high'] * scale)})"
    )


def _saved_table(data: Data) -> Table:
    tiers = list(dict.fromkeys(one["tier"] for one in data["saved"]))
    columns = [Column("TOKENS", right=True), Column(_name(data, "RECOMPUTE", "prefill"), right=True)]
    for tier in tiers:
        columns += [
            Column(_name(data, f"FROM {_TIERS[tier]}", f"{tier} tier"), right=True),
            Column("SAVED", right=True),
            Column(f"{_TIERS[tier].partition(' ')[0]} (95 of 100)", keep=1),
        ]
    rows: list[list[str | None]] = []
    for n in dict.fromkeys(one["n_tokens"] for one in data["saved"]):
        found = {one["tier"]: one for one in data["saved"] if one["n_tokens"] == n}
        first = found[tiers[0]]
        mark = " *" if any(one["beyond_measured"] for one in found.values()) else ""
        row: list[str | None] = [f"{format_count(n)}{mark}", format_seconds(first["recompute_s"])]
        for tier in tiers:
            one = found[tier]
            interval = one["interval_s"]
            span = (
                None
                if interval is None
                else f"({format_seconds(interval['low'])} .. {format_seconds(interval['high'])})"
            )
            row += [format_seconds(one["restore_s"]), format_seconds(one["saved_s"]), span]
        rows.append(row)
    return Table(tuple(columns), rows, rest="-o json")


def _draw_storage(screen: Screen, data: Data) -> None:
    storage = data["storage"]
    if storage is None:
        return
    system, share = storage["file_system"], storage["resident_share"]
    kind = "" if system["kind"] is None else f", {system['kind']} on {system['device']}"
    if share is None:
        read = "whether it was read cold is not known"
    elif share > 0.01:
        read = f"read warm: {100 * share:.0f} % of the files stayed in the page cache after fsync and DONTNEED"
    else:
        read = f"read cold: {100 * share:.1f} % of the files was left in the page cache"
    screen.paragraph("  storage  ", f"{storage['folder']} ({storage['folder_reason']}){kind}; {read}")
    for left in storage["left"]:
        screen.paragraph("  not removed: ", left)
