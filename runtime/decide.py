"""How far to restore a request's pages, or to compute them again: the one decision the cost model serves. Pure.

A request's pages lie in this order, each segment may be empty:

    [0, device)                 in device memory: used, nothing to decide
    [device, device + host)     in host memory: one load away
    [.., .. + storage)          in storage: a read into host memory, then the load
    [.., total)                 nowhere: computed in any case

Restoring the first n lower-tier pages saves computing them and costs moving them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from hicachectl.errors import UsageError
from hicachectl.runtime.cost import CostModel

__all__ = ["Decision", "RestoreReason", "restore"]


class RestoreReason(Enum):
    """Why a restore is as long as it is."""

    ALL = "all"
    """Everything the lower tiers hold."""
    RESTORE_DEARER = "restore_dearer"
    """The rest is predicted to be cheaper to compute."""
    BUDGET = "budget"
    """More would pay, and there is no room for it."""
    NOTHING = "nothing"
    """The lower tiers hold nothing more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The pages to restore and what that is expected to bring: benefit_s = saved_s - margin x moved_s."""

    pages_host: int
    pages_storage: int
    benefit_s: float
    moved_s: float
    saved_s: float
    reason: RestoreReason

    @property
    def n_pages(self) -> int:
        """Pages to restore in all."""
        return self.pages_host + self.pages_storage


def restore(
    device_pages: int,
    host_pages: int,
    storage_pages: int,
    total_pages: int,
    page_tokens: int,
    page_bytes: int,
    costs: CostModel,
    mode: Literal["cost", "always"] = "cost",
    budget_pages: int | None = None,
) -> Decision:
    """Choose the number of pages to bring up, and from where, that has the best positive benefit. Pure.

    Counts are pages of one request as drawn above; `total_pages` its whole pages. `budget_pages` bounds the restore (None
    = no bound). Mode `always` restores all the budget allows, whatever it costs. The saving counts only the tokens, not
    the fixed part of a prefill call, which is paid in any case (`RecomputeCost.skipped_s`).
    Raises UsageError when a count is negative or the segments are longer than the request.

    Only three lengths can be best: nothing, all of the host part, all of both. Within a segment the benefit is
    k n + c n^2 - (fixed costs), with c >= 0 and fixed costs >= 0: convex and not above the previous segment's end at its
    start, so where any point of it is better than that end, its own end is better still. No search is needed.

    >>> from hicachectl.runtime.cost import RecomputeCost
    >>> costs = CostModel(RecomputeCost(0.01, 3e-5, 4e-10))
    >>> chosen = restore(0, 16, 0, 20, 512, 65536, costs)
    >>> chosen.pages_host, chosen.reason.value, round(chosen.saved_s, 4)
    (16, 'all', 0.2726)
    """
    available = host_pages + storage_pages
    if min(device_pages, host_pages, storage_pages, total_pages) < 0 or page_tokens < 1 or page_bytes < 1:
        raise UsageError(
            f"pages {device_pages} + {host_pages} + {storage_pages} of {total_pages}, {page_tokens} tokens, {page_bytes} bytes",
            hint="counts >= 0, sizes >= 1",
        )
    if device_pages + available > total_pages:
        raise UsageError(
            f"{device_pages} + {host_pages} + {storage_pages} pages in the tiers, the request has {total_pages}"
        )
    allowed = available if budget_pages is None else min(available, max(0, budget_pages))

    def weigh(n_pages: int) -> Decision:
        from_host = min(n_pages, host_pages)
        saved_s = costs.recompute.skipped_s(device_pages * page_tokens, (device_pages + n_pages) * page_tokens)
        moved_s = costs.restore_s(from_host, n_pages - from_host, page_bytes)
        benefit_s = saved_s - costs.margin * moved_s
        return Decision(from_host, n_pages - from_host, benefit_s, moved_s, saved_s, RestoreReason.ALL)

    def best(limit: int) -> Decision:
        if mode == "always":
            return weigh(limit)
        candidates = [weigh(n_pages) for n_pages in sorted({0, min(host_pages, limit), limit})]
        return max(candidates, key=lambda decision: decision.benefit_s)  # of equals, the shortest

    chosen = best(allowed)
    if available == 0:
        reason = RestoreReason.NOTHING
    elif chosen.n_pages == available:
        reason = RestoreReason.ALL
    elif allowed < available and best(available).n_pages > chosen.n_pages:
        reason = RestoreReason.BUDGET
    else:
        reason = RestoreReason.RESTORE_DEARER
    return Decision(chosen.pages_host, chosen.pages_storage, chosen.benefit_s, chosen.moved_s, chosen.saved_s, reason)
