"""`bench model`: what restoring and recomputing cost by length, where they break even, and what a restore saves."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from hicachectl.commands.bench_options import DeviceOption, RoundsOption, TimeBudgetOption
from hicachectl.commands.bench_store import bench_folder, note_made_folder
from hicachectl.context import Context
from hicachectl.envelope import Diagnostic, Severity
from hicachectl.errors import ExitCode, StorageError, UsageError
from hicachectl.profiles import profile_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from hicachectl.bench_model_data import Prefill
    from hicachectl.config import RunConfig
    from hicachectl.runtime.geometry import KVGeometry
    from hicachectl.runtime.memory.spec import MappingSpec
    from hicachectl.runtime.probes.device import ProbeDevice
    from hicachectl.runtime.probes.fits import Timing
    from hicachectl.runtime.probes.restores import RestoreProbe

__all__ = ["model"]

_RESERVE_BYTES = 256 << 20
"""Left to the rest of the machine."""
_PREFILLS = ("none", "configured", "synthetic")
_PREFILL_BUDGET_S = 300.0
_MOST_TOKENS = 1 << 24
Text = str | None


def model(
    ctx: typer.Context,
    lengths: Annotated[str, typer.Option("--lengths", help="Tokens of the restores, rounded up to whole pages.", metavar="N,...")] = "512,1024,2048,4096,8192,16384",
    path: Annotated[Text, typer.Option("--path", help="Folder of the storage tier; a new one is made below it and removed; none = no storage tier.", metavar="DIR|none", show_default="storage_path of the configuration, else the temporary folder")] = None,
    prefill: Annotated[str, typer.Option("--prefill", help="none, configured (run.compute) or synthetic (layers of the model's shape, random weights).", metavar="SOURCE")] = "none",
    prefill_file: Annotated[Path | None, typer.Option("--prefill-file", readable=False, help="Prefill times of your engine, CSV or JSON of (tokens, seconds).", metavar="FILE", show_default=False)] = None,
    prefill_hardware: Annotated[Text, typer.Option("--prefill-hardware", help="What these times were measured on, in words.", metavar="TEXT", show_default=False)] = None,
    geometry: Annotated[Text, typer.Option("--geometry", help="KV geometry preset.", metavar="NAME", show_default=False)] = None,
    page_tokens: Annotated[Text, typer.Option("--page-tokens", help="Tokens a page.", metavar="N", show_default=False)] = None,
    layout: Annotated[Text, typer.Option("--layout", help="layer_first, page_first or page_first_direct.", metavar="LAYOUT", show_default=False)] = None,
    backend: Annotated[Text, typer.Option("--backend", help="auto, cpu, torch, direct, batch, strided or uva.", metavar="BACKEND", show_default=False)] = None,
    profile: Annotated[Text, typer.Option("--profile", help="Profile that supplies what is not given.", metavar="NAME|FILE", autocompletion=profile_names, show_default=False)] = None,
    device: DeviceOption = "auto",
    rounds: RoundsOption = 5,
    time_budget: TimeBudgetOption = None,
) -> None:  # fmt: skip
    """Measure the cost of restores by length, from L2 and from L3, and set it against computing the tokens again.

    Prints a + b n for each tier, the break-even length in tokens (or always, or never) with its interval, and the seconds saved at
    four lengths. It says DEMO where pages and prefill are of two models, and claims no break-even there, nor where noise leaves it open. The recompute comes from times of your engine, from layers of the model's shape measured here, or from the
    configuration; it says which. The result is a file for run --costs and tune size --costs. Pools and files are given back and
    removed, also after Ctrl-C and errors (exit code 130: no result); what a killed run left in the folder goes first. No setting of the host is changed.
    """
    from hicachectl.bench_break_even import judged
    from hicachectl.bench_data import bench_result, not_answered
    from hicachectl.bench_model_data import (
        method_of,
        model_costs,
        model_details,
        model_headline,
        model_measures,
        model_of,
        model_reasons,
    )
    from hicachectl.bench_setting import setting_of
    from hicachectl.held_signals import let_signals_come
    from hicachectl.interrupt import asked_to_stop, stop_error
    from hicachectl.render.bench_model import draw_model
    from hicachectl.run_memory import measuring_spec
    from hicachectl.run_plan import effective_config, not_ready
    from hicachectl.runtime.geometry import preset
    from hicachectl.runtime.probes.device import find_probe_device
    from hicachectl.runtime.probes.stopping import ProbeStopped
    from hicachectl.runtime.probes.store_folder import clear_left

    cli: Context = ctx.obj
    cli.refuse_root("bench model")
    flags = {"run.geometry": geometry, "run.page_tokens": page_tokens, "run.layout": layout, "run.backend": backend}
    effective = cli.took(effective_config(flags, cli.environ, cli.config_path, profile))
    run = effective.run
    kv = preset(run.geometry, run.page_tokens, run.dtype)
    asked_tokens = _lengths(lengths, kv.page_tokens)
    timings = _check_prefill(prefill, prefill_file, prefill_hardware, kv)
    on = find_probe_device(device)
    memory = measuring_spec(run.host_memory, on.name, tuned_weights=effective.config.tune.numa.interleave_weight)
    n_pages = sorted({-(-n // kv.page_tokens) for n in asked_tokens})
    folder, why = (None, "") if path == "none" else bench_folder(path, run)
    for said in () if folder is None else clear_left(folder):
        cli.note(said)
    _require_room(cli, kv, n_pages[-1], memory, folder, on, asked_tokens[-1] if prefill == "synthetic" else 0)
    if folder is not None:
        note_made_folder(cli, folder)
    deadline_s = None if time_budget is None else monotonic() + time_budget
    with asked_to_stop() as asked:
        try:
            probe = _probe(cli, kv, n_pages, run, on, memory, folder, rounds, deadline_s, lambda: asked() is not None)
            found, no_prefill = _prefill(
                cli, prefill, timings, prefill_file, prefill_hardware, run, kv, on, asked_tokens, rounds, deadline_s,
                lambda: asked() is not None,
            )  # fmt: skip
            let_signals_come()
            if asked() is not None:  # while the last of it was given back
                raise ProbeStopped
        except ProbeStopped:
            raise stop_error(asked() or "SIGTERM") from None
        except StorageError as error:
            raise not_ready(error) from None
    modelled = model_of(probe, kv.page_tokens, found, no_prefill, "--path none" if folder is None else None)
    measures = model_measures(probe, modelled, kv.page_tokens, rounds)
    costs, no_costs = model_costs(probe, modelled, measures, kv.name)
    findings, code = not_answered(model_headline(measures, found), "give more --rounds, on a quiet machine")
    if found is None and prefill == "synthetic":
        hint = "give shorter --lengths or a longer --time-budget, or --prefill-file with times of your engine"
        late = Diagnostic("HC-NO-ANSWER", Severity.WARN, str(no_prefill), subject="recompute", hint=hint)
        findings, code = (*findings, late), ExitCode.NO_RESULT
    modelled = judged(modelled, {one.subject for one in findings if one.subject}, _demo(kv, prefill, run))
    told = {
        "name": kv.name, "page_tokens": kv.page_tokens, "page_bytes": kv.page_bytes, "bytes_per_token": kv.bytes_per_token,
        "dtype": kv.dtype, "layout": run.layout,
    }  # fmt: skip
    result = bench_result(
        "model", setting_of(on, method_of(found), rounds), measures, costs, model_details(probe, modelled, told, why),
        diagnostics=findings, exit_code=code, reasons={**model_reasons(modelled), **no_costs},
    )  # fmt: skip
    cli.emit(result, render=lambda screen, data: draw_model(screen, data))
    cli.note_no_costs(result)


def _lengths(text: str, page_tokens: int) -> tuple[int, ...]:
    """Read the lengths, in tokens. Raises UsageError for fewer than two that differ in whole pages: no line goes through one."""
    from hicachectl.units import parse_counts

    found = parse_counts(text, where="--lengths", most=_MOST_TOKENS, what="lengths")
    pages = sorted({-(-n // page_tokens) for n in found})
    if len(pages) < 2:
        raise UsageError(
            f"{text!r} are restores of {pages[0]} page{'s' if pages[0] > 1 else ''} alone, a page has {page_tokens} tokens",
            where="--lengths", why="what a restore costs is a line through two lengths or more, in whole pages",
            hint=f"--lengths {page_tokens},{4 * page_tokens},{16 * page_tokens}",
        )  # fmt: skip
    return found


def _check_prefill(
    prefill: str, prefill_file: Path | None, prefill_hardware: str | None, kv: KVGeometry
) -> list[Timing] | None:
    """Refuse what cannot be a recompute before anything is measured, and read the file. Raises UsageError."""
    if prefill not in _PREFILLS:
        raise UsageError(f"--prefill is {prefill!r}", hint=f"one of {', '.join(_PREFILLS)}, or --prefill-file FILE")
    if prefill_hardware is not None and prefill_file is None:
        raise UsageError("--prefill-hardware without --prefill-file", why="it says what the times of that file are of")
    if prefill == "synthetic":
        from hicachectl.runtime.probes.prefill_stack import model_shape

        model_shape(kv.name)
    if prefill_file is None:
        return None
    if prefill != "none":
        raise UsageError(
            f"--prefill-file and --prefill {prefill}", why="both say what recomputing costs", hint="give one"
        )
    from hicachectl.input_file import read_input
    from hicachectl.runtime.probes.fits import QUADRATIC, fit
    from hicachectl.runtime.probes.prefill_file import parse_prefill

    text = read_input(
        prefill_file, "name a CSV or JSON file of (tokens, seconds), or --prefill synthetic to measure here"
    )
    timings = parse_prefill(text, str(prefill_file))
    try:
        fit(timings, QUADRATIC)
    except UsageError as error:
        error.where = str(prefill_file)
        raise
    return timings


def _demo(kv: KVGeometry, prefill: str, run: RunConfig) -> str | None:
    """Say why restore and recompute are of two models; None where they are of one. Times of a file are those of the pages' model."""
    from hicachectl.bench_break_even import two_models

    return two_models(kv, run.compute.model if prefill == "configured" else kv.name)


