"""Lines of a sizing's journal, sealed and read back, each field checked: a journal is a file that anybody may edit.

The last field of a line is the SHA-256 of the line without it. It tells a line that was edited, not one that was forged.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicachectl.errors import HicacheError, UsageError
from hicachectl.tuning.state import no_room

__all__ = ["JournalLine", "bad_line", "read_lines", "sealed"]

_SEAL = b', "seal": "'
_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "an object",
    list: "a list",
    bool: "true or false",
}


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One record, without its seal, and where it stands, as file:line."""

    where: str
    record: dict[str, Any]

    @property
    def kind(self) -> str:
        """What the record is of. Raises UsageError."""
        kind: str = self.field("kind", str)
        return kind

    def field(self, name: str, kind: type) -> Any:
        """Return a field that must be of a type. Raises UsageError naming file:line and what is there."""
        if name not in self.record:
            raise bad_line(self.where, f"no field {name!r}")
        value = self.record[name]
        if not isinstance(value, (int, float) if kind is float else kind) or (
            kind is not bool and isinstance(value, bool)
        ):
            raise bad_line(self.where, f"{name} is {json.dumps(value)[:60]}, not {_NAMES[kind]}")
        return value

    def pages(self) -> int:
        """Return the field `pages`, 0 for L1 alone. Raises UsageError."""
        pages: int = self.field("pages", int)
        if pages < 0:
            raise bad_line(self.where, f"pages is {pages}, below 0")
        return pages


def bad_line(where: str, what: str) -> UsageError:
    """Return the error of a line that this program did not write. Pure."""
    return UsageError(
        f"the journal cannot be gone on with: {what}", where=where,
        why="it was changed, or another version wrote it", hint="start a new run without --resume",
    )  # fmt: skip


def read_lines(path: Path, *, with_seals: bool = True) -> list[JournalLine]:
    """Read the whole lines of a journal; none where there is no file. Changes nothing.

    A last line without an end is left out: a kill cut it. Raises UsageError with file:line for one that is no JSON object or
    does not fit its seal (not with `with_seals` False), HostError when the file cannot be read.
    """
    try:
        texts = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    except OSError as error:
        refused: HicacheError = no_room("the journal", path, error)
        refused.what = f"the journal cannot be read: {error.strerror}"
        raise refused from error
    lines = []
    for number, text in enumerate(texts, start=1):
        where = f"{path}:{number}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise bad_line(where, "no JSON") from error
        if not isinstance(record, dict):
            raise bad_line(where, "no JSON object")
        if with_seals:
            _check_seal(where, text)
        lines.append(JournalLine(where, {name: value for name, value in record.items() if name != "seal"}))
    return lines


def sealed(line: bytes) -> bytes:
    """Return a line, a JSON object with a field or more, with its seal. Pure."""
    return line[:-1] + _SEAL + _seal_of(line).encode() + b'"}'


def _seal_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _check_seal(where: str, text: bytes) -> None:
    front, mark, end = text.rpartition(_SEAL)
    if not mark:
        raise bad_line(where, "it has no seal")
    line = front + b"}"
    if sealed(line) != text:
        seal = end.decode(errors="replace").rstrip('"}')
        raise bad_line(where, f"its seal is {seal[:64]}, that of what stands there {_seal_of(line)}")
