"""One step: a real host pool of a size by the memory contract, and the trace through it.

The pool is made as an engine's would be: placed, advised, populated, looked at, and registered with the accelerator's driver
where there is one; a registration that is refused is the step's failure. A step counts only when its memory is there: the
resident size of the mapping is read back after the replay and compared with slots times page bytes. What a step changes is
memory of this process, given back before it returns, whatever happens.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from hicachectl.runtime.cost import CostModel
from hicachectl.runtime.cost import Path as CostPath
from hicachectl.runtime.memory.host_pool import MakeHost, map_pool
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.replay.driver import Replay, ReplayConfig, Stop
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.report import ReplayReport, make_report
from hicachectl.runtime.replay.request import Trace, TraceInfo
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.pool_made import PoolMade, pool_made
from hicachectl.tuning.sizing.pool_memory import PoolMemory, read_pool_memory, read_process_bytes
from hicachectl.tuning.sizing.restores import Column, Restores, restores_of, seconds_per_page
from hicachectl.tuning.sizing.trial_storage import TrialStorage

__all__ = ["RESIDENT", "Trial", "try_pool"]

RESIDENT = 0.99
"""Share of a pool that must be resident for its step to count."""
COUNTERS = ("thp_fault_alloc", "thp_fault_fallback", "compact_stall", "compact_fail", "compact_success")


@dataclass(frozen=True, slots=True)
class Trial:
    """What one pool did. Hits are pages of `total_pages` whole ones; times in seconds; None has its reason in `reasons`.

    `prefill_s_per_token` is modelled, everything else measured. `made` and `memory` are None without a host pool; `memory`
    is what was resident when the replay was over, `process_bytes` how much the resident size of this process grew while
    the pool was made. `restores` are the samples behind the comparison of steps, those without pages from storage;
    `storage_hit_pages` are past both tiers, None without a storage tier.
    """

    host_pages: int
    n_bytes: int
    total_pages: int
    device_hit_pages: int
    host_hit_pages: int
    restored_pages: int
    verified_pages: int
    dropped_pages: int
    failures: dict[str, int]
    device: str
    layout: str
    backend: str
    backend_reason: str | None
    fill_s: float
    register_s: float | None
    made: PoolMade | None
    memory: PoolMemory | None
    process_bytes: int | None
    restore_bytes_per_s: float | None
    restore_s_per_token: float | None
    restore_p50_s: float | None
    restore_p99_s: float | None
    ttft_mean_s: float | None
    ttft_device_only_mean_s: float | None
    net_gain_s: float
    replay_s: float
    counters: dict[str, int | None]
    reasons: dict[str, str]
    restores: Restores = field(default_factory=Restores)
    storage_hit_pages: int | None = None
    storage_restore_s_per_token: float | None = None

    @property
    def hit_pages(self) -> int:
        """Pages hit in either tier. Pure."""
        return self.device_hit_pages + self.host_hit_pages

    @property
    def rate(self) -> float:
        """Hits over whole pages, 0 to 1. Pure."""
        return self.hit_pages / self.total_pages if self.total_pages else 0.0

    @property
    def is_resident(self) -> bool:
        """Whether the pool's memory was there, as far as it could be read. Pure."""
        rss = None if self.memory is None else self.memory.resident_bytes
        return rss is None or rss >= RESIDENT * self.n_bytes


