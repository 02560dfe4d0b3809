"""Page keys, and the tables of key prefixes: what naming a request's pages costs.

Run: python benchmarks/bench_keys.py [--json FILE] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from _bench import Row, arguments, report, timed

from hicachectl.runtime.ghost import GhostList
from hicachectl.runtime.keys import KeyChain, Namespace, SeedTag, bigram_page_keys, event_hashes, key64, page_keys
from hicachectl.runtime.seen import SeenFlag, SeenKeys

METHOD = (
    "one thread; a sequence of 32,768 random token ids, fixed seed; wall time of one call after one unmeasured call, "
    "cyclic collector off; tables are full (1,000,000 entries), so every new key pushes one out"
)


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0])
    n_tokens, repeats, n_entries = (2048, 3, 10_000) if options.quick else (32_768, 51, 1_000_000)
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 150_000, n_tokens, dtype=np.uint32).astype("<u4").tobytes()
    rows = [*_hashing(tokens, repeats), *_naming(tokens, repeats), *_tables(rng, n_entries, repeats)]
    report("bench_keys", METHOD, rows, options)


def _hashing(tokens: bytes, repeats: int) -> list[Row]:
    rows = []
    for page_tokens in (1, 16, 64, 512):
        n_pages = len(tokens) // 4 // page_tokens
        samples = timed(partial(page_keys, tokens, page_tokens), repeats=repeats)
        rows.append(Row(f"page_keys, pages of {page_tokens}", "us", samples, note=f"{n_pages} pages"))
    samples = timed(partial(bigram_page_keys, tokens, 64), repeats=repeats)
    rows.append(Row("bigram_page_keys, pages of 64", "us", samples))

    chains = iter([KeyChain(64) for _ in range(repeats + 1)])
    current = KeyChain(64)

    def grown() -> None:
        nonlocal current
        current = next(chains)
        current.append(tokens[: -1024 * 4])

    samples = timed(lambda: current.append(tokens[-1024 * 4 :]), repeats=repeats, before=grown)
    rows.append(Row("KeyChain.append of 1,024 tokens, pages of 64", "us", samples, note="a turn after a long history"))
    return rows


def _naming(tokens: bytes, repeats: int) -> list[Row]:
    keys, space = page_keys(tokens, 16), Namespace(cache_salt="tenant")
    salted = page_keys(tokens, 16, namespace=space, tag=SeedTag.EVENT)
    note = f"{len(keys) // 32} pages"
    return [
        Row("key64", "us", timed(partial(key64, keys), repeats=repeats), note=note),
        Row("event_hashes, default namespace", "us", timed(partial(event_hashes, keys), repeats=repeats), note=note),
        Row("event_hashes, salted", "us", timed(partial(event_hashes, salted, space), repeats=repeats), note=note),
    ]


def _tables(rng: np.random.Generator, n_entries: int, repeats: int) -> list[Row]:
    seen, ghost = SeenKeys(n_entries), GhostList(n_entries)
    held = rng.integers(0, 2**64, n_entries, dtype=np.uint64)
    seen.add(held, SeenFlag.PUBLISHED)
    ghost.add(held)
    rows = []
    for n_keys in (64, 512, 2048):
        new = list(rng.integers(0, 2**64, (2 * repeats + 2, n_keys), dtype=np.uint64))
        known = held[-n_keys:]
        samples = timed(partial(seen.get, known), repeats=repeats)
        rows.append(Row(f"SeenKeys.get, {n_keys} known keys", "us", samples))
        samples = timed(partial(seen.add, known, SeenFlag.BACKED_UP), repeats=repeats)
        rows.append(Row(f"SeenKeys.add, {n_keys} known keys", "us", samples))
        samples = timed(partial(_next_of, ghost.deepest, new), repeats=repeats)
        rows.append(Row(f"GhostList.deepest, {n_keys} unknown keys", "us", samples))
        samples = timed(partial(_next_of, ghost.add, new), repeats=repeats)
        rows.append(Row(f"GhostList.add, {n_keys} new keys", "us", samples))
    per_entry = ghost.nbytes / n_entries
    rows.append(Row("memory of an entry", "bytes", (per_entry,), limit=64, note="whole table, full or not"))
    return rows


def _next_of(action: Callable[[np.ndarray], object], batches: list[np.ndarray]) -> None:
    action(batches.pop())


if __name__ == "__main__":
    main()
