"""What the steps' memory got and cost, on the screen of a sizing: per pool, per GiB, and against the smaller pool."""

from __future__ import annotations

from typing import Any

from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes, format_count, format_seconds

__all__ = ["memory_table", "pool_cost_words", "restores_table"]


def memory_table(data: dict[str, Any]) -> Table:
    """A row a pool: what it is made of, how much of the plan was in memory, and what the kernel counted meanwhile. Pure."""
    rows = []
    for index, step in enumerate(data["steps"], start=1):
        trial = step["trial"]
        if trial is None or trial["made"] is None:
            continue
        made, memory, counters = trial["made"], trial["memory"], trial["counters"]
        resident = memory["resident_bytes"]
        rows.append([
            f"{index}/{len(data['steps'])}", made["kind"], made["placement"] or "not placed",
            None if resident is None else f"{100 * resident / max(1, trial['n_bytes']):.1f} %",
            None if trial["process_bytes"] is None else format_bytes(trial["process_bytes"]),
            None if made["huge_share"] is None else f"{int(100 * made['huge_share'])} %",
            format_seconds(trial["fill_s"]), None if trial["register_s"] is None else format_seconds(trial["register_s"]),
            str(made["n_registrations"]), _count(counters, "thp_fault_fallback"), _count(counters, "compact_stall"),
        ])  # fmt: skip
    columns = (
        Column("STEP"), Column("MEMORY"), Column("PLACED", keep=3), Column("RESIDENT", right=True), Column("PROCESS +", right=True, keep=2),
        Column("HUGE", right=True), Column("FILL", right=True), Column("REGISTER", right=True), Column("CHUNKS", right=True, keep=1),
        Column("THP FALLBACKS", right=True, keep=4), Column("COMPACTIONS", right=True, keep=4),
    )  # fmt: skip
    return Table(columns, rows)


def restores_table(data: dict[str, Any]) -> Table:
    """A row a pair of neighbouring steps: whether the larger one restored the same pages more slowly. Pure."""
    costs, rows = data["pool_costs"], []
    for pair in [*costs["restores"], *([costs["again"]] if costs["again"] else [])]:
        is_same = pair["small_pages"] == pair["large_pages"]
        rows.append([
            format_count(pair["small_pages"]), "the same again" if is_same else format_count(pair["large_pages"]), format_count(pair["n_requests"]),
            None if pair["ratio"] is None else f"{pair['ratio']:.3f}", None if pair["noise"] is None else f"{pair['noise']:.3f}",
            _verdict(pair, twice=costs["again"] is not None),
        ])  # fmt: skip
    columns = (
        Column("PAGES", right=True), Column("SECOND", right=True), Column("SAME RESTORES", right=True, keep=2),
        Column("TIME, RATIO", right=True), Column("+-", right=True), Column("THE SECOND IS"),
    )  # fmt: skip
    return Table(columns, rows)


def pool_cost_words(costs: dict[str, Any]) -> str:
    """Say what a GiB of pool takes to make and to carry. Pure."""
    if costs["make_s_per_gib"] is None:
        return f"not measured: {costs['make_reason']}"
    register = (
        f"not registered ({costs['make_reason']})"
        if costs["register_s_per_gib"] is None
        else f"{format_seconds(costs['register_s_per_gib'])} to register"
    )
    low, high = costs["make_low_s_per_gib"], costs["make_high_s_per_gib"]
    carry = costs["carry_s_per_gib_h"]
    carried = f"{'not measured' if carry is None else f'{carry:.3g} s/h'}, {costs['carry_reason'].removeprefix('0: ')}"
    return (
        f"a GiB takes {format_seconds(costs['populate_s_per_gib'])} to populate, {register}; "
        f"{format_seconds(low)} to {format_seconds(high)} over the steps. To carry: {carried}"
    )


def _verdict(pair: dict[str, Any], *, twice: bool) -> str:
    """Whether the second of a pair is slower. `twice`: one size was made twice, so its two runs were too short where that says nothing."""
    if pair["ratio"] is None:
        return "not compared: too few"
    if pair["differs"] is None:
        return f"not known: {'too few of one size made twice' if twice else 'no size was made twice'}"
    if not pair["differs"]:
        return "not to be told apart"
    return "slower" if pair["ratio"] > 1 else "faster"


def _count(counters: dict[str, int | None], name: str) -> str | None:
    value = counters.get(name)
    return None if value is None else format_count(value)
