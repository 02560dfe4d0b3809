"""The screen and the document of `topo diff`."""

from __future__ import annotations

from typing import Any

from hicachectl.envelope import Origin
from hicachectl.render.screen import Screen
from hicachectl.render.topo_screen import Seen
from hicachectl.render.topo_words import ranges
from hicachectl.tuning.host.diff import Change, Difference

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
    }


def draw_diff(screen: Screen, found: Difference, a: Seen, b: Seen) -> None:
    """Draw one paragraph a change."""
    screen.print(f"A  {a}")
    screen.print(f"B  {b}")
    counts = {what: sum(change.what == what for change in found.changes) for what in _SIGNS}
    said = ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "nothing differs"
    screen.print(f"DIFF  {said}", "bold")
    for change in _read_on_both(screen, found):
        if change.what in ("added", "removed"):
            screen.print(f"  {_SIGNS[change.what]} {change.place}")
        else:
            screen.paragraph(
                f"  {_SIGNS[change.what]} ",
                f"{change.place}  {_side(change.a, change.a_reason)} -> {_side(change.b, change.b_reason)}",
            )
    if found.n_moving_left_aside:
        screen.print(f"{found.n_moving_left_aside} values that move by themselves differ too: --all")


def _read_on_both(screen: Screen, found: Difference) -> list[Change]:
    """Draw what one side could not read, many places with one reason as one line; return the changes that are left."""
    groups: dict[tuple[bool, str], list[Change]] = {}
    for change in found.changes:
        if change.what == "unread":
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


def _side(value: Any, reason: str | None) -> str:
    if value is None:
        return f"? ({reason})"
    if isinstance(value, list):
        numbers = all(isinstance(item, int) for item in value)
        return (ranges(value) if numbers else " ".join(map(str, value))) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
