"""The screen and the document of `topo diff`."""

from __future__ import annotations

from typing import Any

from hicachectl.envelope import Origin
from hicachectl.render.screen import Screen
from hicachectl.render.topo_screen import Seen
from hicachectl.render.topo_words import ranges
from hicachectl.tuning.host.diff import Change, Difference
from hicachectl.tuning.host.facts import is_absent
from hicachectl.units import format_bytes, format_rate

__all__ = ["diff_data", "draw_diff"]

_MANY = 3
_SIGNS = {"changed": "~", "added": "+", "removed": "-", "unread": "?"}


def diff_data(found: Difference, a: Origin, b: Origin) -> dict[str, Any]:
    """Return the `data` of `topo diff -o json`. Pure. A null side has `a_reason` or `b_reason`."""

    def side(origin: Origin) -> dict[str, Any]:
        host: dict[str, Any] = {"source": origin.source, "host": origin.host, "collected_at": origin.collected_at}
        return host if origin.host is not None else host | {"host_reason": origin.unknown.get("host", "not read")}

    return {
        "a": side(a),
        "b": side(b),
        "changes": [_change(change) for change in found.changes],
        "n_moving_left_aside": found.n_moving_left_aside,
        "n_unread_on_both": found.n_unread_on_both,
    }


def draw_diff(screen: Screen, found: Difference, a: Seen, b: Seen) -> None:
    """Draw one paragraph a change."""
    screen.print(f"A  {a}")
    screen.print(f"B  {b}")
    counts = {what: sum(change.what == what for change in found.changes) for what in _SIGNS}
    said = (
        ", ".join(f"{n} {what}" for what, n in counts.items() if n)
        or f"nothing differs{' in what was read' if found.n_unread_on_both else ''}"
    )
    screen.print(f"DIFF  {said}", "bold")
    for change in _read_on_both(screen, found):
        screen.paragraph(f"  {_SIGNS[change.what]} ", _words(change))
    if found.n_moving_left_aside:
        n = found.n_moving_left_aside
        screen.print(
            f"{n} value{' that moves by itself differs' if n == 1 else 's that move by themselves differ'} too: --all"
        )
    if found.n_unread_on_both:
        n = found.n_unread_on_both
        screen.print(
            f"{n} place{' was' if n == 1 else 's were'} read on neither side: whether they differ is not known"
        )


def _words(change: Change) -> str:
    """One change as text: a list that was not read, a thing or value on one side, sets by what came and went, or both sides."""
    a, b = change.a, change.b
    if change.what == "unread" and change.place.count("/") == 1 and change.place[1:] in ("nodes", "devices", "uplinks"):
        known, side, reason = (b, "A", change.a_reason) if a is None else (a, "B", change.b_reason)
        known = str(known)[:-1] if str(known).startswith("1 ") else known
        return f"{change.place[1:]}: not readable in {side} ({reason}); {known} in {'B' if side == 'A' else 'A'}"
    if change.what in ("added", "removed"):
        value = b if change.what == "added" else a
        return change.place if value == change.place else f"{change.place} {_side(value, None, change.place)}"
    if _are_names(a) and _are_names(b):
        came, went = [one for one in b if one not in a], [one for one in a if one not in b]
        parts = [f"{sign}{' '.join(names)}" for sign, names in (("only in A: ", went), ("only in B: ", came)) if names]
        return f"{change.place} {'; '.join(parts) or 'the same ones in another order'}"
    return f"{change.place} {_side(a, change.a_reason, change.place)} -> {_side(b, change.b_reason, change.place)}"


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) > _MANY and all(isinstance(item, str) for item in value)


def _read_on_both(screen: Screen, found: Difference) -> list[Change]:
    """Draw what one side could not read, many places with one reason as one line; return the changes that are left."""
    groups: dict[tuple[bool, str], list[Change]] = {}
    for change in found.changes:
        if change.what == "unread" and change.place.count("/") > 1:
            groups.setdefault((change.a is None, change.a_reason or change.b_reason or ""), []).append(change)
    alike = {key: changes for key, changes in groups.items() if len(changes) > _MANY and not screen.wide}
    for (in_b_only, reason), changes in alike.items():
        side, other = ("B", "A") if in_b_only else ("A", "B")
        text = f"{len(changes)} places known in {side} only; {other}: {reason} ({changes[0].place}, ...; -o wide)"
        screen.paragraph(f"  {_SIGNS['unread']} ", text)
    drawn = {id(change) for changes in alike.values() for change in changes}
    return [change for change in found.changes if id(change) not in drawn]


def _change(change: Change) -> dict[str, Any]:
    made: dict[str, Any] = {"place": change.place, "what": change.what, "a": change.a, "b": change.b}
    if change.a is None:
        made["a_reason"] = change.a_reason
    if change.b is None:
        made["b_reason"] = change.b_reason
    return made


def _side(value: Any, reason: str | None, place: str) -> str:
    if value is None:
        return str(reason) if is_absent(reason or "") else f"? ({reason})"
    if type(value) is int and place.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, float) and place.endswith("_bytes_per_s"):
        return format_rate(value)
    if isinstance(value, list):
        numbers = all(isinstance(item, int) for item in value)
        return (ranges(value) if numbers else " ".join(map(str, value))) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
