"""What a proof says: an effect seen, seen missing, or not to be seen here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Proof"]


@dataclass(frozen=True, slots=True)
class Proof:
    """One observation of one item's effect.

    `held` is True when the effect was seen, False when it was looked for and is not there, None when it could not be
    observed here; then, and when it is False, `reason` says why. `text` is for people, `observed` holds the numbers behind it
    (bytes, pages, counts; the unit is in the key).
    """

    name: str
    held: bool | None
    text: str
    observed: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.held is not True and not self.reason:
            raise ValueError(f"a proof that did not hold needs a reason: {self.name}, {self.text!r}")