def try_pool(
    trace: Trace,
    info: TraceInfo,
    base: ReplayConfig,
    host_pages: int,
    *,
    root: HostRoot,
    make_host: MakeHost = map_pool,
    storage: TrialStorage | None = None,
    progress: Callable[[Recorder], None] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Trial:
    """Replay the trace through a host pool of `host_pages` (0: L1 alone), all else as in `base`, its cost model learning anew.

    Takes the pool's memory, and room on the disk for `storage` below it, and gives them back; a pool that is to be registered must be. `make_host` makes it (the seam for
    faults), `root` is read for the kernel's counters. Raises CapacityError when memory is refused, HostError when its
    registration is, Vanished when the device is gone, PageMismatch for a wrong byte.
    """
    config = replace(
        base, host_slots=host_pages, costs=_learning_anew(base.costs),
        host_memory=_unnamed(replace(base.host_memory, must_register=True)),
    )  # fmt: skip
    before, rss_before = _counters(root), read_process_bytes(root)
    try:
        with ExitStack() as taken:
            folder = None if storage is None or not host_pages else taken.enter_context(storage.emptied())
            config = _above(config, storage, None if folder is None else folder.path)
            replay = taken.enter_context(Replay(trace, config, info=info, make_host=make_host))
            if folder is not None:
                taken.callback(folder.hold)  # first of all, so that writes end before their folder goes
            rss_after = read_process_bytes(root)
            began = clock()
            stop = replay.run(progress)
            took = clock() - began
            assert stop in (Stop.COMPLETE, Stop.LIMIT)
            report = make_report(replay, stop)
            made, memory = None, None
            if replay.host_pool is not None:
                pool = replay.host_pool.array
                made = pool_made(replay.host_pool.report)
                memory = read_pool_memory(root, pool.ctypes.data, pool.nbytes)
                del pool
            column = replay.recorder.column
            columns = {name: column(name).copy() for name in ("restored_host", "restored_storage", "restore_wait_s")}
            backend_reason = replay.backend_reason
            del (
                replay,
                column,
            )  # its pools are gone when nobody holds a view of them: before the next, larger one is made
    finally:
        gc.collect()
    after = _counters(root)
    return _trial(
        report, made, memory, backend_reason, columns, took,
        process_bytes=_grown(rss_before, rss_after),
        counters={name: _grown(before[name], after[name]) for name in COUNTERS},
    )  # fmt: skip


def _learning_anew(costs: CostModel) -> CostModel:
    """A model with the same beginnings that has seen no transfer yet. Pure."""
    priors = {CostPath(path.path): path.prior for path in costs.state().paths}
    return CostModel(costs.recompute, priors=priors, margin=costs.margin)


def _above(config: ReplayConfig, storage: TrialStorage | None, folder: Path | None) -> ReplayConfig:
    """The replay on top of a storage tier in `folder`, or without one. Pure."""
    n_bytes = 0 if folder is None or storage is None else storage.n_bytes
    return replace(config, storage_path=folder, storage_bytes=n_bytes)


def _unnamed(spec: MappingSpec) -> MappingSpec:
    """A file of a trial has no name, so that a killed run leaves none on its mount: of a named one, its folder. Pure."""
    if not spec.named or spec.path is None:
        return spec
    return replace(spec, path=os.path.dirname(spec.path) or ".", named=False)


def _trial(
    report: ReplayReport, made: PoolMade | None, memory: PoolMemory | None, backend_reason: str | None, columns: Mapping[str, Column],
    took_s: float, *, process_bytes: int | None, counters: dict[str, int | None],
) -> Trial:  # fmt: skip
    reads, waits, pools = report.paths.get("host_to_device"), report.restore_wait, report.pools
    restore_s, storage_s = seconds_per_page(**columns)
    has_storage = "storage_to_host" in report.paths
    is_registered = made is not None and made.registered_bytes > 0
    trial = Trial(
        host_pages=pools.host_slots,
        n_bytes=pools.host_bytes,
        total_pages=report.pages_total,
        device_hit_pages=report.pages_hit_by_tier.device,
        host_hit_pages=report.pages_hit_by_tier.host,
        restored_pages=report.pages_restored,
        verified_pages=report.pages_verified,
        dropped_pages=report.dropped_pages,
        failures=dict(report.failures_by_reason),
        device=pools.device,
        layout=pools.layout,
        backend=pools.backend,
        backend_reason=backend_reason,
        fill_s=0.0 if made is None else made.seconds("populate"),
        register_s=made.seconds("register") if made is not None and is_registered else None,
        made=made,
        memory=memory,
        process_bytes=process_bytes,
        restore_bytes_per_s=reads.bytes_per_s if reads is not None else None,
        restore_s_per_token=None if restore_s is None else restore_s / pools.page_tokens,
        restore_p50_s=waits.p50_s,
        restore_p99_s=waits.p99_s,
        ttft_mean_s=report.ttft_modelled.mean_s,
        ttft_device_only_mean_s=report.ttft_modelled_device_only.mean_s,
        net_gain_s=report.gain.net_s,
        replay_s=took_s,
        counters=counters,
        reasons={},
        restores=restores_of(
            np.where(columns["restored_storage"] > 0, 0, columns["restored_host"]), columns["restore_wait_s"]
        ),
        storage_hit_pages=report.pages_hit_by_tier.storage if has_storage else None,
        storage_restore_s_per_token=None if storage_s is None else storage_s / pools.page_tokens,
    )
    return replace(trial, reasons=_reasons(trial))


def _reasons(trial: Trial) -> dict[str, str]:
    """Say of every null of a trial why it is one. Pure."""
    of_pool = "no host pool"
    why = {
        "register_s": of_pool if trial.made is None else trial.made.words("register").removeprefix("skipped: "),
        "made": of_pool, "memory": of_pool, "process_bytes": "/proc/self/status could not be read",
        "backend_reason": "nothing is copied without a host pool", "ttft_mean_s": "no request",
        "ttft_device_only_mean_s": "no request", "storage_hit_pages": "no storage tier",
        "storage_restore_s_per_token": "nothing was restored from storage",
    }  # fmt: skip
    why |= dict.fromkeys(
        ("restore_bytes_per_s", "restore_s_per_token", "restore_p50_s", "restore_p99_s"), "nothing was restored"
    )
    reasons = {name: reason for name, reason in why.items() if getattr(trial, name) is None}
    reasons |= {f"counters/{name}": "not read" for name, value in trial.counters.items() if value is None}
    if trial.made is not None:
        of_made = {
            "placement": "no placement asked", "huge_share": trial.made.words("verify"),
            "resident_bytes": trial.made.words("verify"), "registered_with": trial.made.words("register"),
        }  # fmt: skip
        reasons |= {f"made/{name}": text for name, text in of_made.items() if getattr(trial.made, name) is None}
    return reasons


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _counters(root: HostRoot) -> dict[str, int | None]:
    found = read_memory(root).thp.counters
    return {name: found[name].value if name in found else None for name in COUNTERS}
