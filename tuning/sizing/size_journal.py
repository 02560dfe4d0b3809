"""The record of a sizing run: a JSON line before and after every step, durable before the next one, so that a killed run goes on.

    {"kind": "begin", "asked": {...}}                what was asked for: a run is only continued by the same question
    {"kind": "step", "pages": 50092}                 about to be tried
    {"kind": "done", "pages": 50092, "trial": {...}}
    {"kind": "end", "ended": "plateau confirmed"}
    {"kind": "stage", "name": "copy backend", "trial": {...}}   a replay beside the steps
    {"kind": "storage", "folder": "/disk/hicachectl-5d1e07ab93c2f418-l3", "marker": "..."}   before that folder is made
    {"kind": "config", "path": "/x/hicache.yaml", "sha256": "..."}   before that file is written

and in each `"seal": "..."` at its end (`journal_lines`): a line that was edited is refused, not taken for a measurement.
Pools are memory of the process alone, so a killed run leaves this folder and, of steps on a storage tier, the folder
that it recorded. Whoever appends holds the folder's lock, which the kernel drops with the process.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hicachectl.errors import UsageError
from hicachectl.tuning.lock import locked
from hicachectl.tuning.sizing.journal_lines import JournalLine, bad_line, read_lines, sealed
from hicachectl.tuning.sizing.trial_record import trial_of
from hicachectl.tuning.sizing.whole_lines import whole_bytes, write_all
from hicachectl.tuning.state import fsync_folder, no_room

__all__ = [
    "JOURNAL_FILE",
    "LeftFolder",
    "SizeJournal",
    "SizeRecords",
    "config_digests",
    "read_size_journal",
    "run_ids",
    "storage_records",
]

_RUN = re.compile(r"s-([0-9]{4,9})", re.ASCII)
_STEPS = ("step", "done", "failed", "end")
JOURNAL_FILE = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class SizeRecords:
    """A journal read back: what was asked, the trials that were finished, the step that was cut short, and how it ended.

    `stages` are the finished replays beside the steps, by name.
    """

    id: str
    folder: Path
    asked: dict[str, Any]
    done: dict[int, dict[str, Any]]
    cut: int | None
    ended: str | None
    stages: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """A storage tier that a run recorded before it made it."""

    path: Path
    marker: str


class SizeJournal:
    """Appends to one run's records, whose lock it holds until `close`. Made by `begin`, `go_on` or `held`; not thread-safe."""

    def __init__(self, run_id: str, folder: Path, lock: int) -> None:
        self.id = run_id
        self.folder = folder
        self._path = folder / JOURNAL_FILE
        self._lock: int | None = lock

    @classmethod
    def held(cls, folder: Path) -> SizeJournal:
        """Take the lock of a run's folder. Changes: writes the holder beside the journal. Raises PlanStale (HC-LOCKED) naming who has it."""
        lock = locked(
            folder / "lock", who="tune size", pid=os.getpid(), clock_text=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            what=f"{folder.name} is at work", hint="wait for it, or start another run without --resume", sleep=time.sleep,
        )  # fmt: skip
        return cls(folder.name, folder, lock)

    @classmethod
    def go_on(cls, state: Path, run_id: str | None = None) -> tuple[SizeJournal, SizeRecords]:
        """Take the lock of a run, the newest one without an id, and read it back. Raises as `held` and `read_size_journal`."""
        journal = cls.held(state / _chosen(state, run_id))
        try:
            return journal, read_size_journal(state, journal.id)
        except BaseException:
            journal.close()
            raise

    def close(self) -> None:
        """Give the lock back; may be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    @classmethod
    def begin(cls, state: Path, asked: dict[str, Any]) -> SizeJournal:
        """Make the next run's folder and record what was asked. Changes `state`. Raises HostError when it cannot be written."""
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = max((_number(path.name) for path in state.iterdir()), default=0)
            while True:
                number += 1
                folder = state / f"s-{number:04d}"
                try:
                    folder.mkdir(mode=0o700)
                except FileExistsError:
                    continue
                fsync_folder(state)
                break
        except OSError as error:
            raise no_room("the state folder", state, error) from error
        journal = cls.held(folder)
        try:
            journal.append("begin", asked=asked)
        except BaseException:
            journal.close()
            raise
        return journal

    def append(self, kind: str, **fields: Any) -> None:
        """Write one line and make it durable. Changes the journal. Raises HostError when it cannot."""
        line = sealed(json.dumps({"kind": kind, **fields}, allow_nan=False).encode()) + b"\n"
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.ftruncate(handle, whole_bytes(handle))  # a line that a kill cut
                write_all(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
            fsync_folder(self.folder)
        except OSError as error:
            raise no_room("the journal", self._path, error) from error


def read_size_journal(state: Path, run_id: str | None = None) -> SizeRecords:
    """Read a run's records, the newest one's when no id is given. Changes nothing.

    A last line without an end is left out. Raises UsageError where there is no such run, its first record is cut, or a
    line is not one that a sizing writes.
    """
    folder = state / _chosen(state, run_id)
    lines = read_lines(folder / JOURNAL_FILE)
    if not lines or lines[0].kind != "begin":
        raise UsageError(f"{folder.name} was killed before its first record", where=str(folder), hint="start a new one")
    asked: dict[str, Any] = lines[0].field("asked", dict)
    done = _trials(lines, "done", JournalLine.pages)
    stages = _trials(lines, "stage", lambda line: str(line.field("name", str)))
    steps = [line for line in lines if line.kind in _STEPS]
    ended = steps[-1].field("ended", str) if steps and steps[-1].kind == "end" else None
    begun = [line.pages() for line in steps if line.kind == "step"]
    cut = next((pages for pages in reversed(begun) if pages not in done), None) if ended is None else None
    return SizeRecords(folder.name, folder, asked, done, cut, ended, stages)


def run_ids(state: Path) -> list[str]:
    """List the runs recorded in a state folder, the oldest first. Changes nothing."""
    return sorted((p.name for p in state.iterdir() if _RUN.fullmatch(p.name)), key=_number) if state.is_dir() else []


def storage_records(folder: Path) -> list[LeftFolder]:
    """Return the storage tiers that a run recorded. Changes nothing. Raises UsageError for a journal that is none.

    Seals are not asked for: what may be removed is told by the marker in the folder.
    """
    return [
        LeftFolder(Path(line.field("folder", str)), line.field("marker", str))
        for line in read_lines(folder / JOURNAL_FILE, with_seals=False)
        if line.kind == "storage"
    ]


def config_digests(state: Path, path: Path) -> set[str]:
    """Return the SHA-256 of each configuration that the newest run wrote to `path`, or was about to write when it was killed.

    Changes nothing. Raises UsageError where there is no run, or for an edited journal.
    """
    lines = read_lines(state / _chosen(state, None) / JOURNAL_FILE)
    found = [line for line in lines if line.kind == "config" and line.field("path", str) == str(path)]
    return {str(line.field("sha256", str)) for line in found}


def _chosen(state: Path, run_id: str | None) -> str:
    runs = run_ids(state)
    chosen = run_id if run_id is not None else (runs[-1] if runs else None)
    if chosen is None or chosen not in runs:
        raise UsageError(
            f"there is no sizing run {run_id or ''}".rstrip(),
            where=str(state),
            why=f"runs recorded here: {', '.join(runs[-5:]) or 'none'}",
            hint="start one without --resume",
        )
    return chosen


def _trials(lines: list[JournalLine], kind: str, key: Callable[[JournalLine], Any]) -> dict[Any, dict[str, Any]]:
    """The trials of one kind, each checked to be one."""
    found = {}
    for line in lines:
        if line.kind == kind:
            trial = line.field("trial", dict)
            try:
                trial_of(trial)
            except ValueError as error:
                raise bad_line(line.where, f"trial: {error}") from error
            found[key(line)] = trial
    return found


def _number(name: str) -> int:
    match = _RUN.fullmatch(name)
    return int(match[1]) if match else 0
