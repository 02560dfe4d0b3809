"""The record of one run: a JSON line before and after every write, each durable before the next step.

    {"n": 2, "at": "...", "kind": "intent", "item": "thp.defrag", "target": {...}, "old": "madvise", "new": "defer"}
    {"n": 3, "at": "...", "kind": "done", "item": "thp.defrag", "result": "ok", "seen": "defer"}

Between `intent` and `done` the host holds the old or the new value; whoever reads the journal later looks which. A line
that a crash cut is recognised (it has no end) and left out; the write it was about had not begun, or is in the line before.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from hicachectl.errors import HostError, InvariantBroken, UsageError
from hicachectl.tuning.outcome import RunOutcome
from hicachectl.tuning.plan_json import target_from_json, target_to_json
from hicachectl.tuning.state import check_trusted, fsync_folder, no_room
from hicachectl.tuning.target import Target, Value

__all__ = ["Entry", "Journal", "JournalText", "Record", "RecordKind", "read_journal"]

RECORDS = "records.jsonl"
_RESERVE = "reserve"
_BYTES_A_RECORD = 2048


class RecordKind(str, Enum):
    """What a line says."""

    BEGIN = "begin"
    INTENT = "intent"
    DONE = "done"
    UNDO = "undo"
    UNDONE = "undone"
    END = "end"
    ROLLBACK = "rollback"
    ROLLBACK_END = "rollback-end"


@dataclass(frozen=True, slots=True)
class Record:
    """One line. `fields` holds what is not `n`, `at`, `kind`, `item`."""

    n: int
    at: str
    kind: RecordKind
    item: str | None
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One write of a run as its records tell it: what was there, what was written, how it ended. `result` None: not recorded."""

    item: str
    target: Target
    old: Value
    new: Value
    record: int
    wrote_at: str
    result: str | None
    undone: str | None
    """How the last attempt to put it back ended; None when there was none."""
    seen: Value | None = None
    """The value read right after our own write, as far as a record says."""
    recipe_sha256: str | None = None
    persistent: bool = False
    """Whether it survives a reboot: a file we wrote, not a register or a setting."""

    @property
    def settled(self) -> bool:
        """Whether the host is known to hold the old value: put back, or never changed. Pure."""
        kept_old = self.result in ("unsupported", "no-gain") and self.undone is None
        return self.undone in ("undone", "already") or kept_old

    @property
    def foreign(self) -> bool:
        """Whether a rollback found that somebody else had set it since: not ours to take back. Pure."""
        return self.undone == "changed-since"

    @property
    def in_place(self) -> bool:
        """Whether the host was left with the new value, on purpose. Pure."""
        return self.result == "ok" and self.undone is None

    @property
    def unsettled(self) -> bool:
        """Whether the host may hold anything: the write was not recorded as done, failed, or could not be put back. Pure."""
        return not self.settled and not self.in_place and not self.foreign


