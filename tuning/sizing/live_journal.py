"""What a sizing on live traffic records beside its steps, so that a killed one goes on: where its window stands, then what it found.

{"kind": "begin", "asked": {"live": "server.log", "window": "10m", ...}}
{"kind": "collected", "window_bytes": 81920, "requests": 212, "elapsed_s": 30.1, "position": {...}}
{"kind": "window", "file": "window.jsonl", "bytes": 81920, "sha256": "...", ...}   the window is complete
{"kind": "sized", "asked": {...}}                                      what was predicted from it
{"kind": "done", "pages": 50092, "trial": {...}, "live": {...}, "gain": 0.002}
{"kind": "drift", "file": "window-2.jsonl", ...}                       from here on another window; `sized` again
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hicachectl.errors import UsageError
from hicachectl.tuning.sizing.from_record import from_record
from hicachectl.tuning.sizing.journal_lines import JournalLine, bad_line, read_lines
from hicachectl.tuning.sizing.live_judge import LiveStep
from hicachectl.tuning.sizing.size_journal import JOURNAL_FILE, SizeJournal
from hicachectl.tuning.sizing.trial_record import trial_of

__all__ = ["LiveRecords", "read_live_records"]


@dataclass(slots=True)
class LiveRecords:
    """A journal read back. `done` are the steps since the last drift, by their pages."""

    asked: dict[str, Any]
    collected: dict[str, Any] | None = None
    window: dict[str, Any] | None = None
    sized: dict[str, Any] | None = None
    drift: dict[str, Any] | None = None
    done: dict[int, dict[str, Any]] = field(default_factory=dict)


def read_live_records(journal: SizeJournal) -> LiveRecords:
    """Read the records of a run. Changes nothing. Raises UsageError for a run that was not live, or a line that a sizing does not write."""
    found: LiveRecords | None = None
    for line in read_lines(journal.folder / JOURNAL_FILE):
        kind = line.kind
        if kind == "begin":
            found = LiveRecords(line.field("asked", dict))
        if found is None or "live" not in found.asked:
            break
        if kind == "collected":
            found.collected = _checked(line, window_bytes=int, requests=int, elapsed_s=float)
        elif kind == "window":
            found.window = _checked(line, file=str, requests=int, seconds=float, bytes=int, sha256=str, partial=bool)
        elif kind == "drift":
            found.drift = _checked(line, file=str, drift=dict, bytes=int, sha256=str)
            found.sized, found.done = None, {}
        elif kind == "sized":
            found.sized = line.field("asked", dict)
        elif kind == "done":
            found.done[line.pages()] = _step(line)
    if found is None or "live" not in found.asked:
        raise UsageError(
            f"{journal.id} was not sized on live traffic", where=str(journal.folder),
            hint="give the options of that run, or start a new one without --resume",
        )  # fmt: skip
    return found


def _checked(line: JournalLine, **fields: type) -> dict[str, Any]:
    for name, kind in fields.items():
        line.field(name, kind)
    return line.record


def _step(line: JournalLine) -> dict[str, Any]:
    line.field("gain", float)
    try:
        trial_of(line.field("trial", dict))
        from_record(LiveStep, line.field("live", dict))
    except ValueError as error:
        raise bad_line(line.where, str(error)) from error
    return line.record
