"""Typed reading of one YAML mapping: what is wrong becomes a problem with its file and line, and reading goes on. Pure.

So one look at a recipe tells everything that is wrong with it. A value that could not be read is None; the caller asks
`problems` at the end.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from hicachectl.errors import ProfileError
from hicachectl.yaml_marks import Marked

__all__ = ["Fields", "blanks", "top"]

_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_BLANK = re.compile(r"<[^<>]+>")

Path = tuple[str | int, ...]


class Fields:
    """One mapping of a document, at the path `at`. Keys that are not `known` and `needed` ones that are missing are problems at once."""

    def __init__(
        self,
        doc: Marked,
        at: Path,
        value: object,
        known: Iterable[str],
        needed: Iterable[str],
        problems: list[ProfileError],
    ) -> None:
        self.doc, self.at, self.problems = doc, at, problems
        self.values: Mapping[str, object] = value if isinstance(value, dict) else {}
        known = tuple(known)
        if not isinstance(value, dict):
            self.wrong(None, f"{self._name()} is {value!r}, not a mapping", hint="it has: " + ", ".join(known))
            return
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]!r}?" if near else "known here: " + ", ".join(known)
                self.wrong(key, f"unknown key {key!r}{self._of()}", hint=hint)
        for key in needed:
            if key not in self.values:
                self.wrong(None, f"key {key!r}{self._of()} is missing", hint=f"add {key}:")

    def has(self, key: str) -> bool:
        """Whether a key is there with a value other than null. Pure."""
        return self.values.get(key) is not None

    def wrong(self, key: str | None, what: str, *, hint: str | None = None) -> None:
        """Note a problem at a key, or at the mapping itself."""
        where = self.doc.where(self.at if key is None else (*self.at, key))
        self.problems.append(ProfileError(what, where=where, hint=hint))

    def section(self, key: str, known: Iterable[str], needed: Iterable[str] = ()) -> Fields | None:
        """Return a mapping inside this one, None where the key is missing."""
        if key not in self.values:
            return None
        return Fields(self.doc, (*self.at, key), self.values[key], known, needed, self.problems)

    def text(self, key: str, choices: Iterable[str] = ()) -> str | None:
        """Return a text, one of `choices` where there are any."""
        if key not in self.values:
            return None
        value, choices = self.values[key], tuple(choices)
        if not isinstance(value, str) or not value.strip():
            self.wrong(key, f"{key} is {value!r}, not a text", hint="quote it")
            return None
        if choices and value not in choices:
            self.wrong(key, f"{key} is {value!r}, not one of {', '.join(choices)}")
            return None
        return value.strip()

    def number(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number, decimal or 0x hex, between both."""
        if key not in self.values:
            return None
        value = as_number(self.values[key])
        if value is None or not low <= value <= high:
            text = str(self.values[key]).lower()
            hint = f"{key}: 0x{text}" if re.fullmatch(r"(?=.*[a-f])[0-9a-f]{1,16}", text) else None
            what = f"{key} is {self.values[key]!r}, not a number from {low:#x} to {high:#x}"
            self.wrong(key, f"{what}: hex begins with 0x" if hint else what, hint=hint)
            return None
        return value

    def real(self, key: str, low: float, high: float) -> float | None:
        """Return a number with decimals between both."""
        if key not in self.values:
            return None
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            self.wrong(key, f"{key} is {value!r}, not a number from {low:g} to {high:g}")
            return None
        return float(value)

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, bool):
            self.wrong(key, f"{key} is {value!r}, not true or false")
            return None
        return value

    def texts(self, key: str, choices: Iterable[str] = ()) -> tuple[str, ...] | None:
        """Return a list of texts, each one of `choices` where there are any."""
        found = self._list(key)
        if found is None:
            return None
        choices = tuple(choices)
        for i, item in enumerate(found):
            if not isinstance(item, str) or not item.strip() or (choices and item not in choices):
                allowed = f"one of {', '.join(choices)}" if choices else "a text"
                self.problems.append(
                    ProfileError(f"{key} has {item!r}, not {allowed}", where=self.doc.where((*self.at, key, i)))
                )
                return None
        return tuple(str(item) for item in found)

    def numbers(self, key: str, low: int, high: int) -> tuple[int, ...] | None:
        """Return a list of different whole numbers between both."""
        found = self._list(key)
        if found is None:
            return None
        values = [as_number(item) for item in found]
        good = [value for value in values if value is not None and low <= value <= high]
        if len(good) != len(values) or len(set(good)) != len(good) or not good:
            self.wrong(key, f"{key} is {found!r}, not different numbers from {low:#x} to {high:#x}")
            return None
        return tuple(good)

    def sections(self, key: str, known: Iterable[str], needed: Iterable[str] = ()) -> tuple[Fields, ...]:
        """Return a list of mappings; () where the key is missing."""
        known, needed = tuple(known), tuple(needed)
        return tuple(
            Fields(self.doc, (*self.at, key, i), item, known, needed, self.problems)
            for i, item in enumerate(self._list(key) or ())
        )

    def _list(self, key: str) -> list[object] | None:
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, list):
            self.wrong(key, f"{key} is {value!r}, not a list", hint=f"{key}: [...]")
            return None
        return value

    def _name(self) -> str:
        return str(self.at[-1]) if self.at else "the recipe"

    def _of(self) -> str:
        names = [str(part) for part in self.at if isinstance(part, str)]
        return f" of {names[-1]}" if names else ""


def top(doc: Marked, known: Iterable[str], needed: Iterable[str], problems: list[ProfileError]) -> Fields:
    """Return the mapping that a whole document is. Pure."""
    return Fields(doc, (), doc.value, known, needed, problems)


def blanks(doc: Marked) -> list[ProfileError]:
    """List every value that is still a blank of a template, `<what goes here>`. Pure."""
    found: list[ProfileError] = []

    def walk(value: object, at: Path) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, (*at, key))
        elif isinstance(value, list):
            for i, item in enumerate(value):
                walk(item, (*at, i))
        elif isinstance(value, str) and _BLANK.fullmatch(value.strip()):
            found.append(
                ProfileError(
                    f"{value.strip()} is a blank", where=doc.where(at), hint="fill it in from the vendor's document"
                )
            )

    walk(doc.value, ())
    return found


def as_number(value: object) -> int | None:
    """Return a whole number written as decimal or 0x hex; None for anything else. Pure.

    >>> as_number("0x0100"), as_number(16), as_number("16"), as_number(True)
    (256, 16, None, None)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value, 16) if isinstance(value, str) and _HEX.fullmatch(value) else None
