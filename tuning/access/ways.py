"""Why a way to reach hardware gave no value: the way is not there, or it is there and failed. Pure.

An operator does different things about the two: load a module or add a boot parameter, or look at the hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOT_AVAILABLE", "Way"]

NOT_AVAILABLE = "access method not available"


@dataclass(frozen=True, slots=True)
class Way:
    """One way in: what is missing when its file is not there, and what is when it may not be opened."""

    missing: str
    denied: str

    def why(self, reason: str) -> str:
        """Return the reason of a read that gave nothing, from the reason of its root. Pure.

        >>> Way("no module", "no right").why("no such file")
        'access method not available: no module'
        """
        if reason == "no such file":
            return f"{NOT_AVAILABLE}: {self.missing}"
        if reason == "permission denied":
            return f"{NOT_AVAILABLE}: {self.denied}"
        return self.failed(reason)

    def failed(self, reason: str) -> str:
        """Return the reason of a way that is there and gave no value. Pure."""
        return f"failed: {reason}"
