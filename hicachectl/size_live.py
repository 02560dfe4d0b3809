"""A sizing on live traffic: the window is its trace, its steps serve requests that come meanwhile."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicachectl.context import Context
from hicachectl.size_asked import asked_of, check_found, refuse_other
from hicachectl.size_run import NO_STEPS, Done, Sizing, tell_to
from hicachectl.size_window import Collected

if TYPE_CHECKING:
    from hicachectl.config import Effective
    from hicachectl.runtime.replay.driver import ReplayConfig
    from hicachectl.tuning.sizing.live_feed import Share
    from hicachectl.tuning.sizing.live_judge import LiveStep
    from hicachectl.tuning.sizing.live_steps import LiveTried
    from hicachectl.tuning.sizing.prediction import Prediction
    from hicachectl.tuning.sizing.size_journal import SizeJournal
    from hicachectl.tuning.sizing.steps import Climbed
    from hicachectl.tuning.sizing.trial import Trial
    from hicachectl.tuning.sizing.waterfall import Waterfall

__all__ = ["Drift", "LiveSizing"]

NEW, NEWER_WINDOW, NEWER_NEW = "new.jsonl", "window-2.jsonl", "new-2.jsonl"
_OTHER_REQUESTS = "each pool served other requests"


@dataclass(frozen=True, slots=True)
class Drift:
    """The traffic drifted at a step, so the curve was made anew: from the newest requests, `new_requests` of them after the window."""

    at_pages: int
    reason: str
    requests: int
    new_requests: int
    plateau_before_pages: int
    chosen_before_pages: int
    file: str


class LiveSizing(Sizing):
    """As `Sizing`, of a collected window. `live_steps` and `drift` are found by `climb`."""

    def __init__(self, cli: Context, effective: Effective, collected: Collected, *args: Any, **more: Any) -> None:
        self.collected = collected
        self.live_steps: tuple[LiveStep, ...] = ()
        self.drift: Drift | None = None
        self.too_long_requests = sum(done["live"]["too_long_requests"] for done in collected.records.done.values())
        self._done = dict(collected.records.done)
        self._settled: Prediction | None = None
        super().__init__(cli, _with_window(effective, collected.path, collected), *args, **more)
        self._began_s -= collected.seconds
        self._take(collected.path)
        window = self.collected.records.window
        assert window is not None
        from hicachectl.tuning.sizing.from_record import from_record
        from hicachectl.tuning.sizing.journal_lines import bad_line
        from hicachectl.tuning.sizing.live_feed import NewRequests
        from hicachectl.tuning.sizing.size_journal import JOURNAL_FILE

        self._new = NewRequests(
            collected.journal.folder / (NEW if collected.records.drift is None else NEWER_NEW), collected.source, collected.numbers, window=self.plan.trace,
            partial=bool(window["partial"]), waiting=collected.waiting,
        )  # fmt: skip
        recorded = collected.records.drift
        if recorded is not None:
            try:
                self.drift = from_record(Drift, recorded["drift"])
            except ValueError as error:
                raise bad_line(str(collected.journal.folder / JOURNAL_FILE), f"drift: {error}") from error

    def close(self) -> None:
        """Close the file of new requests."""
        self._new.close()

    def journal(self, prediction: Prediction, state: Path, *, resume: bool) -> tuple[Prediction, SizeJournal, Done]:
        """Record what was predicted of the window, or take up what was. Raises UsageError as `Sizing.journal`."""
        from hicachectl.tuning.sizing.size_journal import JOURNAL_FILE

        records, journal = self.collected.records, self.collected.journal
        asked = asked_of(self, prediction)
        if records.sized is None:
            journal.append("sized", asked=asked)
            return prediction, journal, Done({}, {})
        was = records.sized
        refuse_other(journal.id, journal.folder, was, asked)
        check_found(was, str(journal.folder / JOURNAL_FILE))
        return self.began_with(prediction, was), journal, Done({}, {})

    def climb(
        self, prediction: Prediction, journal: SizeJournal, done: dict[int, Any], *, time_budget_s: float | None = None
    ) -> Climbed:
        """Try the sizes on real pools with the requests that come meanwhile; where the traffic drifted, once more on newer ones."""
        from hicachectl.tuning.sizing.live_judge import Verdict

        self._settled = prediction
        climbed = self._climb(prediction, journal, time_budget_s)
        last = self.live_steps[-1] if self.live_steps else None
        if last is None or last.verdict is not Verdict.DRIFT or self.drift is not None:
            return climbed
        newer = self._drifted(prediction, journal, last)
        self._settled = newer
        return self._climb(newer, journal, time_budget_s)

    def beside(
        self,
        prediction: Prediction,
        climbed: Climbed,
        journal: SizeJournal,
        done: dict[str, Any],
        *,
        time_budget_s: float | None = None,
    ) -> dict[str, Trial | str]:
        """Make none: what live traffic meets is never the same twice."""
        from hicachectl.tuning.sizing.stages import AGAIN, BACKEND, CHUNKS

        return dict.fromkeys((AGAIN, CHUNKS, BACKEND), _OTHER_REQUESTS)

    def attribution(self, climbed: Climbed, stages: dict[str, Trial | str]) -> Waterfall:
        """Compare nothing by time: each step met other requests."""
        from hicachectl.tuning.sizing.waterfall import LeftOut, Waterfall

        return Waterfall((), (LeftOut("live steps", _OTHER_REQUESTS),)) if climbed.steps else Waterfall()

    def settled(self, prediction: Prediction) -> Prediction:
        """Return the prediction that the steps ended with: another one where the traffic drifted."""
        return self._settled or prediction

    def _climb(self, prediction: Prediction, journal: SizeJournal, time_budget_s: float | None) -> Climbed:
        from hicachectl.tuning.sizing.live_steps import climb_live, later_traffic, try_live
        from hicachectl.tuning.sizing.prediction import assumption_of
        from hicachectl.tuning.sizing.trial_record import record_of

        window = self.collected.records.window
        assert window is not None
        sizes = (0, *prediction.sizes) if self.steps_text != NO_STEPS and prediction.sizes else ()
        later = later_traffic(self.plan.trace, self.base.geometry.page_tokens, self.points)
        with self.cli.progress("steps", unit="requests") as progress:

            def try_size(pages: int, share: Share) -> LiveTried:
                progress.enter(f"{pages} pages" if pages else "L1 alone")
                self._require_room(pages)
                before = progress.done
                tried = try_live(
                    self.plan.trace, self._new, self._with_backend(pages), pages, device_pages=self.device_pages,
                    chosen_pages=prediction.choice.host_pages, share=share, later=later,
                    assumption=assumption_of(self.base, self.device_pages, pages, exclusive=self.exclusive), root=self.root,
                    progress=lambda recorder: progress.update(before + recorder.n_requests),
                )  # fmt: skip
                self._done[pages] = {"trial": record_of(tried.trial), "live": asdict(tried.live), "gain": tried.gain}
                self.too_long_requests += tried.live.too_long_requests
                return tried

            climbed, self.live_steps = climb_live(
                sizes, prediction.choice.host_pages, try_size=try_size,
                assume=lambda pages: assumption_of(self.base, self.device_pages, pages, exclusive=self.exclusive), journal=journal, done=dict(self._done),
                points=self.points, reach=prediction.reach, window_s=float(window["seconds"]), most_requests=max(1, self.plan.info.n_requests // 2), time_budget_s=self.left_s(time_budget_s), tell=tell_to(progress),
            )  # fmt: skip
        return climbed

    def _drifted(self, before: Prediction, journal: SizeJournal, at: LiveStep) -> Prediction:
        """Make the newest requests the window, as many as it had, and predict anew."""
        from hicachectl.runtime.replay.workload import open_trace
        from hicachectl.tuning.sizing.window_file import WindowFile, seal_of

        folder, window = journal.folder, open_trace(self.collected.path)
        n = window.info().n_requests
        newest = deque(chain(window, open_trace(folder / NEW)), maxlen=n)
        path = folder / NEWER_WINDOW
        path.unlink(missing_ok=True)  # of a run that was killed before its record
        file = WindowFile.begin(path, window.block_tokens, partial=window.info().names_partial_blocks)
        file.append(newest)
        file.sync()
        file.close()
        self.drift = Drift(
            at.pages,
            at.reason,
            n,
            min(n, self._new.n_requests),
            before.choice.plateau_pages,
            before.choice.host_pages,
            path.name,
        )
        journal.append("drift", file=path.name, requests=n, drift=asdict(self.drift), **seal_of(path))
        self._done.clear()
        self.effective = _with_window(self.effective, path, self.collected)
        self._take(path)
        self._new = self._new.into(folder / NEWER_NEW, self.plan.trace)
        self.cli.note(
            f"{at.reason}; the curve is made anew from the newest {n} requests, {self.drift.new_requests} of them new"
        )
        newer = self.predict()
        journal.append("sized", asked=asked_of(self, newer))
        return newer

    def _take(self, path: Path) -> None:
        """Let the plan replay a window with its keys numbered."""
        from hicachectl.tuning.sizing.live_feed import NumberedTrace

        trace = NumberedTrace(path, self.collected.numbers)
        self.base = replace(self.base, trace_name=path.name)
        self.plan = replace(self.plan, trace=trace, info=trace.info(), replay=self.base)

    def _with_backend(self, pages: int) -> ReplayConfig:
        """The backend of the first pool in all of them, so that sizes are all that differs."""
        from hicachectl.runtime.layout import Backend

        first = next((done["trial"]["backend"] for size, done in sorted(self._done.items()) if size), None)
        if first is None or not pages or self.base.backend is not None:
            return self.base
        return replace(self.base, backend=Backend.parse(first))


def _with_window(effective: Effective, path: Path, collected: Collected) -> Effective:
    """The configuration with a window as its workload."""
    from hicachectl.config import Origin, OriginKind

    what = f"tune size {collected.journal.id}, window of {collected.options.source}"
    run = effective.run.model_copy(update={"trace": str(path.absolute()), "synthetic": None, "limit": None})
    origins = {**effective.origins, **dict.fromkeys(("run.trace", "run.limit"), Origin(OriginKind.MEASURED, what))}
    return replace(effective, config=effective.config.model_copy(update={"run": run}), origins=origins)
