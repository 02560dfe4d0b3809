"""What a sizing says of its tiers: hits of each at a size, what storage would serve anyway, and what a pool is worth. Plain data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicachectl.envelope import plain
from hicachectl.errors import CapacityError, UsageError
from hicachectl.size_pages import sizes_of, storage_pages_of
from hicachectl.units import parse_size

if TYPE_CHECKING:
    from hicachectl.config_models import RunConfig
    from hicachectl.runtime.geometry import KVGeometry
    from hicachectl.tuning.sizing.economics import Costs
    from hicachectl.tuning.sizing.prediction import Prediction
    from hicachectl.tuning.sizing.steps import Step

__all__ = [
    "COST_REASONS",
    "choice_tiers",
    "curve_rows",
    "is_exclusive",
    "require_asked",
    "require_storage_room",
    "row_reasons",
    "step_storage",
    "storage_folder_of",
    "storage_holds",
    "tiers_data",
]

COST_REASONS = {
    "crossover_tokens": "no restore of any length is cheaper than computing",
    "storage_restore_s": "no restore from a storage tier was measured",
}
"""Why a cost is null."""


def is_exclusive(text: str) -> bool:
    """Read --l2. Pure. Raises UsageError."""
    if text not in ("inclusive", "exclusive"):
        raise UsageError(
            f"L2 is {text!r}", where="--l2", hint="inclusive: it holds what L1 holds too; exclusive: it does not"
        )
    return text == "exclusive"


def require_asked(
    run: RunConfig, *, ranks: int, shared: bool, l2: str, l3: str | None, steps: str, max_bytes: str | None
) -> None:
    """Check ranks, tiers, steps and limit before a trace is read or a window collected for them. Pure. Raises UsageError."""
    from hicachectl.runtime.geometry import preset
    from hicachectl.size_run import NO_STEPS

    geometry = preset(run.geometry, run.page_tokens, run.dtype)
    _require_shareable(geometry, shared=shared)
    _require_ranks(geometry, ranks)
    is_exclusive(l2)
    storage_pages_of(l3, geometry.page_bytes)
    if steps not in ("auto", NO_STEPS):
        sizes_of(steps, geometry.page_bytes)
    if max_bytes is not None:
        parse_size(max_bytes, where="--max-bytes")


def _require_shareable(geometry: KVGeometry, *, shared: bool) -> None:
    """Check --shared. Pure. Raises UsageError where the ranks hold different bytes."""
    from hicachectl.runtime.geometry import KVKind

    if shared and geometry.kind is not KVKind.MLA:
        raise UsageError(
            f"{geometry.name} is {geometry.kind.value.upper()}, not MLA", where="--shared",
            why="each rank holds heads of its own, so there is no pool that all could map", hint="leave --shared out",
        )  # fmt: skip


def _require_ranks(geometry: KVGeometry, ranks: int) -> None:
    """Check --ranks. Pure. Raises UsageError where the KV heads cannot be shared out evenly."""
    heads = geometry.n_kv_heads
    if heads is not None and heads % ranks and ranks % heads:
        raise UsageError(
            f"{ranks} ranks, {geometry.name} has {heads} KV heads", where="--ranks",
            why="engines share the heads out evenly, or give each head to as many ranks", hint=f"give a divisor or a multiple of {heads}",
        )  # fmt: skip


def storage_folder_of(path: Path | None, l3: str | None) -> Path | None:
    """Check --l3-path. Reads the folder's mode, changes nothing. Raises UsageError."""
    if path is None:
        return None
    if l3 is None:
        raise UsageError("a folder for a storage tier without its size", where="--l3-path", hint="give --l3 too")
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(
            "no folder this user can write",
            where=f"--l3-path {path}",
            hint="name one, on the disk that is to be measured",
        )
    return path.absolute()


def require_storage_room(storage_pages: int | None, longest_pages: int) -> None:
    """Refuse a storage tier of the steps that does not hold the longest request: it would drop pages that the curve keeps. Pure.

    Raises CapacityError with both.
    """
    if storage_pages is None or storage_pages >= longest_pages:
        return
    raise CapacityError(
        f"a storage tier of {storage_pages} pages does not hold one request of {longest_pages}", where="--l3",
        terms=(("longest request, pages", longest_pages), ("storage tier of the steps, pages", storage_pages)),
        why="a request's own pages cannot make room for each other, so the steps could not be as predicted",
        hint=f"give --l3 {longest_pages} or more, or leave --l3-path out: storage is predicted then, not measured",
    )  # fmt: skip


