"""The record of a sizing run: a JSON line before and after every step, durable before the next one, so that a killed run goes on.

    {"kind": "begin", "asked": {...}}                what was asked for: a run is only continued by the same question
    {"kind": "step", "pages": 50092}                 about to be tried
    {"kind": "done", "pages": 50092, "trial": {...}}
    {"kind": "end", "ended": "plateau confirmed"}
    {"kind": "stage", "name": "copy backend", "trial": {...}}   a replay beside the steps

Pools are memory of the process alone, so a killed run leaves this folder and nothing else.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicachectl.errors import UsageError
from hicachectl.tuning.state import fsync_folder, no_room

__all__ = ["JOURNAL_FILE", "SizeJournal", "SizeRecords", "read_size_journal"]

_RUN = re.compile(r"s-([0-9]{4,9})")
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


class SizeJournal:
    """Appends to one run's records. Made by `begin` or `resume`; not thread-safe."""

    def __init__(self, run_id: str, folder: Path) -> None:
        self.id = run_id
        self.folder = folder
        self._path = folder / JOURNAL_FILE

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
        journal = cls(folder.name, folder)
        journal.append("begin", asked=asked)
        return journal

    def append(self, kind: str, **fields: Any) -> None:
        """Write one line and make it durable. Changes the journal. Raises HostError when it cannot."""
        line = json.dumps({"kind": kind, **fields}, allow_nan=False).encode() + b"\n"
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                size = os.fstat(handle).st_size
                end = os.pread(handle, size, 0).rfind(b"\n") + 1
                if end != size:
                    os.ftruncate(handle, end)  # a line that a kill cut
                os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
            fsync_folder(self.folder)
        except OSError as error:
            raise no_room("the journal", self._path, error) from error


def read_size_journal(state: Path, run_id: str | None = None) -> SizeRecords:
    """Read a run's records, the newest one's when no id is given. Changes nothing.

    A last line without an end is left out. Raises UsageError where there is no such run or its first record is cut.
    """
    runs = sorted((p.name for p in state.iterdir() if _RUN.fullmatch(p.name)), key=_number) if state.is_dir() else []
    chosen = run_id if run_id is not None else (runs[-1] if runs else None)
    if chosen is None or chosen not in runs:
        raise UsageError(
            f"there is no sizing run {run_id or ''}".rstrip(),
            where=str(state),
            why=f"runs recorded here: {', '.join(runs[-5:]) or 'none'}",
            hint="start one without --resume",
        )
    lines = (
        (state / chosen / JOURNAL_FILE).read_bytes().split(b"\n")[:-1]
        if (state / chosen / JOURNAL_FILE).exists()
        else []
    )
    records = [json.loads(line) for line in lines]
    if not records or records[0].get("kind") != "begin":
        raise UsageError(
            f"{chosen} was killed before its first record", where=str(state / chosen), hint="start a new one"
        )
    done = {record["pages"]: record["trial"] for record in records if record["kind"] == "done"}
    stages = {record["name"]: record["trial"] for record in records if record["kind"] == "stage"}
    steps = [record for record in records if record["kind"] in ("step", "done", "failed", "end")]
    ended = steps[-1]["ended"] if steps and steps[-1]["kind"] == "end" else None
    begun = [record["pages"] for record in steps if record["kind"] == "step"]
    cut = next((pages for pages in reversed(begun) if pages not in done), None) if ended is None else None
    return SizeRecords(chosen, state / chosen, records[0]["asked"], done, cut, ended, stages)


def _number(name: str) -> int:
    match = _RUN.fullmatch(name)
    return int(match[1]) if match else 0
