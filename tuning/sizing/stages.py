"""Replays beside the steps, for the waterfall alone: what copies and memory pages do, with the smallest step's pool on the same window.

    a copy a chunk    page_first_direct, one copy each chunk, small pages that no driver knows
    copy backend      the layout and backend of the steps, the same memory

They are made when the steps are over. One that cannot be made here has its reason instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from hicachectl.errors import HicacheError
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Backend, Layout, compatible
from hicachectl.runtime.memory.host_pool import map_pool
from hicachectl.runtime.memory.mapping import Mapping as HostMapping
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.transfer.device import device_type
from hicachectl.tuning.sizing.size_journal import SizeJournal
from hicachectl.tuning.sizing.step_rules import Ended
from hicachectl.tuning.sizing.steps import Climbed, trial_of
from hicachectl.tuning.sizing.trial import Trial

__all__ = ["BACKEND", "CHUNKS", "Stage", "measure_stages", "pageable", "stages_of"]

CHUNKS, BACKEND = "a copy a chunk", "copy backend"
_SMALL = MappingSpec(huge=False)


@dataclass(frozen=True, slots=True)
class Stage:
    """A replay beside the steps; `config` None: it cannot be made here, `reason` says why."""

    name: str
    config: ReplayConfig | None
    reason: str | None = None


def pageable(
    geometry: KVGeometry, n_slots: int, layout: Layout, spec: MappingSpec, *, registrar: Registrar | NoRegistrar
) -> HostMapping:
    """Make a host pool's memory as `map_pool` does, and register it with nothing. Raises what `map_pool` raises."""
    del registrar
    return map_pool(
        geometry, n_slots, layout, spec, registrar=NoRegistrar("left pageable on purpose, to be compared with")
    )


def stages_of(base: ReplayConfig, backend: Backend) -> tuple[Stage, ...]:
    """Return the replays to make; `backend` is the one the steps copied with. Pure."""
    refused = compatible(Layout.PAGE_FIRST_DIRECT, Backend.DIRECT, device_type(base.device))
    chunks = replace(base, layout=Layout.PAGE_FIRST_DIRECT, backend=Backend.DIRECT, host_memory=_SMALL)
    by_address = "uva reads host memory by addresses that only registered memory has" if backend is Backend.UVA else None
    small = replace(base, backend=backend, host_memory=_SMALL)
    return (
        Stage(CHUNKS, None if refused else chunks, refused),
        Stage(BACKEND, None if by_address else small, by_address),
    )


def measure_stages(
    base: ReplayConfig,
    climbed: Climbed,
    *,
    try_stage: Callable[[ReplayConfig, int], Trial],
    journal: SizeJournal,
    done: Mapping[str, dict[str, Any]] | None = None,
    time_budget_s: float | None = None,
    clock: Callable[[], float] = monotonic,
) -> dict[str, Trial | str]:
    """Make the replays beside the steps. Returns by name the trial, or why there is none. Changes the journal.

    `try_stage` takes memory and gives it back, with a pool that is not registered; `done` are those of a run that is
    continued. None is begun after `time_budget_s` seconds. Raises what `try_stage` raises besides HicacheError and MemoryError.
    """
    started = clock()
    pools = [step.trial for step in climbed.steps if step.pages and step.trial is not None]
    found: dict[str, Trial | str] = {}
    for stage in stages_of(base, Backend.parse(pools[0].backend)) if pools else ():
        if stage.config is None:
            found[stage.name] = stage.reason or "cannot be made here"
        elif done is not None and stage.name in done:
            found[stage.name] = trial_of(done[stage.name])
        elif climbed.ended in (Ended.FAILED, Ended.TIME):
            found[stage.name] = f"the steps ended before: {climbed.ended.value}"
        elif time_budget_s is not None and clock() - started >= time_budget_s:
            found[stage.name] = Ended.TIME.value
        else:
            trial = _tried(stage.config, pools[0].host_pages, try_stage)
            if isinstance(trial, Trial):
                journal.append("stage", name=stage.name, trial=asdict(trial))
            found[stage.name] = trial
    return found


def _tried(config: ReplayConfig, pages: int, try_stage: Callable[[ReplayConfig, int], Trial]) -> Trial | str:
    try:
        trial = try_stage(config, pages)
    except MemoryError:
        return "the process ran out of memory"
    except HicacheError as error:
        return str(error)
    if trial.failures:
        return "copies failed: " + ", ".join(f"{n} {name}" for name, n in sorted(trial.failures.items()))
    return trial
