"""The steps on real pools, from small to large: each recorded before and after, until the plateau is confirmed or something ends it.

A step that fails ends the search with the last good one; its pool is gone with it. A step that an earlier, killed run had
finished is taken from the journal and not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from hicachectl.errors import CapacityError, HostError
from hicachectl.tuning.sizing.size_journal import SizeJournal
from hicachectl.tuning.sizing.step_rules import ANY, Ended, Reach, Tried, ended
from hicachectl.tuning.sizing.trial import Trial
from hicachectl.tuning.sizing.trial_record import trial_of

__all__ = ["Climbed", "Step", "climb"]


@dataclass(frozen=True, slots=True)
class Step:
    """One size with its prediction and what came of it. `trial` None: it failed, `reason` says why.

    `holds`: the measured hits are the predicted ones, to the page where `exact`, else within `slack_pages`. `assumption`
    names what may differ where it is not exact.
    """

    pages: int
    predicted_hits: int | None
    total_pages: int
    trial: Trial | None
    exact: bool
    slack_pages: int
    assumption: str | None
    reason: str | None
    resumed: bool = False

    @property
    def difference(self) -> int | None:
        """Measured minus predicted hits, in pages; None where one is missing. Pure."""
        if self.trial is None or self.predicted_hits is None:
            return None
        return self.trial.hit_pages - self.predicted_hits

    @property
    def holds(self) -> bool:
        """Whether the step is as predicted, its memory was there, and no copy failed. Pure.

        Pages that were dropped for want of room break a step that must come out to the page; a pool smaller than L1 drops some.
        """
        if self.trial is None or self.trial.failures or (self.exact and self.trial.dropped_pages):
            return False
        off = self.difference
        return self.trial.is_resident and (off is None or abs(off) <= (0 if self.exact else self.slack_pages))


@dataclass(frozen=True, slots=True)
class Climbed:
    """All steps made, the smallest first, and why no further one was."""

    steps: tuple[Step, ...]
    ended: Ended

    @property
    def no_restore_pays(self) -> bool:
        """Whether pools hit pages that none of them restored, since computing was cheaper each time. Pure."""
        pools = [step.trial for step in self.steps if step.pages and step.trial is not None]
        return any(pool.host_hit_pages for pool in pools) and all(
            not pool.restored_pages and not pool.failures and pool.net_gain_s <= 0 for pool in pools
        )

    @property
    def all_lost_time(self) -> bool:
        """Whether there are pools and each cost as much time as it saved, or more. Pure."""
        pools = [step.trial for step in self.steps if step.pages and step.trial is not None]
        return bool(pools) and all(pool.net_gain_s <= 0 for pool in pools)

    def trial_at(self, pages: int) -> Trial | None:
        """Return the trial of a size, None where none was made. Pure."""
        return next((step.trial for step in self.steps if step.pages == pages), None)


def climb(
    sizes: Sequence[int],
    chosen: int,
    *,
    try_size: Callable[[int], Trial],
    predict: Callable[[int], int],
    total_pages: int,
    assume: Callable[[int], str | None],
    journal: SizeJournal,
    done: Mapping[int, dict[str, Any]] | None = None,
    points: float = 1.0,
    reach: Reach = ANY,
    slack_pages: int = 0,
    time_budget_s: float | None = None,
    clock: Callable[[], float] = monotonic,
    tell: Callable[[Step], None] = lambda step: None,
) -> Climbed:
    """Try each size, from small to large, and say why it ended. Changes the journal; `try_size` takes memory and gives it back.

    `predict` gives the curve's hits at a size; they must come out to the page unless `assume` names what may differ there. `done` are trials of a
    run that is continued, and cost no time; `reach` says which sizes the chosen one can be compared with. Raises what `try_size` raises besides CapacityError, HostError and MemoryError, which end the
    search.
    """
    started, done = clock(), done or {}
    steps: list[Step] = []
    left = sorted(set(sizes))
    while True:
        why = ended(
            [Tried(s.pages, None if s.trial is None else s.trial.rate, s.holds) for s in steps], left, chosen,
            points=points, elapsed_s=clock() - started, budget_s=None if left and left[0] in done else time_budget_s, reach=reach,
        )  # fmt: skip
        if why is not None:
            journal.append("end", ended=why.value)
            return Climbed(tuple(steps), why)
        pages = left.pop(0)
        trial, reason, resumed = None, None, False
        if pages in done:
            trial, resumed = trial_of(done[pages]), True
        else:
            journal.append("step", pages=pages)
            try:
                trial = try_size(pages)
            except (CapacityError, HostError) as error:
                reason = str(error)
            except MemoryError:
                reason = "the process ran out of memory"
            if trial is not None:
                journal.append("done", pages=pages, trial=asdict(trial))
            else:
                journal.append("failed", pages=pages, reason=reason)
        named = assume(pages)
        steps.append(
            Step(pages, predict(pages), total_pages, trial, named is None, slack_pages, named, reason, resumed)
        )
        tell(steps[-1])
