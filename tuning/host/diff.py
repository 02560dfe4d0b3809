"""What differs between two flat machines, by place: things go by their address, node number or port, not by position. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Change", "Difference", "compare"]

_KEYS = {"nodes": "id", "devices": "address", "uplinks": "port", "tmpfs": "path"}
_LEFT_ASIDE = ("/facts", "/findings")
_MOVING = re.compile(
    r"^/nodes/[^/]+/(memory_free_bytes|memory_available_bytes|free_huge_blocks)$|/counters/|/aer/|"
    r"^/memory/(free_bytes|available_bytes|shmem_bytes|hugetlb_free_bytes|cgroup/memory_current_bytes)$|"
    r"^/devices/[^/]+/(runtime_status|link/speed_now_gt_s|config/(transactions_pending|link/speed_now_gt_s))$|"
    r"^/uplinks/[^/]+/link/speed_now_gt_s$|/hugetlb/[^/]+/free$"
)
"""Values that change by themselves from one look to the next."""


@dataclass(frozen=True)
class Change:
    """One place that differs. A side that is null has its reason: not there, or why it could not be read."""

    place: str
    what: str
    """changed | added | removed | unread (known on one side only)."""
    a: Any
    b: Any
    a_reason: str | None
    b_reason: str | None


@dataclass(frozen=True)
class Difference:
    """All changes, and how many of the values that move by themselves were left aside."""

    changes: tuple[Change, ...]
    n_moving_left_aside: int


def compare(a: Mapping[str, Any], b: Mapping[str, Any], *, moving: bool = False) -> Difference:
    """Compare two `data` of `flatten`. Pure. `moving` also compares free memory, counters and idle states.

    An object that is null on one side, such as a config space that needs root, is one change at its place.
    """
    ours, theirs = _leaves(a), _leaves(b)
    changes, aside = [], 0
    whole_a, whole_b = _things(a), _things(b)
    for place in sorted(whole_a ^ whole_b, key=_sort_key):
        here, there = (place, None) if place in whole_a else (None, place)
        what = "removed" if here else "added"
        changes.append(Change(place, what, here, there, None if here else "not there", None if there else "not there"))
    gone = tuple(f"{change.place}/" for change in changes)
    nulls_a, nulls_b = _objects_beside(ours, theirs), _objects_beside(theirs, ours)
    for place in sorted({*ours, *theirs}, key=_sort_key):
        left, right = ours.get(place, _ABSENT), theirs.get(place, _ABSENT)
        if place in nulls_a:
            changes.append(Change(place, "unread", None, f"{nulls_a[place]} values", left[1], None))
        elif place in nulls_b:
            changes.append(Change(place, "unread", f"{nulls_b[place]} values", None, None, right[1]))
        elif left[0] == right[0] or place.startswith(gone) or _above(place, nulls_a) or _above(place, nulls_b):
            continue
        elif not moving and _MOVING.search(place):
            aside += 1
        else:
            what = "unread" if left[0] is None or right[0] is None else "changed"
            changes.append(Change(place, what, left[0], right[0], left[1], right[1]))
    return Difference(tuple(changes), aside)


def _objects_beside(nulls: Mapping[str, _Leaf], others: Mapping[str, _Leaf]) -> dict[str, int]:
    """Places that are null on one side and an object on the other, with how many values it has there."""
    found: dict[str, int] = {}
    for place in others.keys() - nulls.keys():
        above = _above(place, {p for p in _parents(place) if p in nulls and nulls[p][0] is None})
        if above is not None:
            found[above] = found.get(above, 0) + 1
    return found


def _above(place: str, places: Collection[str]) -> str | None:
    return next((parent for parent in _parents(place) if parent in places), None) if places else None


def _parents(place: str) -> list[str]:
    parts = place.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts) - 1, 1, -1)]


_Leaf = tuple[Any, "str | None"]
_ABSENT: _Leaf = (None, "not there")


def _things(data: Mapping[str, Any]) -> set[str]:
    lists = {f"/{kind}": data.get(kind, ()) for kind in _KEYS} | {"/memory/tmpfs": data["memory"]["tmpfs"]}
    return {f"{at}/{_word(item[_KEYS[at.rpartition('/')[2]]])}" for at, items in lists.items() for item in items}


def _word(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _leaves(data: Mapping[str, Any]) -> dict[str, _Leaf]:
    facts = data.get("facts", {})

    def walk(value: Any, pointer: str, place: str) -> Iterator[tuple[str, _Leaf]]:
        if pointer in _LEFT_ASIDE or (pointer.endswith("/id") and pointer.startswith("/uplinks/")):
            return
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                word = _word(key)
                yield from walk(item, f"{pointer}/{word}", f"{place}/{word}")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            name = _KEYS.get(pointer.rpartition("/")[2])
            for index, item in enumerate(value):
                at = _word(item[name]) if name else f"{item['page_bytes']}" if "page_bytes" in item else index
                yield from walk(item, f"{pointer}/{index}", f"{place}/{at}")
        else:
            reason = facts.get(pointer, {}).get("reason") if value is None else None
            yield place, (value, reason or ("no reason recorded" if value is None else None))

    return dict(walk(data, "", ""))


def _sort_key(place: str) -> tuple[Any, ...]:
    order = ("host", "numa", "nodes", "devices", "uplinks", "memory")
    first = place.split("/")[1]
    return (
        order.index(first) if first in order else len(order),
        [(int(w), "") if w.isdigit() else (-1, w) for w in place.split("/")],
    )
