"""What a proof says: an effect seen, seen missing, or not to be seen here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Proof"]


@dataclass(frozen=True, slots=True)
class Proof:
    """One observation of one item's effect.

    `held` is True when the effect was seen, False when it was looked for and is not there, None when it could not be
    observed here; then, and when it is False, `reason` says why. `seen` says what was seen, `observed` holds the numbers
    behind it (bytes, pages, counts; the unit is in the key).
    """

    name: str
    held: bool | None
    seen: str
    observed: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.held is True) != (self.reason is None):
            raise ValueError(
                f"a proof that did not hold has a reason, and no other: {self.name}, {self.held}, {self.reason!r}"
            )

    @property
    def text(self) -> str:
        """What was seen and why that is no proof, in one sentence for screen and journal. Pure."""
        return self.seen if self.reason is None else f"{self.seen}: {self.reason}"
