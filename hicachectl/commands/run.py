"""`hicachectl run`: replay a workload through the real cache tiers, prove every restored page, and say whether they pay."""

from __future__ import annotations

import shlex
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.commands.memory_options import (
    MEMORY,
    ChunkBytes,
    HugePages,
    HugetlbBytes,
    Kind,
    MemoryPath,
    Placement,
    Threads,
    Weights,
    memory_flags,
)
from hicachectl.context import Context, read_origin
from hicachectl.envelope import Diagnostic, Fact, Result, Severity
from hicachectl.errors import ExitCode, HicacheError, StorageError, UsageError, Vanished
from hicachectl.interrupt import Terminated, heard, stop_error
from hicachectl.profiles import profile_names

if TYPE_CHECKING:
    from hicachectl.config import Effective
    from hicachectl.render.html_report import Origins
    from hicachectl.render.screen import Screen
    from hicachectl.run_plan import RunPlan
    from hicachectl.runtime.metrics import Metrics
    from hicachectl.runtime.replay.driver import Replay
    from hicachectl.runtime.replay.report import ReplayReport

_WORKLOAD, _TIERS, _POLICY, _OUTPUT = "Workload", "Tiers", "Policies", "Output"
Text = str | None


def _option(flag: str, help_text: str, panel: str, metavar: str, **more: Any) -> Any:
    return typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False, **more)


