"""One operator's path in one screen: look at the host -> plan -> apply -> verify -> roll back.

session = Session(root=HostRoot(), kernel=LiveKernel(root), state=StateDir(), knobs=all_knobs(recipes), ...)
plan = session.plan(choices)
report = session.apply(plan, ApplyOptions())        # locked, journaled, read back, all or nothing
session.verify()                                    # the last run that is in place
session.rollback("j-0001")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hicachectl.errors import HostError, PlanStale, UsageError
from hicachectl.tuning.access import read_doors, read_target
from hicachectl.tuning.apply import ApplyOptions, Means, Measure, Observed, apply_plan, check_plan
from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.machine import read_boot_id
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item, Owner
from hicachectl.tuning.journal import Journal, read_journal
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.knobs import Knob
from hicachectl.tuning.lock import LockHolder, hold_lock, lock_holder
from hicachectl.tuning.outcome import ApplyReport, ItemOutcome, RollbackReport, RunState, Undo, VerifyReport
from hicachectl.tuning.owners import read_owners
from hicachectl.tuning.plan import About, Plan, make_plan
from hicachectl.tuning.plan_json import plan_to_json
from hicachectl.tuning.rollback import rollback_run
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.state import StateDir, write_durably
from hicachectl.tuning.status import last_in_place, run_states
from hicachectl.tuning.target import Target
from hicachectl.tuning.verify import verify_entries, verify_plan
from hicachectl.tuning.writing import Hands

__all__ = ["Session", "probe"]

ReadOwners = Callable[[HostRoot, Sequence[str]], Mapping[str, tuple[Owner, ...]]]


def probe(root: HostRoot, knobs: Sequence[Knob], choices: Choices, owners: ReadOwners = read_owners) -> Sight:
    """Look at a host once: the machine, and every place the knobs must know. Reads the host, changes nothing."""
    machine = read_machine(root)
    targets = tuple(dict.fromkeys(target for knob in knobs for target in knob.targets(machine, choices)))
    values = {target: read_target(root, target) for target in targets}
    return Sight(machine, values, owners(root, [target.path for target in targets]), read_doors(root, targets))


@dataclass(frozen=True)
class Session:
    """A host, what it may be tuned by, and where its runs are recorded.

    `clock` gives UTC in RFC 3339; `refuse` says why an item must wait for whoever uses the device; `observe` looks at an
    item's effect; `measure` loads the devices of a group under --prove, `cannot_measure` says why it cannot; `checkpoint` is called at every durable step.
    """

    root: HostRoot
    kernel: Kernel
    state: StateDir
    knobs: Sequence[Knob]
    clock: Callable[[], str]
    sleep: Callable[[float], None]
    who: str
    pid: int
    tool_version: str
    recipes: Mapping[str, str] = field(default_factory=dict)
    read_owners: ReadOwners = read_owners
    refuse: Callable[[Item], str | None] = lambda item: None
    observe: Callable[[Item], Observed | None] = lambda item: None
    measure: Measure | None = None
    cannot_measure: Callable[[Item], str | None] = lambda item: None
    checkpoint: Callable[[str], None] = lambda step: None

    def plan(self, choices: Choices) -> Plan:
        """Look at the host and plan. Reads the host, changes nothing."""
        sight = probe(self.root, self.knobs, choices, self.read_owners)
        about = About(self.tool_version, sight.machine.host.hostname.value, self.clock())
        return make_plan(sight, choices, self.knobs, recipes=self.recipes, about=about)

    def apply(
        self,
        plan: Plan,
        options: ApplyOptions,
        *,
        on_item: Callable[[ItemOutcome], None] = lambda outcome: None,
        stop: Callable[[], str | None] = lambda: None,
    ) -> ApplyReport:
        """Apply a plan under the lock. Changes the host and the state folder.

        Raises PlanStale (8) for a host that moved or a held lock, PermissionDenied (4), Unsupported (5), HostError when
        the state folder cannot be written; then nothing was written to the host.
        """
        self.state.prepare()
        with self._locked():
            self.refuse_open_run()
            fresh = self.plan(plan.choices)
            check_plan(plan, fresh, options, root=self.root)
            about = {"boot_id": self.boot_id(), "who": self.who, "pid": self.pid, "tool_version": self.tool_version}
            means = Means(
                self._hands(), self.refuse, self.observe, self.measure, self.cannot_measure, on_item, stop, about
            )
            return apply_plan(plan, fresh, options, means=means, begin=lambda: self._begin(plan))

    def verify(self, run_id: str | None = None) -> VerifyReport:
        """Compare the host with what a run left in place, the last one by default. Reads, changes nothing.

        Raises UsageError when no run is there.
        """
        chosen = self._chosen(run_id, self.states())
        entries = read_journal(self.state.folder(chosen.run_id)).entries()
        owners = self.read_owners(self.root, [entry.target.path for entry in entries])
        return verify_entries(chosen.run_id, entries, root=self.root, owners=owners, same_boot=not chosen.expired)

    def verify_plan(self, plan: Plan) -> VerifyReport:
        """Compare the host with what a plan wants. Reads, changes nothing."""
        paths = [item.target.path for item in plan.items if item.target is not None]
        return verify_plan(plan, root=self.root, owners=self.read_owners(self.root, paths))

    def rollback(
        self, run_id: str | None = None, *, force: bool = False, on_undo: Callable[[Undo], None] = lambda undo: None
    ) -> RollbackReport:
        """Put back what a run left in place, the last one by default. Changes the host and the run's journal.

        Raises PlanStale (8) for a run of another boot or a held lock, UsageError when no run is there.
        """
        self._chosen(run_id, self.states())
        with self._locked():
            states = self._read_states(None)  # again, now that nobody else is at work
            chosen = self._chosen(run_id, states)
            folder = self.state.folder(chosen.run_id)
            text = read_journal(folder)
            journal, trouble = self._journal(folder)
            try:
                report = rollback_run(
                    chosen.run_id,
                    text,
                    hands=self._hands(),
                    journal=journal,
                    folder=str(folder),
                    boot_id=self.boot_id(),
                    newer=self.newer_runs(chosen, states),
                    force=force,
                    about={"who": self.who, "pid": self.pid, "tool_version": self.tool_version},
                    on_undo=on_undo,
                )
            finally:
                closed = None if journal is None else journal.close()
            return replace(report, notes=(*report.notes, *(note for note in (trouble, closed) if note is not None)))

    def states(self) -> tuple[RunState, ...]:
        """Return every recorded run, oldest first. Reads the state folder."""
        return self._read_states(lock_holder(self.state))

    def _read_states(self, at_work: LockHolder | None) -> tuple[RunState, ...]:
        return run_states(
            self.state, boot_id=self.boot_id(), at_work=at_work, read=lambda target: read_target(self.root, target)
        )

    def boot_id(self) -> str | None:
        """Return the id of the running boot; None when it cannot be read."""
        return read_boot_id(self.root).value

    def _begin(self, plan: Plan) -> tuple[str, Journal]:
        run_id, folder = self.state.new_run()
        write_durably(folder / "plan.json", plan_to_json(plan))
        return run_id, Journal(folder, clock=self.clock, checkpoint=self.checkpoint)

    def _hands(self) -> Hands:
        return Hands(self.root, self.kernel, self.sleep)

    def _chosen(self, run_id: str | None, states: tuple[RunState, ...]) -> RunState:
        if run_id is not None:
            self.state.folder(run_id)
            return next(state for state in states if state.run_id == run_id)
        found = last_in_place(states) or (states[-1] if states else None)
        if found is None:
            raise UsageError(
                "no run is recorded here",
                where=str(self.state.journal),
                why="nothing was applied with this state folder",
                hint="hicachectl tune plan --output-file PLAN, then hicachectl tune apply PLAN",
            )
        return found

    def refuse_open_run(self) -> None:
        """Raise PlanStale (HC-OPEN-RUN) when a run left this boot's host between two states. Reads the state folder and the host.

        It is put right before the next begins: else nobody could tell whose value is whose.
        """
        for state in self._read_states(None):
            if state.between:
                raise PlanStale(
                    f"run {state.run_id} left the host between two states: {state.reason or state.outcome.value}",
                    where=state.folder,
                    why=f"{state.n_in_place + state.n_unsettled} of its {state.n_changes} changes are, or may be, in place",
                    hint=f"hicachectl tune rollback {state.run_id}, then apply again"
                    if state.readable
                    else "put the host right by hand, then move this folder away",
                    code="HC-OPEN-RUN",
                )

    def newer_runs(self, chosen: RunState, states: tuple[RunState, ...]) -> tuple[tuple[Target, str], ...]:
        """Say which targets a later run of this boot set, and which run: they are not the chosen one's to take back."""
        found = []
        for state in states[states.index(chosen) + 1 :]:
            if state.readable:
                entries = read_journal(self.state.folder(state.run_id)).entries()
                live = [entry for entry in entries if not entry.settled and (entry.persistent or not state.expired)]
                found += [(entry.target, state.run_id) for entry in live]
        return tuple(found)

    def _journal(self, folder: Path) -> tuple[Journal | None, str | None]:
        try:
            return Journal(folder, clock=self.clock, checkpoint=self.checkpoint), None
        except HostError as error:
            return None, f"not recorded: {error.what}"

    def _locked(self) -> AbstractContextManager[None]:
        return hold_lock(self.state, self.root, who=self.who, pid=self.pid, clock_text=self.clock(), sleep=self.sleep)
