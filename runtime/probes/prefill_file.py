"""Prefill times measured in the operator's own engine, from a CSV or JSON file of (tokens, seconds).

    tokens,seconds        [{"tokens": 1000, "seconds": 0.0359}, ...]     or     [[1000, 0.0359], ...]
    1000,0.0359

One row a measured prefill of a prompt of that many tokens with nothing cached. Several rows of one length are welcome: they tell
the noise.
"""

from __future__ import annotations

import csv
import json
from typing import Any

from hicachectl.errors import UsageError
from hicachectl.runtime.probes.fits import Timing

__all__ = ["parse_prefill"]

_COLUMNS = ("tokens", "seconds")
_MOST_TOKENS, _SHORTEST_S, _LONGEST_S = 1 << 30, 1e-9, 1e6
"""Beyond any prompt and any prefill (our choice)."""
_BYTE_ORDER_MARK = "\ufeff"
"""A spreadsheet begins its UTF-8 with it."""


def parse_prefill(text: str, where: str) -> list[Timing]:
    """Return the samples in a text, CSV or JSON told from its first character. Pure. Raises UsageError with `where` and the row.

    >>> parse_prefill("tokens,seconds\\n1000,0.0359\\n", "times.csv")
    [Timing(n_tokens=1000, seconds=0.0359)]
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    stripped = text.lstrip()
    rows = _json_rows(text, where) if stripped[:1] in ("[", "{") else _csv_rows(text, where)
    if not rows:
        raise UsageError("no prefill time in the file", where=where, hint=f"one row a prefill: {','.join(_COLUMNS)}")
    return [_timing(place, tokens, seconds) for place, tokens, seconds in rows]


def _csv_rows(text: str, where: str) -> list[tuple[str, object, object]]:
    try:
        return _csv_pairs(csv.reader(text.splitlines()), where)
    except csv.Error as error:
        raise UsageError(f"the file is no CSV: {error}", where=where) from error


def _csv_pairs(lines: Any, where: str) -> list[tuple[str, object, object]]:
    head = [word.strip() for word in next(lines, [])]
    if sorted(head) != sorted(_COLUMNS):
        raise UsageError(
            f"the first line is {','.join(head)!r}, not {','.join(_COLUMNS)!r}",
            where=f"{where}:1",
            hint="name both columns in the first line, with a comma between them, and no other",
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
    except (ValueError, RecursionError) as error:
        why = "values are nested too deep" if isinstance(error, RecursionError) else error
        raise UsageError(f"the file is no JSON: {why}", where=where) from error
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
                f"{str(item)[:80]} is no pair of tokens and seconds", where=place,
                hint='give {"tokens": 1000, "seconds": 0.0359} or [1000, 0.0359]',
            )  # fmt: skip
    return found


def _timing(place: str, tokens: object, seconds: object) -> Timing:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= _MOST_TOKENS:
        raise UsageError(f"tokens is {_short(tokens)}, not a whole number from 1 to {_MOST_TOKENS}", where=place)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise UsageError(
            f"seconds is {_short(seconds)}, not a number from {_SHORTEST_S:g} to {_LONGEST_S:g}", where=place
        )
    return Timing(tokens, float(seconds))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
