"""Takes back what a run wrote: recorded values, newest first, after a look whether the present value is still ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hicachectl.errors import HicacheError, PlanStale, UsageError
from hicachectl.tuning.journal import Entry, Journal, JournalText, RecordKind
from hicachectl.tuning.outcome import RollbackReport, RunOutcome, Undo, UndoResult
from hicachectl.tuning.target import Target, overlap
from hicachectl.tuning.undo import put_back
from hicachectl.tuning.writing import Hands

__all__ = ["later_run", "rollback_run", "still_in_place"]


def still_in_place(text: JournalText) -> tuple[Entry, ...]:
    """Return the writes of a run that nobody has put back yet, in the order they were made. Pure.

    A write that was begun and not recorded as done is among them: the host holds its old or its new value. What the run
    itself verified as unchanged (unsupported, no gain) is not: whatever is there now, others set.
    """
    return tuple(entry for entry in text.entries() if not entry.settled)


def rollback_run(
    run_id: str,
    text: JournalText,
    *,
    hands: Hands,
    journal: Journal | None,
    folder: str,
    boot_id: str | None,
    newer: tuple[tuple[Target, str], ...] = (),
    force: bool = False,
    about: Mapping[str, Any] | None = None,
    on_undo: Callable[[Undo], None] = lambda undo: None,
) -> RollbackReport:
    """Put back what a run left in place. Changes the host and the run's journal.

    `journal` None, or one that cannot be written: the values are put back all the same, and the report says so.

    `newer` are the targets of later runs, each with its run. An item changed since by somebody else is left with the reason, unless `force`. Values that do not outlive a boot are
    expired when the run was made in another one: the kernel and the firmware have set them anew. Raises PlanStale
    (HC-EXPIRED) when that leaves nothing to put back, UsageError for a run whose first record is missing.
    """
    begin = text.begin
    if begin is None:
        raise UsageError(
            f"run {run_id} has no first record: it wrote nothing",
            where=folder,
            why="the first record is made durable before the first write",
            hint="hicachectl tune history",
        )
    waiting = still_in_place(text)
    recorded_boot = begin.fields.get("boot_id")
    same_boot = boot_id is not None and recorded_boot == boot_id
    expired = [] if same_boot else [entry for entry in waiting if not entry.persistent]
    waiting = tuple(entry for entry in waiting if entry not in expired)
    if expired and not waiting:
        raise PlanStale(
            f"run {run_id} was made in boot {recorded_boot or 'unknown'}, this is boot {boot_id or 'unknown'}",
            where=folder,
            why=f"{len(expired)} values it set do not outlive a boot; what is there now was set by this boot",
            hint="hicachectl tune plan shows what differs now",
            code="HC-EXPIRED",
        )
    set_since = [] if force else [entry for entry in waiting if later_run(entry.target, newer) is not None]
    waiting = tuple(entry for entry in waiting if entry not in set_since)
    notes: list[str] = []
    kept = _recorded(journal, notes, lambda there: there.reserve(2 * len(waiting) + 4))
    kept = _recorded(
        kept,
        notes,
        lambda there: there.append(
            RecordKind.ROLLBACK, None, boot_id=boot_id, force=force, n_items=len(waiting), **(about or {})
        ),
    )
    undone = put_back(waiting, hands=hands, journal=kept, force=force, on_undo=on_undo)
    undone += tuple(
        Undo(
            entry.item, entry.target, entry.new, entry.old, hands.read(entry.target).value, UndoResult.CHANGED_SINCE,
            f"run {later_run(entry.target, newer)} set it since: roll that one back",
        )
        for entry in reversed(set_since)
    )  # fmt: skip
    undone += tuple(
        Undo(entry.item, entry.target, entry.new, entry.old, None, UndoResult.EXPIRED, "set in another boot")
        for entry in reversed(expired)
    )
    left = [undo.id for undo in undone if undo.result is UndoResult.LEFT]
    changed = [undo.id for undo in undone if undo.result is UndoResult.CHANGED_SINCE]
    outcome = RunOutcome.PARTIAL if left else RunOutcome.ROLLED_BACK
    if changed and len(changed) == len(undone):
        outcome = RunOutcome.NOTHING
    _recorded(
        kept,
        notes,
        lambda there: there.append(
            RecordKind.ROLLBACK_END, None, outcome=outcome.value, left=left, changed_since=changed
        ),
    )
    return RollbackReport(run_id, undone, outcome, tuple(notes))


def later_run(target: Target, newer: tuple[tuple[Target, str], ...]) -> str | None:
    """Return the later run that set bits of a target, None where none did. Pure."""
    return next((run_id for other, run_id in newer if overlap(target, other)), None)


def _recorded(journal: Journal | None, notes: list[str], step: Callable[[Journal], object]) -> Journal | None:
    """Record a step; a journal that cannot be written is noted and given up, for the host matters more than its record."""
    if journal is None:
        return None
    try:
        step(journal)
    except HicacheError as error:
        notes.append(f"not recorded: {error.what}")
        return None
    return journal
