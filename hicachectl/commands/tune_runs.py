"""`tune verify`, `tune status`, `tune history`: what is in place, whether it still holds, and what was done. They change nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicachectl.commands.tune_apply import StateDirOption
from hicachectl.context import Context, origin_of
from hicachectl.envelope import Diagnostic, Result, Severity
from hicachectl.errors import ExitCode, HicacheError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hicachectl.tuning.lock import LockHolder
    from hicachectl.tuning.outcome import Checked, RunState, Verdict, VerifyReport
    from hicachectl.tuning.plan import Plan
    from hicachectl.tuning.session import Session

__all__ = ["code_of", "history", "status", "verify"]


def verify(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN", help="A saved plan to compare with.", show_default="what the last run left in place"),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Compare with this run's journal.", metavar="ID", show_default=False)
    ] = None,
    state_dir: StateDirOption = None,
) -> None:  # fmt: skip
    """Read every value again and compare it with what was wanted; exit 3 unless all of them are as they were set.

    What could not be read is unknown, never ok. Items that a plan itself skipped are listed and not counted.
    """
    from hicachectl.render.tune_verify import HINTS, draw_verify
    from hicachectl.tune_data import explained, verify_data
    from hicachectl.tuning.item import ItemKind
    from hicachectl.tuning.plan_file import read_plan

    cli: Context = ctx.obj
    if file is not None and run is not None:
        raise UsageError(
            "PLAN and --run exclude each other", where="hicachectl tune verify", hint="give one of them"
        )  # fmt: skip
    session = cli.tune_session(state_dir, plans=False)
    skipped: tuple[tuple[str, str], ...] = ()
    hints: Mapping[Verdict, str] = HINTS
    moved: tuple[str, ...] = ()
    if file is None:
        _own_folder(cli, state_dir, "verify")
        report = session.verify(run)
    else:
        plan = read_plan(file)
        moved = _moved(session, plan)
        hints = _hints(session, plan, file, moved)
        skipped = tuple((i.id, i.reason or "") for i in plan.items if i.kind is ItemKind.SKIP)
        report = session.verify_plan(replace(plan, items=tuple(i for i in plan.items if i.kind is not ItemKind.SKIP)))
    code = code_of(report)
    data = verify_data(report, skipped, moved)
    result = Result(
        "hicachectl.tune-verify/1", data, diagnostics=_findings(report, hints), exit_code=code, facts=explained(data), rows="/items",
        draws_findings=True,
    )  # fmt: skip
    cli.emit(
        result,
        render=lambda screen, _: draw_verify(screen, report, int(code), skipped, hints, moved),
        origin=origin_of(session.root),
    )


def status(ctx: typer.Context, state_dir: StateDirOption = None) -> None:
    """Show what tune has in place on this boot, by whom, and a run that was cut short (exit 3) with what undoes it."""
    from hicachectl.render.tune_runs import draw_status
    from hicachectl.tune_data import explained, runs_data
    from hicachectl.tuning.lock import lock_holder
    from hicachectl.tuning.status import last_in_place

    cli: Context = ctx.obj
    _own_folder(cli, state_dir, "status")
    session = cli.tune_session(state_dir, plans=False)
    states, folder = session.states(), str(session.state.path)
    current, origin = last_in_place(states), origin_of(session.root)
    busy = lock_holder(session.state)
    findings = tuple(_open(state) for state in states if state.between and not _at_work(state, busy))
    data = runs_data(folder, states, current=None if current is None else current.run_id)
    result = Result(
        "hicachectl.tune-status/1", data, diagnostics=findings, facts=explained(data), rows="/runs",
        exit_code=ExitCode.DIFFERS if findings else ExitCode.OK, draws_findings=True,
    )  # fmt: skip
    cli.emit(
        result,
        render=lambda screen, _: draw_status(
            screen, origin.host, origin.boot_id, folder, states, None if busy is None else busy.text
        ),
        origin=origin,
    )


def history(ctx: typer.Context, state_dir: StateDirOption = None) -> None:
    """List every recorded run: when, by whom, which plan, how it ended, what of it is undone."""
    from hicachectl.render.tune_runs import draw_history
    from hicachectl.tune_data import explained, runs_data
    from hicachectl.tuning.status import last_in_place

    cli: Context = ctx.obj
    _own_folder(cli, state_dir, "history")
    session = cli.tune_session(state_dir, plans=False)
    states, folder = session.states(), str(session.state.path)
    current = last_in_place(states)
    data = runs_data(folder, states, current=None if current is None else current.run_id)
    result = Result("hicachectl.tune-history/1", data, facts=explained(data), rows="/runs")
    cli.emit(
        result, render=lambda screen, _: draw_history(screen, folder, states), origin=origin_of(session.root)
    )  # fmt: skip


def code_of(report: VerifyReport) -> ExitCode:
    """Say 0 only when there are items, and every one was read and is as wanted, else 3. Pure."""
    from hicachectl.tuning.outcome import Verdict

    return ExitCode.OK if report.items and report.count(Verdict.OK) == len(report.items) else ExitCode.DIFFERS


def _moved(session: Session, plan: Plan) -> tuple[str, ...]:
    """Say by what this is another host than the plan's. A boot since is none: verify is for after it."""
    from hicachectl.tuning.fingerprint import fingerprint_of, moved
    from hicachectl.tuning.host.read import read_machine

    machine = read_machine(session.root)
    here = machine.host.hostname.value
    print_ = replace(plan.fingerprint, recipes={})
    changed = moved(print_, fingerprint_of(machine, {}), another_boot=True)
    if plan.about.host != here:
        changed = (f"host {plan.about.host or 'unknown'} -> {here or 'unknown'}", *changed)
    return changed


