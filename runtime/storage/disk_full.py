"""What to do when the disk refuses: shrink to what fits, then pause, then try again. Pure: the caller passes `now`.

    OPEN --full--> SHRUNK    go on inside what the objects occupy now: a write evicts first
    OPEN --denied--> PAUSED  no write until retry_at
    SHRUNK --refused--> PAUSED
    any --retry_at passed--> OPEN, and the next refusal waits twice as long; a success long after resets the wait

Reads go on in every state.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["FIRST_WAIT_S", "LONGEST_WAIT_S", "DiskGuard", "DiskState"]

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0  # someone who frees space should not wait longer than this to see the tier come back


class DiskState(Enum):
    """What writes may do now."""

    OPEN = "open"
    SHRUNK = "shrunk"
    PAUSED = "paused"


class DiskGuard:
    """Decides from the refusals of a disk whether the next write may be tried, and within which bytes."""

    def __init__(self) -> None:
        self.state = DiskState.OPEN
        self.retry_at_s = 0.0
        self._wait_s = FIRST_WAIT_S

    def at(self, now_s: float) -> DiskState:
        """Return the state at `now_s`, reopening when the wait is over."""
        if self.state is not DiskState.OPEN and now_s >= self.retry_at_s:
            self.state = DiskState.OPEN
        return self.state

    def refused(self, now_s: float, *, can_shrink: bool) -> DiskState:
        """Record that a write was refused and return the new state.

        `can_shrink`: the disk is full (not unwritable) and objects of ours could make room.
        """
        if can_shrink and self.at(now_s) is DiskState.OPEN:
            self.state = DiskState.SHRUNK
        else:
            self.state = DiskState.PAUSED
        self.retry_at_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        return self.state

    def succeeded(self, now_s: float) -> None:
        """Record that a write went through; a success in the open state ends the episode."""
        if self.at(now_s) is DiskState.OPEN:
            self._wait_s = FIRST_WAIT_S
