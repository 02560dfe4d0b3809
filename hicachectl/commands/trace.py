"""`hicachectl trace`: what a recorded trace holds, its hit-rate curve, its conversion, and synthetic ones. No text, only ids."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.context import Context
from hicachectl.envelope import Diagnostic, Fact, Result
from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from hicachectl.render.screen import Screen
    from hicachectl.runtime.replay.request import Trace

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FileArgument = Annotated[
    Path, typer.Argument(readable=False, metavar="FILE", help="A trace; its format is told from its content.")
]
GapOption = Annotated[
    float,
    typer.Option("--session-gap", help="Seconds between session starts of a trace with relative times.", metavar="S"),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace OUT where it is there already.")]
LONG_FILE_BYTES = 8 << 20
"""A smaller file, packed as hard as the recorded ones, holds fewer references than are sampled."""
_MOST_DIGITS = 16


class DefinitionName(str, Enum):
    """What a hit rate counts."""

    D1 = "D1"
    D2 = "D2"
    D3 = "D3"


class PolicyName(str, Enum):
    """Which block leaves a full cache."""

    LRU = "lru"
    FIFO = "fifo"
    OPT = "opt"


class CountName(str, Enum):
    """Which requests are counted."""

    ALL = "all"
    WARM_HALF = "warm-half"


@app.callback()
def trace() -> None:
    """Describe, convert and make traces, and tell the hit rate of every cache size."""


@app.command()
def curve(
    ctx: typer.Context,
    file: FileArgument,
    definition: Annotated[
        DefinitionName,
        typer.Option("--definition", help="D1: all blocks; D2: tokens; D3: full blocks, what engines cache."),
    ] = DefinitionName.D1,
    policy: Annotated[
        PolicyName, typer.Option("--policy", help="lru: exact at every size; fifo: a floor; opt: what no order can pass.")
    ] = PolicyName.LRU,
    capacities: Annotated[
        str | None,
        typer.Option("--capacities", help="Sizes in pages, such as 8000,32000,64000.", metavar="LIST", show_default="round ones over the whole curve"),
    ] = None,
    count: Annotated[
        CountName, typer.Option("--count", help="all requests, or the last half after the first warmed the cache.")
    ] = CountName.ALL,
    geometry: Annotated[
        str | None, typer.Option("--geometry", help="Also tell sizes in bytes of this model's pages.", metavar="NAME", show_default=False)
    ] = None,
    session_gap: GapOption = 60.0,
) -> None:  # fmt: skip
    """Tell how much of a trace hits in a cache of every size: one exact pass, leaf-first LRU.

    A page is a block of the trace. The plateau is the smallest size within one point of the unlimited rate, read from the
    right. The pass has no sampling error; how far it holds for other traffic is told by the window's growth and a
    jackknife over sessions (one standard error). Reads the file, changes nothing.
    """
    from hicachectl.render.trace_curve import draw_curve
    from hicachectl.tuning.sizing.measure import Order, measure
    from hicachectl.tuning.sizing.window import Definition

    cli: Context = ctx.obj
    opened = _open(file, session_gap)
    sizes = None if capacities is None else _numbers(capacities)
    try:
        measured = measure(
            opened, Definition(definition.value), Order(policy.value), capacities=sizes,
            warm_half=count is CountName.WARM_HALF, sample=_is_long(opened, file),
        )  # fmt: skip
    except UsageError as error:
        error.where = error.where or str(file)
        raise
    page_bytes = _page_bytes(geometry, measured.page_tokens)
    from hicachectl.trace_data import curve_data

    data, facts = curve_data(measured, opened.format, str(file), page_bytes)
    result = Result(
        "hicachectl.trace-curve/1", data, diagnostics=_curve_findings(data), facts=facts, rows="/curve"
    )  # fmt: skip
    cli.emit(result, render=lambda screen, found: draw_curve(screen, found))


@app.command()
def info(ctx: typer.Context, file: FileArgument, session_gap: GapOption = 60.0) -> None:
    """Show what a trace holds: requests, tokens, blocks, sessions, lengths, oddities. Reads it once."""
    from hicachectl.trace_data import info_data

    cli: Context = ctx.obj
    data, facts = info_data(_open(file, session_gap), str(file))
    cli.emit(Result("hicachectl.trace-info/1", data, facts=facts), render=partial(_draw_info, facts=facts))


@app.command()
def convert(
    ctx: typer.Context,
    file: FileArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write; .gz, .xz and .zst are packed.")],
    force: ForceOption = False,
    session_gap: GapOption = 60.0,
) -> None:
    """Write a trace of any known format as trace/1: lengths, times and block ids, no text.

    The file appears whole or not at all.
    """
    cli: Context = ctx.obj
    _written(cli, "convert", _open(file, session_gap), str(file), out, force)


@app.command()
def synth(
    ctx: typer.Context,
    workload: Annotated[str, typer.Argument(metavar="CLASS", help="agent, multi-turn, shared-system or one-shot.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write; .gz, .xz and .zst are packed.")],
    seed: Annotated[int, typer.Option("--seed", help="Seed; the same one gives the same trace.", metavar="N")] = 0,
    requests: Annotated[
        int | None, typer.Option("--requests", help="How many.", metavar="N", show_default="the class's own")
    ] = None,
    block_tokens: Annotated[
        int | None, typer.Option("--block-tokens", help="Tokens a block.", metavar="N", show_default="the class's own")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a synthetic workload as trace/1. The classes are shaped after public traces."""
    from hicachectl.runtime.replay.synthetic import synthetic

    cli: Context = ctx.obj
    made = synthetic(workload, seed=seed, n_requests=requests, block_tokens=block_tokens)
    _written(cli, "synth", made, f"synthetic {workload} seed {seed}", out, force)


