"""`tune apply` and `tune rollback`: the two that write to a host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.context import Context, origin_of
from hicachectl.envelope import Result
from hicachectl.errors import ExitCode, HicacheError
from hicachectl.interrupt import asked_to_stop

if TYPE_CHECKING:
    from hicachectl.render.screen import Screen
    from hicachectl.tuning.apply import ApplyOptions
    from hicachectl.tuning.outcome import ApplyReport, ItemOutcome, RollbackReport
    from hicachectl.tuning.plan import Plan
    from hicachectl.tuning.session import Session

__all__ = ["DryRunOption", "StateDirOption", "YesOption", "apply", "rollback", "run_apply", "streams"]

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing, say what was read.")]
StateDirOption = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Where runs are recorded.", metavar="DIR", show_default="/var/lib/hicachectl"),
]


def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(readable=False, metavar="PLAN", help="A saved plan: tune plan --output-file PLAN.")],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Measure with and without each change and keep only what gains.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Stop after this change, by its id.", metavar="ID", show_default=False),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Packet order may change while a process holds an accelerator.")
    ] = False,
    after_boot: Annotated[
        bool, typer.Option("--after-boot", help="The plan may be of an earlier boot; for the unit that applies it at each.")
    ] = False,
    state_dir: StateDirOption = None,
) -> None:  # fmt: skip
    """Make the changes of a saved plan: each is recorded, written, read back; all of them stay or none does.

    Refuses a plan that this host would not get now (exit 8). A change that does not stay undoes all others (6); what
    cannot be put back is named (7). Ctrl-C puts everything back. A function that ignores its change is unsupported, and
    the rest goes on. Needs root. --prove needs torch and every accelerator behind a change's uplink: they write to host
    memory at once, with and without the change in turn, two dozen runs of half a second an uplink.
    """
    from hicachectl.tuning.apply import ApplyOptions, changes_until
    from hicachectl.tuning.plan_file import read_plan
    from hicachectl.tuning.rehearsal import rehearse_apply

    cli: Context = ctx.obj
    plan = read_plan(file)
    cli.subject = plan.id
    options = ApplyOptions(until=until, prove=prove, another_boot=after_boot)
    changes = changes_until(plan, until)
    session = cli.tune_session(state_dir, online=online or plan.choices.online)
    if dry_run:
        report = rehearse_apply(session, plan, options)
    else:
        if changes:
            if not yes:
                rehearse_apply(session, plan, options)  # nobody is asked about what would be refused
            for item in changes:
                cli.note(f"  ~ {item.id} {item.show(item.old)} -> {item.show(item.new)}")
            cli.confirm(f"Make these {len(changes)} changes of {plan.id} on {plan.about.host or 'this host'}?", yes=yes)
        with asked_to_stop() as stop:  # until the report is out: a late signal must not hide what it says
            report = run_apply(
                cli, session, plan, options, cli.output.stdout if streams(cli) else cli.output.stderr, stop
            )
            _emit_applied(cli, session, report, dry_run=False)
        return
    _emit_applied(cli, session, report, dry_run=True)


def _emit_applied(cli: Context, session: Session, report: ApplyReport, *, dry_run: bool) -> None:
    """Say how an apply ended. Its exit code is settled first: a screen that is gone hides no host between two states."""
    from hicachectl.render.tune_apply import draw_applied, draw_summary
    from hicachectl.tune_codes import apply_code
    from hicachectl.tune_data import apply_data, explained

    error = report.error()
    if error is not None:
        cli.causes.append(error.exit_code)
    if report.stopped_by is not None:
        cli.causes.append(ExitCode.INTERRUPTED if report.stopped_by == "SIGINT" else ExitCode.TERMINATED)
    data = apply_data(report, dry_run=dry_run)
    result = Result("hicachectl.tune-apply/1", data, facts=explained(data), rows="/items", exit_code=apply_code(report))

    def render(screen: Screen, _: object) -> None:
        if dry_run or screen is not cli.output.stdout:
            draw_applied(screen, report, dry_run=dry_run)
        else:
            draw_summary(screen, report)

    try:
        cli.emit(result if error is None else result.with_error(error), render=render, origin=origin_of(session.root))
    except HicacheError as unwritten:
        if error is not None:
            raise error from unwritten  # what is left on the host matters more than the screen that is full
        raise
    if error is not None:
        raise error


def rollback(
    ctx: typer.Context,
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The run to undo.", show_default="the last one in place"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also put back what somebody else has changed since.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    state_dir: StateDirOption = None,
) -> None:  # fmt: skip
    """Put back what a run recorded, the last change first. Nothing is ever rolled back without being asked.

    What somebody else changed since is left, with the reason (exit 3); --force puts it back too. Works after a crash and
    for a run of another person. Registers of an earlier boot are expired (8). What cannot be put back is named (7).
    """
    from hicachectl.render.tune_runs import draw_rollback, draw_undo
    from hicachectl.tune_data import explained, rollback_data
    from hicachectl.tuning.outcome import RunOutcome, UndoResult
    from hicachectl.tuning.rehearsal import rehearse_rollback

    cli: Context = ctx.obj
    session = cli.tune_session(state_dir, plans=False)
    foreseen = rehearse_rollback(session, run_id, force=force)
    cli.subject = foreseen.run_id
    lines = cli.output.stdout if streams(cli) else cli.output.stderr
    if dry_run:
        report = foreseen
    else:
        for undo in foreseen.items:
            draw_undo(cli.output.stderr, undo, dry_run=True)
        if foreseen.items:
            cli.confirm(f"Put these {len(foreseen.items)} values of {foreseen.run_id} back?", yes=yes)
        with asked_to_stop():  # each value is a step of its own and all of them must be tried: a signal waits
            report = session.rollback(foreseen.run_id, force=force, on_undo=lambda undo: draw_undo(lines, undo))
            if report.outcome is RunOutcome.PARTIAL:
                cli.causes.append(ExitCode.PARTIAL)  # first: a screen that is gone hides no host between two states
    for note in report.notes:
        cli.note(note)
    codes = [ExitCode.OK]
    if report.outcome is RunOutcome.PARTIAL:
        codes.append(ExitCode.PARTIAL)
    elif any(undo.result is UndoResult.CHANGED_SINCE for undo in report.items):
        codes.append(ExitCode.DIFFERS)
    data = rollback_data(report, dry_run=dry_run)
    result = Result("hicachectl.tune-rollback/1", data, facts=explained(data), exit_code=max(codes), rows="/items")
    error = None if dry_run else _left_error(report)

    def render(screen: Screen, _: object) -> None:
        draw_rollback(screen, report, items=dry_run or screen is not cli.output.stdout, dry_run=dry_run)

    try:
        cli.emit(result if error is None else result.with_error(error), render=render, origin=origin_of(session.root))
    except HicacheError as unwritten:
        if error is not None:
            raise error from unwritten  # what is left on the host matters more than the screen that is full
        raise
    if error is not None:
        raise error


def run_apply(
    cli: Context, session: Session, plan: Plan, options: ApplyOptions, screen: Screen, stop: Callable[[], str | None]
) -> ApplyReport:
    """Apply, a line a change on `screen` as it happens; `stop` names a signal. Changes the host. Raises as `Session.apply`."""
    from hicachectl.render.tune_apply import draw_outcome
    from hicachectl.tuning.apply import changes_until

    order = {item.id: number for number, item in enumerate(changes_until(plan, options.until), 1)}

    def tell(outcome: ItemOutcome) -> None:
        runs = session.state.runs()
        number = order.setdefault(outcome.item.id, len(order) + 1)
        draw_outcome(screen, outcome, number, len(order), runs[-1] if runs else None)

    report = session.apply(plan, options, on_item=tell, stop=stop)
    for note in report.notes:
        cli.note(note)
    return report


def streams(cli: Context) -> bool:
    """Whether lines go to stdout as they happen: a screen, and not one into a file."""
    return not cli.output.format.for_machines and cli.output.file is None


def _left_error(report: RollbackReport) -> Any:
    from hicachectl.errors import ApplyFailed
    from hicachectl.tuning.outcome import UndoResult

    left = [undo.id for undo in report.items if undo.result is UndoResult.LEFT]
    if not left:
        return None
    undone = [undo.id for undo in report.items if undo.result in (UndoResult.UNDONE, UndoResult.ALREADY)]
    first = next(undo for undo in report.items if undo.result is UndoResult.LEFT)
    return ApplyFailed(
        f"{', '.join(left)} could not be put back",
        applied=(),
        rolled_back=undone,
        left=left,
        where=f"run {report.run_id}",
        why=first.reason,
        hint=f"put the cause right, then: hicachectl tune rollback {report.run_id}",
    )
