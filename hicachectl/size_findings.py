"""What a sizing says beside its numbers: findings, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hicachectl.envelope import Diagnostic, Severity
from hicachectl.errors import ExitCode
from hicachectl.size_tiers import storage_holds

if TYPE_CHECKING:
    from hicachectl.tuning.sizing.economics import Costs
    from hicachectl.tuning.sizing.live_judge import LiveStep
    from hicachectl.tuning.sizing.prediction import Prediction
    from hicachectl.tuning.sizing.steps import Climbed

__all__ = ["short_window", "size_exit_code", "size_findings"]

_GAINS = "a larger pool gains more than the slack"
_NO_GAIN_HINT = (
    "size again for a longer trace, or with more --device-slots where requests waited for room; hicachectl run --config FILE says what "
    "they waited for, --host-slots 0 is no host pool"
)


def size_exit_code(climbed: Climbed, *, predict_only: bool) -> ExitCode:
    """Return 0 where the steps were made or none was asked for, else the code of a sizing without an answer. Pure."""
    from hicachectl.tuning.sizing.step_rules import DONE, Ended

    if predict_only or climbed.ended in (*DONE, Ended.NO_STEPS):
        return ExitCode.OK
    return ExitCode.NO_RESULT


def size_findings(
    prediction: Prediction, climbed: Climbed, *, costs: Costs | None = None, page_bytes: int = 0, live: Sequence[LiveStep] = ()
) -> list[Diagnostic]:  # fmt: skip
    """Name what the steps and the window say about the size found. Pure.

    `costs` are those that economics chose by (None: it did not), `page_bytes` of a page on this host, `live` the steps on live
    requests.
    """
    from hicachectl.tuning.sizing.prediction import remedy_of
    from hicachectl.tuning.sizing.step_rules import Ended

    found = []
    if prediction.sure.too_short:
        before, after = (grown.plateau_pages for grown in prediction.sure.growth[-2:])
        found.append(short_window(before, after, prediction.n_requests))
    if 0 < prediction.device_pages <= prediction.busy_pages:
        found.append(
            Diagnostic(
                "HC-SIZE-L1-BUSY", Severity.WARN,
                f"{prediction.concurrency} running requests hold all {prediction.device_pages} pages of L1: nothing of it is left to be hit",
                subject="tiers", hint="give --concurrency as the engine runs them, or a larger --device-slots",
            )
        )  # fmt: skip
    for step in climbed.steps:
        hint = "look at failures and dropped pages of that step"
        if step.trial is None:
            hint = "free memory or give a smaller --max-bytes"
            text = f"the step of {step.pages} pages failed: {step.reason}"
        elif not step.trial.is_resident:
            text = f"of the pool of {step.pages} pages only a part was resident"
        elif step.trial.failures:
            if "storage_full" in step.trial.failures:
                hint = "free room on the disk of --l3-path, or give a smaller --l3"
            failed = ", ".join(f"{n} {name}" for name, n in sorted(step.trial.failures.items()))
            text = f"copies of the step of {step.pages} pages failed: {failed}"
        elif step.trial.dropped_pages and step.exact:
            text = f"the step of {step.pages} pages dropped {step.trial.dropped_pages} pages: the pool had no room for them"
        elif not step.holds:
            named = step.assumption or "none of the known assumptions is broken"
            hint = remedy_of(named) or hint
            text = f"the step of {step.pages} pages hit {step.trial.hit_pages} pages, predicted {step.predicted_hits}: {named}"
        elif not storage_holds(prediction, step):
            text = (
                f"the step of {step.pages} pages hit {step.trial.storage_hit_pages} pages in storage, "
                f"predicted {prediction.storage_hits(step.pages)}"
            )
        else:
            continue
        found.append(Diagnostic("HC-SIZE-STEP", Severity.WARN, text, subject="steps", hint=hint))
    found += _about_choice(prediction, climbed, costs, page_bytes, live)
    if climbed.ended is Ended.TIME:
        found.append(
            Diagnostic(
                "HC-SIZE-STEP", Severity.WARN, "the time budget ended the steps before the plateau was confirmed",
                subject="steps", hint="hicachectl tune size --resume with the same options goes on",
            )
        )  # fmt: skip
    return found


def short_window(before_pages: int, after_pages: int, n_requests: int) -> Diagnostic:
    """Say that the plateau moved over the last quarter of a window, or that there are too few requests to tell. Pure."""
    from hicachectl.tuning.sizing.confidence import LEAST_REQUESTS

    moved = f"it moved from {before_pages} to {after_pages} pages over the last quarter of the requests"
    few = f"whether it still grows cannot be told of {n_requests} request{'' if n_requests == 1 else 's'}"
    return Diagnostic(
        "HC-WINDOW-SHORT", Severity.NOTE, f"the plateau is a lower bound: {few if n_requests < LEAST_REQUESTS else moved}",
        subject="growth", hint="record a longer window of the same traffic",
    )  # fmt: skip


def _about_choice(
    prediction: Prediction, climbed: Climbed, costs: Costs | None, page_bytes: int, live: Sequence[LiveStep]
) -> list[Diagnostic]:
    """Say that no restore pays, and why the steps do not confirm the size."""
    from hicachectl.tuning.sizing.step_rules import Ended

    found = []
    if climbed.no_restore_pays:
        found.append(
            Diagnostic(
                "HC-SIZE-NO-RESTORE", Severity.WARN, "the pools of the steps hit pages and restored none: computing was cheaper each time",
                subject="steps", hint="look at data.steps[].trial.net_gain_s, and name the model whose prefill it is (run.compute.model)",
            )
        )  # fmt: skip
    if climbed.ended in (Ended.NOT_CONFIRMED, Ended.NO_ROOM, Ended.NO_GAIN):
        if climbed.ended is Ended.NO_GAIN and costs is not None:
            why, hint = _why_no_gain(prediction, climbed, costs, page_bytes), _NO_GAIN_HINT
        else:
            why, hint = _why_not(prediction, climbed)
            if costs is None and climbed.ended is Ended.NOT_CONFIRMED and why == _GAINS:
                why += _live_gain(prediction.choice.host_pages, live)
        text = f"the size of {prediction.choice.host_pages} pages is not confirmed: {why}"
        found.append(Diagnostic("HC-SIZE-UNCONFIRMED", Severity.WARN, text, subject="choice", hint=hint))
    return found


def _live_gain(chosen: int, live: Sequence[LiveStep]) -> str:
    """Say what the chosen size would have hit of the requests that a larger pool served; nothing without live steps. Pure."""
    gains = [(step.gain, step) for step in live if step.gain is not None and step.gain_over == chosen]
    if not gains:
        return ""
    from hicachectl.tuning.sizing.live_judge import Replayed

    gain, step = max(gains, key=lambda one: one[0])
    other = "; each step served other requests" if step.replayed is Replayed.NEW else ", saved requests all"
    return (
        f" (of the requests that the pool of {step.pages} pages served, {chosen} pages would have hit {100 * (step.rate - gain):.2f} %, "
        f"it hit {100 * step.rate:.2f} %: {100 * gain:.2f} points more{other})"
    )


def _why_no_gain(prediction: Prediction, climbed: Climbed, costs: Costs, page_bytes: int) -> str:
    """The net gain that economics predicts, the one that the step measured, and what the steps show of why they differ. Pure."""
    from hicachectl.tuning.sizing.economics import worth_of
    from hicachectl.units import format_seconds

    chosen = prediction.choice.host_pages
    net_s_per_h = worth_of(prediction.levels_for(costs), costs, page_bytes, chosen).net_s_per_h
    own = climbed.trial_at(chosen)
    measured_s = 0.0 if own is None else own.net_gain_s
    parts = [
        f"economics predicts a net gain of {format_seconds(net_s_per_h * prediction.span_s / 3600)} over the window, "
        f"its step measured {format_seconds(measured_s)}"
    ]
    restore_s = None if own is None else own.restore_s_per_token
    if restore_s is not None and format_seconds(restore_s) != format_seconds(costs.restore_s):
        parts.append(
            f"a token restored took {format_seconds(restore_s)} in it, {format_seconds(costs.restore_s)} by {costs.source}, "
            f"and {format_seconds(costs.prefill_s)} to compute"
        )
    idle = [step.trial for step in climbed.steps if step.pages and step.trial is not None]
    for trial in [one for one in idle if not one.restored_pages and one.net_gain_s < 0][-1:]:
        parts.append(
            f"the pool of {trial.host_pages} pages restored no page and measured {format_seconds(trial.net_gain_s)}, which is "
            "waiting for room in L1 while its pages are copied down"
        )
    return "; ".join(parts)


def _why_not(prediction: Prediction, climbed: Climbed) -> tuple[str, str]:
    """What is missing between the steps and a confirmed size, and what to do about it. Pure."""
    from hicachectl.tuning.sizing.step_rules import Ended

    chosen, reach = prediction.choice.host_pages, prediction.reach
    tried = [step.pages for step in climbed.steps]
    more = "the same line with --steps auto tries what it takes"
    if climbed.ended is Ended.NO_ROOM and not chosen:
        return (
            f"no pool of the {reach.most_pages} pages that the memory holds is worth having, a larger one may be",
            "free memory, raise --max-bytes or give fewer --device-slots",
        )
    if climbed.ended is Ended.NO_ROOM:
        return (
            f"a pool of {reach.above(chosen)} pages would tell, the memory holds {reach.most_pages}",
            "free memory or raise --max-bytes, or take the size as what the memory allows",
        )
    if chosen not in tried and reach.most_pages is not None and chosen > reach.most_pages:
        return (
            f"no pool of that size was made, a trial pool finds memory for {reach.most_pages} pages",
            "free memory on the node of the trial pool, or take the size as predicted",
        )
    if chosen not in tried:
        return "no pool of that size was made", more
    if max(tried) < reach.above(chosen):
        return f"no pool of {reach.above(chosen)} pages or more was made", more
    if chosen and not any(reach.is_below(pages, chosen) for pages in tried):
        return "no smaller pool was made", more
    if prediction.levels.exclusive:
        return (
            f"the pools of the steps hold what L1 holds too, so that {chosen} pages reach {max(prediction.device_pages, chosen)} there, "
            f"not {prediction.levels.reach(chosen)}",
            "take the size as predicted; steps can prove the one of --l2 inclusive",
        )
    return (
        _GAINS,
        "size again for a longer trace or --window: these requests gain more from a larger pool than the curve said",
    )