def _require_room(
    cli: Context, kv: KVGeometry, n_pages: int, memory: MappingSpec, folder: Path | None, on: ProbeDevice, stack_tokens: int
) -> None:  # fmt: skip
    """Raise CapacityError, with every term, for memory or disk that is not there."""
    from hicachectl.disk_room import require_disk_room
    from hicachectl.memory_room import host_memory, require_reserved
    from hicachectl.runtime.memory.budget import Ask, ledger
    from hicachectl.runtime.probes.store_rows import space_terms

    is_plain = memory.kind.value != "hugetlb"  # that pool is of pages set apart
    asks = [Ask("host pool", n_pages * kv.page_bytes)] if is_plain else []
    if not on.is_accelerator:
        asks.append(Ask("device pool", n_pages * kv.page_bytes))
    if stack_tokens and not on.is_accelerator:
        from hicachectl.runtime.probes.prefill_stack import model_shape

        shape = model_shape(kv.name)
        asks.append(Ask("a layer of the model", 4 * (shape.layer_weights + stack_tokens * shape.token_activations)))
    host = host_memory(of=memory, tell=cli.note)
    ledger(host, asks, reserve_bytes=_RESERVE_BYTES).require("give shorter --lengths")
    require_reserved(memory, n_pages * kv.page_bytes, "give shorter --lengths")
    if folder is not None:
        hint = "give shorter --lengths, a --path on another disk, or --path none"
        require_disk_room(folder, space_terms(kv.page_bytes, n_pages), hint)


