"""Writes a plan to a host: all of its changes and verified, or none of them, or says exactly what is left.

    check all -> each change: record, write, read back, record -> observe effects -> read all once more -> end

A change that does not stay: everything is put back (6). What cannot be put back is named (7). A function that ignores the
write and keeps the old value is "unsupported", and apply goes on where the recipe says so. All ones: the device is gone;
the rest is put back (7). A signal between two changes puts everything back too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

from hicachectl.errors import ApplyFailed, HicacheError, PlanStale, Unsupported, UsageError
from hicachectl.tuning.fingerprint import moved
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.journal import Entry, Journal, RecordKind
from hicachectl.tuning.outcome import ApplyReport, ItemOutcome, ItemResult, RunOutcome, UndoResult
from hicachectl.tuning.plan import Plan, differences, to_apply
from hicachectl.tuning.preflight import check_reach, check_writes
from hicachectl.tuning.target import Method, Value, agrees, show_value
from hicachectl.tuning.undo import put_back
from hicachectl.tuning.writing import Hands, Stuck, same_bits, whole

__all__ = [
    "ApplyOptions",
    "Gain",
    "Means",
    "Measure",
    "Observed",
    "apply_plan",
    "changes_until",
    "check_plan",
    "unmeasured",
]

_RECORDS_A_CHANGE = 6
"""intent, done, the verdict of a probe, undo, undone, and one to spare."""
_REPLAN = "hicachectl tune plan --output-file PLAN, look, apply again"


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """`until` is the id of the last change to make; `prove` measures each group's gain and takes back what does not help.

    `another_boot` lets the plan come from an earlier boot, for a unit that applies it at every boot.
    """

    until: str | None = None
    prove: bool = False
    another_boot: bool = False


class Observed(Protocol):
    """What was seen of an effect: `held` None when it could not be observed here."""

    @property
    def held(self) -> bool | None:
        """Whether the effect was there."""

    @property
    def text(self) -> str:
        """What was seen, in a sentence with its numbers."""


class Gain(Protocol):
    """What a load measured with and without a group of changes."""

    @property
    def keep(self) -> bool:
        """Whether the gain exceeds the noise and what the recipe asks for."""

    @property
    def text(self) -> str:
        """Both rates and the noise, in a sentence."""


Measure = Callable[[Sequence[Item], Callable[[], None], Callable[[], None], Callable[[], str | None]], Gain]
"""Measures a group with its changes on and off: items, what sets them on, what sets them off, what asks to stop."""


def unmeasured(item: Item, measure: Measure | None, cannot_measure: Callable[[Item], str | None]) -> str | None:
    """Say why --prove cannot measure an item, None when it can or when no load is named for it."""
    if not item.probe:
        return None
    if measure is None:
        return f"--prove needs the probe {item.probe}, which is not there"
    return cannot_measure(item)


@dataclass(frozen=True)
class Means:
    """What apply works with besides the plan. `refuse` says why an item must wait; `observe` looks at an item's effect.

    `measure(items, set_on, set_off, stop)` loads the devices of a group with the changes on and off in turn and judges the gain;
    None where no probe is there, and `cannot_measure` says why that of one item cannot run here. `stop` names the signal that asks to stop. `about` goes into the journal's first record.
    """

    hands: Hands
    refuse: Callable[[Item], str | None]
    observe: Callable[[Item], Observed | None]
    measure: Measure | None = None
    cannot_measure: Callable[[Item], str | None] = lambda item: None
    on_item: Callable[[ItemOutcome], None] = lambda outcome: None
    stop: Callable[[], str | None] = lambda: None
    about: Mapping[str, Any] = field(default_factory=dict)


def changes_until(plan: Plan, until: str | None) -> tuple[Item, ...]:
    """Return the changes up to and including `until`, all for None. Pure. Raises UsageError for an id that is no change."""
    if until is None:
        return plan.changes
    ids = [item.id for item in plan.changes]
    if until not in ids:
        raise UsageError(
            f"--until {until!r} is not a change of this plan",
            why="its changes are: " + (", ".join(ids) or "none"),
            hint="give one of these ids",
        )
    return plan.changes[: ids.index(until) + 1]


def check_plan(plan: Plan, fresh: Plan, options: ApplyOptions, *, root: HostRoot) -> None:
    """Raise when the host moved since the plan was made, shuts its changes out, or would be planned otherwise now. Writes nothing.

    A process without the right to read a register plans otherwise because of that: so rights come before differences.
    Raises PlanStale (8), PermissionDenied (4), Unsupported (5).
    """
    changed = moved(plan.fingerprint, fresh.fingerprint, another_boot=options.another_boot)
    if fresh.fingerprint.boot_id is None:
        raise Unsupported(
            "the boot id of this host cannot be read",
            where="/proc/sys/kernel/random/boot_id",
            why="a run of an unknown boot could never be rolled back; nothing was written",
            hint="run it on the host itself, with /proc mounted",
        )
    if changed and plan.about.host not in (None, fresh.about.host):
        raise PlanStale(
            f"plan {plan.id} was made for host {plan.about.host}, this is {fresh.about.host or 'a host without a name'}",
            why=f"{'; '.join(changed)}; nothing was written",
            hint=_REPLAN,
        )
    if changed:
        raise PlanStale(
            f"plan {plan.id} was made for another state of this host: {'; '.join(changed)}",
            why=f"it was made at {plan.about.made_at}; nothing was written",
            hint=_REPLAN,
        )
    items = changes_until(plan, options.until)
    check_reach(items, root=root)
    chosen = {item.id for item in items}
    found = [
        difference
        for difference in differences(plan, fresh, another_boot=options.another_boot)
        if difference.id in chosen or options.until is None
    ]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise PlanStale(
            f"{found[0].id}: the plan says {found[0].was}, this host now {found[0].now or 'has no such item'}{more}",
            why="apply writes only what it would plan now; nothing was written",
            hint=_REPLAN,
        )


def apply_plan(
    plan: Plan, fresh: Plan, options: ApplyOptions, *, means: Means, begin: Callable[[], tuple[str, Journal]]
) -> ApplyReport:
    """Write the plan's changes and report each. Changes the host and the journal; `check_plan` comes first, under the lock.

    What is written, how it is read back and in which order is taken from `fresh`, made from this host now. `begin` makes
    the run's journal; it is called when every item may be tried, so that a refused apply leaves no run behind.

    Raises PermissionDenied, Unsupported, PlanStale or HostError before the first write. Afterwards nothing is raised for
    what the host does: the report says what was applied, put back and left. Any other exception is raised on after
    everything was put back, as ApplyFailed (7) when something is left.
    """
    chosen = {item.id for item in changes_until(plan, options.until)}
    items = [
        item
        for item in to_apply(plan, fresh, another_boot=options.another_boot)
        if item.id in chosen or options.until is None
    ]
    writes = [item for item in items if item.kind is ItemKind.CHANGE]
    check_writes(writes, root=means.hands.root, kernel=means.hands.kernel, refuse=means.refuse)
    run_id, journal = begin()
    run = _Run(plan, options, means, journal, run_id)
    try:
        journal.reserve(len(items) * _RECORDS_A_CHANGE + 8)
        journal.append(
            RecordKind.BEGIN,
            run=run_id,
            plan=plan.id,
            profile=plan.choices.profile,
            kernel=plan.fingerprint.kernel,
            recipes=dict(plan.fingerprint.recipes),
            n_changes=len(items),
            **means.about,
        )
        try:
            report = run.all(items)
        except BaseException as error:
            results = run.undo_all(f"{type(error).__name__}: {error}")
            left = [
                name
                for name, result in results.items()
                if result is not UndoResult.UNDONE and result is not UndoResult.ALREADY
            ]
            if not left:
                raise
            raise ApplyFailed(
                f"apply met a bug: {type(error).__name__}: {error}",
                applied=(),
                rolled_back=[name for name in results if name not in left],
                left=left,
                where=f"run {run_id}",
                why=f"could not be put back: {', '.join(left)}",
                hint=f"hicachectl tune status, then hicachectl tune rollback {run_id}",
            ) from error
    finally:
        trouble = journal.close()
    return report if trouble is None else replace(report, notes=(*report.notes, trouble))


class _Failed(Exception):
    """A change did not become what it should; `item` is the one."""

    def __init__(self, item: Item, reason: str) -> None:
        super().__init__(reason)
        self.item, self.reason = item, reason


class _Run:
    """One run: what was written so far, and how each item ended."""

    def __init__(self, plan: Plan, options: ApplyOptions, means: Means, journal: Journal, run_id: str) -> None:
        self.plan, self.options, self.means, self.journal, self.run_id = plan, options, means, journal, run_id
        self.hands = means.hands
        self.written: dict[str, Entry] = {}
        self.outcomes: dict[str, ItemOutcome] = {}
        self.told: dict[str, ItemResult] = {}
        """The result each item was last announced with, so that only what changed is told again."""
        self.notes: list[str] = []

    def all(self, items: Sequence[Item]) -> ApplyReport:
        """Make every change, or put everything back."""
        try:
            for group in self._groups(items):
                signal = self.means.stop()
                if signal is not None:
                    return self._stopped(items, f"{signal} came", signal=signal)
                for item in group:
                    self._change(item)
                self._measure(group)
            self._observe(items)
            self._read_once_more(items)
            signal = self.means.stop()
            if signal is not None:
                return self._stopped(items, f"{signal} came", signal=signal)
            in_place = any(entry.in_place for entry in self.written.values())
            outcome = RunOutcome.APPLIED if in_place else RunOutcome.NOTHING
            self.journal.append(RecordKind.END, outcome=outcome.value)
        except _Failed as failed:
            return self._stopped(items, f"{failed.item.id}: {failed.reason}", culprit=failed.item)
        except (
            HicacheError
        ) as error:  # the journal: a change that cannot be recorded is not made, what was made is put back
            return self._stopped(items, str(error))
        return self._report(outcome, items)

    def undo_all(self, reason: str) -> dict[str, UndoResult]:
        """Put back everything written so far, read each once more, and end the record. Changes the host; raises nothing."""
        entries = [entry for entry in self.written.values() if not entry.settled]
        undone = {undo.id: undo for undo in put_back(entries, hands=self.hands, journal=self.journal)}
        results = {}
        for entry in entries:
            undo = undone[entry.item]
            result, why = undo.result, undo.reason
            present = self.hands.read(entry.target).value
            back = result in (UndoResult.UNDONE, UndoResult.ALREADY)
            if back and (present is None or not same_bits(entry.target, present, entry.old)):
                why = f"it was put back and then read {show_value(entry.target, present)}"
                result, back = UndoResult.LEFT, False
                self._note_left(entry, present, why)
            results[entry.item] = result
            before = self.outcomes[entry.item]
            ended = ItemResult.RESTORED if back else ItemResult.LEFT
            self.outcomes[entry.item] = ItemOutcome(before.item, ended, present, why or before.reason, entry.record)
        left = [name for name, result in results.items() if result not in (UndoResult.UNDONE, UndoResult.ALREADY)]
        outcome = RunOutcome.PARTIAL if left else RunOutcome.UNDONE
        try:
            self.journal.append(RecordKind.END, outcome=outcome.value, reason=reason, left=left)
        except HicacheError as error:
            self.notes.append(f"the end of the run is not in the journal: {error.what}")
        return results

    def _note_left(self, entry: Entry, present: Value | None, why: str) -> None:
        """Record that an undo did not last, so that the journal says left and not undone."""
        try:
            self.journal.append(RecordKind.UNDONE, entry.item, result=UndoResult.LEFT.value, seen=present, reason=why)
        except HicacheError as error:
            self.notes.append(f"{entry.item} is left, and the journal does not say so: {error.what}")

    def _groups(self, items: Sequence[Item]) -> Iterator[list[Item]]:
        """One change at a time; with --prove the changes of one uplink that one probe measures together."""
        proving = self.options.prove
        for _, group in groupby(
            items, key=lambda item: (item.probe, item.uplink) if proving and item.probe else item.id
        ):
            yield list(group)

    def _change(self, item: Item) -> None:
        target = item.target
        assert target is not None
        present = self.hands.read(target)
        if present.value is None:
            raise _Failed(item, f"it cannot be read any more: {present.reason}")
        if agrees(target, item.rule, item.wanted, present.value):
            self._ended(item, ItemResult.ALREADY, present.value, "it holds the wanted value already", None)
            return
        if item.old is None or not same_bits(target, present.value, item.old):
            raise _Failed(
                item, f"it moved from {item.show(item.old)} to {item.show(present.value)} since the plan was made"
            )
        why = unmeasured(item, self.means.measure, self.means.cannot_measure) if self.options.prove else None
        if why is not None:
            self._ended(item, ItemResult.NOT_TRIED, present.value, why, None)
            return
        new = whole(target, present.value, item.wanted[0])
        more = {} if item.recipe_sha256 is None else {"recipe": item.recipe, "recipe_sha256": item.recipe_sha256}
        n = self.journal.intent(
            item.id, target, present.value, new, persistent=target.method is Method.MODULE_PARAM, **more
        )
        self.written[item.id] = Entry(item.id, target, present.value, new, n, "", None, None)
        self.outcomes[item.id] = ItemOutcome(item, ItemResult.FAILED, present.value, None, n)
        try:
            self.hands.write(target, new)
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise self._broke(item, n, self.hands.read(target).value, f"the write was refused: {words}") from error
        back = self.hands.read_back(target, item.read_back, old=present.value, new=new)
        if back.stuck is Stuck.YES:
            self._done(item, ItemResult.OK, back.seen, None, n)
        elif back.stuck is Stuck.UNCHANGED and item.on_not_implemented == "skip":
            self._done(item, ItemResult.UNSUPPORTED, back.seen, back.reason, n)
        else:
            raise self._broke(item, n, back.seen, back.reason or "")

    def _measure(self, group: Sequence[Item]) -> None:
        """Load the group's devices with and without its changes; take them back unless the gain exceeds the noise."""
        made = [item for item in group if self._result(item) is ItemResult.OK and item.probe]
        if not made or not self.options.prove or self.means.measure is None:
            return

        def set_to(value_of: Callable[[Entry], Value]) -> None:
            for item in made:
                entry = self.written[item.id]
                present = self.hands.read(entry.target).value
                if present is None:
                    raise _Failed(item, "it cannot be read any more while it is measured")
                value = whole(entry.target, present, value_of(entry))
                try:
                    self.hands.write(entry.target, value)
                except OSError as error:
                    raise _Failed(
                        item, f"a write was refused while it was measured: {error.strerror or error}"
                    ) from error
                back = self.hands.read_back(entry.target, item.read_back, old=present, new=value)
                if back.stuck is not Stuck.YES:
                    raise _Failed(item, f"it did not stay while it was measured: {back.reason}")

        gain = self.means.measure(
            made, lambda: set_to(lambda entry: entry.new), lambda: set_to(lambda entry: entry.old), self.means.stop
        )
        set_to((lambda entry: entry.new) if gain.keep else (lambda entry: entry.old))
        for item in made:
            entry, result = self.written[item.id], ItemResult.OK if gain.keep else ItemResult.NO_GAIN
            seen = self.hands.read(entry.target).value
            self._done(item, result, seen, None if gain.keep else gain.text, entry.record, proof=gain.text)

    def _observe(self, items: Sequence[Item]) -> None:
        """Look at each kind of effect once. One that is certainly not there fails the run; one that cannot be seen is told."""
        seen: dict[tuple[str, str | None], Observed | None] = {}
        for item in items:
            if not item.proof or self._result(item) is not ItemResult.OK:
                continue
            key = (item.proof, item.subject)
            if key not in seen:
                seen[key] = self.means.observe(item)
            found = seen[key]
            outcome = self.outcomes[item.id]
            if found is None:
                continue
            self.outcomes[item.id] = ItemOutcome(
                item, outcome.result, outcome.seen, outcome.reason, outcome.record, found.text
            )
            if found.held is False:
                raise _Failed(item, f"it was written and read back, and has no effect: {found.text}")

    def _read_once_more(self, items: Sequence[Item]) -> None:
        """Read every change again before success is said: some devices lose a bit after a while."""
        for item in items:
            result = self._result(item)
            entry = self.written.get(item.id)
            if entry is None or result not in (ItemResult.OK, ItemResult.UNSUPPORTED, ItemResult.NO_GAIN):
                continue
            wanted = entry.new if result is ItemResult.OK else entry.old
            present = self.hands.read(entry.target)
            if present.value is None:
                raise _Failed(item, f"it cannot be read at the end: {present.reason}")
            if not same_bits(entry.target, present.value, wanted):
                raise _Failed(item, f"it read back {item.show(wanted)} and at the end {item.show(present.value)}")

    def _stopped(
        self, items: Sequence[Item], reason: str, *, culprit: Item | None = None, signal: str | None = None
    ) -> ApplyReport:
        results = self.undo_all(reason)
        if culprit is not None:
            before = self.outcomes.get(culprit.id)
            result = ItemResult.LEFT if self._result(culprit) is ItemResult.LEFT else ItemResult.FAILED
            why = reason.removeprefix(f"{culprit.id}: ")
            if result is ItemResult.LEFT and before is not None and before.reason:
                why = f"{why}; {before.reason}"
            self.outcomes[culprit.id] = ItemOutcome(
                culprit, result, before.seen if before else None, why, before.record if before else None
            )
        left = any(result not in (UndoResult.UNDONE, UndoResult.ALREADY) for result in results.values())
        for item in items:
            if item.id in self.outcomes and self.outcomes[item.id].result is not self.told.get(item.id):
                self._tell(self.outcomes[item.id])
        return self._report(RunOutcome.PARTIAL if left else RunOutcome.UNDONE, items, failure=reason, signal=signal)

    def _report(
        self, outcome: RunOutcome, items: Sequence[Item], *, failure: str | None = None, signal: str | None = None
    ) -> ApplyReport:
        ended = tuple(
            self.outcomes.get(item.id)
            or ItemOutcome(item, ItemResult.NOT_TRIED, None, "the run stopped before it", None)
            for item in items
        )
        return ApplyReport(self.run_id, self.plan.id, outcome, ended, failure, signal, tuple(self.notes))

    def _result(self, item: Item) -> ItemResult | None:
        outcome = self.outcomes.get(item.id)
        return None if outcome is None else outcome.result

    def _broke(self, item: Item, n: int, seen: Value | None, reason: str) -> _Failed:
        self._settle(item, ItemResult.FAILED, seen)
        self.outcomes[item.id] = ItemOutcome(item, ItemResult.FAILED, seen, reason, n)
        self.journal.append(RecordKind.DONE, item.id, result=ItemResult.FAILED.value, seen=seen, reason=reason)
        return _Failed(item, reason)

    def _settle(self, item: Item, result: ItemResult, seen: Value | None) -> None:
        """Remember how a write ended, as the journal's reader would; before it is recorded, for the record may fail."""
        self.written[item.id] = replace(self.written[item.id], result=result.value, seen=seen)

    def _done(
        self, item: Item, result: ItemResult, seen: Value | None, reason: str | None, n: int, proof: str | None = None
    ) -> None:
        self._settle(item, result, seen)
        self.journal.append(RecordKind.DONE, item.id, result=result.value, seen=seen, reason=reason, proof=proof)
        self._ended(item, result, seen, reason, n, proof)

    def _ended(
        self,
        item: Item,
        result: ItemResult,
        seen: Value | None,
        reason: str | None,
        n: int | None,
        proof: str | None = None,
    ) -> None:
        self.outcomes[item.id] = ItemOutcome(item, result, seen, reason, n, proof)
        self.told[item.id] = result
        self._tell(self.outcomes[item.id])

    def _tell(self, outcome: ItemOutcome) -> None:
        """Show a line. A screen that went away stops nothing: what it would have shown is in the report."""
        try:
            self.means.on_item(outcome)
        except BaseException as error:  # noqa: BLE001 - a pipe that closed is one
            self.notes.append(f"the line of {outcome.item.id} could not be shown: {type(error).__name__} {error}")
