"""Dataclasses read back from JSON, with the type of every field checked. Pure."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["from_record"]

T = TypeVar("T")


def from_record(kind: type[T], value: object, name: str = "") -> T:
    """Return the dataclass whose `asdict` went through JSON. Pure. Raises ValueError naming the field that is not as declared."""
    found: T = _object(kind, value, name)
    return found


def _object(kind: Any, value: object, name: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name or kind.__name__} is {value!r:.60}, not an object")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for key in value:
        if key not in known:
            raise ValueError(f"{_at(name, key)} is not known")
    missing = [
        key
        for key, field in known.items()
        if key not in value and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"no field {_at(name, missing[0])!r}")
    return kind(**{key: _value(hints[key], value[key], _at(name, key)) for key in value})


def _value(hint: Any, value: Any, name: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        (hint,) = (one for one in inner if one is not type(None))
        return _value(hint, value, name)
    if is_dataclass(hint):
        return _object(hint, value, name)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], one, f"{name}/{index}") for index, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], one, _at(name, key)) for key, one in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    plain = (int, float) if hint is float else hint
    if origin is None and isinstance(value, plain) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is {value!r:.60}, not {getattr(hint, '__name__', hint)}")


def _at(name: str, key: str) -> str:
    return f"{name}/{key}" if name else key
