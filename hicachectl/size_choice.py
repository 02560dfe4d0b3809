"""The size that a sizing ends with: chosen again by what the steps measured, tried too, and the largest that may be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicachectl.size_run import Sizing
    from hicachectl.tuning.sizing.economics import Costs
    from hicachectl.tuning.sizing.plateau import Choice
    from hicachectl.tuning.sizing.pool_costs import PoolCosts
    from hicachectl.tuning.sizing.prediction import Prediction
    from hicachectl.tuning.sizing.size_journal import SizeJournal
    from hicachectl.tuning.sizing.step_rules import Ended
    from hicachectl.tuning.sizing.steps import Climbed
    from hicachectl.tuning.sizing.trial import Trial

__all__ = ["Settled", "last_good", "origin_words", "settle"]

_AGAIN = 2
"""How often costs measured anew may move the choice to a size that is tried then."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a sizing ends with: the choice in `prediction`, all steps, and the costs as all of them have it."""

    prediction: Prediction
    climbed: Climbed
    of_pool: PoolCosts
    costs: Costs | None
    why_no_costs: str | None


def settle(
    run: Sizing,
    prediction: Prediction,
    climbed: Climbed,
    again: Trial | str,
    journal: SizeJournal,
    *,
    done: Mapping[int, Any] | None = None,
    time_budget_s: float | None = None,
) -> Settled:
    """Choose by the costs that the steps measured, try what confirms that choice, and say whether it is confirmed.

    `done` are the trials of a run that is gone on with; sizes that it had tried for its choice are not made again.
    Sizes are tried with `--steps auto` alone, in what is left of `time_budget_s`, and not after steps that time, a failure or
    other hits than predicted ended. Takes memory as `Sizing.climb`, and gives it back.
    """
    found = _settled(run, prediction, climbed, again, journal, done, time_budget_s)
    return replace(found, climbed=_out_of_room(found.prediction, found.climbed, journal))


def _settled(
    run: Sizing, prediction: Prediction, climbed: Climbed, again: Trial | str, journal: SizeJournal, done: Mapping[int, Any] | None,
    time_budget_s: float | None,
) -> Settled:  # fmt: skip
    from hicachectl.tuning.sizing.step_rules import DONE, Ended, missing_sizes

    more = _AGAIN if run.steps_text == "auto" else 0
    while True:
        of_pool, costs, why = run.costs(prediction, climbed, again)
        if costs is None:
            if climbed.ended in DONE and climbed.no_restore_pays and run.base.compute.model == run.base.geometry:
                prediction, climbed = _without_pool(prediction, climbed, journal)
            return Settled(prediction, climbed, of_pool, costs, why)
        prediction = replace(prediction, choice=_choice(run, prediction, climbed, costs))
        missing = missing_sizes([step.pages for step in climbed.steps], prediction.choice.host_pages, prediction.reach)
        if not missing or not more or climbed.ended not in DONE:
            ended = _ended(run, prediction, climbed, costs)
        elif run.left_s(time_budget_s) == 0:
            ended = Ended.TIME
        else:
            prediction, climbed = _further(run, prediction, climbed, missing, journal, done or {}, time_budget_s)
            more -= 1
            continue
        if ended is not climbed.ended:
            journal.append("end", ended=ended.value)
        return Settled(prediction, replace(climbed, ended=ended), of_pool, costs, why)


def _out_of_room(prediction: Prediction, climbed: Climbed, journal: SizeJournal) -> Climbed:
    """No pool because none that the memory holds is of use is nothing that steps confirm."""
    from hicachectl.tuning.sizing.plateau import Bound
    from hicachectl.tuning.sizing.step_rules import DONE, Ended

    choice = prediction.choice
    if choice.grows or choice.bound is not Bound.MEMORY or climbed.ended not in (*DONE, Ended.NO_STEPS):
        return climbed
    if climbed.ended is not Ended.NO_ROOM:
        journal.append("end", ended=Ended.NO_ROOM.value)
    return replace(climbed, ended=Ended.NO_ROOM)


def last_good(prediction: Prediction, climbed: Climbed) -> int:
    """Return the size that goes into the configuration. Pure.

    The chosen one where all steps asked for were made, or one as large held; else the largest below it that held, 0 where
    none did.
    """
    from hicachectl.tuning.sizing.step_rules import DONE, Ended

    chosen = prediction.choice.host_pages
    if climbed.ended in (*DONE, Ended.NO_STEPS):
        return chosen
    held = [step.pages for step in climbed.steps if step.holds]
    if chosen in held or (
        chosen not in (step.pages for step in climbed.steps) and any(pages > chosen for pages in held)
    ):
        return chosen
    return max((pages for pages in held if pages < chosen), default=0)


