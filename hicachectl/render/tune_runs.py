"""The screens of what was done to a host and undone: status, history, rollback."""

from __future__ import annotations

from collections.abc import Sequence

from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.render.tune_words import hang, short_id
from hicachectl.tuning.outcome import RollbackReport, RunOutcome, RunState, Undo, UndoResult
from hicachectl.tuning.status import last_in_place
from hicachectl.tuning.target import show_value

__all__ = ["draw_history", "draw_rollback", "draw_status", "draw_undo", "run_words"]

_UNDO_WORDS = {
    UndoResult.UNDONE: "undone",
    UndoResult.ALREADY: "already",
    UndoResult.CHANGED_SINCE: "skipped",
    UndoResult.EXPIRED: "expired",
    UndoResult.LEFT: "LEFT",
}
_WIDTH = max(map(len, _UNDO_WORDS.values()))
_STYLES = {UndoResult.UNDONE: "ok", UndoResult.CHANGED_SINCE: "warn", UndoResult.LEFT: "error"}


def run_words(state: RunState) -> str:
    """How a run stands, in a sentence. Pure."""
    if state.expired and state.outcome is RunOutcome.APPLIED:
        return f"applied in boot {short_id(state.boot_id)}; registers and settings of it did not outlive that boot"
    if state.outcome is RunOutcome.APPLIED:
        rest = state.n_in_place
        return f"{rest} of {state.n_changes} changes in place"
    return state.reason or state.outcome.value


def draw_status(
    screen: Screen,
    host: str | None,
    boot_id: str | None,
    folder: str,
    states: Sequence[RunState],
    busy: str | None = None,
) -> None:
    """Draw what is in place on this boot, by whom, and what was cut short; runs that are over are in the history.

    `busy` names who is at work now.
    """
    screen.print(f"TUNE  host {host or '?'}  boot {short_id(boot_id)}  {len(states)} runs in {folder}", "bold")
    if busy:
        screen.paragraph("  ", f"an apply or rollback is at work, {busy}", "warn")
    current = last_in_place(tuple(states))
    if current is None:
        last = f"; last run {states[-1].run_id}: {run_words(states[-1])}" if states else ""
        screen.paragraph("  ", f"nothing of tune is in place on this boot{last}")
        return
    for state in states:
        if not state.holds:
            continue
        hang(
            screen,
            f"  {state.run_id}  ",
            f"{run_words(state)}, plan {state.plan_id}, by {state.who}, {state.began_at}",
            "error" if state.between else None,
        )
    if busy:
        screen.print("Next: wait for it, then hicachectl tune status")
    elif not current.between:
        screen.print(f"Next: hicachectl tune verify   undo: sudo hicachectl tune rollback {current.run_id}")
    else:
        screen.print(f"Next: sudo hicachectl tune rollback {current.run_id}")


def draw_history(screen: Screen, folder: str, states: Sequence[RunState]) -> None:
    """Draw every run, newest first."""
    screen.print(f"HISTORY  {len(states)} runs in {folder}", "bold")
    if not states:
        return
    columns = (
        Column("RUN"), Column("OUTCOME"), Column("APPLIED", right=True), Column("UNDONE", right=True), Column("BEGAN"),
        Column("BY", keep=1), Column("PLAN", keep=2), Column("BOOT", keep=3), Column("ENDED", wide=True, keep=4), Column("FOLDER", wide=True, keep=5),
    )  # fmt: skip
    rows = [
        (
            s.run_id, s.outcome.value, f"{s.n_applied}/{s.n_changes}", str(s.n_undone), s.began_at, s.who, s.plan_id,
            short_id(s.boot_id) + (" (other)" if s.expired else ""), s.ended_at, s.folder,
        )
        for s in reversed(states)
    ]  # fmt: skip
    screen.table(Table(columns, rows))
    for state in reversed(states):
        if state.reason:
            screen.paragraph(f"  {state.run_id}  ", state.reason)


def draw_undo(screen: Screen, undo: Undo, *, dry_run: bool = False) -> None:
    """Draw how one value was put back, or what would be done."""
    word = "would undo" if dry_run and undo.result is UndoResult.UNDONE else _UNDO_WORDS[undo.result]
    label = f"{word:<{len('would undo') if dry_run else _WIDTH}} "
    present, recorded = show_value(undo.target, undo.present), show_value(undo.target, undo.recorded)
    ours = show_value(undo.target, undo.ours)
    changed = f"{ours} -> {recorded}" if undo.result is UndoResult.UNDONE else f"reads {present}, recorded {recorded}"
    screen.paragraph(label, f"{undo.id} {changed}", _STYLES.get(undo.result))
    if undo.reason:
        screen.paragraph(" " * len(label), undo.reason)


def draw_rollback(screen: Screen, report: RollbackReport, *, items: bool, dry_run: bool = False) -> None:
    """Draw the summary, below every value where `items` asks for them."""
    if items:
        for undo in report.items:
            draw_undo(screen, undo, dry_run=dry_run)
    counts = ", ".join(
        f"{n} {_UNDO_WORDS[result].lower()}" for result in UndoResult if (n := sum(u.result is result for u in report.items))
    )  # fmt: skip
    head = "dry run, nothing was written" if dry_run else report.outcome.value
    screen.print(f"ROLLBACK {report.run_id}  {head}  {counts or 'nothing to put back'}", "bold")
    if any(undo.result is UndoResult.CHANGED_SINCE for undo in report.items):
        screen.paragraph(
            "  ", f"somebody else set the skipped ones since; to put those back too: hicachectl tune rollback {report.run_id} --force"
        )  # fmt: skip
    if report.outcome is RunOutcome.PARTIAL:
        screen.print("  This host is between two states: what is LEFT could not be put back.", "error")
