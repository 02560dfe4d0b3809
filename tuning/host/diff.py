"""What differs between two flat machines, by place: things go by their address, node number or port, not by position. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hicachectl.tuning.host.facts import is_absent

__all__ = ["Change", "Difference", "compare"]

_KEYS = {"nodes": "id", "devices": "address", "uplinks": "port", "tmpfs": "path"}
_READ_WITH = {"/uplinks": "/devices", "/host/pinned": "/host/command_line"}
"""Lists that are derived from another place."""
_LISTS = (*_KEYS, "hugetlb")
_LEFT_ASIDE = ("/facts", "/findings")
_MOVING = re.compile(
    r"^/nodes/[^/]+/(memory_free_bytes|memory_available_bytes|free_huge_blocks)$|/counters/|/aer/|"
    r"^/memory/(free_bytes|available_bytes|shmem_bytes|hugetlb_free_bytes|cgroup/memory_(current|file_cache)_bytes)$|"
    r"^/devices/[^/]+/(runtime_status|link/speed_now_gt_s|config/(transactions_pending|link/speed_now_gt_s))$|"
    r"^/uplinks/[^/]+/(link/speed_now_gt_s|present_bytes_per_s)$|/hugetlb/[^/]+/free$"
)
"""Values that change by themselves from one look to the next. So does what a sleeping device does not tell."""


@dataclass(frozen=True)
class Change:
    """One place that differs. A side that is null has its reason: not there, or why it could not be read."""

    place: str
    what: str
    """changed | added | removed | unread (known on one side only).

    A side that is null because there is nothing ("unlimited", "no driver bound") is known: its reason is what it says.
    """
    a: Any
    b: Any
    a_reason: str | None
    b_reason: str | None


@dataclass(frozen=True)
class Difference:
    """All changes, and how many of the values that move by themselves were left aside."""

    changes: tuple[Change, ...]
    n_moving_left_aside: int
    n_unread_on_both: int = 0
    """Places that were read on neither side: whether they differ is not known."""


def compare(a: Mapping[str, Any], b: Mapping[str, Any], *, moving: bool = False) -> Difference:
    """Compare two `data` of `flatten`. Pure. `moving` also compares free memory, counters and idle states.

    An object that is null on one side, such as a config space that needs root, is one change at its place.
    """
    ours, theirs = _leaves(a), _leaves(b)
    nulls_a, nulls_b = _objects_beside(ours, theirs), _objects_beside(theirs, ours)
    changes, aside, unread = _whole(_things(a), _things(b), {**nulls_a, **nulls_b}), 0, 0
    gone = tuple(f"{change.place}/" for change in changes)
    for place in sorted({*ours, *theirs}, key=_sort_key):
        left, right = ours.get(place, _ABSENT), theirs.get(place, _ABSENT)
        if not moving and _ASLEEP in (left[1], right[1]):
            aside += left[1] != right[1]
        elif place in nulls_a:
            changes.append(Change(place, _what(left, _THERE), None, nulls_a[place], left[1], None))
        elif place in nulls_b:
            changes.append(Change(place, _what(_THERE, right), nulls_b[place], None, None, right[1]))
        elif (
            _same(left, right)
            or place.startswith(gone)
            or _above(place, nulls_a)
            or _above(place, nulls_b)
            or _is_distance_to(place, gone)
        ):
            unread += left[0] is None and _is_unread(left) and _is_unread(right)
        elif not moving and _MOVING.search(place):
            aside += 1
        else:
            changes.append(Change(place, _what(left, right), left[0], right[0], left[1], right[1]))
    return Difference(tuple(changes), aside, unread)


def _whole(ours: Collection[str], theirs: Collection[str], unread: Collection[str]) -> list[Change]:
    """Things that are on one side only, but for those of a list that the other side could not read."""
    changes = []
    for place in sorted({*ours} ^ {*theirs}, key=_sort_key):
        here, there = (place, None) if place in ours else (None, place)
        if not _above(place, unread):
            what = "removed" if here else "added"
            changes.append(
                Change(place, what, here, there, None if here else "not there", None if there else "not there")
            )
    return changes


def _what(left: _Leaf, right: _Leaf) -> str:
    if right is _ABSENT or left is _ABSENT:
        return "removed" if right is _ABSENT else "added"
    return "unread" if _is_unread(left) or _is_unread(right) else "changed"


def _is_unread(side: _Leaf) -> bool:
    return side[0] is None and side is not _ABSENT and not is_absent(side[1] or "")


def _same(left: _Leaf, right: _Leaf) -> bool:
    """Equal values; of nulls two that were not read, or say the same: no limit is not a limit that was not read."""
    if _ABSENT in (left, right) and {repr(left[0]), repr(right[0])} & {"[]", "{}"}:
        return True  # an empty list beside one with things: they are told one by one
    if left[0] is not None or right[0] is not None:
        return bool(left[0] == right[0])
    return left[1] == right[1] or not any(is_absent(side[1] or "") for side in (left, right))


def _is_distance_to(place: str, gone: Collection[str]) -> bool:
    """Whether a place is the distance to a node that only one side has: told by the node."""
    parts = place.split("/")
    return len(parts) == 5 and parts[3] == "distances" and f"/nodes/{parts[4]}/" in gone


def _objects_beside(nulls: Mapping[str, _Leaf], others: Mapping[str, _Leaf]) -> dict[str, str]:
    """Places that are null on one side and an object or a list on the other: how many values or things it has there."""
    found: dict[str, int] = {}
    things: dict[str, set[str]] = {}
    for place in others.keys() - nulls.keys():
        above = _above(place, {p for p in _parents(place) if p in nulls and nulls[p][0] is None})
        if above is not None:
            found[above] = found.get(above, 0) + 1
            things.setdefault(above, set()).add(place[len(above) + 1 :].partition("/")[0])
    return {at: f"{len(things[at])} {_last(at)}" if _last(at) in _LISTS else f"{n} values" for at, n in found.items()}


def _last(place: str) -> str:
    return place.rpartition("/")[2]


def _above(place: str, places: Collection[str]) -> str | None:
    return next((parent for parent in _parents(place) if parent in places), None) if places else None


def _parents(place: str) -> list[str]:
    parts = place.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts) - 1, 1, -1)]


_Leaf = tuple[Any, "str | None"]
_ABSENT: _Leaf = (None, "not there")
_ASLEEP = "asleep"
"""Reason of what was not read because reading wakes the device (`pcie_caps.ASLEEP`)."""
_THERE: _Leaf = ("", None)


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
            empty = isinstance(value, (Mapping, list))  # without entries: perhaps it could not be listed
            reason = facts.get(_READ_WITH.get(pointer, pointer), {}).get("reason") if value is None or empty else None
            if reason is not None:
                value = None
            yield place, (value, reason or ("no reason recorded" if value is None else None))

    return dict(walk(data, "", ""))


def _sort_key(place: str) -> tuple[Any, ...]:
    order = ("host", "numa", "nodes", "devices", "uplinks", "memory")
    first = place.split("/")[1]
    return (
        order.index(first) if first in order else len(order),
        [(int(w), "") if w.isdigit() else (-1, w) for w in place.split("/")],
    )
