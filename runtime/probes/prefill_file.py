"""Prefill times measured in the operator's own engine, from a CSV or JSON file of (tokens, seconds).

    tokens,seconds        [{"tokens": 1000, "seconds": 0.0359}, ...]     or     [[1000, 0.0359], ...]
    1000,0.0359

One row a measured prefill of a prompt of that many tokens with nothing cached. Several rows of one length are welcome: they tell
the noise.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

from hicachectl.errors import UsageError
from hicachectl.runtime.probes.fits import Timing

__all__ = ["parse_prefill", "read_prefill"]

_COLUMNS = ("tokens", "seconds")
_LARGEST_BYTES = 16 << 20


def read_prefill(path: Path) -> list[Timing]:
    """Read the samples of a file, CSV or JSON told from its first character. Raises UsageError with file and row."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(
                f"{path.stat().st_size} bytes of prefill times, {_LARGEST_BYTES} at most", where=str(path), hint="give fewer rows"
            )  # fmt: skip
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the prefill times cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path), why="--prefill-file names it",
            hint=f"name a file with a row a prefill ({','.join(_COLUMNS)}), or --prefill synthetic to measure here",
        ) from error  # fmt: skip
    return parse_prefill(text, str(path))


def parse_prefill(text: str, where: str) -> list[Timing]:
    """Return the samples in a text. Pure. Raises UsageError with the row.

    >>> parse_prefill("tokens,seconds\\n1000,0.0359\\n", "times.csv")
    [Timing(n_tokens=1000, seconds=0.0359)]
    """
    stripped = text.lstrip()
    rows = _json_rows(text, where) if stripped[:1] in ("[", "{") else _csv_rows(text, where)
    if not rows:
        raise UsageError("no prefill time in the file", where=where, hint=f"one row a prefill: {','.join(_COLUMNS)}")
    return [_timing(place, tokens, seconds) for place, tokens, seconds in rows]


def _csv_rows(text: str, where: str) -> list[tuple[str, object, object]]:
    lines = csv.reader(text.splitlines())
    head = [word.strip() for word in next(lines, [])]
    if sorted(head) != sorted(_COLUMNS):
        raise UsageError(
            f"the first line is {','.join(head)!r}, not {','.join(_COLUMNS)!r}",
            where=f"{where}:1",
            hint="name both columns in the first line, and no other",
        )
    at = {name: head.index(name) for name in _COLUMNS}
    found: list[tuple[str, object, object]] = []
    for row in lines:
        if not "".join(row).strip():
            continue
        place = f"{where}:{lines.line_num}"
        if len(row) != len(head):
            raise UsageError(f"{len(row)} values, not {len(head)}", where=place)
        found.append((place, _number(row[at["tokens"]]), _number(row[at["seconds"]])))
    return found


def _number(text: str) -> object:
    """Read a number; what is none stays text, for the message."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _json_rows(text: str, where: str) -> list[tuple[str, object, object]]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the file is no JSON: {error}", where=where) from error
    if not isinstance(document, list):
        raise UsageError("the file is no list", where=where, hint='[{"tokens": 1000, "seconds": 0.0359}, ...]')
    found: list[tuple[str, object, object]] = []
    for i, item in enumerate(document):
        place = f"{where}: item {i}"
        if isinstance(item, dict) and sorted(item) == sorted(_COLUMNS):
            found.append((place, item["tokens"], item["seconds"]))
        elif isinstance(item, list) and len(item) == 2:
            found.append((place, *item))
        else:
            raise UsageError(
                f"{json.dumps(item)[:80]} is no pair of tokens and seconds", where=place,
                hint='give {"tokens": 1000, "seconds": 0.0359} or [1000, 0.0359]',
            )  # fmt: skip
    return found


def _timing(place: str, tokens: object, seconds: object) -> Timing:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise UsageError(f"tokens is {tokens!r}, not a whole number above 0", where=place)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(f"seconds is {seconds!r}, not a number above 0", where=place)
    return Timing(tokens, float(seconds))