def command(
    ctx: typer.Context,
    trace: Annotated[Text, _option("--trace", "Trace to replay; its format is told from its content.", _WORKLOAD, "FILE")] = None,
    synthetic: Annotated[Text, _option("--synthetic", "agent, multi-turn, shared-system or one-shot; without a trace.", _WORKLOAD, "CLASS")] = None,
    seed: Annotated[Text, _option("--seed", "Seed of the synthetic workload.", _WORKLOAD, "N")] = None,
    limit: Annotated[Text, _option("--limit", "Replay the first N requests of the workload.", _WORKLOAD, "N")] = None,
    session_gap: Annotated[Text, _option("--session-gap", "Seconds between session starts of a trace with relative times.", _WORKLOAD, "S")] = None,
    profile: Annotated[Text, _option("--profile", "Profile that supplies what is not given.", _WORKLOAD, "NAME|FILE", autocompletion=profile_names)] = None,
    geometry: Annotated[Text, _option("--geometry", "KV geometry preset, such as qwen3-8b or tiny-64k.", _TIERS, "NAME")] = None,
    dtype: Annotated[Text, _option("--dtype", "Element type of the KV cache, such as bf16, fp8_e4m3 or int8.", _TIERS, "TYPE")] = None,
    page_tokens: Annotated[Text, _option("--page-tokens", "Tokens a page.", _TIERS, "N")] = None,
    device: Annotated[Text, _option("--device", "auto, cpu, cuda or another torch device.", _TIERS, "DEVICE")] = None,
    device_slots: Annotated[Text, _option("--device-slots", "Pages of L1; auto = the longest request.", _TIERS, "N|auto")] = None,
    host_slots: Annotated[Text, _option("--host-slots", "Pages of L2; 0 = no host tier.", _TIERS, "N")] = None,
    storage_path: Annotated[Text, _option("--storage-path", "Folder of L3; auto = a temporary one, none = no storage tier.", _TIERS, "DIR")] = None,
    storage_bytes: Annotated[Text, _option("--storage-bytes", "Bytes L3 may hold, such as 20GiB.", _TIERS, "SIZE")] = None,
    layout: Annotated[Text, _option("--layout", "layer_first, page_first or page_first_direct.", _TIERS, "LAYOUT")] = None,
    backend: Annotated[Text, _option("--backend", "auto, cpu, torch, direct, batch, strided or uva.", _TIERS, "BACKEND")] = None,
    memory_kind: Kind = None,
    memory_path: MemoryPath = None,
    placement: Placement = None,
    weights: Weights = None,
    huge_pages: HugePages = None,
    hugetlb_bytes: HugetlbBytes = None,
    threads: Threads = None,
    chunk_bytes: ChunkBytes = None,
    must_register: Annotated[Text, _option("--host-memory-must-register", "End where registration is refused: true or false.", MEMORY, "BOOL")] = None,
    write_policy: Annotated[Text, _option("--write-policy", "write_through, write_through_selective or write_back.", _POLICY, "POLICY")] = None,
    selective_hits: Annotated[Text, _option("--selective-hits", "Hits at which write_through_selective copies down.", _POLICY, "N")] = None,
    restore: Annotated[Text, _option("--restore", "cost: only what beats recomputing; always: every hit.", _POLICY, "cost|always")] = None,
    restore_margin: Annotated[Text, _option("--restore-margin", "How many times cheaper a restore must be.", _POLICY, "X")] = None,
    costs: Annotated[Text, _option("--costs", "Files of bench -o json: what transfers and prefill cost here.", _POLICY, "FILE,...")] = None,
    eviction: Annotated[Text, _option("--eviction", "lru, fifo, lfu, slru or priority.", _POLICY, "ORDER")] = None,
    free_list: Annotated[Text, _option("--free-list", "lifo or fifo: which free slot goes out first.", _POLICY, "ORDER")] = None,
    ghost: Annotated[Text, _option("--ghost", "Entries of the ghost list; 0 = off.", _POLICY, "N")] = None,
    seen_keys: Annotated[Text, _option("--seen-keys", "Page keys remembered to name the reason of a miss.", _POLICY, "N")] = None,
    verify: Annotated[Text, _option("--verify", "Restored pages compared byte for byte: all, sample:N or off.", _OUTPUT, "WHICH")] = None,
    report: Annotated[Text, _option("--report", "Write the report as one HTML file.", _OUTPUT, "FILE")] = None,
    metrics_port: Annotated[Text, _option("--metrics-port", "Serve metrics on this loopback port; 0 = any free one.", _OUTPUT, "PORT")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only the preflight: effective configuration with origins, sizes, memory.", rich_help_panel=_OUTPUT)] = False,
) -> None:  # fmt: skip
    """Replay a workload through the cache tiers and report what they pay.

    Moves real bytes between device, host and storage, compares every restored page with what it must hold, and prints
    hits by tier, reasons of misses, rates, latencies and the net gain. Compute is modelled, transfers are measured.
    Changes nothing on the host; a temporary storage folder is removed at the end.
    """
    from hicachectl.run_costs import used_costs, with_measured_prefill
    from hicachectl.run_plan import effective_config, plan_run

    flags = {
        "run.trace": trace, "run.synthetic": synthetic, "run.seed": seed, "run.limit": limit, "run.session_gap_s": session_gap,
        "run.geometry": geometry, "run.dtype": dtype, "run.page_tokens": page_tokens, "run.device": device, "run.device_slots": device_slots,
        "run.host_slots": host_slots, "run.storage_path": storage_path, "run.storage_bytes": storage_bytes,
        **memory_flags(memory_kind, memory_path, placement, weights, huge_pages, hugetlb_bytes, threads, chunk_bytes),
        "run.host_memory.must_register": must_register,
        "run.layout": layout, "run.backend": backend, "run.write_policy": write_policy, "run.selective_hits": selective_hits,
        "run.restore": restore, "run.restore_margin": restore_margin, "run.costs": costs, "run.eviction": eviction, "run.free_list": free_list,
        "run.ghost": ghost, "run.seen_keys": seen_keys, "run.verify": verify, "run.report": report,
        "run.metrics_port": metrics_port,
    }  # fmt: skip
    cli: Context = ctx.obj
    cli.refuse_root("run")
    effective = with_measured_prefill(cli.took(effective_config(flags, cli.environ, cli.config_path, profile)))
    unused = effective.unused_workload()
    if unused is not None:
        cli.note(f"note: {unused}")
    if effective.run.report is not None:
        from hicachectl.render.html_report import require_writable

        require_writable(Path(effective.run.report))
    plan = plan_run(effective.run, tuned_weights=effective.config.tune.numa.interleave_weight)
    if check:
        _emit_check(cli, effective, plan)
        return
    if plan.makes_storage_folder:
        made = f"the storage folder {effective.run.storage_path} was not there, this run made it"
        plan = replace(plan, info=replace(plan.info, warnings=(*plan.info.warnings, made)))
    for diagnostic in plan.diagnostics:
        about = f"{diagnostic.subject}: " if diagnostic.subject else ""
        cli.note(f"{diagnostic.severity.value} {diagnostic.code}: {about}{diagnostic.message}")
    useful = used_costs(costs, plan.diagnostics)
    typed, again = (_command_line(profile, cli.config_path, {**flags, "run.costs": named}) for named in (costs, useful))
    with _storage_folder(cli, plan) as ready:
        _replay(cli, effective, ready, typed, again)


def _command_line(profile: str | None, config: Path | None, flags: Mapping[str, str | None]) -> str:
    """Return the line with these flags, by the keys they set, quoted for a shell."""
    from hicachectl.config_keys import key_named

    words = [*(("--config", str(config)) if config else ()), *(("--profile", profile) if profile else ())]
    for name, value in flags.items():
        if value is not None:
            words += [key_named(name).flag, value]
    return shlex.join(["hicachectl", "run", *words])


@contextmanager
def _storage_folder(cli: Context, plan: RunPlan) -> Iterator[RunPlan]:
    """Give the plan a temporary storage folder when it asks for one, and remove it afterwards whatever happens.

    What killed runs left in the same place goes first, and is told.
    """
    if not plan.uses_temporary_storage:
        yield plan
        return
    from hicachectl.runtime.probes.store_folder import RUN_PREFIX, StoreFolder, clear_left

    parent = Path(tempfile.gettempdir())
    for said in clear_left(parent):
        cli.note(said)
    folder = StoreFolder(parent, prefix=RUN_PREFIX, flag="--storage-path")
    try:
        with folder:
            yield replace(plan, replay=replace(plan.replay, storage_path=folder.path))
    finally:
        for said in folder.left:
            cli.note(f"left in the temporary storage folder: {said}")


def _replay(cli: Context, effective: Effective, plan: RunPlan, typed: str, again: str) -> None:
    """Run the replay under a board, and emit the report, also of an interrupted one.

    `typed` is the line that was given, `again` the one that advice builds on.
    """
    from hicachectl.render.html_report import write_html
    from hicachectl.render.run_board import Board
    from hicachectl.render.run_report import render_report
    from hicachectl.runtime.metrics import Metrics
    from hicachectl.runtime.replay.driver import PageMismatch, Stop
    from hicachectl.runtime.replay.report import make_report, with_close

    run = effective.run
    wrong: HicacheError | None = None
    metrics = Metrics() if run.metrics_port is not None else None
    with (
        _opened(plan, metrics) as replay,
        _served(cli, metrics, run.metrics_port),
    ):
        with _stop_on_signal(replay) as stopped, Board(cli, replay) as board:
            try:
                stop = replay.run(board.update)
            except PageMismatch as error:
                wrong, stop = error, Stop.FAILED
            except Vanished as error:
                wrong, stop = error, Stop.DEVICE_LOST
        report = make_report(replay, stop)
    report = with_close(report, replay)
    unwritten: HicacheError | None = None
    if run.report is not None:
        try:
            write_html(report, Path(run.report), _origins_of(effective, typed, again))
            cli.note(f"report written to {run.report}")
        except (
            UsageError
        ) as error:  # the disk filled up meanwhile: the document below is all that is left of a long run
            unwritten = error
    result = Result(
        "hicachectl.run/1",
        report,
        diagnostics=(*plan.diagnostics, *_memory_findings(report), *_degradations(report)),
        facts=_reasons_of_nulls(report),
    )
    for failure in (wrong, unwritten, stopped.error(report)):
        if failure is not None:
            result = result.with_error(failure)
    cli.emit(result, render=lambda screen, data: render_report(screen, data, command=again))
    for failure in (wrong, unwritten):
        if failure is not None:
            raise failure


def _origins_of(effective: Effective, typed: str, again: str) -> Origins:
    """Gather what the page tells of how it was made."""
    from hicachectl.commands.config import show_value
    from hicachectl.render.html_report import Origins
    from hicachectl.this_machine import machine_words

    settings = tuple(
        (s.key, show_value(s.value, is_size=s.key.endswith("_bytes")), str(s.origin)) for s in effective.settings()
    )
    return Origins(typed, read_origin(None).collected_at, settings, machine_words(), again)


def _opened(plan: RunPlan, metrics: Metrics | None) -> Replay:
    """Make the replay, with the exit code of a failed preflight when the storage folder refuses."""
    from hicachectl.run_plan import not_ready
    from hicachectl.runtime.replay.driver import Replay

    try:
        return Replay(plan.trace, plan.replay, info=plan.info, metrics=metrics)
    except StorageError as error:
        not_ready(error)
        raise


def _memory_findings(report: ReplayReport) -> list[Diagnostic]:
    """Name what the host pool's memory was refused: the pool works, slower or elsewhere than asked."""
    memory = report.pools.host_memory
    if memory is None:
        return []
    return [
        Diagnostic(
            "HC-POOL-MEMORY",
            Severity.WARN,
            f"{step.name} of the host pool's memory: asked {step.asked}, {step.text}",
            subject=f"host_memory.{step.name}",
            hint="see HOST MEMORY of the report; hicachectl explain HC-POOL-MEMORY",
        )
        for step in memory.steps
        if step.name in ("bind", "register", "unregister") and step.state in ("refused", "partly")
    ]


def _degradations(report: ReplayReport) -> list[Diagnostic]:
    """Name what the lower tiers could not do: the run went on without it."""
    failures = dict(report.failures_by_reason)
    if report.storage_corrupt_removed:
        failures["storage_corrupt_removed"] = report.storage_corrupt_removed
    unfinished = [
        Diagnostic(
            "HC-TIER-DEGRADED",
            Severity.WARN,
            f"copies were not finished when the replay stopped waiting: {n} pages {path.replace('_to_', ' -> ')}",
            subject="unfinished_pages",
            hint="the path is slower than the replay: look at its rate in PATHS, or give it a smaller trace (--limit)",
        )
        for path, n in sorted(report.unfinished_pages.items())
    ]
    if not failures:
        return unfinished
    listing = ", ".join(f"{n} {reason}{_first(report, reason)}" for reason, n in sorted(failures.items()))
    return [
        *unfinished,
        Diagnostic(
            "HC-TIER-DEGRADED",
            Severity.WARN,
            f"lower tiers failed in part: {listing}; each cost a recompute or a copy not made, never a wrong byte",
            subject="failures_by_reason",
            hint="free space or repair the folder for storage_*, check memory for transfer_*; then run again",
        ),
    ]


def _first(report: ReplayReport, reason: str) -> str:
    words = report.failure_words.get(reason)
    return "" if words is None else f" (the first: {words})"


@contextmanager
def _served(cli: Context, metrics: Metrics | None, port: int | None) -> Iterator[None]:
    """Serve the replay's metrics on loopback while it runs, when a port is asked for."""
    if metrics is None or port is None:
        yield
        return
    from hicachectl.runtime.metrics import serve

    with serve(metrics, port) as server:
        cli.note(f"metrics on http://127.0.0.1:{server.port}/metrics")
        yield


@dataclass(slots=True)
class _Stopped:
    """Which signal ended the replay early, if one did."""

    name: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.OK if self.name is None else stop_error(self.name).exit_code

    def error(self, report: ReplayReport) -> HicacheError | None:
        """Describe the signal as the failure of a report that is whole and tells of a part of the trace. Pure."""
        if self.name is None:
            return None
        error = stop_error(self.name)
        error.what = (
            f"{error.what} after {report.requests} of {report.trace_requests} requests; the report tells of these"
        )
        return error


@contextmanager
def _stop_on_signal(replay: Replay) -> Iterator[_Stopped]:
    """End the replay after the request in hand on the first SIGINT, SIGTERM or SIGHUP, at once on the second."""
    stopped = _Stopped()

    def handler(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if stopped.name is not None:
            replay.abandon()
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(name)
        stopped.name = name
        replay.stop()

    old = {number: signal.signal(number, handler) for number in heard(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stopped
    finally:
        for number, before in old.items():
            signal.signal(number, before)


_NULL_REASONS = {
    "d1": "no page was asked for", "d2": "no token was asked for", "d3": "no whole page was asked for",
    "bytes_per_s": "nothing moved on this path", "transfers": "storage moves page by page", "submissions": "not counted on this path",
    "segments": "not counted on this path", "refused": "not refused", "requests_per_s": "no time passed", "model": "run.compute.model is null",
    "hardware": "run.compute.hardware is null", "bytes_per_token": "run.compute.model is null", "host_memory": "no host tier",
    "huge_share": "see the step verify of host_memory", "resident_bytes": "see the step verify of host_memory", "at_model_size": "run.compute.model is null",
    "reason": "all that was asked is there", "placement": "see the step bind of host_memory", "registered_with": "see the step register of host_memory",
}  # fmt: skip


def _reasons_of_nulls(data: object) -> dict[str, Fact]:
    """Give every null of the report its reason, by JSON pointer."""
    from hicachectl.envelope import plain, unexplained_nulls

    return {
        pointer: Fact(reason=_NULL_REASONS.get(pointer.rpartition("/")[2], "no samples"))
        for pointer in unexplained_nulls(plain(data))
    }


@dataclass(frozen=True, slots=True)
class Preflight:
    """What `run --check` prints."""

    trace: str
    trace_format: str
    requests: int
    longest_request_pages: int
    device_slots: int
    host_slots: int
    storage: str | None
    memory_bytes: dict[str, int]
    notes: tuple[str, ...]
    settings: tuple[dict[str, Any], ...]
    reason: str


def _emit_check(cli: Context, effective: Effective, plan: RunPlan) -> None:
    """Emit the preflight: nothing is allocated, nothing is written."""
    storage = effective.run.storage_path
    data = Preflight(
        trace=plan.replay.trace_name,
        trace_format=plan.info.format,
        requests=plan.info.n_requests,
        longest_request_pages=plan.longest_pages,
        device_slots=plan.replay.device_slots or plan.longest_pages,
        host_slots=plan.replay.host_slots,
        storage="a temporary folder"
        if plan.uses_temporary_storage
        else f"{storage} (will be made)"
        if plan.makes_storage_folder
        else storage,
        memory_bytes=dict(plan.memory_terms),
        notes=plan.info.warnings,
        settings=tuple(
            {"key": s.key, "value": s.value, "origin": str(s.origin), "reason": s.reason} for s in effective.settings()
        ),
        reason="storage null: no storage tier",
    )
    cli.emit(
        Result("hicachectl.run-check/1", data, diagnostics=plan.diagnostics, rows="/settings"),
        render=lambda screen, found: _render_check(screen, found),
    )


def _render_check(screen: Screen, data: Preflight) -> None:
    from hicachectl.commands.config import show_value
    from hicachectl.render.table import Column, Table
    from hicachectl.units import format_bytes

    screen.print(f"PREFLIGHT  {data.trace}  {data.requests} requests, longest {data.longest_request_pages} pages")
    for name, amount in data.memory_bytes.items():
        screen.print(f"  {name:<20} {format_bytes(amount)}")
    screen.print(f"  {'storage':<20} {data.storage or 'off'}")
    for note in data.notes:
        screen.print(f"  note: {note}")
    rows = [
        (s["key"], show_value(s["value"], is_size=s["key"].endswith("_bytes")), *_kind_and_place(s["origin"]))
        for s in data.settings
    ]
    screen.table(Table((Column("SETTING"), Column("VALUE"), Column("FROM"), Column("WHERE", keep=1)), rows))
    screen.print("ready: hicachectl run with the same options starts it")


def _kind_and_place(origin: str) -> tuple[str, str]:
    """Split an origin into its kind and its place; of a profile the file name alone, so that the table fits. Pure."""
    kind, _, place = origin.partition(" ")
    return kind, (Path(place).name if kind == "profile" else place) or "-"
