"""The report of `hicachectl run` on screen: the verdict first, then what it rests on, then what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicachectl.render import run_tables as tables
from hicachectl.render.run_advice import advice, command_with
from hicachectl.render.run_words import (
    LRU_HITS,
    caveats,
    checks,
    coverage,
    duration,
    glue,
    memory_step,
    settings,
    speed,
    verdict,
)
from hicachectl.render.text import pad, wrap
from hicachectl.runtime.cost import WINDOW
from hicachectl.units import format_bytes, format_count

if TYPE_CHECKING:
    from hicachectl.render.screen import Screen
    from hicachectl.render.table import Table
    from hicachectl.runtime.replay.memory_report import HostMemory
    from hicachectl.runtime.replay.report import ReplayReport

__all__ = ["render_report"]

_GLUE = "\ue000"  # a private character that is no space, gone before anything is written
_STYLES = {"YES": "ok", "NO": "warn", "DEMO": "note", "OPEN": "note"}


def render_report(screen: Screen, report: ReplayReport, *, command: str = "hicachectl run") -> None:
    """Write the report to `screen`, within its width. `command` is what was typed; advice adds flags to it."""
    _head(screen, report)
    _section(screen, "HITS", "at the match, by the tier that held the page", tables.hits_table(report))
    _section(screen, "MISSES", "why tokens were computed, one reason each", tables.misses_table(report))
    _section(screen, "HIT RATES", "cold: all requests; warm: the last half", tables.rates_table(report))
    _pools(screen, report)
    if report.paths:
        _section(screen, "PATHS", "measured over the whole run; rate while copying", tables.paths_table(report))
        pages = f"{format_count(report.layouts_pages)} pages x {report.pools.n_planes} planes, the longest request"
        _section(screen, "LAYOUTS", f"restoring {pages}; backend {report.pools.backend}", tables.layouts_table(report))
    _section(screen, "TIMES", "of a request", tables.times_table(report))
    if report.paths:
        margin = f"a restore must win by x{report.cost_model.margin:g}"
        _section(
            screen,
            "COST MODEL",
            f"at the end, from the last {WINDOW} transfers of a path; restore {report.policies['restore']}, {margin}",
            tables.cost_table(report),
        )
    _checks(screen, report)
    _notes(screen, report)
    _next(screen, report, command)


def _head(screen: Screen, report: ReplayReport) -> None:
    screen.print(f"RUN {report.trace}  {report.trace_format}  {coverage(report)}", "bold")
    sizes = f"{format_count(report.input_tokens)} input tokens, {format_count(report.pages_total)} whole pages"
    _paragraph(screen, "", f"{sizes}, {speed(report)}")
    screen.print()
    found = verdict(report)
    _paragraph(screen, "VERDICT  ", f"{found.answer.word}: {found.answer.text}", _STYLES[found.answer.word])
    widths = [max((len(term[i]) for term in found.terms), default=0) for i in range(3)]
    for name, amount, how, what in found.terms:
        label = f"  {pad(name, widths[0])}  {pad(amount, widths[1], right=True)}  {pad(how, widths[2])}  "
        _paragraph(screen, label, what)
    for remark in found.remarks:
        _paragraph(screen, "  ", remark)


def _pools(screen: Screen, report: ReplayReport) -> None:
    pools = report.pools
    page = f"page {pools.page_tokens} tokens, {format_bytes(pools.page_bytes)}"
    _section(screen, "POOLS", f"{pools.geometry} {pools.dtype}, {page}, {pools.layout}", tables.pools_table(report))
    _paragraph(screen, "  ", LRU_HITS)
    _paragraph(screen, "  ", settings(report))
    memory = pools.host_memory
    if memory is not None:
        _host_memory(screen, memory)


def _host_memory(screen: Screen, memory: HostMemory) -> None:
    """Say of each step what was asked of it, what it got and why not more: in lines, for no column may leave."""
    screen.print()
    about = f"{memory.kind}, {format_bytes(memory.mapped_bytes)}: what each step of making it was asked for and got"
    _paragraph(screen, "HOST MEMORY  ", about, "bold")
    steps = memory.steps
    widths = [max(len(step.name) for step in steps), max(len(step.state) for step in steps)]
    times = [duration(step.wall_s) for step in steps]
    for step, took in zip(steps, times, strict=True):
        label = f"  {pad(step.name, widths[0])}  {pad(step.state, widths[1])}  {pad(took, max(map(len, times)), right=True)}  "
        _paragraph(screen, label, memory_step(step))


def _checks(screen: Screen, report: ReplayReport) -> None:
    screen.print()
    screen.print("CHECKS", "bold")
    for name, result in checks(report):
        _paragraph(screen, f"  {pad(name, 8)}  ", result, "error" if "WRONG" in result else None)


def _notes(screen: Screen, report: ReplayReport) -> None:
    screen.print()
    screen.print("NOTES", "bold")
    for text in caveats(report):
        _paragraph(screen, "  - ", text)


def _next(screen: Screen, report: ReplayReport, command: str) -> None:
    screen.print()
    screen.print("NEXT", "bold")
    for number, item in enumerate(advice(report), 1):
        _paragraph(screen, f" [{number}] ", item.why)
        if item.flags:
            _paragraph(screen, "     -> ", command_with(command, item.flags))


def _section(screen: Screen, title: str, about: str, table: Table) -> None:
    screen.print()
    _paragraph(screen, f"{title}  ", about, "bold")
    screen.table(table, indent="  ")


def _paragraph(screen: Screen, label: str, text: str, style: str | None = None) -> None:
    """Write a paragraph that never breaks a line inside a number or before its unit."""
    lines = wrap(glue(text, _GLUE), screen.width, indent=" " * len(label))
    screen.print("\n".join([label + lines[0], *lines[1:]]).replace(_GLUE, " "), style)
