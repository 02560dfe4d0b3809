"""`hicachectl tune size`: predict the hit rate of every host pool, choose one, prove it on real pools from small to large."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from hicachectl.commands.memory_options import (
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
from hicachectl.context import Context
from hicachectl.envelope import Result
from hicachectl.errors import ExitCode, HicacheError, VerifyMismatch
from hicachectl.profiles import profile_names

__all__ = ["size"]

_WORKLOAD, _POOL, _STEPS, _OUTPUT = "Workload", "Pool", "Steps", "Output"
SCHEMA = "hicachectl.tune-size/1"
Text = str | None


def _option(flag: str, help_text: str, panel: str, metavar: str, **more: Any) -> Any:
    more.setdefault("show_default", False)
    return typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar, **more)


def size(
    ctx: typer.Context,
    trace: Annotated[Text, _option("--trace", "Trace to size for.", _WORKLOAD, "FILE")] = None,
    synthetic: Annotated[Text, _option("--synthetic", "agent, multi-turn, shared-system or one-shot; without a trace.", _WORKLOAD, "CLASS")] = None,
    live: Annotated[Text, _option("--live", "Size for what an engine serves now: its growing request log or KV-event file, - (trace lines), or tcp://HOST:PORT of its event publisher.", _WORKLOAD, "SOURCE")] = None,
    window: Annotated[Text, _option("--window", "With --live: how long to collect, such as 10m or 5000 requests; else half of --time-budget, or until Ctrl-C.", _WORKLOAD, "TIME|N")] = None,
    replay_endpoint: Annotated[Text, _option("--replay-endpoint", "With --live tcp://...: where the publisher gives missed batches again.", _WORKLOAD, "ENDPOINT")] = None,
    seed: Annotated[Text, _option("--seed", "Seed of the synthetic workload.", _WORKLOAD, "N")] = None,
    limit: Annotated[Text, _option("--limit", "Only the first N requests.", _WORKLOAD, "N")] = None,
    session_gap: Annotated[Text, _option("--session-gap", "Seconds between session starts of a trace with relative times.", _WORKLOAD, "S")] = None,
    costs_files: Annotated[Text, _option("--costs", "Files of bench -o json: what transfers and prefill cost here.", _WORKLOAD, "FILE,...")] = None,
    profile: Annotated[Text, _option("--profile", "Profile that supplies what is not given.", _POOL, "NAME|FILE", autocompletion=profile_names)] = None,
    geometry: Annotated[Text, _option("--geometry", "KV geometry preset, such as qwen3-8b or tiny-4k.", _POOL, "NAME")] = None,
    dtype: Annotated[Text, _option("--dtype", "Element type of the KV cache, such as bf16, fp8_e4m3 or int8.", _POOL, "TYPE")] = None,
    page_tokens: Annotated[Text, _option("--page-tokens", "Tokens a page.", _POOL, "N")] = None,
    device: Annotated[Text, _option("--device", "auto, cpu, cuda or another torch device.", _POOL, "DEVICE")] = None,
    device_slots: Annotated[Text, _option("--device-slots", "Pages of L1; auto = the longest request.", _POOL, "N|auto")] = None,
    write_policy: Annotated[Text, _option("--write-policy", "write_through, write_through_selective or write_back.", _POOL, "POLICY")] = None,
    eviction: Annotated[Text, _option("--eviction", "lru, fifo, lfu, slru or priority.", _POOL, "ORDER")] = None,
    memory_kind: Kind = None,
    memory_path: MemoryPath = None,
    placement: Placement = None,
    weights: Weights = None,
    huge_pages: HugePages = None,
    hugetlb_bytes: HugetlbBytes = None,
    threads: Threads = None,
    chunk_bytes: ChunkBytes = None,
    max_bytes: Annotated[Text, _option("--max-bytes", "Bytes the pool may take at most, such as 64GiB, each copy where ranks hold several; with --steps none those of another host.", _POOL, "SIZE")] = None,
    ranks: Annotated[int, _option("--ranks", "TP ranks on this host, for the engines' flags.", _POOL, "N", min=1, show_default=True)] = 1,
    shared: Annotated[bool, typer.Option("--shared", help="The ranks map one pool (MLA).", rich_help_panel=_POOL)] = False,
    concurrency: Annotated[int, _option("--concurrency", "Requests that run at a time and hold their pages in L1.", _POOL, "N", min=0, show_default=True)] = 0,
    l2: Annotated[str, _option("--l2", "inclusive: L2 holds what L1 holds too; exclusive: it does not.", _POOL, "inclusive|exclusive", show_default=True)] = "inclusive",
    l3: Annotated[Text, _option("--l3", "A storage tier below: pages, a size such as 4TiB, or infinite.", _POOL, "N|SIZE|infinite")] = None,
    l3_path: Annotated[Path | None, _option("--l3-path", "Make that tier in the steps, in a folder of their own in DIR, removed afterwards.", _POOL, "DIR")] = None,
    points: Annotated[float, _option("--points", "Points of hit rate below the ceiling that are let go.", _POOL, "P", show_default=True)] = 1.0,
    steps: Annotated[str, _option("--steps", "auto: below, at and twice the size; none: predict only, also for a larger host; or sizes such as 8000,16GiB.", _STEPS, "auto|none|LIST", show_default=True)] = "auto",
    time_budget: Annotated[float | None, _option("--time-budget", "No further step after so many seconds.", _STEPS, "S")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last run, which was killed or stopped.", rich_help_panel=_STEPS)] = False,
    waterfall: Annotated[bool, typer.Option("--waterfall/--no-waterfall", help="Replay three times more: a size again, and what the copies and the memory's pages are worth.", rich_help_panel=_STEPS)] = True,
    policies: Annotated[bool, typer.Option("--policies", help="Then simulate other write policies and orders at the size found.", rich_help_panel=_STEPS)] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also on a host whose settings differ from what tune set.", rich_help_panel=_STEPS)] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the size was chosen, and what was not used.", rich_help_panel=_OUTPUT)] = False,
    report: Annotated[Path | None, _option("--report", "Write curve, band, steps and choice as one HTML file.", _OUTPUT, "FILE")] = None,
    write: Annotated[Path | None, _option("--write", "Where the configuration for run --config goes.", _OUTPUT, "FILE", show_default="hicache.yaml; with --steps none nowhere")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace that file where it is there already.", rich_help_panel=_OUTPUT)] = False,
    state_dir: Annotated[Path | None, _option("--state-dir", "Where runs are recorded.", _OUTPUT, "DIR", show_default="/var/lib/hicachectl as root, else ~/.local/state/hicachectl")] = None,
) -> None:  # fmt: skip
    """Find how large the host pool should be: the whole hit-rate curve, a choice, and proof on real pools from small to large.

    Takes memory for its trial pools and gives it back; writes the configuration file (hicache.yaml, which later commands in this
    folder read unasked) and its own record, nothing else.
    Chosen is the smallest pool within a point of the unlimited hit rate, cut to the memory there is. A sequential
    write_through replay must hit what the curve says, to the page.
    """
    from hicachectl.config import LOCAL_FILE
    from hicachectl.output import is_special
    from hicachectl.run_costs import with_measured_prefill
    from hicachectl.run_plan import effective_config
    from hicachectl.size_choice import last_good, settle
    from hicachectl.size_config import refuse_existing
    from hicachectl.size_findings import size_exit_code, size_findings
    from hicachectl.size_live import LiveSizing
    from hicachectl.size_outputs import require_outputs, require_seconds
    from hicachectl.size_run import NO_STEPS, Sizing
    from hicachectl.size_tiers import require_asked
    from hicachectl.size_window import collect_window, refuse_with_live
    from hicachectl.tuning.sizing.left_storage import clear_left
    from hicachectl.tuning.sizing.stages import AGAIN

    cli: Context = ctx.obj
    cli.refuse_root("tune size")
    cli.require_version(SCHEMA)
    flags = {
        "run.trace": trace, "run.synthetic": synthetic, "run.seed": seed, "run.limit": limit, "run.session_gap_s": session_gap,
        "run.costs": costs_files,
        "run.geometry": geometry, "run.dtype": dtype, "run.page_tokens": page_tokens, "run.device": device, "run.device_slots": device_slots,
        "run.write_policy": write_policy, "run.eviction": eviction,
        **memory_flags(memory_kind, memory_path, placement, weights, huge_pages, hugetlb_bytes, threads, chunk_bytes),
    }  # fmt: skip
    asked_live = refuse_with_live(live, window, replay_endpoint, {
        "--trace": trace, "--synthetic": synthetic, "--seed": seed, "--limit": limit, "--session-gap": session_gap,
        "--l3-path": l3_path,
    })  # fmt: skip
    if write is None and steps != NO_STEPS:
        write = LOCAL_FILE
    require_seconds("--time-budget", time_budget)
    there = None
    if write is not None:
        there = refuse_existing(write, force=force, resumed=_state(cli, state_dir) if resume else None)
    effective = with_measured_prefill(cli.took(effective_config(flags, cli.environ, cli.config_path, profile)))
    costs_named = {f"--costs {name}": name.strip() for name in (effective.run.costs or "").split(",") if name.strip()}
    printed = cli.output_file
    require_outputs(
        {
            "--write": write,
            "--report": report,
            "--output-file": None if printed is None or is_special(printed) else printed,
        },
        {"--trace": effective.run.trace if live is None else live, **costs_named},
    )
    require_asked(effective.run, ranks=ranks, shared=shared, l2=l2, l3=l3, steps=steps, max_bytes=max_bytes)
    verified = _host_as_tuned(cli, anyway=anyway)
    state = _state(cli, state_dir)
    run: Sizing
    if asked_live is None:
        run = Sizing(
            cli, effective, max_bytes, steps, points, concurrency, ranks, shared, l2=l2, l3=l3, l3_path=l3_path
        )
    else:
        budget_s = None if time_budget is None else time_budget * (1.0 if steps == NO_STEPS else 0.5)
        collected = collect_window(
            cli,
            asked_live,
            effective.run.page_tokens,
            state,
            resume=resume,
            budget_s=budget_s,
            points=points,
        )
        ctx.call_on_close(collected.close)
        run = LiveSizing(cli, effective, collected, max_bytes, steps, points, concurrency, ranks, shared, l2=l2, l3=l3)
    prediction = run.predict()
    prediction, journal, done = run.journal(prediction, state, resume=resume)
    ctx.call_on_close(journal.close)
    for said in clear_left(state, journal.id):
        cli.note(said)
    climbed = run.climb(prediction, journal, done.steps, time_budget_s=time_budget)
    prediction = run.settled(prediction)
    stages = run.beside(prediction, climbed, journal, done.stages, time_budget_s=time_budget) if waterfall else {}
    settled = settle(
        run,
        prediction,
        climbed,
        stages.get(AGAIN, "not made (--no-waterfall)"),
        journal,
        done=done.steps,
        time_budget_s=time_budget,
    )
    prediction, climbed = settled.prediction, settled.climbed
    simulated = run.policies(prediction) if policies and prediction.choice.grows else []
    if write is not None:
        run.write_config(write, prediction, climbed, journal, there=there, force=force)

    from hicachectl.disk_room import storage_folder
    from hicachectl.render.tune_size import draw_size
    from hicachectl.run_costs import storage_warnings
    from hicachectl.size_data import SizeFound, size_data

    found = SizeFound(
        prediction, climbed, run.plan, run.budget, run.ranks, run.shared, journal.id, str(journal.folder), None if write is None else str(write), verified,
        tuple(simulated), points, settled.costs, settled.why_no_costs, last_good(prediction, climbed), settled.of_pool, run.attribution(climbed, stages),
        run.budget_note(prediction),
    )  # fmt: skip
    data, facts = size_data(found)
    findings = size_findings(
        found.prediction,
        climbed,
        costs=settled.costs,
        page_bytes=run.base.geometry.page_bytes,
        live=run.live_steps if isinstance(run, LiveSizing) else (),
    )
    if run.storage_pages != 0:
        findings += storage_warnings(run.bench_results, run.storage_folder or storage_folder(run.effective.run))
    if isinstance(run, LiveSizing):
        from hicachectl.live_data import live_data, live_findings

        data["live"], of_live = live_data(run)
        facts = {name: fact for name, fact in facts.items() if name != "/live"} | of_live
        findings += live_findings(data["live"])
        run.close()
    if report is not None:
        from hicachectl.render.size_report import write_size_html

        write_size_html(found, data, report)
        cli.note(f"report written to {report}")
    code = size_exit_code(climbed, predict_only=steps == NO_STEPS)
    result = Result(
        SCHEMA, data, diagnostics=findings, facts=facts, exit_code=code, rows="/steps"
    )  # fmt: skip
    cli.emit(result, render=lambda screen, document: draw_size(screen, document, explain=explain))


def _host_as_tuned(cli: Context, *, anyway: bool) -> str:
    """Compare the host with what tune set last, since capacity comes after host settings. Raises VerifyMismatch unless told."""
    from hicachectl.commands.tune_runs import code_of
    from hicachectl.tuning.status import last_in_place

    try:
        session = cli.tune_session(plans=False)
        if last_in_place(session.states()) is None:
            return "nothing of tune is in place on this host"
        report = session.verify()
    except HicacheError as error:
        return f"not compared: {error}"
    if code_of(report) is ExitCode.OK:
        return "as tune set it"
    if anyway:
        return "differs from what tune set (--anyway)"
    raise VerifyMismatch(
        "this host is no longer as tune set it",
        why="host settings come before capacity: a size found now would be that of another host",
        hint="hicachectl tune verify, then tune apply; or --anyway",
    )


def _state(cli: Context, given: Path | None) -> Path:
    if given is not None:
        return given / "size"
    if os.geteuid() == 0:
        return Path("/var/lib/hicachectl/size")
    base = cli.environ.get("XDG_STATE_HOME") or os.path.join(cli.environ.get("HOME", "."), ".local/state")
    return Path(base) / "hicachectl" / "size"
