"""What a GiB of pool costs, from the steps: g to make it (populate and register), m to carry it. Pure.

g is the seconds of all steps over their GiB. m is what a larger pool slows the same restores (`restores`), over the GiB it is
larger, at the restores an hour of the window; 0 where the ratio cannot be told from 1, which is said with the noise; None
where no size was run twice, so that nothing says what chance does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hicachectl.tuning.sizing.restores import RestoreRatio, compare_restores
from hicachectl.tuning.sizing.trial import Trial
from hicachectl.units import GIB

__all__ = ["PoolCosts", "pool_costs"]


@dataclass(frozen=True, slots=True)
class PoolCosts:
    """Seconds a GiB to populate and to register (None: nothing was), the sum's range over the steps, and s/h a GiB to carry.

    `carry_s_per_gib_h` None: not measured; `carry_reason` says how it was found, or why not. `restores` compares neighbouring
    steps, the smaller first; which is slower is not known where `again` is not; `again` the same size in two runs, None with its reason where that was not made.
    """

    populate_s_per_gib: float | None
    register_s_per_gib: float | None
    make_s_per_gib: float | None
    make_low_s_per_gib: float | None
    make_high_s_per_gib: float | None
    make_reason: str | None
    carry_s_per_gib_h: float | None
    carry_reason: str
    restores: tuple[RestoreRatio, ...]
    again: RestoreRatio | None
    again_reason: str | None


def pool_costs(trials: Sequence[Trial], span_s: float, again: Trial | str = "not made") -> PoolCosts:
    """Return the costs from the steps' trials. Pure.

    `span_s` are the seconds of traffic that the window stands for, `again` one of the steps once more, or why there is none.
    """
    pools = sorted(
        (trial for trial in trials if trial.host_pages and trial.n_bytes), key=lambda trial: trial.host_pages
    )
    if not pools:
        none = "no step made a pool"
        return PoolCosts(None, None, None, None, None, none, None, none, (), None, none)
    twice = _twice(pools, again)
    drift = _drift(twice)
    ratios = tuple(
        compare_restores(a.host_pages, a.restores, b.host_pages, b.restores, drift=drift) for a, b in pairwise(pools)
    )
    gib = sum(trial.n_bytes for trial in pools) / GIB
    populate = sum(trial.fill_s for trial in pools) / gib
    registered = [trial.register_s for trial in pools if trial.register_s is not None]
    register = sum(registered) / gib if len(registered) == len(pools) else None
    each = [(trial.fill_s + (trial.register_s or 0.0)) * GIB / trial.n_bytes for trial in pools]
    carry, reason = _carry(pools, ratios, span_s, drift)
    why = None if register is not None else pools[-1].reasons.get("register_s", "not every step was registered")
    return PoolCosts(
        populate, register, populate + (register or 0.0), min(each), max(each), why, carry, reason, ratios,
        None if isinstance(twice, str) else twice, twice if isinstance(twice, str) else None,
    )  # fmt: skip


def _twice(pools: Sequence[Trial], again: Trial | str) -> RestoreRatio | str:
    """Compare two runs of one size."""
    if isinstance(again, str):
        return again
    first = next((trial for trial in pools if trial.host_pages == again.host_pages), None)
    if first is None:
        return f"no step of {again.host_pages} pages"
    return compare_restores(first.host_pages, first.restores, again.host_pages, again.restores)


def _drift(twice: RestoreRatio | str) -> float | str:
    """How far two runs of one size are apart, less 1, or why that is not known."""
    if not isinstance(twice, str) and twice.ratio is not None:
        return abs(twice.ratio - 1)
    why = twice if isinstance(twice, str) else twice.reason or "not compared"
    return f"how far two runs of one size are apart is not known: {why}"


def _carry(
    pools: Sequence[Trial], ratios: Sequence[RestoreRatio], span_s: float, drift: float | str
) -> tuple[float | None, str]:
    """The last pair decides: the plateau and twice as much, where hits no longer differ. Without two runs of one size nothing tells a slowdown from chance."""
    if not ratios:
        return None, "one pool alone: nothing to compare it with"
    last = ratios[-1]
    if last.ratio is None or last.noise is None or last.slower_s_per_page is None:
        return None, last.reason or "not compared"
    seen = f"the same restores took {last.ratio:.3f} +- {last.noise:.3f} times as long with {last.large_pages} pages as with {last.small_pages}"
    if isinstance(drift, str):
        return None, f"{seen}; {drift}"
    if not last.differs:
        return 0.0, f"0: {seen}, which cannot be told from 1"
    if last.ratio < 1:
        return 0.0, f"0: {seen}, so nothing to carry"
    if span_s <= 0:
        return None, "the trace spans no time, so its restores an hour are not known"
    large = pools[-1]
    grown_gib = (large.n_bytes - pools[-2].n_bytes) / GIB
    an_hour = large.restored_pages * 3600 / span_s
    return last.slower_s_per_page * an_hour / grown_gib, seen
