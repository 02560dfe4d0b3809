"""JSON of a benchmark's result into dataclasses, strictly: no name twice, no value of another type, no number that is none. Pure."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from hicachectl.errors import UsageError

__all__ = ["made_of", "parse_json", "part_of", "wrong"]

_DEEPEST = 64
"""Levels of values in values: a result has less than ten."""


def parse_json(text: str, path: str) -> Any:
    """Read a document. Raises UsageError with the path for what is no JSON, is nested too deep or names a field twice."""

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            both = " and ".join(_short(value) for name, value in pairs if name == twice)
            raise ValueError(f"field {twice!r} is there {names.count(twice)} times: {both}")
        return found

    def no_number(word: str) -> Any:
        raise ValueError(f"{word} is no number")

    try:
        return _shallow(json.loads(text, object_pairs_hook=once, parse_constant=no_number))
    except (ValueError, RecursionError) as error:
        why = "values are nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UsageError(
            "it is no JSON document of bench", where=path, why=why, hint="write it with: hicachectl bench ... -o json --output-file FILE"
        ) from error  # fmt: skip


def _shallow(document: Any) -> Any:
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return document
    raise RecursionError


def part_of(data: Any, name: str, kind: type, path: str) -> Any:
    """Return an object or list of the document's data. Raises UsageError where it is none."""
    found = data.get(name) if isinstance(data, dict) else None
    if not isinstance(found, kind):
        raise wrong(path, f"data.{name}", "an object" if kind is dict else "a list", found)
    return found


def made_of(wanted: Any, value: Any, place: str, path: str) -> Any:
    """Turn plain JSON into `wanted`: a dataclass, a tuple of one kind, a mapping, X | None or a plain type. Raises UsageError."""
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        inner = next(kind for kind in get_args(wanted) if kind is not types.NoneType)
        return None if value is None else made_of(inner, value, place, path)
    if is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(wanted, value, place, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong(path, place, "a list", value)
        return tuple(made_of(get_args(wanted)[0], item, f"{place}[{at}]", path) for at, item in enumerate(value))
    if origin is not None:
        if not isinstance(value, dict):
            raise wrong(path, place, "an object", value)
        return value
    if wanted is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise wrong(path, place, "a number that a float holds", value) from None
    if type(value) is not wanted or (wanted is float and not math.isfinite(value)):
        raise wrong(path, place, wanted.__name__, value)
    return value


def wrong(path: str, place: str, wanted: Any, found: Any) -> UsageError:
    """Say what stands in a place of a file and what is expected there."""
    name = getattr(wanted, "__name__", str(wanted))
    return UsageError(
        f"{place} is {_short(found)}, {name} is expected there",
        where=path,
        why="the file was edited, cut short, or is no result of bench",
        hint="measure again: hicachectl bench ... -o json --output-file FILE",
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    if isinstance(value, list):
        return f"a list of {len(value)} values"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _dataclass(wanted: type, value: Any, place: str, path: str) -> Any:
    if not isinstance(value, dict):
        raise wrong(path, place, "an object", value)
    hints = get_type_hints(wanted)
    given = {}
    for field in fields(wanted):
        if field.name in value:
            given[field.name] = made_of(hints[field.name], value[field.name], f"{place}.{field.name}", path)
        elif field.default is MISSING:
            raise wrong(path, f"{place}.{field.name}", hints[field.name], "nothing")
    return wanted(**given)
