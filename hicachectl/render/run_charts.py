"""The plots of a replay's report: hit rate over the replay by tier, reuse distance, restore latency. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hicachectl.render.run_words import duration, percent
from hicachectl.render.svg import Plot, empty_plot, nice_ticks
from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from hicachectl.runtime.replay.report import ReplayReport

__all__ = [
    "TIERS",
    "hit_rate_data",
    "hit_rate_plot",
    "restore_data",
    "restore_plot",
    "reuse_data",
    "reuse_plot",
]

TIERS = ("device", "host", "storage")
"""Bottom to top in the stacked plot."""


def hit_rate_plot(report: ReplayReport) -> str:
    """Stack the hit tokens of each tier over the replay, as shares of the input tokens."""
    label = "Hit rate over the replay by tier"
    windows = report.windows
    highest = max((w.device + w.host + w.storage for w in windows), default=0.0)
    if not highest:
        return empty_plot(label, "No page hit in any tier." if windows else "No request was replayed.")
    ticks = nice_ticks(min(1.0, highest))
    end, top = windows[-1].end, ticks[-1]
    plot = Plot(label, lambda x: x / end, lambda y: y / top)
    edges = [float(w.start) for w in windows] + [float(end)]
    low = [0.0] * len(windows)
    for tier in TIERS:
        high = [base + getattr(window, tier) for base, window in zip(low, windows, strict=True)]
        if high != low:
            plot.steps(edges, low, high, f"tier {tier}", tier)
        low = high
    steps = [tick for tick in nice_ticks(end, 5) if tick <= end]
    whole = sorted({round(tick) for tick in steps})
    plot.axes([(x, format_count(x)) for x in whole], [(y, f"{100 * y:.3g} %") for y in ticks], "requests")
    return plot.svg()


def hit_rate_data(report: ReplayReport) -> Table:
    """The numbers of the hit-rate plot."""
    columns = (
        Column("REQUESTS"), Column("TRACE TIME", right=True), *(Column(tier.upper(), right=True) for tier in TIERS), Column("ALL", right=True),
    )  # fmt: skip
    return Table(
        columns,
        [
            (f"{format_count(w.start)} .. {format_count(w.end - 1)}", duration(w.time_s), percent(w.device), percent(w.host), percent(w.storage),
             percent(w.device + w.host + w.storage))
            for w in report.windows
        ],
    )  # fmt: skip


def reuse_plot(report: ReplayReport) -> str:
    """Plot how many pages return within a distance (bars) and what a cache of that size hits (line), pools marked."""
    label = "Reuse distance of pages, with pool sizes marked"
    reuse, pools = report.reuse, report.pools
    if not reuse.pages_for_all_hits:
        return empty_plot(label, "No page was asked for twice." if reuse.pages else "No request has a whole page.")
    ceiling = sum(reuse.bins_log2) / reuse.pages
    ticks = nice_ticks(ceiling * 1.02)
    top = ticks[-1] * 1.22  # room for the marks' texts
    octaves = max(1.0, math.log2(max(2 ** len(reuse.bins_log2), pools.host_slots, pools.device_slots) * 1.1))
    plot = Plot(label, lambda x: math.log2(max(1.0, x)) / octaves, lambda y: y / top)
    for b, n in enumerate(reuse.bins_log2):
        where = f"{format_count(1 << b)} .. {format_count((2 << b) - 1)} pages: {format_count(n)} reuses, {percent(n, reuse.pages)}"
        plot.bar(2.0**b, 2.0 ** (b + 1), n / reuse.pages, "reuse", where)
    line = [(float(p.capacity_pages), p.hit_pages / reuse.pages) for p in reuse.curve]
    plot.line([*line, (2.0**octaves, ceiling)], "curve")
    decades = range(math.floor(octaves * math.log10(2)) + 1)
    xs = [(10.0**d, format_count(10**d)) for d in decades]
    if len(xs) < 3:
        xs = [(2.0**b, format_count(1 << b)) for b in range(math.floor(octaves) + 1)]
    plot.axes(xs, [(y, f"{100 * y:.3g} %") for y in ticks], "distance or cache size, pages (log scale)")
    plot.mark(
        pools.device_slots, f"device {format_count(pools.device_slots)} pages, {format_bytes(pools.device_bytes)}", 0
    )
    if pools.host_slots:
        plot.mark(pools.host_slots, f"host {format_count(pools.host_slots)} pages, {format_bytes(pools.host_bytes)}", 1)
    return plot.svg()


def reuse_data(report: ReplayReport) -> Table:
    """The numbers of the reuse plot."""
    reuse = report.reuse
    columns = (
        Column("DISTANCE, PAGES"), Column("REUSES", right=True), Column("OF WHOLE PAGES", right=True), Column("UP TO HERE", right=True),
    )  # fmt: skip
    rows, total = [], 0
    for b, n in enumerate(reuse.bins_log2):
        total += n
        rows.append(
            (
                f"{format_count(1 << b)} .. {format_count((2 << b) - 1)}",
                format_count(n),
                percent(n, reuse.pages),
                percent(total, reuse.pages),
            )
        )
    first = "first touch" + (f", or past {format_count(reuse.bound_pages)}" if reuse.bound_reached else "")
    rows.append(
        (
            first,
            format_count(reuse.first_touches),
            percent(reuse.first_touches, reuse.pages),
            "100.0 %" if reuse.pages else "-",
        )
    )
    return Table(columns, rows)


def restore_plot(report: ReplayReport) -> str:
    """Plot how long requests waited to be restored, p50 and p99 marked."""
    label = "Restore latency of requests"
    histogram, waits = report.restore_wait_histogram, report.restore_wait
    if not histogram.counts:
        return empty_plot(label, "No request waited to be restored.")
    ticks = [tick for tick in nice_ticks(max(histogram.counts)) if tick == int(tick)]
    top = max(ticks[-1], max(histogram.counts)) * 1.22
    edges = [math.log10(edge) for edge in histogram.edges_s]
    low, span = edges[0], edges[-1] - edges[0]
    plot = Plot(label, lambda x: (math.log10(max(x, 1e-9)) - low) / span, lambda y: y / top)
    for i, n in enumerate(histogram.counts):
        start, end = histogram.edges_s[i], histogram.edges_s[i + 1]
        plot.bar(start, end, n, "latency", f"{_edge(start)} .. {_edge(end)}: {format_count(n)} requests")
    plot.axes(
        [(edge, _edge(edge)) for edge in histogram.edges_s],
        [(y, format_count(int(y))) for y in ticks],
        "wait of a request to be restored (log scale)",
    )
    for row, (name, value) in enumerate((("p50", waits.p50_s), ("p99", waits.p99_s))):
        if value is not None:
            plot.mark(value, f"{name} {format_seconds(value)}", row)
    return plot.svg()


def restore_data(report: ReplayReport) -> Table:
    """The numbers of the restore plot."""
    histogram = report.restore_wait_histogram
    columns = (Column("WAIT"), Column("REQUESTS", right=True), Column("SHARE", right=True))
    total = sum(histogram.counts)
    return Table(
        columns,
        [
            (f"{_edge(histogram.edges_s[i])} .. {_edge(histogram.edges_s[i + 1])}", format_count(n), percent(n, total))
            for i, n in enumerate(histogram.counts)
        ],
    )


def _edge(seconds: float) -> str:
    """Write a bin edge without needless decimals."""
    for factor, unit in ((1e-3, "us"), (1.0, "ms")):
        if seconds < factor * 0.9995:
            return f"{seconds / factor * 1e3:.0f} {unit}"
    return f"{seconds:.0f} s"