class Journal:
    """Appends to one run's records. Not thread-safe; the run's lock is held by the caller."""

    def __init__(
        self, folder: Path, *, clock: Callable[[], str], checkpoint: Callable[[str], None] = lambda step: None
    ) -> None:
        self.folder = folder
        self._clock = clock
        self._checkpoint = checkpoint
        self._path = folder / RECORDS
        self._n = len(read_journal(folder).records) if self._path.exists() else 0
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._handle = os.open(self._path, flags, 0o600)
            self._drop_torn_line()
            fsync_folder(folder)
        except OSError as error:
            raise self._refused(error) from error

    def reserve(self, n_records: int) -> None:
        """Set room aside for `n_records`, so that a full disk in the middle of a run does not stop its record. Changes the folder.

        Raises HostError when there is no room: nothing has been written to the host then.
        """
        path = self.folder / _RESERVE
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(handle, 0, max(1, n_records) * _BYTES_A_RECORD)
                os.fsync(handle)
            finally:
                os.close(handle)
            fsync_folder(self.folder)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise self._refused(error) from error

    def append(self, kind: RecordKind, item: str | None = None, **fields: Any) -> int:
        """Write one line and make file and folder durable; return its number. Changes the journal.

        Raises HostError when it cannot be made durable, leaving no half line.
        """
        n = self._n + 1
        line = (
            json.dumps({"n": n, "at": self._clock(), "kind": kind.value, "item": item, **fields}, allow_nan=False)
            + "\n"
        )
        self._checkpoint(f"before record {n}")
        try:
            self._write(line.encode())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._free_reserve():
                raise self._refused(error) from error
            try:
                self._write(line.encode())
            except OSError as again:
                raise self._refused(again) from again
        self._n = n
        self._checkpoint(f"after record {n}")
        return n

    def intent(self, item: str, target: Target, old: Value, new: Value, **more: Any) -> int:
        """Record what is about to be written, over what. Must return before the write begins."""
        return self.append(RecordKind.INTENT, item, target=target_to_json(target), old=old, new=new, **more)

    def close(self) -> str | None:
        """Give the reserve back and close the file. Never raises: what was recorded is durable; returns what went wrong."""
        try:
            self._free_reserve()
        except OSError as error:
            return f"the reserve of the journal stays: {error.strerror or error}"
        finally:
            os.close(self._handle)
        return None

    def _write(self, line: bytes) -> None:
        start = os.fstat(self._handle).st_size
        try:
            written = os.write(self._handle, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes were written")
            os.fsync(self._handle)
            fsync_folder(self.folder)
        except OSError:
            os.ftruncate(self._handle, start)
            raise

    def _free_reserve(self) -> bool:
        path = self.folder / _RESERVE
        if not path.exists():
            return False
        path.unlink()
        return True

    def _drop_torn_line(self) -> None:
        size = os.fstat(self._handle).st_size
        if size == 0:
            return
        data = os.pread(self._handle, size, 0)
        end = data.rfind(b"\n") + 1
        if end != size:
            os.ftruncate(self._handle, end)

    def _refused(self, error: OSError) -> HostError:
        return no_room("the journal", self._path, error)


@dataclass(frozen=True, slots=True)
class JournalText:
    """A journal read back. `torn` when its last line has no end."""

    records: tuple[Record, ...]
    torn: bool

    @property
    def begin(self) -> Record | None:
        """The first record, when it is there. Pure."""
        return self.records[0] if self.records and self.records[0].kind is RecordKind.BEGIN else None

    def entries(self) -> tuple[Entry, ...]:
        """Return the run's writes in order, each with how it ended. Pure."""
        found: dict[str, Entry] = {}
        tried: set[str] = set()
        for record in self.records:
            if record.item is None:
                continue
            if record.kind is RecordKind.INTENT:
                found[record.item] = Entry(
                    item=record.item,
                    target=target_from_json(record.fields["target"]),
                    old=record.fields["old"],
                    new=record.fields["new"],
                    record=record.n,
                    wrote_at=record.at,
                    result=None,
                    undone=None,
                    recipe_sha256=record.fields.get("recipe_sha256"),
                    persistent=bool(record.fields.get("persistent", False)),
                )
            elif record.item in found and record.kind in (RecordKind.DONE, RecordKind.UNDONE):
                before = found[record.item]
                result = record.fields["result"]
                done = record.kind is RecordKind.DONE
                found[record.item] = replace(
                    before,
                    result=result if done else before.result,
                    undone=before.undone if done else result,
                    seen=record.fields.get("seen") if done or record.item in tried else before.seen,
                )
                tried.discard(record.item)
            elif record.kind is RecordKind.UNDO:
                tried.add(record.item)
        return tuple(found.values())


def read_journal(folder: Path) -> JournalText:
    """Read a run's records. Reads the file, changes nothing.

    A last line without an end is left out and told by `torn`. Raises InvariantBroken with file:line for any other line
    that is not a record, or out of order: no crash of ours leaves one, so somebody changed the file. Raises UsageError for
    a file that others than root and the caller could have written: rollback writes what it says.
    """
    path = folder / RECORDS
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return JournalText((), torn=False)
    with open(handle, "rb") as file:
        check_trusted(path, os.fstat(handle))
        data = file.read()
    *lines, rest = data.split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(line, number))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
            raise InvariantBroken(
                f"not a journal record: {type(error).__name__} {error}",
                where=f"{path}:{number}",
                why="no crash leaves such a line: the file was changed",
                hint="restore the file, or put the host right by hand: the lines before it are readable",
                code="HC-STATE",
            ) from error
    return JournalText(tuple(records), torn=bool(rest))


def _record(line: bytes, number: int) -> Record:
    """Read one line, and every field that others count on. Raises ValueError, KeyError, TypeError."""
    found = json.loads(line)
    record = Record(
        n=found.pop("n"),
        at=str(found.pop("at")),
        kind=RecordKind(found.pop("kind")),
        item=found.pop("item"),
        fields=found,
    )
    if record.n != number:
        raise ValueError(f"record {record.n} on line {number}")
    if record.kind in (RecordKind.INTENT, RecordKind.DONE, RecordKind.UNDO, RecordKind.UNDONE) and not isinstance(
        record.item, str
    ):
        raise ValueError("a record of an item without its id")
    if record.kind is RecordKind.INTENT:
        target_from_json(found["target"])
        for name in ("old", "new"):
            if isinstance(found[name], bool) or not isinstance(found[name], (int, str)):
                raise ValueError(f"{name} is {found[name]!r}")
    elif record.kind in (RecordKind.DONE, RecordKind.UNDONE):
        if not isinstance(found["result"], str):
            raise ValueError(f"result is {found['result']!r}")
    elif record.kind in (RecordKind.END, RecordKind.ROLLBACK_END):
        RunOutcome(found["outcome"])
    elif record.kind is RecordKind.BEGIN and (number != 1 or type(found["n_changes"]) is not int):
        raise ValueError("the first record is not what it should be")
    return record
