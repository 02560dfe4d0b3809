"""What engines write while they serve, made by hand: log lines, trace lines, batches of KV events, and a process that appends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from hicachectl.runtime.keys import event_hashes, page_keys

__all__ = ["APPENDER", "HEADER", "PAGE", "append_in_new_process", "batch", "chats", "log_line", "trace_line"]

PAGE = 64
HEADER = json.dumps({"trace": 1, "block_tokens": PAGE, "scope": "global"}) + "\n"
APPENDER = """
import sys, time
lines, path, gap_s = open(sys.argv[1], "rb").read().splitlines(keepends=True), sys.argv[2], float(sys.argv[3])
with open(path, "ab", buffering=0) as out:
    for line in lines:
        out.write(line)
        time.sleep(gap_s)
"""


def chats(n_requests: int, n_chats: int = 20, turns: int = 7, *, first: int = 0) -> list[list[int]]:
    """Block ids of requests in turn over chats: each turn two blocks more, after `turns` a new chat. Ids count from `first`."""
    paths: list[list[int]] = [[] for _ in range(n_chats)]
    found, following = [], first
    for n in range(n_requests):
        at = n * 7 % n_chats
        if len(paths[at]) >= 2 * turns:
            paths[at] = []
        paths[at] = [*paths[at], following, following + 1]
        following += 2
        found.append(paths[at])
    return found


def log_line(blocks: Sequence[int], n: int = 0) -> str:
    """A request in vLLM's log, its tokens told by its block ids."""
    tokens = [block * PAGE + at for block in blocks for at in range(PAGE)]
    return f"INFO 11-29 10:{n // 60 % 60:02d}:{n % 60:02d} [logger.py:40] Received request cmpl-{n}: prompt: 'a secret', params: SamplingParams(n=1), prompt_token_ids: {tokens}, prompt_embeds shape: None.\n"


def trace_line(blocks: Sequence[int], time_s: float = 0.0, **more: Any) -> str:
    """A request of whole pages as a line of a trace/1."""
    return (
        json.dumps(
            {"time_s": time_s, "input_tokens": PAGE * len(blocks), "output_tokens": 1, "blocks": list(blocks), **more}
        )
        + "\n"
    )


def batch(blocks: Sequence[int], n_known: int = 0, ts: float = 0.0) -> bytes:
    """A batch in which the blocks of a path past its first `n_known` were stored."""
    tokens = np.array([block * PAGE + at for block in blocks for at in range(PAGE)], "<u4").tobytes()
    hashes = event_hashes(page_keys(tokens, PAGE)).tolist()
    event = ["BlockStored", hashes[n_known:], hashes[n_known - 1] if n_known else None, [], PAGE, None, "GPU"]
    packed: bytes = msgpack.packb([ts, [event], 0])
    return packed


def append_in_new_process(lines: str, path: Path, gap_s: float = 0.002) -> subprocess.Popen[bytes]:
    """Start a process that appends the lines one by one. Its caller ends it."""
    waiting = path.with_suffix(".waiting")
    waiting.write_text(lines)
    return subprocess.Popen([sys.executable, "-c", APPENDER, str(waiting), str(path), str(gap_s)])
