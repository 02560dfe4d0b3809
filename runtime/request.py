"""One request on its way through the cache: its state and what it holds. Pure.

Ranges of a request's pages, all absolute and half-open (D <= L <= L + S <= n_pages):

    [0, D)          device-ready at the match: usable at once               hit, tier device
    [D, L)          held by the host tier                                   hit, tier host
    [L, L + S)      storage said it holds them                              hit, tier storage
    [L + S, n)      nowhere: computed                                       missed, by reason
    tail            fewer than page_tokens tokens: computed, never cached   missed, partial_page

`used_pages` ends where the engine starts computing: D plus what a restore brought up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.decide import RestoreReason
from hicachectl.runtime.keys import Namespace
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.tickets import LoadTicket
from hicachectl.runtime.tree import Lease, Match, Slots

__all__ = ["Phase", "Request"]


class Phase(Enum):
    """Where a request stands; `Request.move` allows only the steps of `_NEXT`."""

    MATCHED = "matched"
    RESTORING = "restoring"
    READY = "ready"
    RELEASED = "released"


_NEXT = {
    Phase.MATCHED: {Phase.RESTORING, Phase.RELEASED},
    Phase.RESTORING: {Phase.READY, Phase.RELEASED},
    Phase.READY: {Phase.RELEASED},
    Phase.RELEASED: set(),
}


@dataclass(slots=True)
class Request:
    """A request the cache knows, from `match` to `release`. Written by the cache alone."""

    serial: int
    tokens: bytes
    keys: bytes | None
    namespace: Namespace
    priority: int
    page_tokens: int
    match: Match
    lease: Lease
    storage_pages: int
    missed_flags: npt.NDArray[np.uint8] | None
    """Flags of the seen-keys memory for the pages no tier holds, read at the match."""
    phase: Phase = Phase.MATCHED
    ready_pages: int = 0
    """Pages usable on the device now; never ahead of a finished copy."""
    cut_reason: MissReason = MissReason.RESTORE_DEARER
    """Why the hit pages that were not restored were not."""
    planned_pages: int = 0
    """How far the restore means to get."""
    counted_pages: int = 0
    """Pages whose hit count already includes this request."""
    loads: list[LoadTicket] = field(default_factory=list)
    restored_host_pages: int = 0
    restored_storage_pages: int = 0
    restore_wait_s: float = 0.0
    """Time it stood still to be restored: deciding, starting the copies, waiting for them. `room_wait_s` is not in it."""
    room_wait_s: float = 0.0
    """Time it stood still, at any step, for copies that held the slots it needed."""
    match_s: float = 0.0
    """Time of the match: tree walk, lease, and what storage says it holds."""
    restore_reason: RestoreReason | None = None
    """Why the restore is as long as it is; None before it was decided."""
    restore_began_s: float = 0.0
    """When (perf_counter) it was decided."""
    restore_s: float | None = None
    """Time from that decision until the request went on; None when nothing was to be restored."""
    allocated: Slots | None = None
    """Device slots handed out by `allocate` and not yet published: the request's own."""
    duplicates: list[Slots] = field(default_factory=list)
    """Device slots of pages another request published first; this one's engine may read them until `release`."""
    used_pages: int = 0
    failed: bool = False

    def move(self, phase: Phase) -> None:
        """Go to `phase`; raises InvariantBroken when that step does not exist."""
        if phase not in _NEXT[self.phase]:
            raise InvariantBroken(f"request {self.serial} cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase

    @property
    def n_pages(self) -> int:
        """Whole pages of the request."""
        return self.match.n_pages

    @property
    def input_tokens(self) -> int:
        """All tokens of the request, the incomplete tail included."""
        return len(self.tokens) // 4
