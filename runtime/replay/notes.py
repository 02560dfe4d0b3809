"""Oddities of a trace that are no errors: counted while it is read, reported once each."""

from __future__ import annotations

__all__ = ["Notes"]


class Notes:
    """Counts each kind of oddity and remembers where the first one was."""

    __slots__ = ("_counts", "_first")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def count(self, kind: str, where: str) -> None:
        """Count one oddity; `kind` is a sentence without its number, such as `requests name a parent ...`."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._first.setdefault(kind, where)

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence a kind, in the order they were first met. Pure."""
        return tuple(f"{n} {kind} (first: {self._first[kind]})" for kind, n in self._counts.items())
