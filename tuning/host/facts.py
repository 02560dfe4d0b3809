"""A fact: a value, where it was read, and how far to trust it; or no value and the reason why. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

__all__ = ["Confidence", "Fact", "derive", "is_absent", "known", "unknown"]

T = TypeVar("T", covariant=True)
V = TypeVar("V")
U = TypeVar("U")


_NOTHING_THERE = (
    "no limit", "unlimited", "on a root bus", "no SR-IOV", "no driver bound", "no IOMMU group", "not a virtual function",
    "no memory BAR", "not needed", "of the whole host", "no link registers decoded", "no PCI Express capability", "no ACS capability",
    "no capability list", "no size= option", "no port above it", "nothing there",
)  # fmt: skip


class Confidence(str, Enum):
    """How a fact was come by."""

    READ = "read"
    DERIVED = "derived"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Fact(Generic[T]):
    """One observation. `value` is None when it is not known, and then `reason` says why: never a default in its place.

    `source` is a path, a register or the facts it was derived from.
    """

    value: T | None
    source: str
    confidence: Confidence = Confidence.READ
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.reason is not None):
            raise ValueError(
                f"a fact has a value or a reason, not both or neither: {self.value!r}, {self.reason!r} ({self.source})"
            )

    @property
    def is_known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    def then(self, convert: Callable[[T], U | None], *, why_not: str = "cannot be read as expected") -> Fact[U]:
        """Convert a known value, keeping source and confidence; None or ValueError from `convert` becomes unknown with `why_not`.

        >>> known("12", "x").then(int).value
        12
        """
        if self.value is None:
            return Fact(None, self.source, self.confidence, self.reason)
        try:
            value = convert(self.value)
        except ValueError:
            value = None
        if value is None:
            return Fact(None, self.source, self.confidence, f"{why_not}: {_short(self.value)}")
        return Fact(value, self.source, self.confidence)


def known(value: V, source: str, confidence: Confidence = Confidence.READ) -> Fact[V]:
    """Return a fact with a value. Pure."""
    return Fact(value, source, confidence)


def unknown(source: str, reason: str) -> Fact[V]:
    """Return a fact without a value. Pure."""
    return Fact(None, source, Confidence.READ, reason)


def derive(convert: Callable[..., U | None], *facts: Fact[Any], source: str | None = None) -> Fact[U]:
    """Combine facts into a derived one; the first unknown among them, or a ValueError of `convert`, makes it unknown. Pure.

    >>> derive(lambda a, b: a * b, known(3, "x"), known(4, "y")).value
    12
    """
    origin = source or ", ".join(dict.fromkeys(fact.source for fact in facts))
    for fact in facts:
        if fact.value is None:
            why = fact.reason if source is None and len(facts) == 1 else f"{fact.reason} ({fact.source})"
            return Fact(None, origin, Confidence.DERIVED, why)
    try:
        value = convert(*(fact.value for fact in facts))
    except ValueError as error:
        return Fact(None, origin, Confidence.DERIVED, str(error))
    if value is None:
        return Fact(None, origin, Confidence.DERIVED, "its parts do not give it")
    return Fact(value, origin, Confidence.DERIVED)


def is_absent(reason: str) -> bool:
    """Whether a reason says that there is nothing (no limit, no driver), not that something could not be read. Pure.

    >>> is_absent("unlimited"), is_absent("permission denied")
    (True, False)
    """
    return reason.startswith(_NOTHING_THERE) or reason.endswith(" is not listed")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
