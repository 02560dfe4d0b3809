"""The text forms the kernel answers in: id lists, numbers, bracketed choices, tables of names. Pure.

Every parser raises ValueError for what it does not know, so that `Fact.then` turns odd text into an unknown with a reason.
"""

from __future__ import annotations

import re
from typing import TypeVar

from hicachectl.tuning.host.facts import Fact

__all__ = ["choice", "field", "id_list", "number", "signed", "status_fields", "table_bytes"]

T = TypeVar("T")

_MAX_ID = 1 << 16
"""Above CONFIG_NR_CPUS (8192) and MAX_NUMNODES (1024) of any kernel: a larger id is not one, and its range would not fit."""
_ID_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
_TABLE_LINE = re.compile(r"(?:Node\s+\d+\s+)?([^\s:]+):\s+(\d{1,20})(?:\s+(kB))?", re.ASCII)


def number(text: str) -> int:
    """Return an unsigned decimal number. Raises ValueError for anything else, `1_000` and other alphabets' digits included.

    >>> number(" 12 ")
    12
    """
    found = text.strip()
    if not re.fullmatch(r"\d{1,20}", found, re.ASCII):
        raise ValueError(f"not a number: {found[:40]!r}")
    return int(found)


def signed(text: str) -> int:
    """Return a decimal number that may be negative. Raises ValueError."""
    found = text.strip()
    return -number(found[1:]) if found.startswith("-") else number(found)


def id_list(text: str) -> tuple[int, ...]:
    """Return the ids of a list such as `0-3,8`, ascending; the empty list is a list. Raises ValueError.

    >>> id_list("0,8,250-252")
    (0, 8, 250, 251, 252)
    """
    found: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _ID_RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"not an id list: {text[:40]!r}")
        first = int(match[1])
        last = int(match[2] or match[1])
        if last < first or last >= _MAX_ID:
            raise ValueError(f"no such range of ids: {part[:40]!r}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def choice(text: str) -> str:
    """Return the word in brackets of `always [madvise] never`. Raises ValueError unless exactly one is."""
    chosen = re.findall(r"\[([\w+-]+)\]", text)
    if len(chosen) != 1:
        raise ValueError(f"no single choice in brackets: {text[:60]!r}")
    return str(chosen[0])


def table_bytes(text: str) -> dict[str, int]:
    """Return the lines of a meminfo, host-wide or of a node: kB in bytes, plain counts as they stand. Other lines are skipped.

    >>> table_bytes("Node 0 MemTotal:  2 kB")
    {'MemTotal': 2048}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = _TABLE_LINE.fullmatch(line.strip())
        if match is not None:
            found[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return found


def status_fields(text: str) -> dict[str, str]:
    """Return `Name:<blank>value` lines as they stand in /proc/PID/status and /proc/cpuinfo; the first of a name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def field(table: Fact[dict[str, T]], name: str) -> Fact[T]:
    """Pick one entry of a table that was read; an absent one is unknown and the reason names it."""
    if table.value is None:
        return Fact(None, table.source, table.confidence, table.reason)
    if name not in table.value:
        return Fact(None, table.source, table.confidence, f"has no {name}")
    return Fact(table.value[name], table.source, table.confidence)
