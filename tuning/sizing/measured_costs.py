"""What the economics rule needs: restores and filling as steps or benchmarks measured them, prefill as the configuration says.

They belong together only when the pages moved are pages of the model whose prefill it is; else there are no costs, and why.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicachectl.runtime.cost import LinearCost
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.pool_costs import PoolCosts
from hicachectl.tuning.sizing.restorable import crossover_tokens, restore_line
from hicachectl.tuning.sizing.trial import Trial

__all__ = ["LIVES_H", "Benched", "Traffic", "costs_of"]

LIVES_H = 24.0
"""Hours a pool is taken to live."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests and input tokens of the window, over the seconds they span."""

    n_requests: int
    input_tokens: int
    span_s: float


@dataclass(frozen=True, slots=True)
class Benched:
    """What benchmarks measured: seconds by bytes from host to device and from storage to host, seconds a GiB of pool; None: nothing."""

    host_read: LinearCost | None = None
    storage_read: LinearCost | None = None
    make_s_per_gib: float | None = None


def costs_of(
    trials: Sequence[Trial], base: ReplayConfig, traffic: Traffic, of_pool: PoolCosts, benched: Benched | None = None
) -> tuple[Costs | None, str | None]:
    """Return the costs: restores of the largest pool that had any, a GiB of pool as all steps have it. Pure.

    Where no step measured something, what a benchmark measured stands in, for requests of the mean length. None with the
    reason where they are not known; a pool whose carrying was not measured carries at 0.
    """
    model, geometry, benched = base.compute.model, base.geometry, benched or Benched()
    if model is None:
        return None, "whose prefill is modelled is not named (run.compute.model)"
    if model != geometry:
        return None, f"the prefill is that of {model.name}, the pages are those of {geometry.name}"
    if traffic.span_s <= 0:
        return None, "the trace spans no time, so its tokens an hour are not known"
    mean = max(1, traffic.input_tokens // max(1, traffic.n_requests))
    token_bytes = geometry.page_bytes / geometry.page_tokens
    restored = [trial for trial in trials if trial.host_pages and trial.restore_s_per_token is not None]
    made_s = of_pool.make_s_per_gib if of_pool.make_s_per_gib is not None else benched.make_s_per_gib
    line: tuple[float, float] | None
    if restored and restored[-1].restore_s_per_token is not None:
        kept, restore_s = restored[-1].restores, restored[-1].restore_s_per_token
        source = f"the step of {restored[-1].host_pages} pages"
        line = restore_line([n * geometry.page_tokens for n in kept.pages], kept.wait_s)
    elif benched.host_read is not None and made_s is not None:
        line = benched.host_read.fixed_s, benched.host_read.per_byte_s * token_bytes
        restore_s, source = line[0] / mean + line[1], "a benchmark, for requests of the mean length"
    else:
        return None, "no step restored anything, and no benchmark of host_read and of a pool is named (--costs)"
    from_storage = [t.storage_restore_s_per_token for t in trials if t.storage_restore_s_per_token is not None]
    storage_s = from_storage[-1] if from_storage else None
    if storage_s is None and benched.storage_read is not None:
        storage_s = benched.storage_read.seconds(round(mean * token_bytes)) / mean + restore_s
    return Costs(
        prefill_s=base.costs.recompute.request_s(0, mean) / mean,
        restore_s=restore_s,
        make_s_per_gib=made_s or 0.0,
        tokens_per_h=traffic.input_tokens / traffic.span_s * 3600,
        lives_h=LIVES_H,
        carry_s_per_gib_h=of_pool.carry_s_per_gib_h or 0.0,
        crossover_tokens=0 if line is None else crossover_tokens(base.costs.recompute, *line),
        storage_restore_s=storage_s,
        source=source,
    ), None
