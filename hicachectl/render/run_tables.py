"""The tables of a replay's report, the same on screen and in the page. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicachectl.render.run_words import MISS_WORDS, duration, memory_step, percent
from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from hicachectl.runtime.cost import PathState
    from hicachectl.runtime.replay.memory_report import HostMemory
    from hicachectl.runtime.replay.report import Quantiles, ReplayReport

__all__ = [
    "cost_table",
    "hits_table",
    "layouts_table",
    "memory_table",
    "misses_table",
    "paths_table",
    "pools_table",
    "rates_table",
    "times_table",
]

_PATH_NAMES = {
    "host_to_device": "host -> device",
    "device_to_host": "device -> host",
    "storage_to_host": "storage -> host",
    "host_to_storage": "host -> storage",
}
_COST_NAMES = {
    "host_read": "host -> device",
    "host_write": "device -> host",
    "storage_read": "storage -> host",
    "storage_write": "host -> storage",
}
_BENCH_METHODS = {
    "prior": "measured by bench, nothing moved yet",
    "scaled": "measured by bench, scaled by what moved",
    "fitted": "fitted to what moved",
}
_METHODS = {
    "prior": "guess, nothing moved yet",
    "scaled": "guess, scaled by what moved",
    "fitted": "fitted to what moved",
}


def hits_table(report: ReplayReport) -> Table:
    """Hits by tier, and what of them was brought up."""
    hits, restored = report.pages_hit_by_tier, report.pages_restored_by_tier
    tiers: list[tuple[str, int, int | None]] = [("device", hits.device, None)]
    if report.pools.host_slots:
        tiers.append(("host", hits.host, restored.host))
    if report.pools.storage_capacity_bytes:
        tiers.append(("storage", hits.storage, restored.storage))
    rows = [*tiers, ("all", report.pages_hit, report.pages_restored)]
    columns = (
        Column("TIER"), Column("PAGES HIT", right=True), Column("OF WHOLE PAGES", right=True), Column("RESTORED", right=True),
        Column("BYTES RESTORED", right=True, keep=1),
    )  # fmt: skip
    return Table(
        columns,
        [
            (tier, format_count(n), percent(n, report.pages_total), None if up is None else format_count(up),
             None if up is None else format_bytes(up * report.pools.page_bytes))
            for tier, n, up in rows
        ],
    )  # fmt: skip


def misses_table(report: ReplayReport) -> Table:
    """Why tokens were not served from the cache, most first; reasons without a token are left out."""
    found = sorted(((n, name) for name, n in report.missed_tokens_by_reason.items() if n), key=lambda row: -row[0])
    rows = [(name, format_count(n), percent(n, report.input_tokens), MISS_WORDS[name]) for n, name in found]
    rows.append(
        (
            "all missed",
            format_count(report.missed_tokens),
            percent(report.missed_tokens, report.input_tokens),
            "computed",
        )
    )
    columns = (
        Column("REASON"),
        Column("TOKENS", right=True),
        Column("OF INPUT", right=True),
        Column("MEANING", keep=1),
    )
    return Table(columns, rows)


def rates_table(report: ReplayReport) -> Table:
    """Hit rates by definition, cold and warm."""
    cold, warm = report.hit_rate_cold, report.hit_rate_warm

    def cell(value: float | None) -> str | None:
        return None if value is None else percent(value)

    return Table(
        (Column("RATE"), Column("COLD", right=True), Column("WARM", right=True), Column("DEFINITION")),
        [
            ("d1", cell(cold.d1), cell(warm.d1), "hit pages / pages, incomplete ones counted"),
            ("d2", cell(cold.d2), cell(warm.d2), "hit tokens / input tokens"),
            ("d3", cell(cold.d3), cell(warm.d3), "hit pages / whole pages"),
        ],
    )


def pools_table(report: ReplayReport) -> Table:
    """Sizes of the tiers."""
    pools, evicted = report.pools, report.evicted_pages
    columns = (
        Column("TIER"), Column("PAGES", right=True), Column("SIZE", right=True), Column("EVICTED", right=True),
        Column("LRU HITS", right=True, keep=1),
    )  # fmt: skip
    reuse, total = report.reuse, report.pages_total
    rows: list[tuple[str | None, ...]] = [
        ("device", format_count(pools.device_slots), format_bytes(pools.device_bytes), format_count(evicted.device),
         percent(reuse.hit_pages_device_slots, total)),
    ]  # fmt: skip
    if pools.host_slots:
        rows.append(
            (
                "host",
                format_count(pools.host_slots),
                format_bytes(pools.host_bytes),
                format_count(evicted.host),
                percent(reuse.hit_pages_host_slots, total),
            )
        )
    if pools.storage_capacity_bytes:
        held = f"{format_count(pools.storage_objects)} held"
        rows.append(
            (
                "storage",
                held,
                f"{format_bytes(pools.storage_used_bytes)} of {format_bytes(pools.storage_capacity_bytes)}",
                format_count(evicted.storage),
                None,
            )
        )
    rows.append(
        (
            "every reuse",
            format_count(reuse.pages_for_all_hits),
            format_bytes(reuse.pages_for_all_hits * pools.page_bytes),
            None,
            percent(sum(reuse.bins_log2), total),
        )
    )
    return Table(columns, rows)


def memory_table(memory: HostMemory) -> Table:
    """What each step of making the host pool's memory was asked for and got, and why not more."""
    columns = (Column("STEP"), Column("STATE"), Column("TOOK", right=True), Column("ASKED, GOT AND WHY"))
    return Table(columns, [(step.name, step.state, duration(step.wall_s), memory_step(step)) for step in memory.steps])


