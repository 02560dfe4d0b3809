"""What the economics rule needs, from steps that were made: restores and filling measured, prefill as the configuration says.

They belong together only when the pages moved are pages of the model whose prefill it is; else there are no costs, and why.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.pool_costs import PoolCosts
from hicachectl.tuning.sizing.restorable import crossover_tokens, restore_line
from hicachectl.tuning.sizing.trial import Trial

__all__ = ["LIVES_H", "Traffic", "costs_of"]

LIVES_H = 24.0
"""Hours a pool is taken to live."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests and input tokens of the window, over the seconds they span; `whole_page_tokens` are those in whole pages, which alone can hit."""

    n_requests: int
    input_tokens: int
    whole_page_tokens: int
    span_s: float

    @property
    def tokens_per_h(self) -> float:
        """Tokens in whole pages an hour: what a hit rate of whole pages is a share of. Pure."""
        return self.whole_page_tokens / self.span_s * 3600


def costs_of(
    trials: Sequence[Trial], base: ReplayConfig, traffic: Traffic, of_pool: PoolCosts
) -> tuple[Costs | None, str | None]:
    """Return the costs: restores of the largest pool that had any, a GiB of pool as all steps have it. Pure.

    Storage costs what the last step that read from it waited. None with the reason where they are not known.
    """
    model, geometry = base.compute.model, base.geometry
    if model is None:
        return None, "whose prefill is modelled is not named (run.compute.model)"
    if model != geometry:
        return None, f"the prefill is that of {model.name}, the pages are those of {geometry.name}"
    pools = [trial for trial in trials if trial.host_pages]
    restored = [trial for trial in pools if trial.restore_s_per_token is not None]
    if not restored:
        return None, "no step restored anything" if pools else "no step made a pool"
    if traffic.span_s <= 0:
        return None, "the trace spans no time, so its tokens an hour are not known"
    trial = restored[-1]
    assert trial.restore_s_per_token is not None
    from_storage = [t.storage_restore_s_per_token for t in trials if t.storage_restore_s_per_token is not None]
    line = restore_line([n * geometry.page_tokens for n in trial.restores.pages], trial.restores.wait_s)
    mean = max(1, traffic.input_tokens // max(1, traffic.n_requests))
    return Costs(
        prefill_s=base.costs.recompute.request_s(0, mean) / mean,
        restore_s=trial.restore_s_per_token,
        make_s_per_gib=of_pool.make_s_per_gib or 0.0,
        tokens_per_h=traffic.tokens_per_h,
        lives_h=LIVES_H,
        carry_s_per_gib_h=of_pool.carry_s_per_gib_h,
        crossover_tokens=0 if line is None else crossover_tokens(base.costs.recompute, *line),
        storage_restore_s=from_storage[-1] if from_storage else None,
        source=f"the step of {trial.host_pages} pages",
    ), None
