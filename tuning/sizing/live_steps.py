"""The steps of a sizing on live traffic: each pool is warmed by the window, then serves new requests for its share of the time.

Every step meets other requests, so a step above the chosen size is compared with what the chosen size hits of the same ones:
it confirms the choice when it hits at most a point more than that, whatever the window said the two sizes differ by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from hicachectl.errors import CapacityError, HostError
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.request import Trace
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.confidence import Jackknife, confidence_of
from hicachectl.tuning.sizing.curve import HitCurve, curve_from_runs, curve_of_stream
from hicachectl.tuning.sizing.extents import runs_of
from hicachectl.tuning.sizing.from_record import from_record
from hicachectl.tuning.sizing.live_feed import LiveFeed, NewRequests, Share
from hicachectl.tuning.sizing.live_judge import LiveStep, Replayed, Told, Verdict, judge, step_of
from hicachectl.tuning.sizing.paged import paged
from hicachectl.tuning.sizing.size_journal import SizeJournal
from hicachectl.tuning.sizing.step_rules import Reach, Tried, ended
from hicachectl.tuning.sizing.steps import Climbed, Step
from hicachectl.tuning.sizing.trial import Trial, try_pool
from hicachectl.tuning.sizing.trial_record import trial_of
from hicachectl.tuning.sizing.window import Definition, window_of

__all__ = ["LaterTraffic", "LiveTried", "climb_live", "later_traffic", "try_live"]

_LEAST_S = 2.0
"""Seconds a step waits for new requests at least, where no budget says otherwise."""


@dataclass(frozen=True, slots=True)
class LaterTraffic:
    """What a window tells of requests after it: the curve of its second half, the first half having warmed the cache."""

    curve: HitCurve
    jackknife: Jackknife | None
    reason: str | None

    def told(self, capacity: int) -> Told:
        """Return rate and error at a size. Pure."""
        error = None if self.jackknife is None else self.jackknife.rate_error(capacity)
        return Told(self.curve.rate(capacity), error, self.curve.total, self.reason)


def later_traffic(window: Trace, page_tokens: int, points: float) -> LaterTraffic:
    """Measure the second half of a window, in full pages. Reads it once."""
    whole = window_of(paged(window, window.info(), page_tokens), page_tokens).full_blocks()
    runs, half = runs_of(whole), whole.n_requests // 2
    curve = curve_from_runs(runs, whole, Definition.D3, first=half)
    sure = confidence_of(whole, Definition.D1, points, first=half, runs=runs)
    return LaterTraffic(curve, sure.jackknife, sure.reason)


@dataclass(frozen=True, slots=True)
class LiveTried:
    """A trial whose hits are those of the live requests, and its verdict.

    `gain`: the share of these requests' pages that it hits and the chosen size would not, by their exact curve.
    """

    trial: Trial
    live: LiveStep
    gain: float


def try_live(
    window: Trace, new: NewRequests, base: ReplayConfig, host_pages: int, *, device_pages: int, chosen_pages: int, share: Share, later: LaterTraffic,
    assumption: str | None, root: HostRoot, progress: Callable[[Recorder], None] = lambda recorder: None,
) -> LiveTried:  # fmt: skip
    """Warm a real pool with the window and serve new requests for its share; without any, measure it on saved ones.

    Takes the pool's memory and gives it back, appends to the file of `new`. Raises as `try_pool`, UsageError for bad input.
    """
    page_tokens = base.geometry.page_tokens
    feed = LiveFeed(window, new, share, most_tokens=(device_pages + 1) * page_tokens - 1)
    seen: list[Recorder] = []

    def note(recorder: Recorder) -> None:
        seen[:] = [recorder]
        progress(recorder)

    trial = try_pool(feed, window.info(), base, host_pages, root=root, progress=note)
    (recorder,) = seen
    is_new = feed.n_new > 0
    first = feed.n_before if is_new else 0
    total, device, host = (
        int(recorder.column(name)[first:].sum()) for name in ("pages_total", "device_hit", "host_hit")
    )
    exact = curve_of_stream(paged(feed.saved(), window.info(), page_tokens), page_tokens, Definition.D3, first=first)
    reach = max(device_pages, host_pages)
    step = LiveStep(
        host_pages, Replayed.NEW if is_new else Replayed.SAVED, feed.n_new or feed.n_before, feed.n_too_long, total,
        device + host, exact.at(reach), None, None, Verdict.NOT_COMPARED, "",
    )  # fmt: skip
    judged = judge(step, later.told(reach) if is_new else None, assumption)
    gain = judged.rate - exact.rate(max(device_pages, chosen_pages))
    return LiveTried(replace(trial, total_pages=total, device_hit_pages=device, host_hit_pages=host), judged, gain)


def climb_live(
    sizes: Sequence[int],
    chosen: int,
    *,
    try_size: Callable[[int, Share], LiveTried],
    assume: Callable[[int], str | None],
    journal: SizeJournal,
    done: Mapping[int, dict[str, Any]],
    points: float,
    reach: Reach,
    window_s: float,
    most_requests: int,
    time_budget_s: float | None,
    clock: Callable[[], float] = monotonic,
    tell: Callable[[Step], None] = lambda step: None,
) -> tuple[Climbed, tuple[LiveStep, ...]]:
    """Try each size, from small to large, as `climb` does, until one says that the traffic drifted.

    A step gets an equal share of the time that is left of `time_budget_s`, or of the window's own time where there is no
    budget, and at most `most_requests`. `done` are the records of a run that goes on. Changes the journal.
    """
    started = clock()
    steps: list[Step] = []
    found: list[LiveStep] = []
    tried: list[Tried] = []
    at_chosen: float | None = None
    left = sorted(set(sizes))
    while True:
        budget_s = None if left and left[0] in done else time_budget_s
        why = ended(tried, left, chosen, points=points, elapsed_s=clock() - started, budget_s=budget_s, reach=reach)
        if why is not None:
            journal.append("end", ended=why.value)
            return Climbed(tuple(steps), why), tuple(found)
        pages = left.pop(0)
        recorded, resumed = done.get(pages), pages in done
        gain = 0.0
        if recorded is not None:
            trial = trial_of(recorded["trial"])
            live = from_record(LiveStep, recorded["live"])
            # Made for another choice, these requests say nothing of this one: plain rates are compared.
            gain = float(recorded["gain"]) if recorded.get("chosen") == chosen else live.rate - (at_chosen or 0.0)
        else:
            if time_budget_s is None:
                share = Share(max(_LEAST_S, window_s / len(sizes)), most_requests, after_warming=True)
            else:
                share = Share(max(0.0, time_budget_s - (clock() - started)) / (len(left) + 1), most_requests)
            journal.append("step", pages=pages)
            try:
                result = try_size(pages, share)
            except (CapacityError, HostError, MemoryError) as error:
                reason = "the process ran out of memory" if isinstance(error, MemoryError) else str(error)
                journal.append("failed", pages=pages, reason=reason)
                steps.append(Step(pages, None, 0, None, False, 0, None, reason))
                tried.append(Tried(pages, None, False))
                tell(steps[-1])
                continue
            trial, live, gain = result.trial, result.live, result.gain
            journal.append("done", pages=pages, trial=asdict(trial), live=asdict(live), gain=gain, chosen=chosen)
        is_compared = pages > chosen and (recorded is None or recorded.get("chosen") == chosen)
        live = replace(live, gain=gain if is_compared else None, gain_over=chosen if is_compared else None)
        step = step_of(live, trial, assume(pages), resumed=resumed)
        steps.append(step)
        found.append(live)
        at_chosen = live.rate if pages == chosen else at_chosen
        rate = live.rate if pages <= chosen or at_chosen is None else at_chosen + gain
        tried.append(Tried(pages, rate, step.holds))
        tell(step)
