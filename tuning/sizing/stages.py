"""Replays beside the steps, made when those are over, on the same window. One that cannot be made here has its reason instead.

the same again    the second largest step once more: how far two runs of one size are apart
a copy a chunk    the smallest step's pages, page_first_direct, one copy each chunk, small pages that no driver knows
copy backend      the same memory, the layout and backend of the steps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from hicachectl.errors import HicacheError
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Backend, Layout, compatible
from hicachectl.runtime.memory.host_pool import MakeHost, map_pool
from hicachectl.runtime.memory.mapping import Mapping as HostMapping
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.transfer.device import device_type
from hicachectl.tuning.sizing.size_journal import SizeJournal
from hicachectl.tuning.sizing.step_rules import Ended
from hicachectl.tuning.sizing.steps import Climbed
from hicachectl.tuning.sizing.trial import Trial
from hicachectl.tuning.sizing.trial_record import trial_of

__all__ = ["AGAIN", "BACKEND", "CHUNKS", "Stage", "measure_stages", "pageable", "stages_of"]

AGAIN, CHUNKS, BACKEND = "the same again", "a copy a chunk", "copy backend"
_SMALL = MappingSpec(huge=False)


@dataclass(frozen=True, slots=True)
class Stage:
    """A replay beside the steps, with `pages` in the host pool; `config` None: it cannot be made here, `reason` says why."""

    name: str
    pages: int
    config: ReplayConfig | None
    make_host: MakeHost = map_pool
    reason: str | None = None


def pageable(
    geometry: KVGeometry, n_slots: int, layout: Layout, spec: MappingSpec, *, registrar: Registrar | NoRegistrar
) -> HostMapping:
    """Make a host pool's memory as `map_pool` does, and register it with nothing. Raises what `map_pool` raises."""
    del registrar
    return map_pool(
        geometry, n_slots, layout, spec, registrar=NoRegistrar("left pageable on purpose, to be compared with")
    )


def stages_of(base: ReplayConfig, pools: Sequence[Trial]) -> tuple[Stage, ...]:
    """Return the replays to make beside the steps' `pools`, the smallest first. Pure."""
    if not pools:
        return ()
    small, backend = pools[0].host_pages, Backend.parse(pools[0].backend)
    again = (
        Stage(AGAIN, pools[-2].host_pages, replace(base, backend=backend))
        if len(pools) > 1
        else Stage(AGAIN, small, None, reason="one step alone")
    )
    refused = compatible(Layout.PAGE_FIRST_DIRECT, Backend.DIRECT, device_type(base.device))
    chunks = replace(base, layout=Layout.PAGE_FIRST_DIRECT, backend=Backend.DIRECT, host_memory=_SMALL)
    by_address = (
        "uva reads host memory by addresses that only registered memory has" if backend is Backend.UVA else None
    )
    chosen = replace(base, backend=backend, host_memory=_SMALL)
    return (
        again,
        Stage(CHUNKS, small, None if refused else chunks, pageable, refused),
        Stage(BACKEND, small, None if by_address else chosen, pageable, by_address),
    )


def measure_stages(
    base: ReplayConfig,
    climbed: Climbed,
    *,
    try_stage: Callable[[Stage, ReplayConfig], Trial],
    journal: SizeJournal,
    done: Mapping[str, dict[str, Any]] | None = None,
    time_budget_s: float | None = None,
    clock: Callable[[], float] = monotonic,
) -> dict[str, Trial | str]:
    """Make the replays beside the steps. Returns by name the trial, or why there is none. Changes the journal.

    `try_stage` takes memory and gives it back; `done` are those of a run that is continued. None is begun after `time_budget_s` seconds. Raises what `try_stage` raises besides HicacheError and MemoryError.
    """
    started = clock()
    pools = [step.trial for step in climbed.steps if step.pages and step.trial is not None]
    found: dict[str, Trial | str] = {}
    for stage in stages_of(base, pools):
        if stage.config is None:
            found[stage.name] = stage.reason or "cannot be made here"
        elif done is not None and stage.name in done:
            found[stage.name] = trial_of(done[stage.name])
        elif climbed.ended in (Ended.FAILED, Ended.TIME):
            found[stage.name] = f"the steps ended before: {climbed.ended.value}"
        elif time_budget_s is not None and clock() - started >= time_budget_s:
            found[stage.name] = Ended.TIME.value
        else:
            trial = _tried(stage, stage.config, try_stage)
            if isinstance(trial, Trial):
                journal.append("stage", name=stage.name, trial=asdict(trial))
            found[stage.name] = trial
    return found


def _tried(stage: Stage, config: ReplayConfig, try_stage: Callable[[Stage, ReplayConfig], Trial]) -> Trial | str:
    try:
        trial = try_stage(stage, config)
    except MemoryError:
        return "the process ran out of memory"
    except HicacheError as error:
        return str(error)
    if trial.failures:
        return "copies failed: " + ", ".join(f"{n} {name}" for name, n in sorted(trial.failures.items()))
    return trial
