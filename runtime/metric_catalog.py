"""Every metric of the runtime: name, meaning, label, and the SGLang name of the same thing where there is one.

Where a metric means exactly what one of SGLang means, it is exported under that name too, so that dashboards carry over.
Source of the meanings: sgl-project/sglang 0.5.23, `srt/observability/metrics_collector.py`; read in the wheel.

    ours                                        exported as well as
    hicache_prompt_tokens_total{source}         sglang:prefill_effective_tokens_total{mode=input|device_hit|host_hit|storage_hit}
    hicache_evicted_tokens_total{tier=device}   sglang:evicted_tokens_total         device slots freed, backed up or not
    hicache_moved_tokens_total{path}            sglang:load_back_tokens_total{pool=kv}, hicache_backup_tokens_total{pool=kv},
                                                prefetched_tokens_total (L3 -> host), backuped_tokens_total (host -> L3)
    hicache_moved_bytes_total{path}             sglang:load_back_bytes_total, hicache_backup_bytes_total
    hicache_transfer_seconds{path}              sglang:load_back_duration_seconds, hicache_backup_duration_seconds
                                                the copy alone, queueing excluded
    hicache_eviction_seconds{tier=device}       sglang:eviction_duration_seconds    a whole eviction pass
    hicache_used_tokens{tier=host}              sglang:hicache_host_used_tokens
    hicache_capacity_tokens{tier=host}          sglang:hicache_host_total_tokens

Net gain of the lower tiers = hicache_saved_seconds_total{tier=host|storage} - hicache_moved_seconds_total; the time the
copies themselves took is the sum of hicache_transfer_seconds.

Not exported under an SGLang name, since the meaning differs: cache_hit_rate (theirs is of the last prefill batch),
cached_tokens_total (theirs counts finished requests), hicache_dropped_tokens_total and
storage_prefetch_unfulfilled_tokens_total (other reasons), prefetch_bandwidth and backup_bandwidth (GB/s of a batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["CATALOG", "Alias", "MetricKind", "MetricSpec"]


class MetricKind(Enum):
    """What may be done to a metric: only grow, be set, or take observations."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Alias:
    """A second name a series is exported under, with the labels it has there."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


SECONDS_BUCKETS = (
    1e-5, 3e-5, 1e-4, 3e-4, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01,
    0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds in seconds: SGLang's load-back bounds (1 ms to 1 s), extended for host memory and for storage."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its name, at most one label, and by label value the names SGLang has for the same thing."""

    name: str
    kind: MetricKind
    help: str
    label: str | None = None
    aliases: Mapping[str | None, Alias] = field(default_factory=dict)
    buckets: tuple[float, ...] = SECONDS_BUCKETS


_KV = (("pool", "kv"),)
_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_MODE = "sglang:prefill_effective_tokens_total"

CATALOG: tuple[MetricSpec, ...] = (
    MetricSpec("hicache_requests_total", _C, "Requests that went through the cache and are over."),
    MetricSpec(
        "hicache_prompt_tokens_total",
        _C,
        "Prompt tokens by where they came from: computed, device, host or storage. Their sum is every prompt token.",
        "source",
        {
            "computed": Alias(_MODE, (("mode", "input"),)),
            "device": Alias(_MODE, (("mode", "device_hit"),)),
            "host": Alias(_MODE, (("mode", "host_hit"),)),
            "storage": Alias(_MODE, (("mode", "storage_hit"),)),
        },
    ),
    MetricSpec("hicache_missed_tokens_total", _C, "Prompt tokens not served from the cache, by reason.", "reason"),
    MetricSpec("hicache_hit_pages_total", _C, "Pages found at match, used or not, by tier.", "tier"),
    MetricSpec(
        "hicache_restores_total",
        _C,
        "Restore decisions by why they went as far as they did: all, nothing, restore_dearer or budget.",
        "reason",
    ),
    MetricSpec(
        "hicache_evicted_tokens_total",
        _C,
        "Tokens whose slot a tier took back for others, whether or not another tier holds them.",
        "tier",
        {"device": Alias("sglang:evicted_tokens_total")},
    ),
    MetricSpec(
        "hicache_moved_tokens_total",
        _C,
        "Tokens moved by path: host_read, host_write, storage_read, storage_write (what storage held already does not count).",
        "path",
        {
            "host_read": Alias("sglang:load_back_tokens_total", _KV),
            "host_write": Alias("sglang:hicache_backup_tokens_total", _KV),
            "storage_read": Alias("sglang:prefetched_tokens_total"),
            "storage_write": Alias("sglang:backuped_tokens_total"),
        },
    ),
    MetricSpec(
        "hicache_moved_bytes_total",
        _C,
        "Bytes moved, by path.",
        "path",
        {"host_read": Alias("sglang:load_back_bytes_total"), "host_write": Alias("sglang:hicache_backup_bytes_total")},
    ),
    MetricSpec(
        "hicache_transfer_seconds",
        _H,
        "Time of one transfer's copy, queueing excluded, by path; a storage_write steps aside for loads meanwhile.",
        "path",
        {
            "host_read": Alias("sglang:load_back_duration_seconds"),
            "host_write": Alias("sglang:hicache_backup_duration_seconds"),
        },
    ),
    MetricSpec("hicache_queued_seconds", _H, "Time a transfer waited for its thread, by path.", "path"),
    MetricSpec(
        "hicache_submissions_total", _C, "Copies submitted to a copy backend, by path: host_read, host_write.", "path"
    ),
    MetricSpec(
        "hicache_failures_total", _C, "Failures of a lower tier, by reason; none costs more than a recompute.", "reason"
    ),
    MetricSpec(
        "hicache_eviction_seconds",
        _H,
        "Time of one eviction pass that freed slots, by tier.",
        "tier",
        {"device": Alias("sglang:eviction_duration_seconds")},
    ),
    MetricSpec(
        "hicache_match_seconds", _H, "Time to match one request: tree walk, lease, and what storage says it holds."
    ),
    MetricSpec(
        "hicache_restore_seconds",
        _H,
        "Time from the restore decision until the request went on, of requests that restored.",
    ),
    MetricSpec("hicache_verified_pages_total", _C, "Restored pages compared byte for byte, by a replay."),
    MetricSpec("hicache_mismatched_pages_total", _C, "Restored pages that were not what went in, found by a replay."),
    MetricSpec(
        "hicache_used_tokens",
        _G,
        "Tokens whose slots are taken, by tier; for storage the pages it holds.",
        "tier",
        {"host": Alias("sglang:hicache_host_used_tokens")},
    ),
    MetricSpec(
        "hicache_capacity_tokens",
        _G,
        "Tokens a tier has room for, by tier; for storage without what a file system adds to each page.",
        "tier",
        {"host": Alias("sglang:hicache_host_total_tokens")},
    ),
    MetricSpec(
        "hicache_saved_seconds_total", _C, "Compute predicted to be saved by the pages used of each tier.", "tier"
    ),
    MetricSpec(
        "hicache_moved_seconds_total",
        _C,
        "Time requests stood still for the lower tiers: to be restored, and for copies that held the slots they needed.",
    ),
)
"""Every metric of the runtime, in the order it is exported."""
