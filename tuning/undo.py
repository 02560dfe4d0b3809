"""Puts recorded values back, newest first: the one way both a failed apply and `tune rollback` undo. Each write is recorded before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hicachectl.errors import HicacheError
from hicachectl.tuning.host.pcie_caps import GONE
from hicachectl.tuning.item import ReadBack
from hicachectl.tuning.journal import Entry, Journal, RecordKind
from hicachectl.tuning.outcome import Undo, UndoResult
from hicachectl.tuning.target import show_value
from hicachectl.tuning.writing import Hands, Stuck, same_bits, whole

__all__ = ["put_back"]

_READ_BACK = ReadBack()


def put_back(
    entries: Iterable[Entry],
    *,
    hands: Hands,
    journal: Journal | None,
    force: bool = False,
    at_once: bool = False,
    on_undo: Callable[[Undo], None] = lambda undo: None,
) -> tuple[Undo, ...]:
    """Put every entry's old value back, last write first, and read it back. Changes the host and the journal.

    What holds the old value already is left; what holds neither ours nor the old one was changed since by somebody else
    and is left too, unless `force`. Never stops at a failure: the rest is put back all the same, and each says how it
    ended. `at_once` is for the run that made the writes a moment ago: it forces, and puts back whole registers, for bits of
    others that changed with our write are its doing too; later only our bits are put back. `journal` None or full: the value is put back without a record, for the host matters more than the record.
    """
    found = []
    for entry in sorted(entries, key=lambda entry: entry.record, reverse=True):
        undo = _one(entry, hands, journal, force or at_once, at_once)
        found.append(undo)
        on_undo(undo)
    return tuple(found)


def _one(entry: Entry, hands: Hands, journal: Journal | None, force: bool, at_once: bool) -> Undo:
    target = entry.target

    def ended(result: UndoResult, present: object, reason: str | None = None) -> Undo:
        value = present if isinstance(present, (int, str)) else None
        unrecorded = _note(journal, RecordKind.UNDONE, entry.item, result=result.value, seen=value, reason=reason)
        return Undo(entry.item, target, entry.new, entry.old, value, result, reason or unrecorded)

    present = hands.read(target)
    if present.value is None:
        why = present.reason or "it cannot be read"
        return ended(UndoResult.LEFT, None, f"device gone: {why}" if why == GONE else why)
    if present.value == entry.old if at_once else same_bits(target, present.value, entry.old):
        return ended(UndoResult.ALREADY, present.value)
    if not force and not same_bits(target, present.value, entry.new):
        reason = (
            f"holds {show_value(target, present.value)}, neither ours ({show_value(target, entry.new)}) "
            f"nor the old value ({show_value(target, entry.old)}): changed since"
        )
        return ended(UndoResult.CHANGED_SINCE, present.value, reason)
    value = entry.old if at_once else whole(target, present.value, entry.old)
    _note(journal, RecordKind.UNDO, entry.item, old=present.value, new=value)
    try:
        hands.write(target, value)
    except OSError as error:
        return ended(UndoResult.LEFT, present.value, f"the write was refused: {error.strerror or error}")
    back = hands.read_back(target, _READ_BACK, old=present.value, new=value)
    if back.stuck is Stuck.YES:
        return ended(UndoResult.UNDONE, back.seen)
    return ended(UndoResult.LEFT, back.seen, back.reason)


def _note(journal: Journal | None, kind: RecordKind, item: str, **fields: object) -> str | None:
    """Record, or say why that was not possible."""
    if journal is None:
        return "not recorded"
    try:
        journal.append(kind, item, **fields)
    except HicacheError as error:
        return f"put back without a record: {error.what}"
    return None