def origin_words(prediction: Prediction, climbed: Climbed, journal_id: str) -> str:
    """Say where the size in the configuration comes from: measured only where a pool of it was made and held. Pure."""
    pages, bound = last_good(prediction, climbed), prediction.choice.bound.value
    if any(step.pages == pages and step.holds for step in climbed.steps) and (pages or not prediction.choice.grows):
        why = bound if pages == prediction.choice.host_pages else f"the last good step, {climbed.ended.value}"
        return f"measured, tune size {journal_id}: bound by {why}"
    if pages != prediction.choice.host_pages:
        return f"tune size {journal_id}: no step held, {climbed.ended.value}"
    return f"predicted, tune size {journal_id}: bound by {bound}, no pool of this size was made"


def _without_pool(prediction: Prediction, climbed: Climbed, journal: SizeJournal) -> tuple[Prediction, Climbed]:
    """Choose no pool, as the steps restored nothing of what they hit."""
    from hicachectl.tuning.sizing.plateau import Bound
    from hicachectl.tuning.sizing.step_rules import Ended, confirmed

    net = {step.pages: step.trial.net_gain_s if step.pages else 0.0 for step in climbed.steps if step.trial is not None}
    largest = climbed.steps[-1].trial
    assert largest is not None
    reason = (
        f"do not grow the pool: of {largest.host_hit_pages} pages that the pool of {largest.host_pages} hit none was restored, "
        f"computing was cheaper each time; net gain {largest.net_gain_s:.3g} s"
    )
    choice = replace(
        prediction.choice, host_pages=0, bound=Bound.NO_RESTORE, reason=reason, rate=prediction.choice.device_rate
    )
    ended = confirmed(net, 0, prediction.reach, slack=0.0, if_so=Ended.NET_CONFIRMED)
    if ended is not climbed.ended:
        journal.append("end", ended=ended.value)
    return replace(prediction, choice=choice), replace(climbed, ended=ended)


def _choice(run: Sizing, prediction: Prediction, climbed: Climbed, costs: Costs) -> Choice:
    """Choose; what costs chose before, and was tried, stays where the net gain of the two cannot be told apart."""
    from hicachectl.tuning.sizing.economics import slack_s_per_h, worth_of
    from hicachectl.tuning.sizing.plateau import WITHIN, Rule, choose, within_slack

    levels, page_bytes, half = prediction.levels_for(costs), run.base.geometry.page_bytes, prediction.error(None) or 0.0
    choice = choose(
        levels, page_bytes, points=run.points, costs=costs, limits=prediction.limits, half_interval=half,
        too_short=prediction.sure.too_short,
    )  # fmt: skip
    before = prediction.choice
    tried = [step.pages for step in climbed.steps if step.trial is not None]
    if not choice.grows or before.rule is not Rule.ECONOMICS or before.host_pages not in tried:
        return choice
    new, old = (
        worth_of(levels, costs, page_bytes, pages).net_s_per_h for pages in (choice.host_pages, before.host_pages)
    )
    if choice.host_pages == before.host_pages or new - old > slack_s_per_h(levels, costs, half):
        return choice
    _, within, tail = before.reason.partition(WITHIN)
    if not within:
        return before
    words = within_slack(levels, page_bytes, costs, half, before.host_pages)
    return replace(before, reason=f"a size that was tried, {words}{tail}")


def _further(
    run: Sizing, prediction: Prediction, climbed: Climbed, missing: tuple[int, ...], journal: SizeJournal, done: Mapping[int, Any],
    time_budget_s: float | None,
) -> tuple[Prediction, Climbed]:  # fmt: skip
    """Try the missing sizes too. Steps that an end left out are still those that were made."""
    from hicachectl.tuning.sizing.trial_record import record_of

    tried = {step.pages: step for step in climbed.steps}
    made = {pages: record_of(step.trial) for pages, step in tried.items() if step.trial is not None}
    prediction = replace(prediction, sizes=tuple(sorted({*prediction.sizes, *missing})))
    again = run.climb(prediction, journal, {**done, **made}, time_budget_s=time_budget_s)
    settled = run.settled(prediction)
    if settled is not prediction:
        return settled, again
    steps = {step.pages: step for step in again.steps} | tried
    return prediction, replace(again, steps=tuple(steps[pages] for pages in sorted(steps)))


def _ended(run: Sizing, prediction: Prediction, climbed: Climbed, costs: Costs) -> Ended:
    """Say whether the steps confirm the choice: net gain of it against that of a pool above, where its own step measured any."""
    from hicachectl.tuning.sizing.economics import slack_s_per_h, worth_of
    from hicachectl.tuning.sizing.step_rules import DONE, Ended, confirmed

    if climbed.ended not in DONE:
        return climbed.ended
    own = climbed.trial_at(prediction.choice.host_pages) if prediction.choice.grows else None
    if own is not None and own.net_gain_s <= 0:
        return Ended.NO_GAIN
    levels = prediction.levels_for(costs)
    net = {
        step.pages: worth_of(levels, costs, run.base.geometry.page_bytes, step.pages).net_s_per_h
        + costs.gain_s_per_h * (step.difference or 0) / max(1, step.total_pages)
        for step in climbed.steps
    }
    slack = slack_s_per_h(levels, costs, prediction.error(None) or 0.0)
    return confirmed(net, prediction.choice.host_pages, prediction.reach, slack=slack, if_so=Ended.NET_CONFIRMED)
