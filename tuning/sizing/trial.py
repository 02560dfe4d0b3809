"""One step: a real host pool of a size, every page of it touched (and registered, where there is a device), and the trace through it.

A step counts only when its memory is there: the resident size of the mapping is read back and compared with slots times
page bytes. What it changes is memory of this process, given back before it returns, whatever happens.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.replay.driver import Replay, ReplayConfig, Stop
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.report import ReplayReport, make_report
from hicachectl.runtime.replay.request import Trace, TraceInfo
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.pool_memory import PoolMemory, read_pool_memory

__all__ = ["RESIDENT", "Registered", "Trial", "not_registered", "touch", "try_pool"]

Bytes = npt.NDArray[np.uint8]
RESIDENT = 0.99
"""Share of a pool that must be resident for its step to count."""
_TOUCH_BYTES = 4096
COUNTERS = ("thp_fault_alloc", "thp_fault_fallback", "compact_stall", "compact_fail", "compact_success")


@dataclass(frozen=True, slots=True)
class Registered:
    """What registering a pool with the device driver took; None with the reason where nothing was registered."""

    seconds: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """What one pool did. Hits are pages of `total_pages` whole ones; times in seconds; None has its reason in `reasons`.

    `prefill_s_per_token` is modelled, everything else measured. `memory` is None without a host pool.
    """

    host_pages: int
    n_bytes: int
    total_pages: int
    device_hit_pages: int
    host_hit_pages: int
    restored_pages: int
    dropped_pages: int
    failures: dict[str, int]
    fill_s: float
    register_s: float | None
    memory: PoolMemory | None
    restore_bytes_per_s: float | None
    restore_s_per_token: float | None
    restore_p99_s: float | None
    ttft_mean_s: float | None
    ttft_device_only_mean_s: float | None
    net_gain_s: float
    replay_s: float
    counters: dict[str, int | None]
    reasons: dict[str, str]

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


def touch(pool: Bytes) -> None:
    """Write a zero to every small page of a pool, so that the kernel has to give it. Changes the pool."""
    pool.reshape(-1)[::_TOUCH_BYTES] = 0


def not_registered(_: Bytes) -> Registered:
    """Register nothing: the cpu device copies from any memory. Pure."""
    return Registered(None, "no device: nothing to register")


def try_pool(
    trace: Trace,
    info: TraceInfo,
    base: ReplayConfig,
    host_pages: int,
    *,
    root: HostRoot,
    populate: Callable[[Bytes], None] = touch,
    register: Callable[[Bytes], Registered] = not_registered,
    progress: Callable[[Recorder], None] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Trial:
    """Replay the trace through a host pool of `host_pages` (0: L1 alone), all else as in `base`.

    Takes the pool's memory and gives it back. `populate` and `register` are what makes the memory there and known to a
    device; `root` is read for the kernel's counters. Raises CapacityError when the memory is refused, PageMismatch for a
    wrong byte.
    """
    before = _counters(root)
    with Replay(trace, replace(base, host_slots=host_pages, storage_path=None), info=info) as replay:
        started = clock()
        registered, memory = Registered(None, "no host pool"), None
        filled = started
        if replay.host_pool is not None:
            pool = replay.host_pool.array
            populate(pool)
            filled = clock()
            registered = register(pool)
            memory = read_pool_memory(root, pool.ctypes.data, pool.nbytes)
            del pool
        began = clock()
        stop = replay.run(progress)
        took = clock() - began
        assert stop in (Stop.COMPLETE, Stop.LIMIT)
        report = make_report(replay, stop)
        del replay  # its pools are gone when nobody holds a view of them: before the next, larger one is made
    gc.collect()
    after = _counters(root)
    counters = {name: _grown(before[name], after[name]) for name in COUNTERS}
    return _trial(report, host_pages, filled - started, registered, memory, took, counters)


def _trial(
    report: ReplayReport, host_pages: int, fill_s: float, registered: Registered, memory: PoolMemory | None, took_s: float,
    counters: dict[str, int | None],
) -> Trial:  # fmt: skip
    reads = report.paths.get("host_to_device")
    tokens = report.pages_restored_by_tier.host * report.pools.page_tokens
    wait_s = report.restore_wait.mean_s * report.restore_wait.n if report.restore_wait.mean_s is not None else 0.0
    reasons = {f"counters/{name}": "not read" for name, value in counters.items() if value is None}
    if registered.seconds is None:
        reasons["register_s"] = registered.reason or "not registered"
    if memory is None:
        reasons["memory"] = "no host pool"
    if not tokens:
        reasons |= dict.fromkeys(("restore_s_per_token",), "nothing was restored")
    trial = Trial(
        host_pages=host_pages,
        n_bytes=report.pools.host_bytes,
        total_pages=report.pages_total,
        device_hit_pages=report.pages_hit_by_tier.device,
        host_hit_pages=report.pages_hit_by_tier.host,
        restored_pages=report.pages_restored,
        dropped_pages=report.dropped_pages,
        failures=dict(report.failures_by_reason),
        fill_s=fill_s,
        register_s=registered.seconds,
        memory=memory,
        restore_bytes_per_s=reads.bytes_per_s if reads is not None else None,
        restore_s_per_token=wait_s / tokens if tokens else None,
        restore_p99_s=report.restore_wait.p99_s,
        ttft_mean_s=report.ttft_modelled.mean_s,
        ttft_device_only_mean_s=report.ttft_modelled_device_only.mean_s,
        net_gain_s=report.gain.net_s,
        replay_s=took_s,
        counters=counters,
        reasons=reasons,
    )
    for name in ("restore_bytes_per_s", "restore_p99_s", "ttft_mean_s", "ttft_device_only_mean_s"):
        if getattr(trial, name) is None:
            reasons[name] = "nothing was restored" if name.startswith("restore") else "no request"
    return trial


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _counters(root: HostRoot) -> dict[str, int | None]:
    found = read_memory(root).thp.counters
    return {name: found[name].value if name in found else None for name in COUNTERS}
