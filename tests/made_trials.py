"""Trials made up for the rules that read them."""

from __future__ import annotations

from dataclasses import replace

from hicachectl.tuning.sizing.pool_made import MadeStep, PoolMade
from hicachectl.tuning.sizing.pool_memory import PoolMemory
from hicachectl.tuning.sizing.restores import Restores
from hicachectl.tuning.sizing.trial import Trial

MIB = 1 << 20


def made_trial(pages: int, **changed: object) -> Trial:
    """A trial on pages of 1 MiB, on the processor."""
    made = PoolMade("anonymous", None, pages * MIB, 2 * MIB, 1.0, pages * MIB, {"0": 1}, None, 0, 0, (MadeStep("register", "skipped", 0.0, "skipped: no driver"),))  # fmt: skip
    trial = Trial(
        host_pages=pages, n_bytes=pages * MIB, total_pages=1000, device_hit_pages=0, host_hit_pages=pages and 500, restored_pages=400,
        verified_pages=400, dropped_pages=0, failures={}, device="cpu", layout="page_first_direct", backend="cpu",
        backend_reason="made up", fill_s=0.1, register_s=None, made=made if pages else None,
        memory=PoolMemory(pages * MIB, 0) if pages else None, process_bytes=pages * MIB, restore_bytes_per_s=1.0 if pages else None,
        restore_s_per_token=1e-6, restore_p50_s=0.01, restore_p99_s=0.01, ttft_mean_s=1.0 if not pages else 0.8,
        ttft_device_only_mean_s=1.0, net_gain_s=1.0, replay_s=1.0, counters={}, reasons={"register_s": "no driver"},
    )  # fmt: skip
    return replace(trial, **changed)  # type: ignore[arg-type]


def restores(n: int, seconds_a_page: float, *, wobble: float = 0.0, first: int = 0) -> Restores:
    """Restores of `n` requests, 1 to 8 pages each; every other one `wobble` slower or faster."""
    pages = tuple(1 + k % 8 for k in range(n))
    wait = tuple(p * seconds_a_page * (1 + (wobble if (k // 37) % 2 else -wobble)) for k, p in enumerate(pages))
    return Restores(tuple(range(first, first + n)), pages, wait)
