"""What apply and rollback would do, without a write: for --dry-run, and for the question before the real thing. Reads only."""

from __future__ import annotations

from hicachectl.errors import PlanStale, UsageError
from hicachectl.tuning.access import read_target
from hicachectl.tuning.apply import ApplyOptions, changes_until, check_plan, unmeasured
from hicachectl.tuning.item import Item
from hicachectl.tuning.journal import Entry, read_journal
from hicachectl.tuning.outcome import ApplyReport, ItemOutcome, ItemResult, RollbackReport, RunOutcome, Undo, UndoResult
from hicachectl.tuning.plan import Plan
from hicachectl.tuning.preflight import check_writes
from hicachectl.tuning.rollback import later_run, still_in_place
from hicachectl.tuning.session import Session
from hicachectl.tuning.status import last_in_place
from hicachectl.tuning.target import agrees
from hicachectl.tuning.undo import is_ours
from hicachectl.tuning.writing import same_bits

__all__ = ["WOULD_CHANGE", "rehearse_apply", "rehearse_rollback"]

WOULD_CHANGE = "dry run: it would be written"
"""The reason of an item that the real apply would write."""


def rehearse_apply(session: Session, plan: Plan, options: ApplyOptions) -> ApplyReport:
    """Check all that apply checks and read every change's present value. Reads the host, takes no lock, writes nothing.

    Raises what `Session.apply` raises before its first write, but for a lock that is held and a state folder that is full.
    """
    session.refuse_open_run()
    check_plan(plan, session.plan(plan.choices), options, root=session.root)
    items = changes_until(plan, options.until)
    check_writes(items, root=session.root, kernel=session.kernel, refuse=session.refuse)
    return ApplyReport("", plan.id, RunOutcome.NOTHING, tuple(_foreseen(session, item, options) for item in items))


def rehearse_rollback(session: Session, run_id: str | None, *, force: bool = False) -> RollbackReport:
    """Say for each value a run left in place what rollback would do, in its order. Reads the host, writes nothing.

    UNDONE stands for what would be put back; the outcome is PARTIAL where something could not be. Raises UsageError when
    there is no such run, and PlanStale (HC-EXPIRED) when an earlier boot leaves nothing to put back, as rollback does.
    """
    states = session.states()
    if run_id is None:
        found = last_in_place(states) or (states[-1] if states else None)
        if found is None:
            raise UsageError(
                "no run is recorded here",
                where=str(session.state.journal),
                why="nothing was applied with this state folder",
                hint="hicachectl tune history, with the --state-dir that apply had",
            )
        run_id = found.run_id
    folder = session.state.folder(run_id)
    chosen = next(state for state in states if state.run_id == run_id)
    expired, newer = chosen.expired, session.newer_runs(chosen, states)
    entries = sorted(still_in_place(read_journal(folder)), key=lambda entry: entry.record, reverse=True)
    items = tuple(
        _undo(
            session, entry, expired=expired and not entry.persistent, newer=later_run(entry.target, newer), force=force
        )
        for entry in entries
    )
    if items and all(undo.result is UndoResult.EXPIRED for undo in items):
        raise PlanStale(
            f"run {run_id} was made in another boot",
            where=str(folder),
            why=f"{len(items)} values it set do not outlive a boot; what is there now was set by this boot",
            hint="hicachectl tune plan shows what differs now",
            code="HC-EXPIRED",
        )
    left = any(undo.result is UndoResult.LEFT for undo in items)
    return RollbackReport(run_id, items, RunOutcome.PARTIAL if left else RunOutcome.NOTHING)


def _foreseen(session: Session, item: Item, options: ApplyOptions) -> ItemOutcome:
    assert item.target is not None
    present = read_target(session.root, item.target)
    if present.value is None:
        return ItemOutcome(item, ItemResult.FAILED, None, f"it cannot be read: {present.reason}", None)
    if agrees(item.target, item.rule, item.wanted, present.value):
        return ItemOutcome(item, ItemResult.ALREADY, present.value, "it holds the wanted value already", None)
    why = unmeasured(item, session.measure, session.cannot_measure) if options.prove else None
    if why is not None:
        why = f"dry run: {why}; it would not be tried"
        return ItemOutcome(item, ItemResult.NOT_TRIED, present.value, why, None)
    return ItemOutcome(item, ItemResult.NOT_TRIED, present.value, WOULD_CHANGE, None)


def _undo(session: Session, entry: Entry, *, expired: bool, newer: str | None, force: bool) -> Undo:
    present = read_target(session.root, entry.target)
    result, reason = UndoResult.UNDONE, None
    if expired:
        result, reason = UndoResult.EXPIRED, "set in another boot"
    elif present.value is None:
        result, reason = UndoResult.LEFT, present.reason
    elif same_bits(entry.target, present.value, entry.old):
        result = UndoResult.ALREADY
    elif newer is not None and not force:
        result, reason = UndoResult.CHANGED_SINCE, f"run {newer} set it since: roll that one back"
    elif not force and not is_ours(entry, present.value):
        result, reason = UndoResult.CHANGED_SINCE, "neither ours nor the old value: somebody else set it"
    return Undo(entry.item, entry.target, entry.new, entry.old, present.value, result, reason)
