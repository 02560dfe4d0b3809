"""Puts recorded values back, newest first: the one way both a failed apply and `tune rollback` undo. Each write is recorded before it is made.

Whose value is it that is there now? Ours, when it is the one we wrote, or the one a record says was read after our write
(a field may take only some of its bits), or a register whose write was cut in the middle. Anything else somebody set
since, and what a rollback once left as such stays theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hicachectl.errors import HicacheError
from hicachectl.tuning.host.pcie_caps import GONE
from hicachectl.tuning.item import ReadBack
from hicachectl.tuning.journal import Entry, Journal, RecordKind
from hicachectl.tuning.outcome import Undo, UndoResult
from hicachectl.tuning.target import Value, show_value
from hicachectl.tuning.writing import Hands, Stuck, same_bits, whole

__all__ = ["is_ours", "put_back"]

_READ_BACK = ReadBack()


def put_back(
    entries: Iterable[Entry],
    *,
    hands: Hands,
    journal: Journal | None,
    force: bool = False,
    on_undo: Callable[[Undo], None] = lambda undo: None,
) -> tuple[Undo, ...]:
    """Put every entry's old value back, last write first, and read it back. Changes the host and the journal.

    What holds the old value already is left; what somebody else changed since is left too, unless `force`. Nothing stops
    it: neither a refused write, nor a bug of an access, nor an `on_undo` whose screen went away; each says how it ended.
    `journal` None or full: the value is put back without a record, for the host matters more than the record.
    """
    found = []
    for entry in sorted(entries, key=lambda entry: entry.record, reverse=True):
        try:
            undo = _one(entry, hands, journal, force)
        except Exception as error:  # noqa: BLE001 - the others must be put back all the same
            undo = Undo(
                entry.item,
                entry.target,
                entry.new,
                entry.old,
                None,
                UndoResult.LEFT,
                f"{type(error).__name__}: {error}",
            )
            _note(journal, RecordKind.UNDONE, entry.item, result=undo.result.value, seen=None, reason=undo.reason)
        try:
            on_undo(undo)
        except BaseException as error:  # noqa: BLE001 - a closed pipe; what it would have shown is in the report
            silent = f"it could not be shown: {error}"
            undo = Undo(
                undo.id, undo.target, undo.ours, undo.recorded, undo.present, undo.result,
                f"{undo.reason}; {silent}" if undo.reason else silent,
            )  # fmt: skip
        found.append(undo)
    return tuple(found)


def _one(entry: Entry, hands: Hands, journal: Journal | None, force: bool) -> Undo:
    target = entry.target

    def ended(result: UndoResult, present: Value | None, reason: str | None = None) -> Undo:
        unrecorded = _note(journal, RecordKind.UNDONE, entry.item, result=result.value, seen=present, reason=reason)
        return Undo(entry.item, target, entry.new, entry.old, present, result, reason or unrecorded)

    present = hands.read(target)
    if present.value is None:
        why = present.reason or "it cannot be read"
        return ended(UndoResult.LEFT, None, f"device gone: {why}" if why == GONE else why)
    now = present.value
    spoilt = _spoilt(entry, now)
    if same_bits(target, now, entry.old) and not spoilt:
        return ended(UndoResult.ALREADY, now, _foreign_bits(entry, now))
    if not force and not is_ours(entry, now):
        reason = (
            f"holds {show_value(target, now)}, neither ours ({show_value(target, entry.new)}) "
            f"nor the old value ({show_value(target, entry.old)}): changed since"
        )
        return ended(UndoResult.CHANGED_SINCE, now, reason)
    value = entry.old if spoilt else whole(target, now, entry.old)
    _note(journal, RecordKind.UNDO, entry.item, old=now, new=value)
    try:
        hands.write(target, value)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ended(UndoResult.LEFT, now, f"the write was refused: {words}")
    back = hands.read_back(target, _READ_BACK, old=now, new=value)
    if back.stuck is Stuck.YES:
        return ended(UndoResult.UNDONE, back.seen, _foreign_bits(entry, back.seen))
    return ended(UndoResult.LEFT, back.seen, back.reason)


def is_ours(entry: Entry, now: Value) -> bool:
    """Say whether the value that is there is this run's doing. Pure."""
    target = entry.target
    if same_bits(target, now, entry.new):
        return True
    if not entry.unsettled:
        return False
    if entry.seen is not None:
        return same_bits(target, now, entry.seen)
    return target.register is not None and entry.result is None and entry.undone is None


def _spoilt(entry: Entry, now: Value) -> bool:
    """Whether our write changed bits of others, and they are as they were read right after it: then the whole register goes back."""
    register = entry.target.register
    if register is None or not entry.unsettled or not isinstance(now, int) or not isinstance(entry.old, int):
        return False
    return now == entry.seen and (now ^ entry.old) & ~register.mask & ~register.never != 0


def _foreign_bits(entry: Entry, now: Value | None) -> str | None:
    """Say that bits outside the mask differ from those before the run: ours or a driver's, nobody can tell later."""
    register = entry.target.register
    if register is None or not isinstance(now, int) or not isinstance(entry.old, int) or not entry.unsettled:
        return None
    if (now ^ entry.old) & ~register.mask & ~register.never == 0:
        return None
    was, is_now = show_value(entry.target, entry.old), show_value(entry.target, now)
    return f"bits that are not ours differ from those before the run: {was} then, {is_now} now"


def _note(journal: Journal | None, kind: RecordKind, item: str, **fields: object) -> str | None:
    """Record, or say why that was not possible."""
    if journal is None:
        return "put back without a record"
    try:
        journal.append(kind, item, **fields)
    except HicacheError as error:
        return f"put back without a record: {error.what}"
    return None