def paths_table(report: ReplayReport) -> Table:
    """What moved between the tiers."""
    columns = (
        Column("PATH"), Column("PAGES", right=True), Column("BYTES", right=True), Column("COPYING", right=True), Column("RATE", right=True),
        Column("TRANSFERS", right=True, keep=2), Column("SUBMISSIONS", right=True, keep=1), Column("SEGMENTS", right=True, keep=2),
        Column("FAILED", right=True), Column("DROPPED", right=True),
    )  # fmt: skip

    def count(n: int | None) -> str | None:
        return None if n is None else format_count(n)

    return Table(
        columns,
        [
            (_PATH_NAMES[name], count(p.pages), format_bytes(p.bytes), duration(p.wall_s), None if p.bytes_per_s is None else format_rate(p.bytes_per_s),
             count(p.transfers), count(p.submissions), count(p.segments), count(p.failed_pages), count(p.dropped_pages))
            for name, p in report.paths.items()
        ],
    )  # fmt: skip


def layouts_table(report: ReplayReport) -> Table:
    """What restoring the longest request costs in each layout; the star marks the one in use."""
    columns = (
        Column("LAYOUT"), Column("SUBMISSIONS", right=True), Column("PIECES, ONE RUN", right=True), Column("PIECES, SCATTERED", right=True),
        Column("NOTE", keep=1),
    )  # fmt: skip
    return Table(
        columns,
        [
            (cost.layout + (" *" if cost.layout == report.pools.layout else ""), None if cost.submissions is None else format_count(cost.submissions),
             format_count(cost.segments_run), format_count(cost.segments_scattered),
             cost.refused or ("in use" if cost.layout == report.pools.layout else ""))
            for cost in report.layouts
        ],
    )  # fmt: skip


def times_table(report: ReplayReport) -> Table:
    """Restore waits and modelled time to first token, with and without the lower tiers."""
    columns = (
        Column("TIME"), Column("REQUESTS", right=True), Column("MEAN", right=True, keep=1), Column("P50", right=True), Column("P99", right=True),
        Column("MAX", right=True, keep=2), Column("HOW"),
    )  # fmt: skip

    def row(name: str, q: Quantiles, how: str) -> tuple[str, ...]:
        return (
            name,
            format_count(q.n),
            duration(q.mean_s),
            duration(q.p50_s),
            duration(q.p99_s),
            duration(q.max_s),
            how,
        )

    return Table(
        columns,
        [
            row("restore wait", report.restore_wait, "measured"),
            row("wait for slots", report.room_wait, "measured"),
            row("TTFT, all tiers", report.ttft_modelled, "modelled + waits"),
            row("TTFT, device only", report.ttft_modelled_device_only, "modelled"),
        ],
    )


def cost_table(report: ReplayReport) -> Table:
    """What the cost model knows at the end: seconds = fixed + bytes / rate."""
    columns = (
        Column("PATH"), Column("SAMPLES", right=True), Column("FIXED", right=True), Column("RATE", right=True), Column("STATE"),
    )  # fmt: skip
    used = [
        state
        for state in report.cost_model.paths
        if _COST_NAMES[state.path] in {_PATH_NAMES[name] for name in report.paths}
    ]
    return Table(
        columns,
        [
            (_COST_NAMES[state.path], format_count(state.n_observed), format_seconds(state.fixed_s) if state.fixed_s else "0 s",
             format_rate(1 / state.per_byte_s) if state.per_byte_s else "no limit seen", _method(state))
            for state in used
        ],
    )  # fmt: skip


def _method(state: PathState) -> str:
    """Say where a path's cost comes from; a prior that is not the built-in guess was measured. Pure."""
    from hicachectl.runtime.cost import DEFAULT_PRIORS, Path

    words = _METHODS if state.prior == DEFAULT_PRIORS[Path(state.path)] else _BENCH_METHODS
    return words[state.method.value]
