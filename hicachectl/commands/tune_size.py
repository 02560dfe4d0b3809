"""`hicachectl tune size`: predict the hit rate of every host pool, choose one, prove it on real pools from small to large."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.context import Context
from hicachectl.envelope import Diagnostic, Result, Severity
from hicachectl.errors import ExitCode, HicacheError, UsageError, VerifyMismatch
from hicachectl.profiles import profile_names

if TYPE_CHECKING:
    from hicachectl.config import Effective
    from hicachectl.run_plan import RunPlan
    from hicachectl.tuning.sizing.economics import Costs
    from hicachectl.tuning.sizing.prediction import Prediction
    from hicachectl.tuning.sizing.size_journal import SizeJournal
    from hicachectl.tuning.sizing.steps import Climbed, Step

__all__ = ["size"]

_WORKLOAD, _POOL, _STEPS, _OUTPUT = "Workload", "Pool", "Steps", "Output"
Text = str | None
NO_STEPS = "none"
_FOUND = {"steps", "chosen", "bound", "rule", "reason"}
"""Of what a run records as asked: what it found itself."""


def _option(flag: str, help_text: str, panel: str, metavar: str, **more: Any) -> Any:
    more.setdefault("show_default", False)
    return typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar, **more)


def size(
    ctx: typer.Context,
    trace: Annotated[Text, _option("--trace", "Trace to size for.", _WORKLOAD, "FILE")] = None,
    synthetic: Annotated[Text, _option("--synthetic", "agent, multi-turn, shared-system or one-shot; without a trace.", _WORKLOAD, "CLASS")] = None,
    seed: Annotated[Text, _option("--seed", "Seed of the synthetic workload.", _WORKLOAD, "N")] = None,
    limit: Annotated[Text, _option("--limit", "Only the first N requests.", _WORKLOAD, "N")] = None,
    session_gap: Annotated[Text, _option("--session-gap", "Seconds between session starts of a trace with relative times.", _WORKLOAD, "S")] = None,
    profile: Annotated[Text, _option("--profile", "Profile that supplies what is not given.", _POOL, "NAME|FILE", autocompletion=profile_names)] = None,
    geometry: Annotated[Text, _option("--geometry", "KV geometry preset, such as qwen3-8b or tiny-4k.", _POOL, "NAME")] = None,
    page_tokens: Annotated[Text, _option("--page-tokens", "Tokens a page.", _POOL, "N")] = None,
    device: Annotated[Text, _option("--device", "auto or cpu; accelerators are not there yet.", _POOL, "DEVICE")] = None,
    device_slots: Annotated[Text, _option("--device-slots", "Pages of L1; auto = the longest request.", _POOL, "N|auto")] = None,
    write_policy: Annotated[Text, _option("--write-policy", "write_through, write_through_selective or write_back.", _POOL, "POLICY")] = None,
    eviction: Annotated[Text, _option("--eviction", "lru, fifo, lfu, slru or priority.", _POOL, "ORDER")] = None,
    max_bytes: Annotated[Text, _option("--max-bytes", "Bytes the pool may take at most, such as 64GiB.", _POOL, "SIZE")] = None,
    ranks: Annotated[int, _option("--ranks", "TP ranks on this host, for the engines' flags.", _POOL, "N", min=1, show_default=True)] = 1,
    shared: Annotated[bool, typer.Option("--shared", help="The ranks map one pool (MLA).", rich_help_panel=_POOL)] = False,
    concurrency: Annotated[int, _option("--concurrency", "Requests that run at a time and hold their pages in L1.", _POOL, "N", min=0, show_default=True)] = 0,
    points: Annotated[float, _option("--points", "Points of hit rate below the ceiling that are let go.", _POOL, "P", show_default=True)] = 1.0,
    steps: Annotated[str, _option("--steps", "auto: below, at and twice the size; none: predict only; or sizes such as 8000,16GiB.", _STEPS, "auto|none|LIST", show_default=True)] = "auto",
    time_budget: Annotated[float | None, _option("--time-budget", "No further step after so many seconds.", _STEPS, "S")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last run, which was killed or stopped.", rich_help_panel=_STEPS)] = False,
    policies: Annotated[bool, typer.Option("--policies", help="Then simulate other write policies and orders at the size found.", rich_help_panel=_STEPS)] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also on a host whose settings differ from what tune set.", rich_help_panel=_STEPS)] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the size was chosen, and what was not used.", rich_help_panel=_OUTPUT)] = False,
    report: Annotated[Path | None, _option("--report", "Write curve, band, steps and choice as one HTML file.", _OUTPUT, "FILE")] = None,
    write: Annotated[Path, _option("--write", "Where the configuration for run --config goes.", _OUTPUT, "FILE", show_default=True)] = Path("hicache.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace that file where it is there already.", rich_help_panel=_OUTPUT)] = False,
    state_dir: Annotated[Path | None, _option("--state-dir", "Where runs are recorded.", _OUTPUT, "DIR", show_default="/var/lib/hicachectl as root, else ~/.local/state/hicachectl")] = None,
) -> None:  # fmt: skip
    """Find how large the host pool should be: the whole hit-rate curve, a choice, and proof on real pools from small to large.

    Takes memory for its trial pools and gives it back; writes the configuration file and its own record, nothing else.
    Chosen is the smallest pool within a point of the unlimited hit rate, cut to the memory there is. A sequential
    write_through replay must hit what the curve says, to the page.
    """
    from hicachectl.run_plan import effective_config
    from hicachectl.size_config import refuse_existing

    cli: Context = ctx.obj
    cli.refuse_root("tune size")
    flags = {
        "run.trace": trace, "run.synthetic": synthetic, "run.seed": seed, "run.limit": limit, "run.session_gap_s": session_gap,
        "run.geometry": geometry, "run.page_tokens": page_tokens, "run.device": device, "run.device_slots": device_slots,
        "run.write_policy": write_policy, "run.eviction": eviction,
    }  # fmt: skip
    refuse_existing(write, force=force)
    if report is not None:
        from hicachectl.render.html_report import require_writable

        require_writable(report)
    effective = effective_config(flags, cli.environ, cli.config_path, profile)
    verified = _host_as_tuned(cli, anyway=anyway)
    run = _Sizing(cli, effective, max_bytes, steps, points, concurrency, ranks, shared)
    prediction = run.predict()
    prediction, journal, done = run.journal(prediction, _state(cli, state_dir), resume=resume)
    climbed = run.climb(prediction, journal, done, time_budget_s=time_budget)
    costs, why_no_costs = run.costs(prediction, climbed)
    if costs is not None:
        prediction, climbed = run.by_economics(prediction, climbed, costs, journal)
    simulated = run.policies(prediction) if policies and prediction.choice.grows else []
    run.write_config(write, prediction, climbed, journal.id)

    from hicachectl.render.tune_size import draw_size
    from hicachectl.size_data import SizeFound, size_data

    found = SizeFound(
        prediction, climbed, run.plan, run.budget, run.ranks, run.shared, journal.id, str(journal.folder), str(write), verified,
        tuple(simulated), points, costs, why_no_costs, last_good(prediction, climbed),
    )  # fmt: skip
    data, facts = size_data(found)
    if report is not None:
        from hicachectl.render.size_report import write_size_html

        write_size_html(found, data, report)
        cli.note(f"report written to {report}")
    code = _exit_code(climbed, steps)
    result = Result(
        "hicachectl.tune-size/1", data, diagnostics=_findings(found.prediction, climbed), facts=facts, exit_code=code, rows="/steps"
    )  # fmt: skip
    cli.emit(result, render=lambda screen, document: draw_size(screen, document, explain=explain))


class _Sizing:
    """One sizing: what is replayed and on what, from the effective configuration."""

    def __init__(
        self, cli: Context, effective: Effective, max_bytes: Text, steps: str, points: float, concurrency: int, ranks: int, shared: bool,
    ) -> None:  # fmt: skip
        from hicachectl.run_plan import plan_run
        from hicachectl.runtime.keytable import table_bytes
        from hicachectl.tuning.host.memory import read_memory
        from hicachectl.tuning.sizing.budget import budget_of
        from hicachectl.units import parse_size

        self.cli, self.effective, self.steps_text = cli, effective, steps
        self.points, self.concurrency, self.ranks, self.shared = points, concurrency, ranks, shared
        wanted = effective.run.model_copy(update={"host_slots": 0, "storage_path": None})
        self.plan: RunPlan = plan_run(wanted)
        self.base = self.plan.replay
        self.root = cli.host_root()
        self.device_pages = self.base.device_slots or self.plan.longest_pages
        taken = self.device_pages * self.base.geometry.page_bytes + table_bytes(effective.run.seen_keys)
        limit = None if max_bytes is None else parse_size(max_bytes, where="--max-bytes")
        self._taken_bytes, self._max_bytes = taken, limit
        self.budget = budget_of(read_memory(self.root), taken_bytes=taken, max_bytes=limit)

    def predict(self) -> Prediction:
        """Read the trace, and choose."""
        from hicachectl.tuning.sizing.prediction import predict

        plan = self.plan
        with self.cli.progress("curve"):
            return predict(
                plan.trace, plan.info, self.base, self.budget, device_pages=self.device_pages,
                longest_pages=plan.longest_pages, points=self.points, concurrency=self.concurrency,
                steps=self._asked_sizes(),
            )  # fmt: skip

    def journal(
        self, prediction: Prediction, state: Path, *, resume: bool
    ) -> tuple[Prediction, SizeJournal, dict[int, Any]]:
        """Begin a record, or take up the last one: its sizes, and the trials that it holds.

        Free memory differs from hour to hour, so the sizes of a run that goes on are those it began with. Raises UsageError
        where it asked for something else.
        """
        from hicachectl.tuning.sizing.size_journal import SizeJournal, read_size_journal

        asked = self._asked(prediction)
        if not resume:
            journal = SizeJournal.begin(state, asked)
            self.cli.subject = journal.id
            return prediction, journal, {}
        records = read_size_journal(state)
        differs = sorted(key for key in asked if records.asked.get(key) != asked[key] and key not in _FOUND)
        if differs:
            raise UsageError(
                f"{records.id} asked for something else: {', '.join(differs)}",
                where=str(records.folder),
                hint="give the options of that run, or start a new one without --resume",
            )
        cut = f", {records.cut} pages was cut short" if records.cut is not None else ""
        self.cli.note(f"going on with {records.id}: {len(records.done)} steps are done{cut}")
        self.cli.subject = records.id
        from hicachectl.tuning.sizing.plateau import Bound, Rule

        was, pages = records.asked, records.asked["chosen"]
        choice = replace(
            prediction.choice, host_pages=pages, bound=Bound(was["bound"]), rule=Rule(was["rule"]), reason=was["reason"],
            rate=prediction.levels.rate(pages),
        )  # fmt: skip
        began_with = replace(prediction, choice=choice, sizes=tuple(records.asked["steps"]))
        return began_with, SizeJournal(records.id, records.folder), records.done

    def climb(
        self, prediction: Prediction, journal: SizeJournal, done: dict[int, Any], *, time_budget_s: float | None = None
    ) -> Climbed:
        """Try the sizes on real pools. L1 alone comes first, so that every gain has its base."""
        from hicachectl.tuning.sizing.prediction import assumption_of
        from hicachectl.tuning.sizing.steps import climb
        from hicachectl.tuning.sizing.trial import Trial, try_pool

        sizes = (0, *prediction.sizes) if self.steps_text != NO_STEPS and prediction.sizes else ()
        n_requests = prediction.n_requests
        error = prediction.error(prediction.choice.host_pages) or 0.0
        left = n_requests * sum(pages not in done for pages in sizes)
        with self.cli.progress("steps", total=max(1, left), unit="requests") as progress:

            def try_size(pages: int) -> Trial:
                progress.enter(f"{pages} pages" if pages else "L1 alone")
                self._require_room(pages)
                before = progress.done
                return try_pool(
                    self.plan.trace, self.plan.info, self.base, pages, root=self.root,
                    progress=lambda recorder: progress.update(before + recorder.n_requests),
                )  # fmt: skip

            def tell(step: Step) -> None:
                if step.trial is not None and progress.kind == "plain":
                    progress.enter(f"{step.pages} pages hit {100 * step.trial.rate:.2f} %")

            return climb(
                sizes, prediction.choice.host_pages, try_size=try_size, predict=prediction.hits,
                total_pages=prediction.curve.total,
                assume=lambda pages: assumption_of(self.base, self.device_pages, pages),
                journal=journal, done=done, points=self.points,
                slack_pages=int((0.01 + 2 * error) * prediction.curve.total), time_budget_s=time_budget_s, tell=tell,
            )  # fmt: skip

    def costs(self, prediction: Prediction, climbed: Climbed) -> tuple[Costs | None, str | None]:
        """What restores and filling cost in the steps, and why that is not known where it is not."""
        from hicachectl.tuning.sizing.measured_costs import Traffic, costs_of

        trials = [step.trial for step in climbed.steps if step.trial is not None]
        traffic = Traffic(prediction.n_requests, prediction.input_tokens, self.plan.info.span_s)
        return costs_of(trials, self.base, traffic)

    def by_economics(
        self, prediction: Prediction, climbed: Climbed, costs: Costs, journal: SizeJournal
    ) -> tuple[Prediction, Climbed]:
        """Choose again by what was measured, and try that size too where it was not tried yet."""
        from hicachectl.tuning.sizing.plateau import choose

        choice = choose(
            prediction.levels, self.base.geometry.page_bytes, points=self.points, costs=costs, limits=prediction.limits,
            half_interval=prediction.error(None) or 0.0, too_short=prediction.sure.too_short,
        )  # fmt: skip
        prediction = replace(prediction, choice=choice)
        tried = {step.pages: step for step in climbed.steps if step.trial is not None}
        if not choice.grows or choice.host_pages in tried or self.steps_text != "auto":
            return prediction, climbed
        prediction = replace(prediction, sizes=tuple(sorted({*prediction.sizes, choice.host_pages})))
        again = self.climb(
            prediction, journal, {pages: asdict(step.trial) for pages, step in tried.items() if step.trial}
        )
        steps = tuple(replace(s, resumed=tried[s.pages].resumed) if s.pages in tried else s for s in again.steps)
        return prediction, replace(again, steps=steps)

    def policies(self, prediction: Prediction) -> list[Any]:
        """Simulate other policies at the size found: last in the order of attribution."""
        from hicachectl.runtime.eviction import Eviction
        from hicachectl.runtime.write_policy import WritePolicy
        from hicachectl.tuning.sizing.simulate import Policy, simulate

        pages = prediction.choice.host_pages
        wanted = [
            Policy(),
            Policy(write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE),
            Policy(write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, ghost_pages=pages),
            Policy(write_policy=WritePolicy.WRITE_BACK),
            Policy(eviction=Eviction.SLRU),
        ]
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

    def write_config(self, path: Path, prediction: Prediction, climbed: Climbed, journal_id: str) -> None:
        """Write the settings of the run that reproduces the chosen step."""
        from hicachectl.size_config import config_text, write_config

        choice = prediction.choice
        pages = last_good(prediction, climbed)
        bound = choice.bound.value if pages == choice.host_pages else f"the last good step, {climbed.ended.value}"
        run = self.effective.run
        changed: dict[str, tuple[object, str]] = {
            "run.host_slots": (pages, f"measured, tune size {journal_id}: bound by {bound}"),
            "run.device_slots": (self.device_pages, "measured, L1 that the size was found with"),
            "run.storage_path": (None, f"tune size {journal_id} sized without a storage tier"),
        }
        if run.trace is not None:
            changed["run.trace"] = (str(Path(run.trace).resolve()), str(self.effective.origins["run.trace"]))
        head = f"written by hicachectl tune size, {journal_id}; every value with its origin\n{choice.reason}"
        write_config(path, config_text(self.effective.settings(), changed, head))

    def _require_room(self, pages: int) -> None:
        """Look again before memory is taken: it may have gone since the plan. Raises CapacityError."""
        from hicachectl.errors import CapacityError
        from hicachectl.tuning.host.memory import read_memory
        from hicachectl.tuning.sizing.budget import budget_of

        now = budget_of(read_memory(self.root), taken_bytes=self._taken_bytes, max_bytes=self._max_bytes)
        wanted = pages * self.base.geometry.page_bytes
        if wanted > now.can_use_bytes:
            raise CapacityError(
                f"a pool of {wanted} bytes, {now.can_use_bytes} are to be had now",
                terms=(("pool bytes", wanted), (now.bound, now.can_use_bytes)),
                why=f"bound by {now.bound}",
            )

    def _asked_sizes(self) -> tuple[int, ...] | None:
        if self.steps_text in ("auto", NO_STEPS):
            return None
        from hicachectl.units import parse_size

        page = self.base.geometry.page_bytes
        sizes = []
        for word in self.steps_text.split(","):
            word = word.strip()
            pages = int(word) if word.isdigit() else parse_size(word, where="--steps") // page
            if pages < 1:
                raise UsageError(
                    f"a step of {word!r}", where="--steps", why=f"a page is {page} bytes", hint="at least one page"
                )
            sizes.append(pages)
        return tuple(sizes)

    def _asked(self, prediction: Prediction) -> dict[str, Any]:
        """What makes two sizing runs the same question."""
        geometry, run = self.base.geometry, self.effective.run
        info = self.plan.info
        return {
            "trace": self.base.trace_name, "format": info.format, "requests": info.n_requests, "input_tokens": info.total_input_tokens,
            "blocks": info.total_blocks, "limit": run.limit, "seed": run.seed, "geometry": geometry.name, "page_bytes": geometry.page_bytes,
            "device_slots": self.device_pages, "layout": run.layout, "backend": run.backend, "write_policy": run.write_policy,
            "eviction": run.eviction, "steps": list(prediction.sizes), "chosen": prediction.choice.host_pages, "points": self.points,
            "bound": prediction.choice.bound.value, "rule": prediction.choice.rule.value, "reason": prediction.choice.reason,
        }  # fmt: skip


def last_good(prediction: Prediction, climbed: Climbed) -> int:
    """The size that goes into the configuration: the chosen one, or the largest below it that worked where it failed. Pure."""
    chosen = prediction.choice.host_pages
    failed = {step.pages for step in climbed.steps if step.trial is None}
    if chosen not in failed:
        return chosen
    return max((step.pages for step in climbed.steps if step.trial is not None and step.pages < chosen), default=0)


def _host_as_tuned(cli: Context, *, anyway: bool) -> str:
    """Compare the host with what tune set last, since capacity comes after host settings. Raises VerifyMismatch unless told."""
    from hicachectl.commands.tune_runs import code_of
    from hicachectl.tuning.status import last_in_place

    try:
        session = cli.tune_session(plans=False)
        if last_in_place(session.states()) is None:
            return "nothing of tune is in place on this host"
        report = session.verify()
    except HicacheError as error:
        return f"not compared: {error}"
    if code_of(report) is ExitCode.OK:
        return "as tune set it"
    if anyway:
        return "differs from what tune set (--anyway)"
    raise VerifyMismatch(
        "this host is no longer as tune set it",
        why="host settings come before capacity: a size found now would be that of another host",
        hint="hicachectl tune verify, then tune apply; or --anyway",
    )


def _state(cli: Context, given: Path | None) -> Path:
    if given is not None:
        return given / "size"
    if os.geteuid() == 0:
        return Path("/var/lib/hicachectl/size")
    base = cli.environ.get("XDG_STATE_HOME") or os.path.join(cli.environ.get("HOME", "."), ".local/state")
    return Path(base) / "hicachectl" / "size"


def _exit_code(climbed: Climbed, steps: str) -> ExitCode:
    from hicachectl.tuning.sizing.step_rules import Ended

    if steps == NO_STEPS or climbed.ended in (Ended.CONFIRMED, Ended.NOT_CONFIRMED, Ended.NO_STEPS):
        return ExitCode.OK
    return ExitCode.NO_RESULT


def _findings(prediction: Prediction, climbed: Climbed) -> list[Diagnostic]:
    from hicachectl.tuning.sizing.step_rules import Ended

    found = []
    if prediction.sure.too_short:
        before, after = (grown.plateau_pages for grown in prediction.sure.growth[-2:])
        found.append(
            Diagnostic(
                "HC-WINDOW-SHORT", Severity.NOTE,
                f"the plateau is a lower bound: it moved from {before} to {after} pages over the last quarter of the requests",
                subject="growth", hint="record a longer window of the same traffic",
            )
        )  # fmt: skip
    for step in climbed.steps:
        if step.trial is None:
            text = f"the step of {step.pages} pages failed: {step.reason}"
        elif not step.trial.is_resident:
            text = f"of the pool of {step.pages} pages only a part was resident"
        elif not step.holds:
            named = step.assumption or "none of the known assumptions is broken"
            text = f"the step of {step.pages} pages hit {step.trial.hit_pages} pages, predicted {step.predicted_hits}: {named}"
        else:
            continue
        hint = (
            "free memory or give a smaller --max-bytes"
            if step.trial is None
            else "look at failures and dropped pages of that step"
        )
        found.append(Diagnostic("HC-SIZE-STEP", Severity.WARN, text, subject="steps", hint=hint))
    if climbed.ended is Ended.TIME:
        found.append(
            Diagnostic(
                "HC-SIZE-STEP", Severity.WARN, "the time budget ended the steps before the plateau was confirmed",
                subject="steps", hint="hicachectl tune size --resume with the same options goes on",
            )
        )  # fmt: skip
    return found
