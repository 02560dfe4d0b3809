"""Words that the screens of tune share: places, values, groups of items that say the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from hicachectl.render.screen import Screen
from hicachectl.render.text import cell_width, pad
from hicachectl.tuning.item import Item, ItemKind, Owner
from hicachectl.tuning.target import Method, Target, Value, show_value

__all__ = [
    "change_text", "grouped", "hang", "head_line", "keeps_until_boot", "kinds_text", "owner_text", "place_of", "places", "short_id", "spread",
    "values_text", "wanted_text",
]  # fmt: skip

T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Put together what has the same key, in the order of first sight. Pure."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def place_of(item: Item) -> str | None:
    """Where an item is, in one word: its uplink, else its subject, else nothing. Pure."""
    return item.uplink or item.subject


def places(items: Sequence[Item]) -> list[str]:
    """Each place of some items once, in order. Pure."""
    return list(dict.fromkeys(place for item in items if (place := place_of(item)) is not None))


def change_text(item: Item) -> str:
    """Old and new value of a change, registers with their name in the old one's place. Pure."""
    return f"{item.show(item.old)} -> {item.show(item.new)}"


def values_text(items: Sequence[Item]) -> str:
    """The values that some items hold, each once. Pure."""
    return " ".join(dict.fromkeys(item.show(item.old) for item in items))


def wanted_text(target: Target, wanted: Sequence[Value]) -> str:
    """What is wanted: one value, or all that will do; of a register its own bits under their mask.

    >>> from hicachectl.tuning.target import Method, Register
    >>> wanted_text(Target(Method.PCI_CONFIG, "/x", Register(0x88, 16, 0x0100)), (0x0100,))
    '0x0100 of mask 0x0100'
    """
    shown = " or ".join(show_value(target, value) for value in wanted)
    return shown if target.mask is None else f"{shown} of mask {show_value(target, target.mask)}"


def keeps_until_boot(item: Item) -> bool:
    """Whether the next boot takes a change away: all but files of our own. Pure."""
    return item.target is not None and item.target.method is not Method.MODULE_PARAM


def owner_text(owner: Owner) -> str:
    """Who would set it again, to what, and where that is said. Pure."""
    value = "" if owner.value is None else f" to {owner.value}"
    return f"{owner.name} sets it{value} ({owner.where})"


def short_id(text: str | None) -> str:
    """A boot id as its first block: enough to see that two differ. Pure.

    >>> short_id("5d1e0a11-22c4-4e9e-8f2e-000000000000"), short_id(None)
    ('5d1e0a11', '?')
    """
    return "?" if text is None else text.partition("-")[0] or text


def head_line(screen: Screen, sign: str, cells: Sequence[tuple[str, int]], tail: str, style: str | None = None) -> None:
    """Print a sign and padded cells and, where the width allows it, `tail` on the same line, else below. Cuts nothing."""
    line = f"  {sign} " + "  ".join(pad(text, width) for text, width in cells)
    if not tail:
        screen.print(line.rstrip(), style)
    elif cell_width(line) + 2 + cell_width(tail) <= screen.width:
        screen.print(f"{line}  {tail}", style)
    else:
        screen.print(line.rstrip(), style)
        screen.paragraph(" " * 6, tail, style)


def hang(screen: Screen, label: str, text: str, style: str | None = None, *, indent: int = 6) -> None:
    """Print `label` and `text`, later lines `indent` cells in, however long the label is. A word is never cut."""
    lines: list[str] = []
    line = label
    room = False
    for word in text.split():
        longer = f"{line} {word}" if room else f"{line}{word}"
        if room and cell_width(longer) > screen.width:
            lines.append(line)
            line = " " * indent + word
        else:
            line = longer
        room = True
    screen.print("\n".join([*lines, line]), style)


def spread(screen: Screen, parts: Sequence[str], style: str | None = None) -> None:
    """Put parts beside each other, two spaces apart, and go on in the next line where one does not fit."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if line and cell_width(longer) > screen.width:
            screen.print(line, style)
            line = f"  {part}"
        else:
            line = longer
    screen.print(line, style)


def kinds_text(counts: dict[str, int]) -> str:
    """The counts of a plan's summary, zeros of the rarer kinds left out. Pure."""
    always = (ItemKind.CHANGE.value, ItemKind.SAME.value)
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n or name in always)
