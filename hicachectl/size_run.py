"""One sizing: from the effective configuration to a prediction, the steps on real pools, and the configuration file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from hicachectl.context import Context
from hicachectl.size_asked import asked_of, check_found, name_run, refuse_other
from hicachectl.size_pages import sizes_of, storage_pages_of
from hicachectl.size_tiers import is_exclusive, require_storage_room, storage_folder_of

if TYPE_CHECKING:
    from hicachectl.config import Effective
    from hicachectl.progress import Progress
    from hicachectl.run_plan import RunPlan
    from hicachectl.runtime.replay.driver import ReplayConfig
    from hicachectl.runtime.replay.record import Recorder
    from hicachectl.tuning.sizing.budget import Budget
    from hicachectl.tuning.sizing.economics import Costs
    from hicachectl.tuning.sizing.pool_costs import PoolCosts
    from hicachectl.tuning.sizing.pool_trials import PoolTrials
    from hicachectl.tuning.sizing.prediction import Prediction
    from hicachectl.tuning.sizing.size_journal import SizeJournal
    from hicachectl.tuning.sizing.stages import Stage
    from hicachectl.tuning.sizing.steps import Climbed, Step
    from hicachectl.tuning.sizing.trial import Trial
    from hicachectl.tuning.sizing.trial_storage import TrialStorage
    from hicachectl.tuning.sizing.waterfall import Waterfall

__all__ = ["NO_STEPS", "Done", "Sizing", "tell_to"]

NO_STEPS = "none"


@dataclass(frozen=True, slots=True)
class Done:
    """What a run that is continued had finished: trials as recorded, of steps by pages and of replays beside them by name."""

    steps: dict[int, Any]
    stages: dict[str, Any]


class Sizing:
    """One sizing: what is replayed and on what, from the effective configuration."""

    def __init__(
        self, cli: Context, effective: Effective, max_bytes: str | None, steps: str, points: float, concurrency: int, ranks: int, shared: bool,
        *, l2: str = "inclusive", l3: str | None = None, l3_path: Path | None = None,
    ) -> None:  # fmt: skip
        from hicachectl.run_costs import read_costs
        from hicachectl.run_plan import plan_run
        from hicachectl.runtime.keytable import table_bytes
        from hicachectl.runtime.transfer.device import device_type
        from hicachectl.units import format_bytes, parse_size

        self.cli, self.effective, self.steps_text = cli, effective, steps
        self._began_s = monotonic()
        self.points, self.concurrency, self.ranks, self.shared = points, concurrency, ranks, shared
        self.exclusive = is_exclusive(l2)
        wanted = effective.run.model_copy(update={"host_slots": 0, "storage_path": None})
        self.plan: RunPlan = plan_run(wanted, must_fit=steps != NO_STEPS)
        self.base = self.plan.replay
        self.bench_results = read_costs(wanted.costs)  # held: the files may be others when the steps end, hours later
        for oddity in self.plan.info.warnings:
            cli.note(f"trace: {oddity}")
        self.storage_pages = storage_pages_of(l3, self.base.geometry.page_bytes)
        self.storage_folder = storage_folder_of(l3_path, l3)
        if self.storage_folder is not None and steps != NO_STEPS:
            require_storage_room(self.storage_pages, self.plan.longest_pages)
        self.root = cli.host_root()
        self.device_pages = self.base.device_slots or self.plan.longest_pages
        on_host = self.device_pages * self.base.geometry.page_bytes if device_type(self.base.device) == "cpu" else 0
        tables = table_bytes(effective.run.seen_keys)
        self._taken_words = f"L1 on this host {format_bytes(on_host)}, key tables {format_bytes(tables)}"
        taken = on_host + tables
        limit = None if max_bytes is None else parse_size(max_bytes, where="--max-bytes")
        self._taken_bytes, self.max_bytes = taken, limit
        self.budget = self._look()
        self._made_storage: TrialStorage | None = None

    def predict(self) -> Prediction:
        """Read the trace, and choose."""
        from hicachectl.tuning.sizing.prediction import predict

        plan = self.plan
        sizes = (
            None if self.steps_text in ("auto", NO_STEPS) else sizes_of(self.steps_text, self.base.geometry.page_bytes)
        )
        with self.cli.progress("curve"):
            return predict(
                plan.trace, plan.info, self.base, self.budget, device_pages=self.device_pages,
                longest_pages=plan.longest_pages, points=self.points, concurrency=self.concurrency,
                exclusive=self.exclusive, storage_pages=self.storage_pages, steps=sizes,
                only_bytes=self.max_bytes, predict_only=self.steps_text == NO_STEPS,
            )  # fmt: skip

    def budget_note(self, prediction: Prediction) -> str | None:
        """Say where the prediction is for a larger host than this one; None where it is for this one. Pure."""
        if self.steps_text != NO_STEPS:
            return None
        from hicachectl.units import format_bytes

        pool = "the pool" if self._copies == 1 else f"each of {self._copies} copies of the pool"
        can_use, most = self.budget.can_use_bytes, prediction.limits.most_pages
        here = f"this host can use {format_bytes(can_use)}, {can_use // self.base.geometry.page_bytes} pages"
        if most is None:
            return (
                f"{here}, and one request needs {prediction.limits.least_pages}: predicted for a larger host, without a limit of "
                "memory; --max-bytes SIZE gives that host's"
            )
        if self.max_bytes is not None and self.max_bytes > can_use:
            return f"{here}: predicted for a host with {format_bytes(self.max_bytes)} for {pool} (--max-bytes)"
        return None

    def journal(self, prediction: Prediction, state: Path, *, resume: bool) -> tuple[Prediction, SizeJournal, Done]:
        """Begin a record, or take up the last one: its sizes, and the trials that it holds.

        Free memory differs from hour to hour, so the sizes of a run that goes on are those it began with. Raises UsageError
        where it asked for something else.
        """
        from hicachectl.tuning.sizing.size_journal import JOURNAL_FILE, SizeJournal

        asked = asked_of(self, prediction)
        if not resume:
            journal = SizeJournal.begin(state, asked)
            name_run(self.cli, journal.id)
            return prediction, journal, Done({}, {})
        journal, records = SizeJournal.go_on(state)
        try:
            refuse_other(records.id, records.folder, records.asked, asked)
            check_found(records.asked, f"{records.folder / JOURNAL_FILE}:1")
            prediction = self.began_with(prediction, records.asked)
        except BaseException:
            journal.close()
            raise
        cut = f", {records.cut} pages was cut short" if records.cut is not None else ""
        self.cli.note(f"going on with {records.id}: {len(records.done)} steps are done{cut}")
        name_run(self.cli, journal.id)
        return prediction, journal, Done(records.done, records.stages)

    def began_with(self, prediction: Prediction, was: dict[str, Any]) -> Prediction:
        """Return the prediction with the choice and the sizes that a run had recorded. Pure."""
        from hicachectl.tuning.sizing.plateau import Bound, Rule

        pages = was["chosen"]
        choice = replace(
            prediction.choice, host_pages=pages, bound=Bound(was["bound"]), rule=Rule(was["rule"]), reason=was["reason"],
            rate=prediction.levels.rate(pages),
        )  # fmt: skip
        return replace(prediction, choice=choice, sizes=tuple(was["steps"]))

    def left_s(self, time_budget_s: float | None) -> float | None:
        """Return what is left of the seconds that the whole sizing has; None: no limit."""
        return None if time_budget_s is None else max(0.0, time_budget_s - (monotonic() - self._began_s))

    def settled(self, prediction: Prediction) -> Prediction:
        """Return the prediction that the steps ended with: of a trace the one they began with. Pure."""
        return prediction

    def climb(
        self, prediction: Prediction, journal: SizeJournal, done: dict[int, Any], *, time_budget_s: float | None = None
    ) -> Climbed:
        """Try the sizes on real pools. L1 alone comes first, so that every gain has its base."""
        from hicachectl.tuning.sizing.prediction import assumption_of
        from hicachectl.tuning.sizing.steps import climb

        sizes = (0, *prediction.sizes) if self.steps_text != NO_STEPS and prediction.sizes else ()
        n_requests = prediction.n_requests
        error = prediction.error(prediction.choice.host_pages) or 0.0
        left, before = n_requests * sum(pages not in done for pages in sizes), 0
        with self.cli.progress("steps", total=left, unit="requests") as progress:
            trials = self._trials(
                done, self._storage(prediction, journal), lambda recorder: progress.update(before + recorder.n_requests)
            )

            def try_size(pages: int) -> Trial:
                nonlocal before
                progress.enter(f"{pages} pages" if pages else "L1 alone")
                before = progress.done
                return trials.step(pages)

            return climb(
                sizes, prediction.choice.host_pages, try_size=try_size, predict=prediction.hits,
                total_pages=prediction.curve.total,
                assume=lambda pages: assumption_of(self.base, self.device_pages, pages, exclusive=self.exclusive),
                journal=journal, done=done, points=self.points, reach=prediction.reach,
                slack_pages=int((0.01 + 2 * error) * prediction.curve.total), time_budget_s=self.left_s(time_budget_s), tell=tell_to(progress),
            )  # fmt: skip

    def beside(
        self,
        prediction: Prediction,
        climbed: Climbed,
        journal: SizeJournal,
        done: dict[str, Any],
        *,
        time_budget_s: float | None = None,
    ) -> dict[str, Trial | str]:
        """Make the replays beside the steps: one size again, and what copies and memory pages do."""
        from hicachectl.tuning.sizing.stages import measure_stages

        if self.steps_text == NO_STEPS or not climbed.steps:
            return {}
        before = 0
        with self.cli.progress("waterfall", unit="requests") as progress:
            trials = self._trials(
                {}, self._storage(prediction, journal), lambda recorder: progress.update(before + recorder.n_requests)
            )

            def try_stage(stage: Stage, config: ReplayConfig) -> Trial:
                nonlocal before
                progress.enter(f"{stage.pages} pages, {stage.name}")
                before = progress.done
                return trials.stage(stage, config)

            return measure_stages(
                self.base, climbed, try_stage=try_stage, journal=journal, done=done, time_budget_s=self.left_s(time_budget_s)
            )  # fmt: skip

    def attribution(self, climbed: Climbed, stages: dict[str, Trial | str]) -> Waterfall:
        """Put what was measured in a row: what each part of the host tier is worth. Pure."""
        from hicachectl.tuning.sizing.waterfall import waterfall

        return waterfall(climbed, stages)

    def costs(
        self, prediction: Prediction, climbed: Climbed, again: Trial | str
    ) -> tuple[PoolCosts, Costs | None, str | None]:
        """What a GiB of pool and a restore cost in the steps or by `--costs`, and why the costs are not known where they are not."""
        from hicachectl.run_costs import sizing_costs
        from hicachectl.tuning.sizing.given_costs import refuted, with_given
        from hicachectl.tuning.sizing.measured_costs import Traffic, costs_of
        from hicachectl.tuning.sizing.pool_costs import pool_costs

        trials = [step.trial for step in climbed.steps if step.trial is not None]
        traffic = Traffic(
            prediction.n_requests, prediction.input_tokens, prediction.whole_page_tokens, prediction.span_s
        )
        of_pool = pool_costs(trials, traffic.span_s, again)
        measured, why = costs_of(trials, self.base, traffic, of_pool)
        given = sizing_costs(self.bench_results)
        if climbed.all_lost_time:
            given, measured = refuted(given, measured)
        measured, why = with_given(given, measured, why, self.base, traffic, of_pool)
        return of_pool, measured, why

    def policies(self, prediction: Prediction) -> list[Any]:
        """Simulate other policies at the size found: last in the order of attribution."""
        from hicachectl.tuning.sizing.simulate import Policy, policies_to_compare, simulate

        pages, cache = prediction.choice.host_pages, self.base.cache
        own = Policy(cache.eviction, cache.write_policy, cache.selective_hits, cache.ghost_entries)
        wanted = policies_to_compare(own, device_pages=self.device_pages, host_pages=pages)
        with self.cli.progress("policies", total=len(wanted)) as progress:
            found = []
            for policy in wanted:
                progress.enter(str(policy))
                found.append(
                    simulate(
                        self.plan.trace, policy, page_tokens=self.base.geometry.page_tokens, device_pages=self.device_pages,
                        host_pages=pages, limit=self.base.limit, info=self.plan.info,
                    )
                )  # fmt: skip
                progress.advance()
        return found

    def write_config(
        self, path: Path, prediction: Prediction, climbed: Climbed, journal: SizeJournal, *, there: str | None, force: bool
    ) -> None:  # fmt: skip
        """Record and write the settings of the run that reproduces the chosen step. `there` is what `refuse_existing` found."""
        from hicachectl.size_choice import last_good, origin_words
        from hicachectl.size_config import config_text, digest_of, write_config

        choice = prediction.choice
        run = self.effective.run
        changed: dict[str, tuple[object, str]] = {
            "run.host_slots": (last_good(prediction, climbed), origin_words(prediction, climbed, journal.id)),
            "run.device_slots": (self.device_pages, "L1 that the size was found with"),
            "run.storage_path": (None, f"tune size {journal.id} leaves the storage tier to you"),
        }
        if run.trace is not None:
            changed["run.trace"] = (str(Path(run.trace).resolve()), str(self.effective.origins["run.trace"]))
        head = f"written by hicachectl tune size, {journal.id}; every value with its origin\n{choice.reason}"
        text = config_text(self.effective.settings(), changed, head)
        journal.append("config", path=str(path.absolute()), sha256=digest_of(text.encode()))
        write_config(path, text, there=there, force=force)

    def _storage(self, prediction: Prediction, journal: SizeJournal) -> TrialStorage | None:
        """Give the steps their storage tier, as large as it is of use; recorded before anything is made."""
        from hicachectl.tuning.sizing.trial_storage import TrialStorage

        if self.storage_folder is None:
            return None
        if self._made_storage is not None:
            return self._made_storage
        distinct = prediction.curve.n_distinct
        pages = distinct if self.storage_pages is None else min(self.storage_pages, distinct)
        made = TrialStorage.named(self.storage_folder, pages, self.base.geometry.page_bytes, tell=self.cli.note)
        journal.append("storage", folder=str(made.folder), marker=made.marker)
        self._made_storage = made
        return made

    def _trials(
        self, done: dict[int, Any], storage: TrialStorage | None, progress: Callable[[Recorder], None]
    ) -> PoolTrials:
        from hicachectl.tuning.sizing.pool_trials import PoolTrials

        backend = next((trial["backend"] for pages, trial in sorted(done.items()) if pages), None)
        return PoolTrials(
            self.plan.trace, self.plan.info, self.base, root=self.root, backend=backend, storage=storage, require_room=self._require_room,
            progress=progress,
        )  # fmt: skip

    def _look(self) -> Budget:
        """Look at what the host has room for now."""
        from hicachectl.size_room import pool_plan
        from hicachectl.tuning.host.memory import read_memory
        from hicachectl.tuning.sizing.budget import budget_of

        plan = pool_plan(
            self.base.host_memory, self.base.geometry, self.base.device, ranks=self.ranks, shared=self.shared
        )
        self._copies = plan.copies
        return budget_of(
            read_memory(self.root), taken_bytes=self._taken_bytes, taken_words=self._taken_words, max_bytes=self.max_bytes, plan=plan
        )  # fmt: skip

    def _require_room(self, pages: int) -> None:
        """Look again before memory is taken: it may have gone since the plan. Raises CapacityError."""
        from hicachectl.errors import CapacityError

        now = self._look()
        wanted = pages * self.base.geometry.page_bytes
        most = now.can_use_bytes if now.trial_bytes is None else now.trial_bytes
        if wanted > most:
            raise CapacityError(
                f"a pool of {wanted} bytes, {most} are to be had now",
                terms=(("pool bytes", wanted), (now.bound, most)),
                why=f"bound by {now.bound}",
            )


def tell_to(progress: Progress) -> Callable[[Step], None]:
    """Return what names each step that is over on plain progress; a bar shows them itself."""

    def tell(step: Step) -> None:
        if step.trial is not None and progress.kind == "plain":
            progress.enter(f"{step.pages} pages hit {100 * step.trial.rate:.2f} %")

    return tell
