"""What the journals say of this host: each run, how it ended, what of it is in place."""

from __future__ import annotations

from collections.abc import Callable

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.journal import Entry, JournalText, RecordKind, read_journal
from hicachectl.tuning.lock import LockHolder
from hicachectl.tuning.outcome import ItemResult, RunOutcome, RunState
from hicachectl.tuning.state import StateDir
from hicachectl.tuning.target import Target, Value, show_value
from hicachectl.tuning.writing import same_bits

Read = Callable[[Target], Fact[Value]]

__all__ = ["last_in_place", "run_states"]


def run_states(
    state: StateDir, *, boot_id: str | None, at_work: LockHolder | None = None, read: Read | None = None
) -> tuple[RunState, ...]:
    """Read every run, oldest first. Reads the state folder, changes nothing.

    `read` reads a target, to say which value an unfinished write left. `at_work` is who holds the lock: then the run that
    process began is going on, not cut. A journal that somebody changed is a run of outcome interrupted with the reason,
    never left out. Raises PermissionDenied and UsageError for the folder itself.
    """
    found = []
    for run_id in state.runs():
        folder = state.folder(run_id)
        try:
            text = read_journal(folder)
        except (InvariantBroken, UsageError) as error:
            found.append(
                RunState(
                    run_id, "?", RunOutcome.INTERRUPTED, "?", None, "?", None, expired=False, n_changes=0, n_applied=0,
                    n_undone=0, open_item=None, torn=False, folder=str(folder), readable=False,
                    reason=f"its journal cannot be followed: {error}",
                )
            )  # fmt: skip
            continue
        found.append(_state(run_id, text, str(folder), boot_id, at_work, read))
    return tuple(found)


def last_in_place(states: tuple[RunState, ...]) -> RunState | None:
    """Return the newest run that has something in place on this boot, or was cut short; None where there is none. Pure."""
    for state in reversed(states):
        if state.holds:
            return state
    return None


def _state(
    run_id: str, text: JournalText, folder: str, boot_id: str | None, at_work: LockHolder | None, read: Read | None
) -> RunState:
    begin = text.begin
    entries = text.entries()
    ends = [r for r in text.records if r.kind in (RecordKind.END, RecordKind.ROLLBACK_END)]
    rollbacks = [r for r in text.records if r.kind is RecordKind.ROLLBACK]
    finished = bool(ends) and (not rollbacks or ends[-1].n > rollbacks[-1].n)
    applied = [e for e in entries if e.result == ItemResult.OK.value]
    undone = [e for e in applied if e.undone in ("undone", "already")]
    waiting = [e for e in entries if e.result is None and e.undone is None]
    recorded_boot = None if begin is None else begin.fields.get("boot_id")
    outcome = RunOutcome(ends[-1].fields["outcome"]) if finished else RunOutcome.INTERRUPTED
    reason = None
    if begin is None:
        outcome, reason = RunOutcome.NOTHING, "it ended before its first record: nothing was written"
    elif (
        not finished
        and at_work is not None
        and at_work.pid in (begin.fields.get("pid"), *(r.fields.get("pid") for r in rollbacks))
    ):
        reason = f"at work now: {at_work.text}"
    elif not finished and not entries:
        reason = "it was cut before its first write: nothing was written"
    elif not finished and rollbacks:
        reason = f"its rollback was cut: {len(undone)} of {len(applied)} changes were put back"
    elif not finished and waiting:
        reason = f"it was cut at {waiting[-1].item}: {_holds(waiting[-1], read)}"
    elif not finished:
        reason = "it was cut between two changes"
    elif any(e.unsettled for e in entries):
        reason = "not put back: " + ", ".join(e.item for e in entries if e.unsettled)
    who = "?" if begin is None else str(begin.fields.get("who", "?"))
    return RunState(
        run_id=run_id,
        plan_id="?" if begin is None else str(begin.fields.get("plan")),
        outcome=outcome,
        began_at="?" if begin is None else begin.at,
        ended_at=ends[-1].at if finished else None,
        who=who,
        boot_id=recorded_boot,
        expired=boot_id is None or recorded_boot != boot_id,
        n_changes=0 if begin is None else int(begin.fields.get("n_changes", 0)),
        n_applied=len(applied),
        n_undone=len(undone),
        open_item=waiting[-1].item if waiting else None,
        torn=text.torn,
        folder=folder,
        reason=reason,
        n_in_place=sum(e.in_place for e in entries),
        n_unsettled=sum(e.unsettled for e in entries),
        n_persistent_unsettled=sum(e.persistent and e.unsettled for e in entries),
        n_persistent=sum(e.persistent and not e.settled for e in entries),
    )


def _holds(entry: Entry, read: Read | None) -> str:
    """Say which of the two values an unfinished write left."""
    fact = None if read is None else read(entry.target)
    old, new = show_value(entry.target, entry.old), show_value(entry.target, entry.new)
    if fact is None:
        return f"the host holds the old {old} or the new {new}"
    if fact.value is None:
        return f"the host holds the old {old} or the new {new}, it cannot be read: {fact.reason}"
    if same_bits(entry.target, fact.value, entry.new):
        return f"the host holds the new {new} (was {old})"
    if same_bits(entry.target, fact.value, entry.old):
        return f"the host holds the old {old} ({new} was not written)"
    return f"the host holds {show_value(entry.target, fact.value)}, neither the old {old} nor the new {new}"
