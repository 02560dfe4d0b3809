"""The report of a replay as data: everything a screen, a JSON document or a page shows, computed once. Pure.

Hit rates, each cold (every request counts) and warm (only the last half of the requests):

    d1  hit pages / pages, the incomplete last page of a request counted as a page that never hits
    d2  hit tokens / input tokens
    d3  hit pages / whole pages: what an engine can cache

Net gain = modelled prefill saved by restored pages - measured time requests stood still for the lower tiers: to be
restored, and for copies that held the slots they needed. Backups and storage writes
run beside the requests; their copy time is given apart (`background_s`), not hidden in the sum.

The two terms belong together only when the pages moved are those of the model whose prefill is saved (`compute`). When
they are not, `gain.at_model_size` estimates the sum for that model: the same tokens restored, their copies taking as
many times as long as that model has more bytes a token, at the rates measured here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.cost import CostState, Path
from hicachectl.runtime.layout import Backend, Layout, compatible, segments, submissions
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.replay.driver import Replay, ReplayConfig, Stop
from hicachectl.runtime.replay.latency import LatencyHistogram, latency_histogram
from hicachectl.runtime.replay.memory_report import HostMemory, HostMemoryStep, host_memory_of
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.reuse import ReuseHistogram
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.device import device_type

__all__ = [
    "ByTier",
    "Compute",
    "Earlier",
    "Gain",
    "GainAtModelSize",
    "HitRates",
    "HostMemory",
    "HostMemoryStep",
    "LayoutCost",
    "PathTotals",
    "Pools",
    "Quantiles",
    "ReplayReport",
    "Window",
    "gain_at_model_size",
    "make_report",
    "with_close",
]


@dataclass(frozen=True, slots=True)
class ByTier:
    """A count for each tier."""

    device: int
    host: int
    storage: int


@dataclass(frozen=True, slots=True)
class HitRates:
    """Fractions in [0, 1]; None when nothing was asked. Definitions: this module's docstring."""

    d1: float | None
    d2: float | None
    d3: float | None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of `n` samples, in seconds; None without samples."""

    n: int
    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    max_s: float | None


@dataclass(frozen=True, slots=True)
class PathTotals:
    """One path between tiers: what moved and how fast while moving. `submissions` and `segments` are None where they have no meaning."""

    pages: int
    bytes: int
    wall_s: float
    bytes_per_s: float | None
    transfers: int | None
    submissions: int | None
    segments: int | None
    failed_pages: int
    """Pages whose copy was tried and failed."""
    dropped_pages: int = 0
    """Pages whose copy was not tried: no host slot for them, or a full storage queue."""


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """What restoring `layouts_pages` pages costs in one layout.

    `segments_run` and `segments_scattered` count the contiguous pieces when the slots are one run, or all apart: what a
    copy piece by piece would submit. `submissions` is what this backend submits for scattered slots.
    """

    layout: str
    segments_run: int
    segments_scattered: int
    submissions: int | None
    backend: str
    refused: str | None


@dataclass(frozen=True, slots=True)
class Pools:
    """Sizes of the tiers; host and storage are 0 when the tier is off."""

    geometry: str
    page_tokens: int
    page_bytes: int
    n_planes: int
    chunk_bytes: int
    layout: str
    backend: str
    device: str
    device_slots: int
    host_slots: int
    device_bytes: int
    host_bytes: int
    storage_capacity_bytes: int
    storage_used_bytes: int
    storage_objects: int
    host_pages_by_node: dict[str, int]
    """Sampled memory pages of the host pool by NUMA node, as the kernel reports them; empty without a host tier."""
    host_placement_reason: str | None
    """Why the nodes are not known."""
    host_memory: HostMemory | None = None
    """None without a host tier."""
    dtype: str = "bf16"
    """Element type of the KV cache."""


@dataclass(frozen=True, slots=True)
class GainAtModelSize:
    """The gain estimated for the model whose prefill is saved: `ratio` = its bytes a token / those of the pages moved.

    `saved_s` is the same; `moved_s` is the measured wait with its copies taking `ratio` times as long, at the rates
    measured here. An estimate, exact only where `ratio` is 1.
    """

    saved_s: float
    moved_s: float
    net_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds over the whole replay: `saved_s` modelled, `moved_s` and `background_s` measured, `net_s` = saved - moved.

    `room_wait_s` is the part of `moved_s` that requests waited for copies holding the slots they needed; the rest they
    waited to be restored.
    `at_model_size` is None where the model of the prefill is not named.
    """

    saved_s: float
    moved_s: float
    net_s: float
    background_s: float
    at_model_size: GainAtModelSize | None = None
    room_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Compute:
    """Whose prefill is modelled: a model and its bytes a token, and the card. None where it is not named."""

    model: str | None
    hardware: str | None
    bytes_per_token: int | None
    same_as_geometry: bool
    """Whether the pages moved are pages of this model: only then is the net gain one sum."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run left in the storage folder, in pages, and what this one had of it.

    `held_pages` lay there at the start. `hit_pages` hit although this replay had not met them before, so a fresh folder
    would have missed them; `restored_pages` of them were brought up. Runs compare only from equal beginnings.
    """

    held_pages: int
    hit_pages: int
    restored_pages: int