def _probe(
    cli: Context, kv: KVGeometry, n_pages: list[int], run: RunConfig, on: ProbeDevice, memory: MappingSpec, folder: Path | None,
    rounds: int, deadline_s: float | None, stop: Callable[[], bool],
) -> RestoreProbe:  # fmt: skip
    from hicachectl.runtime.layout import Backend, Layout
    from hicachectl.runtime.probes.restores import run_restore_probe

    with cli.progress("bench model", total=rounds * len(n_pages) + (folder is not None), unit="restores") as progress:

        def told(text: str) -> None:
            progress.enter(text)
            progress.advance()

        return run_restore_probe(
            kv, n_pages, rounds=rounds, device=on.name, layout=Layout.parse(run.layout),
            backend=None if run.backend == "auto" else Backend.parse(run.backend), host_memory=memory, storage=folder, stop=stop, told=told,
            go_on=lambda: deadline_s is None or monotonic() < deadline_s,
        )  # fmt: skip


def _prefill(
    cli: Context, prefill: str, timings: list[Timing] | None, prefill_file: Path | None, hardware: str | None, run: RunConfig,
    kv: KVGeometry, on: ProbeDevice, lengths: tuple[int, ...], rounds: int, deadline_s: float | None, stop: Callable[[], bool],
) -> tuple[Prefill | None, str | None]:  # fmt: skip
    """Find out what recomputing costs, as asked; None with the reason when it was not, or could not be found out."""
    from hicachectl.bench_model_data import Prefill
    from hicachectl.runtime.probes.fits import QUADRATIC, Fit, fit

    if timings is not None:
        return Prefill(
            f"times in {prefill_file}", fit(timings, QUADRATIC), tuple(timings), hardware, from_file=True
        ), None
    if prefill == "configured":
        compute = run.compute
        source = f"run.compute of the configuration, the prefill of {compute.model or 'a model that is not said'}"
        given = Fit.given(compute.a_s, compute.b_s, compute.c_s, "given by the configuration, not measured here")
        return Prefill(source, given, (), compute.hardware), None
    if prefill == "none":
        return None, "no recompute was asked for: --prefill-file FILE or --prefill synthetic"
    from hicachectl.runtime.probes.prefill_stack import model_shape, time_stack

    left_s = _PREFILL_BUDGET_S if deadline_s is None else deadline_s - monotonic()
    with cli.progress("prefill", total=len(lengths), unit="lengths") as progress:

        def told(text: str) -> None:
            progress.enter(text)
            progress.advance()

        found = time_stack(
            model_shape(kv.name), lengths, device=on.name, rounds=rounds, budget_s=left_s, stop=stop, told=told
        )
    measured = len({one.n_tokens for one in found.timings})
    if measured < QUADRATIC:
        why = "; ".join(f"{n} tokens: {reason}" for n, reason in found.left_out) or "--lengths names no more"
        return None, f"{measured} lengths of prefill were measured, {QUADRATIC} are needed for a curve ({why})"
    source = (
        f"{found.shape.n_layers} layers of the shape of {found.shape.name} with random weights, {found.dtype}, eager torch, no embedding "
        "and no head"
    )
    words = f"{on.words or on.name}, synthetic layers"
    return Prefill(source, fit(found.timings, QUADRATIC), found.timings, words, found.left_out), None
