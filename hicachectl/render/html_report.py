"""The report of `hicachectl run` as one HTML file: no script, nothing fetched, readable on a phone and on paper."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hicachectl import __version__
from hicachectl.errors import UsageError
from hicachectl.render import run_charts as charts
from hicachectl.render import run_tables as tables
from hicachectl.render.html_style import HATCHES, STYLE
from hicachectl.render.run_advice import advice, command_with
from hicachectl.render.run_words import LRU_HITS, caveats, checks, coverage, glue, settings, speed, verdict
from hicachectl.render.table import Column, Table
from hicachectl.runtime.cost import WINDOW
from hicachectl.units import format_bytes, format_count

if TYPE_CHECKING:
    from hicachectl.runtime.replay.report import ReplayReport

__all__ = ["Origins", "html_page", "require_writable", "write_html"]


@dataclass(frozen=True, slots=True)
class Origins:
    """What a page came from: the command line, when, the settings (key, value, from where), the machine (name, value).

    `again` is the command line that advice builds on, None: the same.
    """

    command: str = "hicachectl run"
    made_at: str | None = None
    settings: tuple[tuple[str, str, str], ...] = ()
    machine: tuple[tuple[str, str], ...] = ()
    again: str | None = None


def write_html(report: ReplayReport, path: str | Path, origins: Origins = Origins()) -> None:
    """Write the page to `path`; it appears whole or not at all (temporary name in the same folder, then renamed).

    Raises UsageError when the folder is missing or not writable, or `path` is a folder.
    """
    path = Path(path)
    text = html_page(report, origins)
    temporary = _temporary(path)
    try:
        try:
            with temporary.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error says more
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_written(path, error) from error


def require_writable(path: str | Path) -> None:
    """Check before a long replay that `write_html` can write there; leaves nothing behind. Raises UsageError."""
    path = Path(path)
    if os.path.isdir(path):
        raise _not_written(path, IsADirectoryError(None, "Is a directory"))
    temporary = _temporary(path)
    try:
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        raise _not_written(path, error) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _not_written(path: Path, error: OSError) -> UsageError:
    missing = isinstance(error, FileNotFoundError)
    return UsageError(
        f"cannot write the report: {'there is no folder ' + str(path.parent) if missing else error.strerror}",
        where=str(path),
        why="--report names it",
        hint="name a file in an existing, writable folder",
        code="HC-OUTPUT",
    )


def html_page(report: ReplayReport, origins: Origins = Origins()) -> str:
    """Return the whole page. Pure."""
    title = f"hicachectl run: {report.trace}"
    body = "".join(
        (
            _head(report, origins.made_at),
            _plots(report),
            _tables(report),
            _words(report),
            _next(report, origins.again or origins.command),
            _made_by(origins),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{HATCHES}<main>{body}</main></body></html>\n"
    )


def _head(report: ReplayReport, made_at: str | None) -> str:
    found = verdict(report)
    sizes = f"{format_count(report.input_tokens)} input tokens, {format_count(report.pages_total)} whole pages"
    terms = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td class=num>{escape(amount)}</td><td>{escape(how)}</td><td class=text>{_prose(what)}</td></tr>"
        for name, amount, how, what in found.terms
    )
    return (
        f"<header><h1>{escape(report.trace)}</h1><p class=about>{escape(report.trace_format)}, "
        f"{_prose(f'{coverage(report)}, {sizes}; {speed(report)}')}. hicachectl {escape(__version__)}{', ' + escape(made_at) if made_at else ''}</p></header>"
        f'<section class="verdict {found.answer.word.lower()}"><h2><span class=word>{found.answer.word}</span> {_prose(found.answer.text)}</h2>'
        + (f"<div class=scroll><table><tbody>{terms}</tbody></table></div>" if terms else "")
        + "".join(f"<p>{_prose(remark)}</p>" for remark in found.remarks)
        + "</section>"
    )


def _plots(report: ReplayReport) -> str:
    n = report.windows[0].end - report.windows[0].start if report.windows else 0
    shown = [tier for tier in charts.TIERS if any(getattr(window, tier) for window in report.windows)]
    legend = "".join(
        f"<li><svg viewBox='0 0 14 14' class=key><rect class='tier {tier}' width=14 height=14 /></svg>{tier}</li>"
        for tier in shown
    )
    reuse = report.reuse
    figures = (
        ("Hit rate over the replay", f"measured; hit tokens of input tokens, about {format_count(n)} request{'' if n == 1 else 's'} a step",
         f"<ul class=legend>{legend}</ul>" if len(shown) > 1 else "", charts.hit_rate_plot(report), charts.hit_rate_data(report)),
        ("Reuse distance", "of this traffic, exact; bars: pages that return at that distance, line: what an LRU cache of that size hits, in shares "
         f"of {format_count(reuse.pages)} whole pages", "", charts.reuse_plot(report), charts.reuse_data(report)),
        ("Restore latency", f"measured; requests that waited to be restored, {format_count(report.restore_wait.n)} in all",
         "", charts.restore_plot(report), charts.restore_data(report)),
    )  # fmt: skip
    return "<div class=plots>" + "".join(
        f"<figure><figcaption><h2>{title}</h2><p>{_prose(about)}</p></figcaption>{legend}{plot}{_details(data)}</figure>"
        for title, about, legend, plot, data in figures
    ) + (
        "<div>"
        + _section("Hits", "measured; at the match, by the tier that held the page", tables.hits_table(report))
        + _section("Misses", "measured; why tokens were computed, one reason each", tables.misses_table(report))
        + "</div></div>"
    )  # fmt: skip


def _prose(text: str) -> str:
    """Escape a sentence; its numbers stay on one line."""
    return escape(glue(text, "\u00a0"))


def _details(data: Table) -> str:
    return f"<details><summary>Numbers</summary>{_table(data)}</details>" if data.rows else ""


def _tables(report: ReplayReport) -> str:
    pools = report.pools
    page = f"page {pools.page_tokens} tokens, {format_bytes(pools.page_bytes)}"
    parts = [
        _section("Hit rates", "measured; cold: all requests, warm: the last half", tables.rates_table(report)),
        _section(
            "Pools",
            f"{pools.geometry} {pools.dtype}, {page}, {pools.layout}",
            tables.pools_table(report),
            f"{LRU_HITS} {settings(report)}",
        ),
    ]
    wide = [_section("Times", "of a request", tables.times_table(report))]
    memory = pools.host_memory
    if memory is not None:
        about = f"{memory.kind}, {format_bytes(memory.mapped_bytes)}: what each step of making it was asked for and got"
        wide.append(_section("Host memory", about, tables.memory_table(memory)))
    if report.paths:
        restored = f"{format_count(report.layouts_pages)} pages x {pools.n_planes} planes, the longest request"
        wide += [
            _section("Paths", "measured over the whole run; rate while copying", tables.paths_table(report)),
            _section(
                "Layouts", f"restoring {restored}; backend {pools.backend}; * in use", tables.layouts_table(report)
            ),
            _section(
                "Cost model",
                f"at the end, from the last {WINDOW} transfers of a path; a restore must win by x{report.cost_model.margin:g}",
                tables.cost_table(report),
            ),
        ]
    return f"<div class=tables>{''.join(parts)}</div>{''.join(wide)}"


def _words(report: ReplayReport) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td class='text{' wrong' if 'WRONG' in result else ''}'>{_prose(result)}</td></tr>"
        for name, result in checks(report)
    )
    notes = "".join(f"<li>{_prose(text)}</li>" for text in caveats(report))
    return (
        f"<section><h2>Checks</h2><div class=scroll><table><tbody>{rows}</tbody></table></div></section>"
        f"<section><h2>Notes</h2><ul>{notes}</ul></section>"
    )


def _next(report: ReplayReport, command: str) -> str:
    items = "".join(
        f"<li>{_prose(item.why)}"
        + (f"<pre>{escape(command_with(command, item.flags))}</pre>" if item.flags else "")
        + "</li>"
        for item in advice(report)
    )
    return f"<section><h2>Next</h2><ol>{items}</ol></section>"


def _made_by(origins: Origins) -> str:
    """Say how to make this page again, and on what machine its times were measured."""
    line = f"<section><h2>Made by</h2><pre>{escape(origins.command)}</pre>"
    when = f"<p class=about>{escape(origins.made_at)}</p>" if origins.made_at else ""
    machine = Table((Column("MACHINE"), Column("VALUE")), origins.machine)
    settings = Table((Column("SETTING"), Column("VALUE"), Column("FROM")), origins.settings)
    return (
        f"{line}{when}{_table(machine) if origins.machine else ''}</section>"
        + (_section("Settings", "in force, and where each came from", settings) if origins.settings else "")
    )  # fmt: skip


def _section(title: str, about: str, table: Table, note: str = "") -> str:
    after = f"<p class=about>{_prose(note)}</p>" if note else ""
    return f"<section><h2>{title}</h2><p class=about>{_prose(about)}</p>{_table(table)}{after}</section>"


def _table(table: Table) -> str:
    kinds = ["num" if column.right else "text" for column in table.columns]
    head = "".join(
        f"<th scope=col class={kind}>{escape(column.title.lower())}</th>"
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td class={kind}>{escape('-' if cell is None else cell)}</td>"
            for cell, kind in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
