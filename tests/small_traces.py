"""Tiny request traces in the Mooncake form: a request is a list of block ids, a block 512 tokens, a page of `tiny-4k` 4 KiB."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["BLOCK_TOKENS", "conversations", "mooncake_line", "write_trace"]

BLOCK_TOKENS = 512


def mooncake_line(blocks: Sequence[int], time_ms: int = 0, **changed: object) -> str:
    """One line of a trace; `changed` replaces or adds keys."""
    line = {
        "timestamp": time_ms,
        "input_length": BLOCK_TOKENS * len(blocks),
        "output_length": 1,
        "hash_ids": list(blocks),
    }
    return json.dumps({**line, **changed})


def write_trace(path: Path, requests: Iterable[Sequence[int]]) -> Path:
    """Write requests a second apart."""
    path.write_text("".join(mooncake_line(blocks, 1000 * n) + "\n" for n, blocks in enumerate(requests)))
    return path


def conversations(n: int, pages: int = 8, rounds: int = 2) -> list[list[int]]:
    """`n` requests of `pages` blocks that share none, each asked `rounds` times in turn."""
    return [list(range(i * pages, (i + 1) * pages)) for _ in range(rounds) for i in range(n)]