def _open(file: Path, session_gap: float) -> Trace:
    from hicachectl.runtime.replay.workload import open_trace

    return open_trace(file, session_gap_s=session_gap)


def _is_long(opened: Trace, file: Path) -> bool:
    """Whether the trace is too long for an exact pass; only large files are read for the answer."""
    from hicachectl.tuning.sizing.sampling import SAMPLE_ABOVE

    return file.stat().st_size > LONG_FILE_BYTES and opened.info().total_blocks > SAMPLE_ABOVE


def _numbers(text: str) -> list[int]:
    words = [word.strip().replace("_", "") for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and int(word) >= 1 for word in words):
        raise UsageError(
            f"{text!r} is no list of page counts",
            where="--capacities",
            why="each is a whole number of pages, at least 1",
            hint="--capacities 8000,32000,64000",
        )
    return [int(word) for word in words]


def _page_bytes(geometry: str | None, page_tokens: int) -> int | None:
    if geometry is None:
        return None
    from hicachectl.runtime.geometry import preset

    return preset(geometry, page_tokens).page_bytes


def _curve_findings(data: dict[str, Any]) -> list[Diagnostic]:
    if not data["window_too_short"]:
        return []
    from hicachectl.size_findings import short_window

    before, after = (grown["plateau_pages"] for grown in data["growth"][-2:])
    return [short_window(before, after, data["growth"][-1]["n_requests"])]


def _written(cli: Context, path: str, made: Trace, source: str, out: Path, force: bool) -> None:
    from hicachectl.runtime.replay.trace1 import write_trace

    if str(out) == "-":
        raise UsageError(
            "a trace is not written to standard output", where="OUT", why="it appears whole or not at all, under its name",
            hint="name a file: out.jsonl, or .gz, .xz, .zst for a packed one",
        )  # fmt: skip
    if os.path.exists(out) and not force:
        raise UsageError(
            "there is a file already", where=str(out), why="OUT names it", hint="--force replaces it, or name another"
        )
    n = write_trace(made, out)
    found = made.info()
    data = {
        "source": source,
        "source_format": found.format,
        "path": str(out),
        "format": "trace/1",
        "requests": n,
        "block_tokens": found.block_tokens,
        "bytes": out.stat().st_size,
        "notes": list(found.warnings),
    }

    def render(screen: Screen, _: object) -> None:
        screen.print(f"{out}: {n} requests of {source} as trace/1, blocks of {found.block_tokens} tokens")
        for note in found.warnings:
            screen.paragraph("  note: ", note)

    cli.emit(Result(f"hicachectl.trace-{path}/1", data), render=render)


def _draw_info(screen: Screen, data: dict[str, Any], *, facts: Mapping[str, Fact]) -> None:
    from hicachectl.units import format_count

    screen.print(f"TRACE  {data['path']}  {data['format']}, blocks of {data['block_tokens']} tokens", "bold")
    for label, key in (
        ("requests", "requests"), ("sessions", "sessions"), ("input tokens", "input_tokens"), ("output tokens", "output_tokens"),
        ("block references", "blocks"), ("distinct blocks", "distinct_blocks"), ("longest request, blocks", "longest_request_blocks"),
    ):  # fmt: skip
        value = data[key]
        if value is None:
            screen.paragraph(f"  {label:<24} ", f"not known: {facts[f'/{key}'].reason}")
        else:
            screen.print(f"  {label:<24} {format_count(value)}")
    screen.print(f"  {'span':<24} {data['span_s']:.0f} s")
    quantiles = "  ".join(f"p{q} {format_count(n)}" for q, n in data["input_tokens_quantiles"].items())
    screen.print(f"  {'input tokens a request':<24} {quantiles}")
    for note in data["notes"]:
        screen.paragraph("  note: ", note)
