"""Reports of imagined replays, for screens and pages: one of each kind that reads differently."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hicachectl.runtime.cost import DEFAULT_PRIORS, CostState, FitMethod, Path, PathState, RecomputeCost
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.replay.latency import latency_histogram
from hicachectl.runtime.replay.memory_report import HostMemory, HostMemoryStep
from hicachectl.runtime.replay.report import (
    ByTier,
    Compute,
    Earlier,
    Gain,
    HitRates,
    LayoutCost,
    PathTotals,
    Pools,
    Quantiles,
    ReplayReport,
    Window,
    gain_at_model_size,
)
from hicachectl.runtime.replay.reuse import ReuseDistances

__all__ = ["REPORTS", "all_tiers", "costly", "demo", "device_only", "one_request"]

KIB = 1024
PAGE = 64 * KIB
NOTHING = Quantiles(0, None, None, None, None)


def missed(**tokens: int) -> dict[str, int]:
    return {reason.value: tokens.get(reason.value, 0) for reason in MissReason}


def path_state(path: str, method: FitMethod, n: int, fixed_s: float, per_byte_s: float) -> PathState:
    return PathState(path, method, n, min(n, 32), fixed_s, per_byte_s, DEFAULT_PRIORS[Path(path)])


def step(name: str, state: str, wall_s: float, asked: str, text: str, reason: str | None = None) -> HostMemoryStep:
    return HostMemoryStep(
        name, state, wall_s, text if reason is None or reason in text else f"{text}; {reason}", asked, reason
    )


def as_asked() -> HostMemory:
    """Anonymous memory spread over two nodes, no driver to register with."""
    why = "the device is the CPU: there is no driver to register with"
    return HostMemory(
        "anonymous", 512 * PAGE, 2 << 20, 1.0, 512 * PAGE, 0, 0,
        (
            step("reserve", "done", 1.4e-4, "32.0 MiB of anonymous memory", "32.0 MiB of anonymous memory at a multiple of 2.0 MiB"),
            step("bind", "done", 2.6e-5, "weighted on nodes 0, 1 with weights 0=3,1=1", "weighted: weighted-interleave on nodes 0, 1, read back, weights 0=3,1=1"),
            step("advise", "done", 9e-6, "huge pages", "MADV_HUGEPAGE"),
            step("populate", "done", 8.1e-3, "every page touched, by 2 threads", "32.0 MiB by 2 threads, MADV_POPULATE_WRITE"),
            step("verify", "done", 4.8e-2, "huge pages, weighted on nodes 0, 1 with weights 0=3,1=1", "100 % in huge pages, 32.0 MiB in memory; sampled pages: node 0 192, node 1 64"),
            step("register", "skipped", 6e-6, "nothing", f"skipped: {why}", why),
        ),
        "weighted on nodes 0, 1 with weights 0=3,1=1",
    )  # fmt: skip


def refused_memory() -> HostMemory:
    """A file on a tmpfs of which nearly every step was refused something."""
    bind = (
        "policy not applied: mbind: EPERM (Operation not permitted); container runtimes put mbind behind CAP_SYS_NICE"
    )
    verify = "0 % in huge pages: the mount of /dev/shm/pool has no huge= option (never)"
    register = "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory; RLIMIT_MEMLOCK is 64.0 KiB (it binds some drivers)"
    made = as_asked()
    steps = {
        "reserve": step("reserve", "done", 1.4e-4, "32.0 MiB of tmpfs memory in /dev/shm/pool", "32.0 MiB of tmpfs memory at a multiple of 2.0 MiB"),
        "bind": step("bind", "refused", 2.6e-5, "local on node 1", "policy not applied", bind),
        "verify": step("verify", "partly", 4.8e-2, "huge pages, local on node 1", "0 % in huge pages, 32.0 MiB in memory; sampled pages: node 0 256", verify),
        "register": step("register", "refused", 0.31, "all of it, in chunks of at most 64.0 GiB", "not registered: copies go through the driver's own buffers", register),
    }  # fmt: skip
    return replace(
        made, kind="tmpfs", huge_share=0.0, placement=None, steps=tuple(steps.get(one.name, one) for one in made.steps)
    )


def all_tiers() -> ReplayReport:
    """Three tiers that pay; a trace with every common reason of a miss."""
    reuse = ReuseDistances()
    for turn in (*range(400), *range(100, 400), *range(390, 400)):
        reuse.add(np.array([1, *range(10 * turn + 2, 10 * turn + 12)], dtype=np.uint64))
    waits = np.geomspace(4e-4, 6e-2, 310)
    return ReplayReport(
        trace="conversation", trace_format="mooncake", trace_requests=710, block_tokens=512,
        notes=("pages of 64 tokens in blocks of 512: hits are a lower bound", "output tokens are not inserted: hits of multi-turn sessions are a lower bound"),
        stop="complete", requests=710, input_tokens=4_200_000, pages_total=7_810, pages_hit=3_809,
        pages_hit_by_tier=ByTier(809, 1_000, 2_000), pages_used=3_797, pages_restored=2_988, pages_restored_by_tier=ByTier(0, 1_000, 1_988),
        pages_verified=2_988, pages_mismatched=0, verify="all", missed_tokens=2_255_936,
        missed_tokens_by_reason=missed(never_seen=2_048_000, partial_page=201_280, failed=6_144, evicted_storage=512), seen_keys_bound=1 << 20,
        hit_rate_cold=HitRates(0.4471, 0.4643, 0.4877), hit_rate_warm=HitRates(0.8012, 0.8243, 0.8512),
        pools=Pools("tiny-64k", 512, PAGE, 4, 16 * KIB, "page_first_direct", "cpu", "cpu", 128, 512, 128 * PAGE, 512 * PAGE, 512 << 20, 251 << 20, 4_001,
                    {"0": 48, "1": 16}, None, as_asked()),
        policies={"write_policy": "write_through", "restore": "always", "eviction": "lru", "free_list": "lifo", "ghost": "off"},
        paths={
            "host_to_device": PathTotals(2_988, 2_988 * PAGE, 0.0612, 3.2e9, 310, 330, 11_952, 0),
            "device_to_host": PathTotals(4_013, 4_013 * PAGE, 0.1013, 2.6e9, 700, 742, 16_052, 0, 7),
            "storage_to_host": PathTotals(1_988, 1_988 * PAGE, 0.913, 1.43e8, None, None, None, 12),
            "host_to_storage": PathTotals(4_013, 4_013 * PAGE, 4.2, 6.3e7, None, None, None, 0, 64),
        },
        layouts=(
            LayoutCost("layer_first", 4, 512, 2, "cpu", None), LayoutCost("page_first", 262_144, 262_144, 2, "cpu", None),
            LayoutCost("page_first_direct", 512, 512, 2, "cpu", None),
        ),
        layouts_pages=128, restore_wait=Quantiles(310, 0.012, 0.0049, 0.0572, 0.06), restore_wait_histogram=latency_histogram(waits),
        ttft_modelled=Quantiles(710, 0.11, 0.09, 0.31, 0.4), ttft_modelled_device_only=Quantiles(710, 0.19, 0.18, 0.42, 0.45),
        gain=Gain(61.25, 3.72, 57.53, 4.30, gain_at_model_size(61.25, 3.72, 0.97, 1.0), 0.42), room_wait=Quantiles(22, 0.0191, 0.012, 0.051, 0.055),
        earlier=Earlier(0, 0, 0),
        compute=Compute("tiny-64k", "an imagined card", 128, True),
        cost_model=CostState(
            (path_state("host_read", FitMethod.FITTED, 310, 1.05e-4, 2.9e-10), path_state("host_write", FitMethod.FITTED, 700, 7.4e-5, 3.4e-10),
             path_state("storage_read", FitMethod.SCALED, 300, 1.2e-3, 6.6e-9), path_state("storage_write", FitMethod.FITTED, 700, 0.0, 1.5e-8)),
            RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10), 1.1,
        ),
        evicted_pages=ByTier(7_001, 3_489, 0), dropped_pages=0, failures_by_reason={"storage_corrupt": 12}, storage_corrupt_removed=12, checks_passed=1,
        elapsed_s=6.21, requests_per_s=114.3,
        windows=tuple(Window(71 * i, 71 * (i + 1), 30.0 * i, 0.10, 0.02 * i, min(0.6, 0.08 * i)) for i in range(10)),
        reuse=reuse.histogram(128, 512),
    )  # fmt: skip


def demo() -> ReplayReport:
    """Pages of one model, prefill of another: no verdict."""
    full = all_tiers()
    return replace(
        full, compute=Compute("qwen3-8b", "NVIDIA H200, eager", 147_456, False),
        gain=replace(full.gain, at_model_size=gain_at_model_size(61.25, 3.72, 0.97, 1152.0)),
    )  # fmt: skip


def device_only() -> ReplayReport:
    """No lower tier, and nothing verified for want of restores."""
    full = all_tiers()
    return replace(
        full, notes=(), pages_hit=809, pages_hit_by_tier=ByTier(809, 0, 0), pages_used=809, pages_restored=0, pages_restored_by_tier=ByTier(0, 0, 0),
        pages_verified=0, missed_tokens=3_785_792, missed_tokens_by_reason=missed(never_seen=2_048_000, evicted_device=1_536_512, partial_page=201_280),
        hit_rate_cold=HitRates(0.095, 0.0986, 0.1036), hit_rate_warm=HitRates(0.1, 0.105, 0.11),
        pools=replace(full.pools, host_slots=0, host_bytes=0, storage_capacity_bytes=0, storage_used_bytes=0, storage_objects=0,
                      host_pages_by_node={}, host_placement_reason="no host tier", host_memory=None),
        paths={}, restore_wait=NOTHING, room_wait=NOTHING, restore_wait_histogram=latency_histogram(np.array([])), ttft_modelled=full.ttft_modelled_device_only,
        gain=Gain(0.0, 0.0, 0.0, 0.0), evicted_pages=ByTier(6_900, 0, 0), failures_by_reason={},
        windows=tuple(replace(window, host=0.0, storage=0.0) for window in full.windows),
    )  # fmt: skip


def costly() -> ReplayReport:
    """Restores that cost more than they save, cut off by Ctrl-C, half verified."""
    full = all_tiers()
    return replace(
        full, stop="interrupted", requests=400, pools=replace(full.pools, host_memory=refused_memory()), earlier=Earlier(2_100, 700, 650), gain=Gain(0.31, 2.9, -2.59, 4.3), unfinished_pages={"host_to_storage": 128}, verify="sample:2", pages_verified=1_494,
        missed_tokens_by_reason=missed(not_backed_up=1_255_936, in_flight=1_000_000), policies={**full.policies, "write_policy": "write_back"},
        reuse=replace(full.reuse, bound_reached=True),
    )  # fmt: skip


def one_request() -> ReplayReport:
    """One request: nothing can hit."""
    full = all_tiers()
    reuse = ReuseDistances()
    reuse.add(np.arange(1, 14, dtype=np.uint64))
    nothing = PathTotals(0, 0, 0.0, None, 0, 0, 0, 0)
    once = Quantiles(1, 0.223, 0.223, 0.223, 0.223)
    return replace(
        full, notes=(), trace_requests=1, requests=1, input_tokens=6_758, pages_total=13, pages_hit=0, pages_hit_by_tier=ByTier(0, 0, 0), pages_used=0,
        pages_restored=0, pages_restored_by_tier=ByTier(0, 0, 0), pages_verified=0, missed_tokens=6_758,
        missed_tokens_by_reason=missed(never_seen=6_656, partial_page=102), hit_rate_cold=HitRates(0.0, 0.0, 0.0), hit_rate_warm=HitRates(None, None, None),
        paths={"host_to_device": nothing, "device_to_host": replace(nothing, pages=13, bytes=13 * PAGE, wall_s=0.001, bytes_per_s=8.5e8, transfers=1)},
        restore_wait=NOTHING, room_wait=NOTHING, restore_wait_histogram=latency_histogram(np.array([])), ttft_modelled=once, ttft_modelled_device_only=once,
        gain=Gain(0.0, 0.0, 0.0, 0.001), evicted_pages=ByTier(0, 0, 0), failures_by_reason={}, requests_per_s=None, elapsed_s=0.0,
        windows=(Window(0, 1, 0.0, 0.0, 0.0, 0.0),), reuse=reuse.histogram(128, 512),
    )  # fmt: skip


REPORTS = {
    "all-tiers": all_tiers,
    "demo": demo,
    "device-only": device_only,
    "costly": costly,
    "one-request": one_request,
}
