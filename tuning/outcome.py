"""What apply, verify, rollback and status report, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hicachectl.errors import ApplyFailed
from hicachectl.tuning.item import Item
from hicachectl.tuning.target import Rule, Target, Value

__all__ = [
    "ApplyReport", "Checked", "ItemOutcome", "ItemResult", "RollbackReport", "RunOutcome", "RunState", "Undo", "UndoResult", "Verdict",
    "VerifyReport",
]  # fmt: skip


class ItemResult(str, Enum):
    """How one change of a run ended."""

    OK = "ok"
    ALREADY = "already"
    UNSUPPORTED = "unsupported"
    NO_GAIN = "no-gain"
    FAILED = "failed"
    RESTORED = "restored"
    LEFT = "left"
    NOT_TRIED = "not-tried"


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """One line of apply. `seen` is the last value read; `record` the journal's record number; `proof` what was observed as its effect."""

    item: Item
    result: ItemResult
    seen: Value | None
    reason: str | None
    record: int | None
    proof: str | None = None


class RunOutcome(str, Enum):
    """How a run ended, or that it did not."""

    APPLIED = "applied"
    UNDONE = "undone"
    PARTIAL = "partial"
    INTERRUPTED = "interrupted"
    """The record ends in the middle: killed, or the power went."""
    ROLLED_BACK = "rolled-back"
    NOTHING = "nothing"
    """No change was needed or none was written."""


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """What `tune apply` did. `failure` says why it stopped, None when it did not; `stopped_by` names the signal when one did.

    `exit_code` follows from `outcome`: 0, 6 (all put back and verified), 7 (something is left, named by LEFT).
    """

    run_id: str
    plan_id: str
    outcome: RunOutcome
    items: tuple[ItemOutcome, ...]
    failure: str | None = None
    stopped_by: str | None = None
    notes: tuple[str, ...] = ()

    def named(self, *results: ItemResult) -> tuple[str, ...]:
        """Return the ids of the items that ended in one of these ways. Pure."""
        return tuple(outcome.item.id for outcome in self.items if outcome.result in results)

    def error(self) -> ApplyFailed | None:
        """Return the error this report means, None when all was applied or nothing had to be. Pure."""
        if self.outcome not in (RunOutcome.UNDONE, RunOutcome.PARTIAL):
            return None
        left = self.named(ItemResult.LEFT)
        return ApplyFailed(
            self.failure or "the run stopped",
            applied=self.named(ItemResult.OK),
            rolled_back=self.named(ItemResult.RESTORED, ItemResult.FAILED),
            left=left,
            where=f"run {self.run_id}",
            why=f"could not be put back: {', '.join(left)}" if left else "everything was put back and read back",
            hint=f"hicachectl tune status, then hicachectl tune rollback {self.run_id}"
            if left
            else "hicachectl tune plan",
        )


class Verdict(str, Enum):
    """What verify says of one item. Nothing unread is ok."""

    OK = "ok"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    """Written in another boot, and not kept over one."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One item of verify: wanted against seen, by which rule, read where; `writer` is who likely changed it since."""

    id: str
    target: Target
    rule: Rule
    wanted: tuple[Value, ...]
    seen: Value | None
    verdict: Verdict
    source: str
    reason: str | None = None
    wrote_at: str | None = None
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`against` names the run, plan file or profile; `items` in its order."""

    against: str
    items: tuple[Checked, ...]

    def count(self, verdict: Verdict) -> int:
        """Return how many items got a verdict. Pure."""
        return sum(item.verdict is verdict for item in self.items)


class UndoResult(str, Enum):
    """How the rollback of one item ended."""

    UNDONE = "undone"
    ALREADY = "already"
    """The old value was there."""
    CHANGED_SINCE = "changed-since"
    """Neither ours nor the old value: somebody else set it, and it is left."""
    EXPIRED = "expired"
    LEFT = "left"
    """It could not be put back."""


@dataclass(frozen=True, slots=True)
class Undo:
    """One line of rollback: what it held, what was recorded, how it ended."""

    id: str
    target: Target
    ours: Value
    recorded: Value
    present: Value | None
    result: UndoResult
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """What `tune rollback` did, in the order it did it: the reverse of the writes."""

    run_id: str
    items: tuple[Undo, ...]
    outcome: RunOutcome
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """One run as its journal tells it. `expired` when it was written in another boot; `torn` when its last record is cut.

    `n_in_place` are the changes it left on purpose, `n_unsettled` those of which the host may hold anything: cut in the
    middle, failed, or not put back. `n_persistent` of both outlive a boot, `n_persistent_unsettled` of the latter. `readable` is False for a journal somebody changed.

    `open_item` is the id of the item whose write was begun and not recorded as done; the host holds its old or its new value.
    """

    run_id: str
    plan_id: str
    outcome: RunOutcome
    began_at: str
    ended_at: str | None
    who: str
    boot_id: str | None
    expired: bool
    n_changes: int
    n_applied: int
    n_undone: int
    open_item: str | None
    torn: bool
    folder: str
    reason: str | None = None
    n_in_place: int = 0
    n_unsettled: int = 0
    n_persistent: int = 0
    n_persistent_unsettled: int = 0
    readable: bool = True

    @property
    def between(self) -> bool:
        """Whether this boot's host may be between two states because of this run. Pure."""
        if not self.readable:
            return True
        if self.expired:
            return self.n_persistent_unsettled > 0
        cut = self.outcome in (RunOutcome.INTERRUPTED, RunOutcome.PARTIAL)
        return self.n_unsettled > 0 or (cut and self.n_in_place > 0)

    @property
    def holds(self) -> bool:
        """Whether something of this run is, or may be, in place now. Pure."""
        n = self.n_persistent if self.expired else self.n_in_place + self.n_unsettled
        return n > 0 or not self.readable
