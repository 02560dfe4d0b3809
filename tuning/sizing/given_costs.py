"""Costs that a benchmark measured, in place of those of the steps: restores by length, storage, a GiB of pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hicachectl.runtime.cost import LinearCost
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.tuning.sizing.economics import Costs
from hicachectl.tuning.sizing.measured_costs import LIVES_H, Traffic
from hicachectl.tuning.sizing.pool_costs import PoolCosts
from hicachectl.tuning.sizing.restorable import crossover_tokens

__all__ = ["GivenCosts", "refuted", "with_given"]


@dataclass(frozen=True, slots=True)
class GivenCosts:
    """What was given: a transfer host to device and storage to host by its bytes, seconds to make a GiB. None: not given.

    `why_no_host_read` says why no file has that transfer, and what to do; None where one has it, or no file was given.
    """

    host_read: LinearCost | None = None
    storage_read: LinearCost | None = None
    make_s_per_gib: float | None = None
    why_no_host_read: str | None = None


def refuted(given: GivenCosts, measured: Costs | None) -> tuple[GivenCosts, Costs | None]:
    """Return both for steps whose every pool lost time: a given restore does not count where theirs were dearer than computing. Pure."""
    if given.host_read is None or measured is None or measured.gain_s_per_h:
        return given, measured
    source = f"{measured.source}, where every pool lost time, not by --costs"
    return replace(given, host_read=None), replace(measured, source=source)


def with_given(
    given: GivenCosts, measured: Costs | None, why: str | None, base: ReplayConfig, traffic: Traffic, of_pool: PoolCosts
) -> tuple[Costs | None, str | None]:
    """Return the costs with what was given in place of what the steps measured (`costs_of`). Pure.

    A given restore is that of the mean input. With it no step need have restored anything; a GiB's cost is then given too, or
    measured by a step. None with the reason where something is still not known.
    """
    make = of_pool.make_s_per_gib if given.make_s_per_gib is None else given.make_s_per_gib
    model, geometry = base.compute.model, base.geometry
    if model != geometry or traffic.span_s <= 0:
        return measured, why
    mean = max(1, traffic.input_tokens // max(1, traffic.n_requests))
    n_bytes, recompute = mean * geometry.bytes_per_token, base.costs.recompute
    if given.host_read is None:
        if measured is None or make is None:
            return measured, why if given.why_no_host_read is None else f"{why}, and {given.why_no_host_read}"
        below_s = measured.storage_restore_s
        if given.storage_read is not None:
            below_s = given.storage_read.seconds(n_bytes) / mean + measured.restore_s
        return replace(measured, make_s_per_gib=make, storage_restore_s=below_s), why
    if make is None:
        return None, "no step made a pool and no file says what a GiB costs (bench pool)"
    restore_s = given.host_read.seconds(n_bytes) / mean
    storage_s = None if measured is None else measured.storage_restore_s
    if given.storage_read is not None:
        storage_s = given.storage_read.seconds(n_bytes) / mean + restore_s
    return Costs(
        prefill_s=recompute.request_s(0, mean) / mean,
        restore_s=restore_s,
        make_s_per_gib=make,
        tokens_per_h=traffic.tokens_per_h,
        lives_h=LIVES_H,
        carry_s_per_gib_h=of_pool.carry_s_per_gib_h,
        crossover_tokens=crossover_tokens(
            recompute, given.host_read.fixed_s, given.host_read.per_byte_s * geometry.bytes_per_token
        ),
        storage_restore_s=storage_s,
        source="a benchmark, for requests of the mean length",
    ), None