def tiers_data(prediction: Prediction) -> dict[str, Any]:
    """Return what the size was predicted for: L1 and what runs in it, L2's kind, L3, and the pages a pool must hold. Pure."""
    levels, limits = prediction.levels, prediction.limits
    return {
        "l2": "exclusive" if levels.exclusive else "inclusive",
        "concurrency": prediction.concurrency,
        "device_pages_free": levels.device_pages,
        "device_hit_rate": levels.tiers(0).device,
        "device_hit_rate_idle": prediction.device_rate_idle,
        "storage": prediction.storage_pages != 0,
        "storage_pages": prediction.storage_pages,
        "least_pages": limits.least_pages,
        "bounce_pages": limits.bounce_pages,
        "most_pages": limits.most_pages,
    }


def choice_tiers(prediction: Prediction, host_pages: int) -> dict[str, Any]:
    """Return the hits of each tier at a size; of L2's, the part that storage would serve without it. Pure."""
    levels = prediction.levels
    rates = levels.tiers(host_pages)
    anyway = levels.host_rate(min(host_pages, levels.served_below)) if host_pages else 0.0
    return {
        "host_hit_rate": rates.host,
        "storage_hit_rate": rates.storage,
        "served_by_storage_anyway": anyway,
        "inclusive_pages": levels.inclusive_pages(host_pages),
    }


def curve_rows(prediction: Prediction, at: Sequence[int], page_bytes: int, costs: Costs | None) -> list[dict[str, Any]]:
    """Return a row a size of the host pool: hits of L1 and L2, of L3, and what the pool is worth where costs are known. Pure."""
    from hicachectl.tuning.sizing.economics import payback_h, worth_of

    levels = prediction.levels if costs is None else prediction.levels_for(costs)
    rows = []
    for before, pages in zip((0, *at), at, strict=False):
        worth = None if costs is None else worth_of(levels, costs, page_bytes, pages)
        rows.append(
            {
                "capacity_pages": pages,
                "capacity_bytes": pages * page_bytes,
                "hits": levels.hits_at(pages),
                "hit_rate": levels.rate(pages),
                "hit_rate_error": prediction.error(levels.reach(pages)),
                "storage_hit_rate": levels.tiers(pages).storage,
                "to_ceiling": levels.ceiling - levels.rate(pages),
                "payback_h": None if costs is None else payback_h(levels, costs, page_bytes, before, pages),
                "saved_s_per_h": None,
                "spent_s_per_h": None,
                "net_s_per_h": None,
                **({} if worth is None else plain(worth)),
            }
        )
    return rows


def step_storage(prediction: Prediction, step: Step) -> dict[str, int | None]:
    """Return the hits of a step in storage: predicted, and measured where the step had a storage tier. Pure."""
    measured = None if step.trial is None else step.trial.storage_hit_pages
    return {"predicted_storage_hits": prediction.storage_hits(step.pages), "measured_storage_hits": measured}


def storage_holds(prediction: Prediction, step: Step) -> bool:
    """Whether storage hit as predicted: to the page where it held everything, else within the step's slack. Pure."""
    measured = None if step.trial is None else step.trial.storage_hit_pages
    if measured is None:
        return True
    exact = step.exact and prediction.levels.storage_pages >= prediction.curve.largest_distance
    return abs(measured - prediction.storage_hits(step.pages)) <= (0 if exact else step.slack_pages)


def row_reasons(row: dict[str, Any], no_interval: str | None, why_no_costs: str) -> dict[str, str]:
    """Say of every null of a row why it is one. Pure."""
    reasons = {} if row["hit_rate_error"] is not None else {"hit_rate_error": no_interval or "no interval"}
    if row["payback_h"] is None:
        reasons["payback_h"] = why_no_costs or "this step gains nothing"
    for name in ("saved_s_per_h", "spent_s_per_h", "net_s_per_h"):
        if row[name] is None:
            reasons[name] = why_no_costs
    return reasons