def _hints(session: Session, plan: Plan, file: Path, moved: tuple[str, ...]) -> Mapping[Verdict, str]:
    """What to do about what a plan wants and the host has not: nobody undid what was never applied."""
    import shlex

    from hicachectl.render.tune_verify import HINTS
    from hicachectl.tuning.outcome import Verdict

    if moved:
        again = "make a plan of this host: hicachectl tune plan --output-file PLAN"
        return {**HINTS, Verdict.DIFFERS: again, Verdict.UNKNOWN: f"what the plan names may not be here; {again}"}
    try:
        runs = [state for state in session.states() if state.plan_id == plan.id]
    except HicacheError:  # the folder is root's: whether it was applied is not known here
        return HINTS
    if any(state.n_applied for state in runs):
        return HINTS
    return {**HINTS, Verdict.DIFFERS: f"not applied yet: sudo hicachectl tune apply {shlex.quote(str(file))}"}


def _own_folder(cli: Context, state_dir: Path | None, command: str) -> None:
    """Refuse to hold this machine's runs against a recording of another host. Raises UsageError."""
    if cli.root is not None and state_dir is None:
        raise UsageError(
            f"tune {command} of a recording needs --state-dir",
            where=str(cli.root),
            why="the runs in the folder of this machine are not those of the recorded host",
            hint=f"hicachectl tune {command} without --root, or with --state-dir DIR",
        )


def _findings(report: VerifyReport, hints: Mapping[Verdict, str]) -> tuple[Diagnostic, ...]:
    from hicachectl.tuning.outcome import Verdict

    return tuple(_finding(item, hints) for item in report.items if item.verdict is not Verdict.OK)


def _finding(item: Checked, hints: Mapping[Verdict, str]) -> Diagnostic:
    from hicachectl.render.tune_words import wanted_text
    from hicachectl.tuning.outcome import Verdict
    from hicachectl.tuning.target import show_value

    wanted, seen = wanted_text(item.target, item.wanted), show_value(item.target, item.seen)
    return Diagnostic(
        "HC-VERIFY",
        Severity.ERROR if item.verdict is Verdict.DIFFERS else Severity.WARN,
        f"{item.verdict.value}: want {wanted}, see {seen}",
        subject=item.id,
        hint=hints[item.verdict],
        source=item.source,
    )


def _at_work(state: RunState, busy: LockHolder | None) -> bool:
    """Whether the run is the one that goes on now: `status` says so in its reason."""
    return busy is not None and busy.text in (state.reason or "")


def _open(state: RunState) -> Diagnostic:
    return Diagnostic(
        "HC-OPEN-RUN",
        Severity.ERROR,
        f"{state.outcome.value}: {state.reason or 'some values could not be put back'}",
        subject=state.run_id,
        hint=f"sudo hicachectl tune rollback {state.run_id}",
        source=state.folder,
    )
