"""What a sizing on live traffic records beside its steps, so that a killed one goes on: where its window stands, then what it found.

{"kind": "begin", "asked": {"live": "server.log", "window": "10m", ...}}
{"kind": "collected", "window_bytes": 81920, "requests": 212, "elapsed_s": 30.1, "position": {...}}
{"kind": "window", "file": "window.jsonl", "requests": 4012, ...}      the window is complete
{"kind": "sized", "asked": {...}}                                      what was predicted from it
{"kind": "done", "pages": 50092, "trial": {...}, "live": {...}, "gain": 0.002}
{"kind": "drift", "file": "window-2.jsonl", ...}                       from here on another window; `sized` again
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hicachectl.errors import UsageError
from hicachectl.tuning.sizing.size_journal import JOURNAL_FILE, SizeJournal

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
    """Read the records of a run. Changes nothing. Raises UsageError for a run that was not live."""
    lines = (journal.folder / JOURNAL_FILE).read_bytes().split(b"\n")[:-1]
    found: LiveRecords | None = None
    for record in map(json.loads, lines):
        kind = record["kind"]
        if kind == "begin":
            found = LiveRecords(record["asked"])
        if found is None or "live" not in found.asked:
            break
        if kind == "collected":
            found.collected = record
        elif kind == "window":
            found.window = record
        elif kind == "drift":
            found.drift, found.sized, found.done = record, None, {}
        elif kind == "sized":
            found.sized = record["asked"]
        elif kind == "done":
            found.done[record["pages"]] = record
    if found is None or "live" not in found.asked:
        raise UsageError(
            f"{journal.id} was not sized on live traffic", where=str(journal.folder),
            hint="give the options of that run, or start a new one without --resume",
        )  # fmt: skip
    return found
