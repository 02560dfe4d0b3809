"""One pool size as each engine wants it said: the units and scopes differ, and a wrong one is a factor of ranks or 7 %. Pure.

Units and scopes: docs/facts.md#unit-trap.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.units import GIB

__all__ = ["EngineFlag", "PoolBytes", "copies_on_ranks", "engine_flags", "pool_bytes"]

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
    """A flag with its value as text, its unit, whose memory it means, and the pages it holds. `value` and `pages` None: none fits, `reason` says why."""

    engine: str
    flag: str
    value: str | None
    unit: str
    scope: str
    pages: int | None
    reason: str | None = None


def copies_on_ranks(n_ranks: int, *, n_kv_heads: int | None) -> int:
    """How often the ranks together hold a page whose heads are shared out: an engine gives a head to several where there are more ranks. Pure.

    >>> copies_on_ranks(8, n_kv_heads=8), copies_on_ranks(8, n_kv_heads=4), copies_on_ranks(8, n_kv_heads=None)
    (1, 2, 1)
    """
    return 1 if n_kv_heads is None else max(1, n_ranks // n_kv_heads)


def pool_bytes(
    pages: int, page_bytes: int, *, n_ranks: int = 1, same_on_every_rank: bool = False, shared: bool = False, n_kv_heads: int | None = None
) -> PoolBytes:  # fmt: skip
    """Spread a pool over the TP ranks of one host. Pure.

    `page_bytes` are those of a page once. KV heads are divided among ranks, so a rank holds its part of every
    page, and with more ranks than `n_kv_heads` each head is held several times; MLA's latent is the same on every rank
    (`same_on_every_rank`), so each holds all of it unless they share one pool.

    >>> pool_bytes(100, 1 << 20, n_ranks=8).rank_bytes == 100 * (1 << 20) // 8
    True
    >>> pool_bytes(100, 1 << 20, n_ranks=8, same_on_every_rank=True).host_bytes == 800 * (1 << 20)
    True
    """
    whole = pages * page_bytes
    if not same_on_every_rank:
        whole *= copies_on_ranks(n_ranks, n_kv_heads=n_kv_heads)
        return PoolBytes(pages, page_bytes, n_ranks, False, whole, -(-whole // n_ranks))
    return PoolBytes(pages, page_bytes, n_ranks, shared, whole if shared else whole * n_ranks, whole)


def engine_flags(pool: PoolBytes, *, most_pages: int | None = None) -> tuple[EngineFlag, ...]:
    """Say a pool in the words of each engine. Pure.

    Values are rounded up, so that the pages fit, and down where that would take more than a pool of `most_pages` does: then they hold fewer.
    Of a pool that all ranks map, a flag of an engine whose ranks make one each has no value, be it a rank's or divided among them: it would
    take as many times the memory. A Mooncake segment is what a process donates to one store, so the processes share the pool out.

    >>> flag = next(f for f in engine_flags(pool_bytes(2800, 1 << 20, n_ranks=1), most_pages=2850) if f.engine == "SGLang")
    >>> flag.value, flag.pages
    ('2', 1907)
    """
    total, rank, n_ranks = pool.host_bytes, pool.rank_bytes, pool.n_ranks
    segment = -(-total // n_ranks)
    if not pool.pages:
        return ()
    one_for_all = pool.shared and n_ranks > 1
    over_ranks = "total over TP ranks"
    mapped = f"{over_ranks}, where they map one pool" if one_for_all else over_ranks

    def said(engine: str, flag: str, n_bytes: int, unit_bytes: int, parts: int, unit: str, scope: str) -> EngineFlag:
        """`n_bytes` of the scope in units of `unit_bytes`, each of `parts` that a value can tell."""
        steps = -(-n_bytes * parts // unit_bytes)
        if most_pages is not None and steps * unit_bytes * pool.pages > n_bytes * parts * most_pages:
            steps = n_bytes * parts // unit_bytes
        if not steps:
            why = f"{n_bytes} bytes are less than its least value, {_text(1, parts)} {unit}, and more does not fit"
            return EngineFlag(engine, flag, None, unit, scope, None, why)
        holds = steps * unit_bytes * pool.pages // (n_bytes * parts)
        return EngineFlag(engine, flag, _text(steps, parts), unit, scope, holds)

    def of_rank(engine: str, flag: str, n_bytes: int, unit_bytes: int, parts: int, unit: str, scope: str) -> EngineFlag:
        """As `said`, of an engine whose ranks make a pool each; no value where all map one pool."""
        if not one_for_all:
            return said(engine, flag, n_bytes, unit_bytes, parts, unit, scope)
        why = f"each rank makes a pool of its own, {n_ranks} ranks would take {n_ranks * rank} bytes: size without --shared for it"
        return EngineFlag(engine, flag, None, unit, scope, None, why)

    return (
        said("vLLM", "--kv-offloading-size", total, GIB, 100, "GiB", mapped),
        of_rank("vLLM simple", "cpu_bytes_to_use", total, 1, 1, "bytes", over_ranks),
        of_rank("vLLM simple", "cpu_bytes_to_use_per_rank", rank, 1, 1, "bytes", "a TP rank"),
        of_rank("SGLang", "--hicache-size", rank, GB, 1, "GB (1e9)", "a TP rank"),
        of_rank("LMCache in-process", "max_local_cpu_size", rank, GB, 100, "GB", "a TP worker"),
        said("LMCache server", "--l1-size-gb", total, GB, 100, "GB", "the server"),
        said("Mooncake", "global_segment_size", segment, 1, 1, "bytes", "a process"),
        said("Mooncake in SGLang", "global_segment_size", segment * n_ranks, 1, 1, "bytes", "divided by TP there"),
        of_rank("mini-sglang", "--hicache-size-gb", rank, GIB, 100, "GiB", "a TP rank"),
    )  # fmt: skip


def _text(steps: int, parts: int) -> str:
    """A value of so many parts of a unit: whole, or with two decimals."""
    if parts == 1:
        return str(steps)
    return f"{steps // parts}.{steps % parts:02d}".rstrip("0").rstrip(".")
