"""Says that a settings file had a part in a command: which file, which keys, and whether an error comes of one of its values."""

from __future__ import annotations

import re
from typing import Any

from hicachectl.config import LOCAL_FILE, SYSTEM_FILE, Effective, OriginKind, Setting
from hicachectl.errors import HicacheError

__all__ = ["name_settings", "settings_document", "settings_words"]

_TOLD_FIRST = (
    "run.trace", "run.synthetic", "run.limit", "run.geometry", "run.page_tokens", "run.device_slots", "run.host_slots",
)  # fmt: skip
"""The keys that decide what a result is of; the others are counted."""


def settings_words(effective: Effective) -> str | None:
    """Say in one line that settings come from a file, the weightiest with their values; None where none does. Pure."""
    taken = _from_file(effective)
    if not taken:
        return None
    told = [f"{s.key.removeprefix('run.')} {s.value}" for s in taken if s.key in _TOLD_FIRST and s.value is not None]
    more = len(taken) - len(told)
    if more:
        told.append(f"{more} more" if told else f"{more} {'key' if more == 1 else 'keys'}")
    return f"settings from {_name(effective)}: {', '.join(told)}  (hicachectl config show --origin)"


def settings_document(effective: Effective) -> dict[str, Any] | None:
    """Return the same for a document: path, and of each key from the file its file:line. Pure."""
    taken = _from_file(effective)
    return {"path": _name(effective), "keys": {s.key: s.origin.where for s in taken}} if taken else None


def name_settings(error: HicacheError, effective: Effective) -> None:
    """Add to an error the file:line of each value that it speaks of and that a settings file set. Changes `error`.

    A value is spoken of when the error names its key or its flag. Of an error that names none, nothing is said.
    """
    text = " ".join(filter(None, (error.what, error.where, error.why, error.hint, *_term_names(error))))
    found = [s for s in _from_file(effective) if s.value is not None and _speaks_of(text, s.key)]
    if not found:
        return
    values = ", ".join(f"{s.key} {s.value} is set at {s.origin.where}" for s in found)
    name = _name(effective)
    elsewhere = "change it there" if effective.file.because != "search order" else f"--config FILE, or move {name} away"
    error.why = f"{error.why}; {values}" if error.why else values
    error.hint = f"{error.hint}; or {elsewhere}" if error.hint else elsewhere


def _from_file(effective: Effective) -> list[Setting]:
    return [s for s in effective.settings() if s.origin.kind is OriginKind.FILE]


def _name(effective: Effective) -> str:
    path = effective.file.path
    assert path is not None
    return f"./{path}" if path == LOCAL_FILE and path != SYSTEM_FILE else str(path)


def _term_names(error: HicacheError) -> list[str]:
    return [str(name) for name, _ in getattr(error, "terms", ())]


def _speaks_of(text: str, key: str) -> bool:
    """Whether a text names a key or its flag. A key of one plain word must have its flag's dashes or its section before it. Pure.

    >>> _speaks_of("give --device-slots 240 or auto", "run.device_slots"), _speaks_of("the cgroup limit", "run.limit")
    (True, False)
    """
    word = key.rpartition(".")[2]
    spelling = "[-_ ]".join(map(re.escape, word.split("_")))
    before = r"(?<![\w-])" if "_" in word else r"(?:--|\brun\.)"
    flag = "--" + key.removeprefix("run.").replace(".", "-").replace("_", "-")
    return re.search(f"{before}{spelling}\\b", text) is not None or re.search(f"{flag}(?![\\w-])", text) is not None
