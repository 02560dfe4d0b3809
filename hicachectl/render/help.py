"""Help pages: usage, three examples, options, exit codes, and whether the command changes the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hicachectl.exits import EXIT_TABLE
from hicachectl.pages import page_of
from hicachectl.registry import GROUPS, Entry
from hicachectl.render.text import cell_width, pad, wrap

__all__ = ["command_help", "option_rows", "root_help"]

_LABEL_MAX = 30


def root_help(options: Sequence[tuple[str, str]], commands: Sequence[Entry], width: int) -> str:
    """Lay out the help of the program itself; from the registry alone. Pure."""
    lines = ["Usage: hicachectl COMMAND [OPTIONS]", ""]
    lines += wrap(
        "Inspect a host for tiered KV prefix caches, tune it, and prove with real traffic whether the lower tiers pay.",
        width,
    )
    lines += _examples("", width)
    for group in GROUPS:
        lines += _section(group, [(e.name, e.summary) for e in commands if e.group == group], width)
    lines += _section("Options of every command", options, width)
    lines += ["", "hicachectl COMMAND --help shows a command. hicachectl explain exit-codes lists the exit codes."]
    return "\n".join(lines)


def command_help(
    path: str,
    *,
    usage: str,
    text: str,
    arguments: Sequence[tuple[str, str]],
    options: Sequence[tuple[str, str]],
    common: Sequence[tuple[str, str]],
    commands: Sequence[tuple[str, str]],
    width: int,
) -> str:
    """Lay out the help of one command or group of commands. Pure."""
    page = page_of(path)
    lines = wrap(f"Usage: {usage}", width, indent="         ")
    lines.append("")
    for number, paragraph in enumerate(p for p in text.split("\n\n") if p.strip()):
        lines += ([""] if number else []) + wrap(paragraph, width)
    lines += _examples(path, width)
    lines += _section("Commands", commands, width)
    lines += _section("Arguments", arguments, width)
    lines += _section("Options", options, width)
    lines += _section("Options of every command", common, width)
    width_of_codes = max(len(str(code)) for code in page.exits)
    rows = [
        (f"{int(row.code):>{width_of_codes}}", f"{row.meaning}: {row.runbook}")
        for row in EXIT_TABLE
        if row.code in page.exits
    ]
    lines += _section("Exit codes", rows, width)
    lines += ["", *wrap(f"Changes the host: {page.changes_host or 'no.'}", width)]
    return "\n".join(lines)


def _examples(path: str, width: int) -> list[str]:
    lines = ["", "Examples:"]
    for example in page_of(path).examples[:3]:
        lines += [f"  {example.line}", *(f"      {line}" for line in wrap(example.purpose, width - 6))]
    return lines


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    rows = list(rows)
    if not rows:
        return []
    label = min(_LABEL_MAX, max(cell_width(name) for name, _ in rows))
    lines = ["", f"{title}:"]
    for name, text in rows:
        indent = " " * (label + 4)
        body = wrap(text, width - len(indent))
        if cell_width(name) > label:
            lines.append(f"  {name}")
            lines += [f"{indent}{line}".rstrip() for line in body]
        else:
            lines.append(f"  {pad(name, label)}  {body[0]}".rstrip())
            lines += [f"{indent}{line}" for line in body[1:]]
    return lines


def option_rows(ctx: Any, params: Iterable[Any]) -> list[tuple[str, str]]:
    """The (spelling, help) rows of parameters, hidden ones left out, from the parser's own records. Pure."""
    records = (param.get_help_record(ctx) for param in params)
    return [record for record in records if record is not None]
