"""One pool size as each engine wants it said: the units and scopes differ, and a wrong one is a factor of ranks or 7 %. Pure.

Units and scopes: docs/facts.md#unit-trap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hicachectl.units import GIB

__all__ = ["EngineFlag", "PoolBytes", "engine_flags", "pool_bytes"]

GB = 10**9


@dataclass(frozen=True, slots=True)
class PoolBytes:
    """A pool in every unit: `host_bytes` on the machine, `rank_bytes` what one TP rank is told; `shared`: ranks map one pool."""

    pages: int
    page_bytes: int
    n_ranks: int
    shared: bool
    host_bytes: int
    rank_bytes: int


@dataclass(frozen=True, slots=True)
class EngineFlag:
    """A flag with its value as text, its unit and whose memory it means."""

    engine: str
    flag: str
    value: str
    unit: str
    scope: str


def pool_bytes(
    pages: int, page_bytes: int, *, n_ranks: int = 1, same_on_every_rank: bool = False, shared: bool = False
) -> PoolBytes:
    """Spread a pool over the TP ranks of one host. Pure.

    `page_bytes` are those of a page over all ranks. KV heads are divided among ranks, so a rank holds its part of every
    page; MLA's latent is the same on every rank (`same_on_every_rank`), so each holds all of it unless they share one pool.

    >>> pool_bytes(100, 1 << 20, n_ranks=8).rank_bytes == 100 * (1 << 20) // 8
    True
    >>> pool_bytes(100, 1 << 20, n_ranks=8, same_on_every_rank=True).host_bytes == 800 * (1 << 20)
    True
    """
    whole = pages * page_bytes
    if not same_on_every_rank:
        return PoolBytes(pages, page_bytes, n_ranks, False, whole, -(-whole // n_ranks))
    return PoolBytes(pages, page_bytes, n_ranks, shared, whole if shared else whole * n_ranks, whole)


def engine_flags(pool: PoolBytes) -> tuple[EngineFlag, ...]:
    """Say a pool in the words of each engine; values are rounded up, so that the pages fit. Pure."""
    total, rank = pool.host_bytes, pool.rank_bytes
    return (
        EngineFlag("vLLM", "--kv-offloading-size", _up(total, GIB), "GiB", "total over TP ranks"),
        EngineFlag("vLLM simple", "cpu_bytes_to_use", str(total), "bytes", "total over TP ranks"),
        EngineFlag("vLLM simple", "cpu_bytes_to_use_per_rank", str(rank), "bytes", "a TP rank"),
        EngineFlag("SGLang", "--hicache-size", str(math.ceil(rank / GB)), "GB (1e9)", "a TP rank"),
        EngineFlag("LMCache in-process", "max_local_cpu_size", _up(rank, GB), "GB", "a TP worker"),
        EngineFlag("LMCache server", "--l1-size-gb", _up(total, GB), "GB", "the server"),
        EngineFlag("Mooncake", "global_segment_size", str(rank), "bytes", "a process"),
        EngineFlag("Mooncake in SGLang", "global_segment_size", str(rank * pool.n_ranks), "bytes", "divided by TP there"),
        EngineFlag("mini-sglang", "--hicache-size-gb", _up(rank, GIB), "GiB", "a TP rank"),
    )  # fmt: skip


def _up(n_bytes: int, unit: int) -> str:
    """Two decimals, rounded up."""
    return f"{math.ceil(100 * n_bytes / unit) / 100:.2f}".rstrip("0").rstrip(".")
