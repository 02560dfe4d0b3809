"""Every fact of a model by its place, such as `devices/0000:17:00.0/link/width_now`: to list, compare and put back. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Machine

__all__ = ["facts_of", "field_names", "names_of", "with_facts"]


def facts_of(machine: Machine) -> dict[str, Fact[Any]]:
    """List every fact of a machine by its place. Pure. Things in lists go by their address, id or path."""
    return dict(_walk(machine, ""))


def with_facts(machine: Machine, facts: Mapping[str, Fact[Any]]) -> Machine:
    """Return the machine with some facts replaced, by place; a place that is not there is passed over. Pure."""
    changed = _changed(machine, "", facts)
    assert isinstance(changed, Machine)
    return changed


def field_names(thing: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass value, remembered by class: looking them up is slow. Pure."""
    kind: Any = type(thing)
    return names_of(kind)


@cache
def names_of(kind: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass. Pure."""
    return tuple(f.name for f in fields(kind))


def _walk(value: Any, place: str) -> Iterator[tuple[str, Fact[Any]]]:
    if isinstance(value, Fact):
        yield place, value
    elif is_dataclass(value):
        for name in field_names(value):
            yield from _walk(getattr(value, name), f"{place}/{name}" if place else name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{place}/{key}")
    elif isinstance(value, tuple):
        for key, item in zip(_keys(value), value, strict=True):
            yield from _walk(item, f"{place}/{key}")


def _changed(value: Any, place: str, facts: Mapping[str, Fact[Any]]) -> Any:
    if isinstance(value, Fact):
        return facts.get(place, value)
    if place and not any(p.startswith(place + "/") for p in facts):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        inside = {n: (getattr(value, n), f"{place}/{n}" if place else n) for n in field_names(value)}
        news = {n: _changed(old, at, facts) for n, (old, at) in inside.items()}
        return replace(value, **{n: new for n, new in news.items() if new is not inside[n][0]})
    if isinstance(value, Mapping):
        return {key: _changed(item, f"{place}/{key}", facts) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_changed(item, f"{place}/{key}", facts) for key, item in zip(_keys(value), value, strict=True))
    return value


def _keys(items: tuple[Any, ...]) -> list[str]:
    found = []
    for index, item in enumerate(items):
        key = next((getattr(item, name) for name in ("address", "id", "path") if hasattr(item, name)), None)
        if hasattr(item, "page_bytes") and hasattr(item, "node"):
            key = f"{item.page_bytes}@{item.node}"
        found.append(str(index if key is None else key))
    return found if len(set(found)) == len(found) else [f"{key}#{index}" for index, key in enumerate(found)]
