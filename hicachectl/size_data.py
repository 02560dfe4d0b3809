"""The document of `hicachectl tune size` as plain data, with the reason of every null."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hicachectl.envelope import Fact, plain
from hicachectl.size_tiers import COST_REASONS, choice_tiers, curve_rows, row_reasons, step_storage, tiers_data

if TYPE_CHECKING:
    from hicachectl.run_plan import RunPlan
    from hicachectl.tuning.sizing.budget import Budget
    from hicachectl.tuning.sizing.economics import Costs
    from hicachectl.tuning.sizing.pool_costs import PoolCosts
    from hicachectl.tuning.sizing.prediction import Prediction
    from hicachectl.tuning.sizing.simulate import Simulated
    from hicachectl.tuning.sizing.steps import Climbed, Step
    from hicachectl.tuning.sizing.waterfall import Waterfall

__all__ = ["SizeFound", "size_data"]


@dataclass(frozen=True, slots=True)
class SizeFound:
    """Everything one sizing found out."""

    prediction: Prediction
    climbed: Climbed
    plan: RunPlan
    budget: Budget
    ranks: int
    shared: bool
    id: str
    folder: str
    config: str | None
    host: str
    simulated: tuple[Simulated, ...]
    points: float
    costs: Costs | None
    why_no_costs: str | None
    config_pages: int
    pool_costs: PoolCosts
    waterfall: Waterfall
    budget_note: str | None = None


def size_data(found: SizeFound) -> tuple[dict[str, Any], dict[str, Fact]]:
    """Return the document and its facts. Pure."""
    from hicachectl.runtime.geometry import KVKind
    from hicachectl.tuning.sizing.engine_flags import engine_flags, pool_bytes
    from hicachectl.tuning.sizing.measure import capacities_for

    prediction, plan = found.prediction, found.plan
    choice, curve, geometry = prediction.choice, prediction.curve, plan.replay.geometry
    pool = pool_bytes(
        found.config_pages, geometry.page_bytes, n_ranks=found.ranks,
        same_on_every_rank=geometry.kind is KVKind.MLA, shared=found.shared, n_kv_heads=geometry.n_kv_heads,
    )  # fmt: skip
    at = capacities_for(curve, choice.plateau_pages, choice.host_pages, prediction.longest_pages, *prediction.sizes)
    steps = [step for step in found.climbed.steps if step.pages]
    base = next((step for step in found.climbed.steps if not step.pages), None)
    costs, why_no_costs = found.costs, found.why_no_costs or ""
    jackknife = prediction.sure.jackknife
    data: dict[str, Any] = {
        "id": found.id,
        "folder": found.folder,
        "config": found.config,
        "config_host_pages": found.config_pages,
        "host": found.host,
        "live": None,
        "trace": plan.replay.trace_name,
        "format": plan.info.format,
        "requests": prediction.n_requests,
        "geometry": geometry.name,
        "page_tokens": geometry.page_tokens,
        "page_bytes": geometry.page_bytes,
        "device": plan.replay.device,
        "device_reason": plan.replay.device_reason,
        "device_pages": prediction.device_pages,
        "device_pages_held_by_running": prediction.busy_pages,
        "longest_request_pages": prediction.longest_pages,
        "tiers": tiers_data(prediction),
        "budget": plain(found.budget),
        "budget_note": found.budget_note,
        "curve": {
            "definition": "D3",
            "total": curve.total,
            "distinct_pages": curve.n_distinct,
            "ceiling": curve.rate(),
            "ceiling_error": None if jackknife is None else jackknife.rate_error(),
            "ceiling_error_reason": None if jackknife is not None else prediction.sure.reason or "no interval",
            "plateau_pages": choice.plateau_pages,
            "plateau_error_pages": None if jackknife is None else round(jackknife.plateau_error(found.points)),
            "plateau_d1_pages": prediction.plateau_d1_pages,
            "window_too_short": prediction.sure.too_short,
            "growth": plain(prediction.sure.growth),
            "rows": curve_rows(prediction, at, geometry.page_bytes, costs),
        },
        "steps": [_step(step, prediction) for step in steps],
        "base": None if base is None else _step(base, prediction),
        "costs": None if costs is None else plain(costs),
        "costs_reason": why_no_costs or None,
        "ended": found.climbed.ended.value,
        "pool_costs": plain(found.pool_costs),
        "waterfall": plain(found.waterfall.rows),
        "waterfall_left_out": plain(found.waterfall.left_out),
        "choice": {
            "pages": choice.host_pages,
            "bytes": choice.host_pages * geometry.page_bytes,
            "bound": choice.bound.value,
            "rule": choice.rule.value,
            "points": found.points,
            "reason": choice.reason,
            "hit_rate": choice.rate,
            "device_hit_rate": choice.device_rate,
            "ceiling": choice.ceiling,
            **choice_tiers(prediction, choice.host_pages),
        },
        "pool": plain(pool),
        "flags": plain(engine_flags(pool, most_pages=prediction.limits.most_pages)),
        "policies": [{**plain(one), "policy": str(one.policy), "hit_rate": one.rate} for one in found.simulated],
    }
    return data, _facts(data, found, why_no_costs)


def _step(step: Step, prediction: Prediction) -> dict[str, Any]:
    trial = step.trial
    return {
        "pages": step.pages,
        "state": "failed" if trial is None else "done" if step.holds else "differs",
        "resumed": step.resumed,
        "predicted_hits": step.predicted_hits,
        "predicted_hit_rate": None if step.predicted_hits is None else step.predicted_hits / max(1, step.total_pages),
        "measured_hits": None if trial is None else trial.hit_pages,
        "measured_hit_rate": None if trial is None else trial.rate,
        "difference_pages": step.difference,
        **step_storage(prediction, step),
        "must_be_exact": step.exact,
        "assumption": step.assumption,
        "reason": step.reason,
        "trial": None if trial is None else {k: v for k, v in plain(trial).items() if k not in ("reasons", "restores")},
    }


def _facts(data: dict[str, Any], found: SizeFound, why_no_costs: str) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}

    def null(pointer: str, reason: str) -> None:
        facts[pointer] = Fact(reason=reason)

    for index, term in enumerate(data["budget"]["terms"]):
        if term["n_bytes"] is None:
            null(f"/budget/terms/{index}/n_bytes", term["reason"] or "not read")
    if data["budget"]["trial_bytes"] is None:
        null("/budget/trial_bytes", "no placement asked")
    for name in ("ceiling_error", "plateau_error_pages"):
        if data["curve"][name] is None:
            null(f"/curve/{name}", found.prediction.sure.reason or "no interval")
    if data["curve"]["ceiling_error_reason"] is None:
        null("/curve/ceiling_error_reason", "the interval is known")
    for index, row in enumerate(data["curve"]["rows"]):
        for name, reason in row_reasons(row, found.prediction.sure.reason, why_no_costs).items():
            null(f"/curve/rows/{index}/{name}", reason)
    if data["tiers"]["storage_pages"] is None:
        null("/tiers/storage_pages", "without a limit")
    for name, reason in COST_REASONS.items():
        if data["costs"] is not None and data["costs"][name] is None:
            null(f"/costs/{name}", reason)
    if data["costs"] is not None and data["costs"]["carry_s_per_gib_h"] is None:
        null("/costs/carry_s_per_gib_h", found.pool_costs.carry_reason)
    if data["costs"] is None:
        null("/costs", why_no_costs or "not known")
    if data["costs_reason"] is None:
        null("/costs_reason", "the costs are known")
    if data["budget_note"] is None:
        null("/budget_note", "predicted for this host")
    if data["config"] is None:
        null("/config", "predicted only; --write FILE writes one")
    null("/live", "sized for a finished trace")
    for index, flag in enumerate(data["flags"]):
        if flag["value"] is None:
            for field in ("value", "pages"):
                null(f"/flags/{index}/{field}", flag["reason"])
        else:
            null(f"/flags/{index}/reason", "there is a value")
    if data["device_reason"] is None:
        null("/device_reason", "asked for")
    for name, reason in _pool_cost_reasons(found.pool_costs):
        null(f"/pool_costs/{name}", reason)
    for index, row in enumerate(data["waterfall"]):
        if row["restore_bytes_per_s"] is None:
            null(f"/waterfall/{index}/restore_bytes_per_s", "nothing was restored")
    if data["base"] is None:
        null("/base", "no step was made")
    named = [(f"/steps/{index}", step) for index, step in enumerate(data["steps"])]
    if data["base"] is not None:
        named.append(("/base", data["base"]))
    trials = {step.pages: step.trial for step in found.climbed.steps}
    for pointer, step in named:
        if step["assumption"] is None:
            null(f"{pointer}/assumption", "the step must come out to the page")
        if step["reason"] is None:
            null(f"{pointer}/reason", "it did not fail")
        for name in ("measured_hits", "measured_hit_rate", "difference_pages", "trial"):
            if step[name] is None:
                null(f"{pointer}/{name}", step["reason"] or "the step failed")
        trial = trials[step["pages"]]
        if step["measured_storage_hits"] is None:
            null(f"{pointer}/measured_storage_hits", "the step had no storage tier (--l3-path)")
        for name, reason in (trial.reasons if trial is not None else {}).items():
            null(f"{pointer}/trial/{name}", reason)
        if trial is not None and trial.memory is not None:
            for name in ("resident_bytes", "huge_bytes"):
                if getattr(trial.memory, name) is None:
                    null(f"{pointer}/trial/memory/{name}", trial.memory.reason or "not read")
    return facts


def _pool_cost_reasons(costs: PoolCosts) -> list[tuple[str, str]]:
    """Say of every null of the pool's costs why it is one. Pure."""
    found = [
        (name, costs.make_reason or "not measured")
        for name in ("populate_s_per_gib", "register_s_per_gib", "make_s_per_gib", "make_low_s_per_gib", "make_high_s_per_gib")
        if getattr(costs, name) is None
    ]  # fmt: skip
    if costs.make_reason is None:
        found.append(("make_reason", "nothing is missing"))
    if costs.again_reason is None:
        found.append(("again_reason", "it was made"))
    if costs.again is None:
        found.append(("again", costs.again_reason or "not made"))
    ratios = {f"restores/{index}": ratio for index, ratio in enumerate(costs.restores)}
    if costs.again is not None:
        ratios["again"] = costs.again
    for pointer, ratio in ratios.items():
        for name in ("ratio", "noise", "slower_s_per_page", "differs"):
            if getattr(ratio, name) is None:
                found.append((f"{pointer}/{name}", ratio.reason or "not compared"))
        if ratio.reason is None:
            found.append((f"{pointer}/reason", "they were compared"))
    if costs.carry_s_per_gib_h is None:
        found.append(("carry_s_per_gib_h", costs.carry_reason))
    return found