@dataclass(frozen=True, slots=True)
class Window:
    """Hits of requests `[start, end)` of the replay, as fractions of their input tokens."""

    start: int
    end: int
    time_s: float
    device: float
    host: float
    storage: float


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Everything about one replay. Counts of pages unless the name says otherwise."""

    trace: str
    trace_format: str
    trace_requests: int
    block_tokens: int
    notes: tuple[str, ...]
    stop: str
    requests: int
    input_tokens: int
    pages_total: int
    pages_hit: int
    pages_hit_by_tier: ByTier
    pages_used: int
    pages_restored: int
    pages_restored_by_tier: ByTier
    pages_verified: int
    pages_mismatched: int
    verify: str
    missed_tokens: int
    missed_tokens_by_reason: dict[str, int]
    seen_keys_bound: int
    hit_rate_cold: HitRates
    hit_rate_warm: HitRates
    pools: Pools
    policies: dict[str, str]
    paths: dict[str, PathTotals]
    layouts: tuple[LayoutCost, ...]
    layouts_pages: int
    restore_wait: Quantiles
    """Of every request that waited to be restored, whether or not the pages came in time."""
    restore_wait_histogram: LatencyHistogram
    ttft_modelled: Quantiles
    ttft_modelled_device_only: Quantiles
    earlier: Earlier
    gain: Gain
    compute: Compute
    cost_model: CostState
    evicted_pages: ByTier
    dropped_pages: int
    failures_by_reason: dict[str, int]
    """`transfer_*` and `storage_*`: what a lower tier could not do. None of it cost more than a recompute or a copy not made."""
    storage_corrupt_removed: int
    """Objects found short or corrupt in the storage folder, at its opening or at a read, and removed."""
    checks_passed: int
    elapsed_s: float
    requests_per_s: float | None
    windows: tuple[Window, ...]
    reuse: ReuseHistogram
    room_wait: Quantiles = Quantiles(0, None, None, None, None)
    """Of every request that waited for copies holding the slots it needed."""
    failure_words: dict[str, str] = field(default_factory=dict)
    """What the first failure of a reason said, where it said something."""
    unfinished_pages: dict[str, int] = field(default_factory=dict)
    """By path: pages whose copies were not over when the replay stopped waiting; no number above counts them as moved."""


_PATH_KEYS = {
    Path.HOST_READ: "host_to_device",
    Path.HOST_WRITE: "device_to_host",
    Path.STORAGE_READ: "storage_to_host",
    Path.STORAGE_WRITE: "host_to_storage",
}


def make_report(replay: Replay, stop: Stop, *, n_windows: int = 60) -> ReplayReport:
    """Sum up a finished replay."""
    recorder, cache, config = replay.recorder, replay.cache, replay.config
    counters, geometry = cache.counters, config.geometry
    missed = {reason.value: counters.missed_tokens.get(reason, 0) for reason in MissReason}
    notes = [*replay.info.warnings]
    if replay.page_note:
        notes.append(replay.page_note)
    notes += replay.transfer_notes()
    notes.append("output tokens are not inserted: hits of multi-turn sessions are a lower bound")
    storage = replay.storage.stats() if replay.storage is not None else None
    waits, room_waits = recorder.column("restore_wait_s"), recorder.column("room_wait_s")
    waits, room_waits = waits[waits > 0], room_waits[room_waits > 0]
    placement = replay.host_pool.placement() if replay.host_pool is not None else None
    return ReplayReport(
        trace=config.trace_name,
        trace_format=replay.info.format,
        trace_requests=replay.info.n_requests,
        block_tokens=replay.info.block_tokens,
        notes=tuple(notes),
        stop=stop.value,
        requests=counters.requests,
        input_tokens=counters.input_tokens,
        pages_total=counters.pages_total,
        pages_hit=sum(counters.hit_pages),
        pages_hit_by_tier=ByTier(*counters.hit_pages),
        pages_used=counters.used_pages,
        pages_restored=sum(counters.restored_pages),
        pages_restored_by_tier=ByTier(*counters.restored_pages),
        pages_verified=recorder.pages_verified,
        pages_mismatched=recorder.pages_mismatched,
        verify=str(config.verify),
        missed_tokens=sum(missed.values()),
        missed_tokens_by_reason=missed,
        seen_keys_bound=config.cache.seen_keys,
        hit_rate_cold=_rates(recorder, 0, geometry.page_tokens),
        hit_rate_warm=_rates(recorder, recorder.n_requests // 2, geometry.page_tokens),
        pools=Pools(
            geometry=geometry.name,
            page_tokens=geometry.page_tokens,
            page_bytes=geometry.page_bytes,
            n_planes=geometry.n_planes,
            chunk_bytes=geometry.chunk_bytes,
            layout=config.layout.value,
            backend=replay.backend_name,
            device=str(replay.device_pool.tensor.device),
            device_slots=replay.device_slots,
            host_slots=config.host_slots,
            device_bytes=replay.device_slots * geometry.page_bytes,
            host_bytes=config.host_slots * geometry.page_bytes,
            storage_capacity_bytes=config.storage_bytes if storage else 0,
            storage_used_bytes=storage.used_bytes if storage else 0,
            storage_objects=storage.n_objects if storage else 0,
            host_pages_by_node={str(node): n for node, n in placement.by_node.items()} if placement else {},
            host_placement_reason=placement.reason if placement else "no host tier",
            host_memory=None if replay.host_pool is None else host_memory_of(replay.host_pool.report),
            dtype=geometry.dtype,
        ),
        policies={
            "write_policy": config.cache.write_policy.value,
            "restore": config.cache.restore,
            "eviction": config.cache.eviction.value,
            "free_list": config.cache.free_list,
            "ghost": str(config.cache.ghost_entries) if config.cache.ghost_entries else "off",
        },
        paths=_paths(replay),
        layouts=_layout_costs(replay.longest_pages, replay),
        layouts_pages=replay.longest_pages,
        restore_wait=_quantiles(waits),
        restore_wait_histogram=latency_histogram(waits),
        room_wait=_quantiles(room_waits),
        ttft_modelled=_quantiles(recorder.column("ttft_s")),
        ttft_modelled_device_only=_quantiles(recorder.column("ttft_device_only_s")),
        earlier=Earlier(replay.held_at_start, recorder.earlier_hit_pages, recorder.earlier_restored_pages),
        gain=_gain(replay),
        compute=_compute(config),
        cost_model=config.costs.state(),
        evicted_pages=ByTier(counters.evicted_pages[0], counters.evicted_pages[1], storage.evictions if storage else 0),
        dropped_pages=counters.dropped_pages,
        failures_by_reason=replay.failures(),
        failure_words=dict(counters.failure_words),
        storage_corrupt_removed=storage.corrupt_removed if storage else 0,
        unfinished_pages={_PATH_KEYS[path]: n for path, n in recorder.unfinished_pages.items()},
        checks_passed=recorder.checks_passed,
        elapsed_s=recorder.elapsed_s,
        requests_per_s=recorder.n_requests / recorder.elapsed_s if recorder.elapsed_s > 0 else None,
        windows=_windows(recorder, geometry.page_tokens, n_windows),
        reuse=recorder.reuse.histogram(replay.device_slots, config.host_slots),
    )


def with_close(report: ReplayReport, replay: Replay) -> ReplayReport:
    """Return the report of a replay that is closed by now, with what its driver refused at that: a step `unregister`. Pure."""
    if replay.host_pool is None:
        return report
    return replace(report, pools=replace(report.pools, host_memory=host_memory_of(replay.host_pool.report)))


def _rates(recorder: Recorder, first: int, page_tokens: int) -> HitRates:
    hits = sum(float(recorder.column(name)[first:].sum()) for name in ("device_hit", "host_hit", "storage_hit"))
    tokens = recorder.column("input_tokens")[first:]
    whole = float(recorder.column("pages_total")[first:].sum())
    all_pages = float(np.ceil(tokens / page_tokens).sum())
    total_tokens = float(tokens.sum())
    return HitRates(
        d1=hits / all_pages if all_pages else None,
        d2=hits * page_tokens / total_tokens if total_tokens else None,
        d3=hits / whole if whole else None,
    )


def _quantiles(samples: npt.NDArray[np.float64]) -> Quantiles:
    if not len(samples):
        return Quantiles(0, None, None, None, None)
    p50, p99 = np.percentile(samples, [50, 99])
    return Quantiles(len(samples), float(samples.mean()), float(p50), float(p99), float(samples.max()))


def _gain(replay: Replay) -> Gain:
    recorder, cache = replay.recorder, replay.cache
    saved, moved = float(recorder.column("saved_s").sum()), recorder.moved_s()
    room_wait = float(recorder.column("room_wait_s").sum())
    background = cache.counters.backup_s + (cache.storage.stats().write_s if cache.storage is not None else 0.0)
    model = replay.config.compute.model
    at_model_size = None
    if model is not None:
        copying = cache.counters.load_s + cache.counters.storage_read_s
        ratio = model.bytes_per_token / replay.config.geometry.bytes_per_token
        at_model_size = gain_at_model_size(saved, moved, copying + room_wait, ratio)
    return Gain(saved, moved, saved - moved, background, at_model_size, room_wait)


def gain_at_model_size(saved_s: float, moved_s: float, copying_s: float, ratio: float) -> GainAtModelSize:
    """Estimate the gain for pages of `ratio` times the bytes: of the `moved_s` waited, `copying_s` grow with the bytes. Pure.

    `copying_s` is the copy time of the restores (bytes moved / measured rate, both paths up); the rest of the wait stays.

    >>> gain_at_model_size(100.0, 2.0, 1.5, 10.0)
    GainAtModelSize(saved_s=100.0, moved_s=15.5, net_s=84.5, ratio=10.0)
    """
    moved = max(0.0, moved_s - copying_s) + copying_s * ratio if ratio != 1 else moved_s
    return GainAtModelSize(saved_s, moved, saved_s - moved, ratio)


def _compute(config: ReplayConfig) -> Compute:
    source = config.compute
    if source.model is None:
        return Compute(None, source.hardware, None, False)
    return Compute(
        source.model.name, source.hardware, source.model.bytes_per_token, source.model.name == config.geometry.name
    )


def _paths(replay: Replay) -> dict[str, PathTotals]:
    """Name -> totals, in the order load, backup, storage read, storage write; only paths that exist."""
    paths: dict[str, PathTotals] = {}
    counters, page_bytes = replay.cache.counters, replay.config.geometry.page_bytes
    if replay.engine is not None:
        for name, direction in (("host_to_device", Direction.LOAD), ("device_to_host", Direction.BACKUP)):
            total = replay.engine.counters(direction)
            paths[name] = PathTotals(
                total.n_pages,
                total.n_bytes,
                total.wall_s,
                total.bytes_per_s,
                total.transfers,
                total.n_submissions,
                total.n_segments,
                total.failed_pages,
                counters.dropped_pages if direction is Direction.BACKUP else 0,
            )
    if replay.storage is not None:
        stats = replay.storage.stats()
        read_s, written = stats.read_s, stats.written_bytes
        paths["storage_to_host"] = PathTotals(
            counters.storage_read_pages, stats.read_bytes, read_s, stats.read_bytes / read_s if read_s else None, None, None, None,
            counters.storage_read_failed_pages,
        )  # fmt: skip
        paths["host_to_storage"] = PathTotals(
            written // page_bytes, written, stats.write_s, written / stats.write_s if stats.write_s else None, None, None, None,
            counters.store_failed_pages, counters.store_dropped_pages,
        )  # fmt: skip
    return paths


def _layout_costs(n_pages: int, replay: Replay) -> tuple[LayoutCost, ...]:
    """What restoring the longest request costs in every layout."""
    geometry = replay.config.geometry
    backend = Backend.TORCH if replay.backend is None else replay.backend.kind
    if replay.config.backend is not None:
        backend = replay.config.backend
    costs = []
    for layout in Layout:
        refused = compatible(layout, backend, device_type(replay.config.device))
        costs.append(
            LayoutCost(
                layout.value,
                segments(
                    layout, n_pages=n_pages, n_planes=geometry.n_planes, n_runs=1, page_tokens=geometry.page_tokens
                ),
                segments(
                    layout,
                    n_pages=n_pages,
                    n_planes=geometry.n_planes,
                    n_runs=n_pages,
                    page_tokens=geometry.page_tokens,
                ),
                None
                if refused
                else submissions(
                    layout,
                    backend,
                    n_pages=n_pages,
                    n_planes=geometry.n_planes,
                    n_runs=n_pages,
                    page_tokens=geometry.page_tokens,
                    chunk_bytes=geometry.chunk_bytes,
                ),
                backend.value,
                refused,
            )
        )
    return tuple(costs)


def _windows(recorder: Recorder, page_tokens: int, n_windows: int) -> tuple[Window, ...]:
    n = recorder.n_requests
    bounds = np.unique(np.linspace(0, n, min(n_windows, n) + 1).astype(int))
    windows = []
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        tokens = float(recorder.column("input_tokens")[start:end].sum())
        parts = [
            float(recorder.column(name)[start:end].sum()) * page_tokens / tokens if tokens else 0.0
            for name in ("device_hit", "host_hit", "storage_hit")
        ]
        windows.append(Window(start, end, float(recorder.column("time_s")[end - 1]), *parts))
    return tuple(windows)
