"""`bench store`: what the file backend of L3 does in a folder, by pages a call and by threads, warm, cold and with fsync."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from hicachectl.commands.bench_options import RoundsOption, TimeBudgetOption
from hicachectl.context import Context
from hicachectl.errors import StorageError, UsageError
from hicachectl.profiles import profile_names

if TYPE_CHECKING:
    from hicachectl.config import RunConfig
    from hicachectl.runtime.probes.store_rows import StoreCase, StoreProbe

__all__ = ["bench_folder", "store"]

_RESERVE_BYTES = 256 << 20
"""Left to the rest of the machine."""
_MOST_AT_ONCE = 1024
_DEFAULT_BYTES = 128 << 20
_SMALLER = "give a smaller --size, --batch or --threads"


def store(
    ctx: typer.Context,
    path: Annotated[str | None, typer.Option("--path", help="Folder to measure in; a new one is made below it and removed.", metavar="DIR", show_default="storage_path of the configuration, else the temporary folder")] = None,
    size: Annotated[str | None, typer.Option("--size", help="Bytes of pages a round, rounded down to whole pages; least: the largest --batch x the most --threads x the bytes of a page.", metavar="SIZE", show_default="128MiB, or the least where that is more")] = None,
    batch: Annotated[str, typer.Option("--batch", help="Pages a call.", metavar="N,...")] = "1,16",
    threads: Annotated[str, typer.Option("--threads", help="Threads that call at a time.", metavar="N,...")] = "1,4",
    fsync: Annotated[bool, typer.Option("--fsync/--no-fsync", help="Measure writes with fsync too.")] = True,
    geometry: Annotated[str | None, typer.Option("--geometry", help="KV geometry preset of the pages.", metavar="NAME", show_default=False)] = None,
    page_tokens: Annotated[str | None, typer.Option("--page-tokens", help="Tokens a page.", metavar="N", show_default=False)] = None,
    layout: Annotated[str | None, typer.Option("--layout", help="layer_first, page_first or page_first_direct.", metavar="LAYOUT", show_default=False)] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="Profile that supplies what is not given.", metavar="NAME|FILE", autocompletion=profile_names, show_default=False)] = None,
    rounds: RoundsOption = 3,
    time_budget: TimeBudgetOption = None,
) -> None:  # fmt: skip
    """Measure the storage tier in a folder: whole pages written, asked for and read, warm and cold, with fsync and without.

    Pages are those of the geometry. What is to be written is worked out and refused before the first byte where it does not fit.
    The new folder is removed with all that was written, also after Ctrl-C and errors (exit code 130: no result); files of others
    stay. What a killed run left in that folder goes first, and is told. No setting of the host is changed.
    """
    from hicachectl.bench_data import bench_result, not_answered
    from hicachectl.bench_setting import setting_of
    from hicachectl.bench_store_data import (
        METHOD,
        store_costs,
        store_details,
        store_headline,
        store_measures,
        store_reasons,
    )
    from hicachectl.disk_room import require_disk_room
    from hicachectl.render.bench_store import draw_store
    from hicachectl.run_plan import effective_config
    from hicachectl.runtime.geometry import preset
    from hicachectl.runtime.probes.device import no_device
    from hicachectl.runtime.probes.store_folder import clear_left
    from hicachectl.runtime.probes.store_rows import space_terms
    from hicachectl.units import parse_counts, parse_size

    cli: Context = ctx.obj
    cli.refuse_root("bench store")
    flags = {"run.geometry": geometry, "run.page_tokens": page_tokens, "run.layout": layout}
    run = cli.took(effective_config(flags, cli.environ, cli.config_path, profile)).run
    kv = preset(run.geometry, run.page_tokens, run.dtype)
    cases = _cases(
        parse_counts(batch, where="--batch", most=_MOST_AT_ONCE),
        parse_counts(threads, where="--threads", most=_MOST_AT_ONCE),
    )
    n_pages = _pages_a_round(None if size is None else parse_size(size, where="--size"), cases, kv.page_bytes)
    parent, why = bench_folder(path, run)
    for said in clear_left(parent):
        cli.note(said)
    space = space_terms(kv.page_bytes, n_pages)
    require_disk_room(parent, space, f"{_SMALLER}, or a --path on another disk")
    _require_memory(cli, n_pages * kv.page_bytes)
    note_made_folder(cli, parent)
    probe = _probe(cli, parent, run, cases, n_pages, rounds, durable=fsync, time_budget_s=time_budget)
    measures = store_measures(probe)
    costs, no_costs = store_costs(probe, measures)
    findings, code = not_answered(
        store_headline(measures), "give more --rounds or a larger --size, with nothing else on the disk"
    )
    told = {
        "name": kv.name,
        "page_tokens": kv.page_tokens,
        "page_bytes": kv.page_bytes,
        "dtype": kv.dtype,
        "layout": run.layout,
    }
    result = bench_result(
        "store", setting_of(no_device("storage is read into host memory"), METHOD, rounds), measures, costs,
        store_details(probe, told, why, space), diagnostics=findings, exit_code=code,
        reasons={**store_reasons(probe), **no_costs},
    )  # fmt: skip
    cli.emit(result, render=lambda screen, data: draw_store(screen, data))
    cli.note_no_costs(result)


def bench_folder(path: str | None, run: RunConfig) -> tuple[Path, str]:
    """Choose the folder below which a new one is made, and say why it is this one. Pure but for the temporary folder's name.

    Raises UsageError for an empty name, as of a variable that is not set: it is not the folder one is in.
    """
    import tempfile

    if path is not None and not path.strip():
        raise UsageError(
            f"{path!r} names no folder", where="--path", hint="name one; the folder you are in is --path ."
        )
    if path is not None:
        return Path(path), "asked for"
    if run.storage_path not in (None, "auto"):
        return Path(str(run.storage_path)), "storage_path of the configuration"
    return Path(tempfile.gettempdir()), "the temporary folder: no --path, and no storage_path in the configuration"


def note_made_folder(cli: Context, parent: Path) -> None:
    """Say so where the folder is not there and will be made: of a mount that is missing another disk would be measured."""
    import os

    near = parent.absolute()
    while not os.path.lexists(near):
        near = near.parent
    if near != parent.absolute():
        cli.note(f"{parent} is not there: made for this measurement and removed again, on the file system of {near}")


def _cases(batches: tuple[int, ...], threads: tuple[int, ...]) -> tuple[StoreCase, ...]:
    from hicachectl.runtime.probes.store_rows import StoreCase

    return tuple(StoreCase(pages, n) for n in threads for pages in batches)


def _pages_a_round(size_bytes: int | None, cases: tuple[StoreCase, ...], page_bytes: int) -> int:
    """How many whole pages --size is, of the default where it is None. Raises UsageError where a case has too few of them. Pure."""
    from hicachectl.units import format_bytes

    most = max(cases, key=lambda case: case.batch_pages * case.n_threads)
    least = most.batch_pages * most.n_threads
    if size_bytes is None:
        return max(least, _DEFAULT_BYTES // page_bytes)
    if size_bytes < least * page_bytes:
        least_bytes = least * page_bytes
        raise UsageError(
            f"{size_bytes} bytes ({format_bytes(size_bytes)}) a round; least is {most.batch_pages} pages x {most.n_threads} threads x "
            f"{page_bytes} bytes = {least_bytes} bytes ({format_bytes(least_bytes)})",
            where="--size", why="every thread needs pages of its own for a call",
            hint=f"--size {least_bytes}, or fewer --batch, --threads or --page-tokens",
        )  # fmt: skip
    return size_bytes // page_bytes


def _require_memory(cli: Context, n_bytes: int) -> None:
    from hicachectl.memory_room import host_memory
    from hicachectl.runtime.memory.budget import Ask, ledger

    asks = [Ask("pages of a round", n_bytes)]
    ledger(host_memory(tell=cli.note), asks, reserve_bytes=_RESERVE_BYTES).require(_SMALLER)


def _probe(
    cli: Context, parent: Path, run: RunConfig, cases: tuple[StoreCase, ...], n_pages: int, rounds: int, *, durable: bool,
    time_budget_s: float | None,
) -> StoreProbe:  # fmt: skip
    from hicachectl.interrupt import asked_to_stop, stop_error
    from hicachectl.run_plan import not_ready
    from hicachectl.runtime.geometry import preset
    from hicachectl.runtime.layout import Layout
    from hicachectl.runtime.probes.stopping import ProbeStopped
    from hicachectl.runtime.probes.store import run_store_probe

    deadline_s = None if time_budget_s is None else monotonic() + time_budget_s
    with (
        cli.progress("bench store", total=rounds * len(cases), unit="rounds of a case") as progress,
        asked_to_stop() as asked,
    ):

        def told(text: str) -> None:
            progress.enter(text)
            progress.advance()

        try:
            found = run_store_probe(
                parent, preset(run.geometry, run.page_tokens, run.dtype), cases, n_pages=n_pages, rounds=rounds,
                layout=Layout.parse(run.layout), durable=durable, stop=lambda: asked() is not None, told=told,
                go_on=lambda: deadline_s is None or monotonic() < deadline_s,
            )  # fmt: skip
            if asked() is not None:  # while the last of it was put away
                raise ProbeStopped
            return found
        except ProbeStopped:
            raise stop_error(asked() or "SIGTERM") from None
        except StorageError as error:
            raise not_ready(error) from None
