"""The exact hit-rate curve: recorded traces, and 100 million references of agent shape in bounded memory.

Run: python benchmarks/bench_curve.py [--json FILE] [--quick]
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _bench import Row, arguments, report, timed

from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.extents import ExtentPass
from hicachectl.tuning.sizing.numbering import Numbering
from hicachectl.tuning.sizing.window import window_of

METHOD = (
    "one thread; recorded traces are parsed and held as requests first; agent shape: 1,250 sessions of 40 requests of 2,000 "
    "blocks in the mean, 64 at a time, each keeping most of the one before it, made request by request and not kept: "
    "the time of making them is taken off, in seconds of processor time; memory is the peak resident size of the whole process"
)
RECORDED = (
    ("conversation", "traces/mooncake-fast25/conversation_trace.jsonl.gz", 0.6),
    ("agent100", "traces/kv-cache-tester/sessions_first100.jsonl.xz", 0.5),
)


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0])
    rows = []
    for name, relative, limit in RECORDED:
        path = _shared() / relative
        if not options.quick and path.exists():
            rows += _recorded(name, path, limit)
    rows += _agents(*((200, 200) if options.quick else (50_000, 2_000)))
    report("bench_curve", METHOD, rows, options)


def _shared() -> Path:
    named = os.environ.get("HICACHECTL_SHARED")
    return Path(named) if named else Path(__file__).resolve().parents[1].parent / "shared"


def _recorded(name: str, path: Path, limit: float) -> list[Row]:
    trace = open_trace(path)
    start = time.perf_counter()
    requests = list(trace)
    parsed = time.perf_counter() - start
    window = window_of(requests, trace.block_tokens)
    note = f"{len(window.ids):,} references, {window.n_requests:,} requests"
    return [
        Row(f"{name}: parse the file", "s", (parsed,), note=note),
        Row(f"{name}: into arrays", "s", timed(lambda: window_of(requests, trace.block_tokens), repeats=5, scale=1)),
        Row(f"{name}: the whole curve, D1", "s", timed(lambda: curve_of(window), repeats=5, scale=1), limit=limit),
    ]


def agent_requests(n_requests: int, mean_blocks: int, *, turns: int = 40, at_once: int = 64) -> Iterator[TraceRequest]:
    """Make requests of agent shape: sessions take turns, share a first part, grow, and now and then rewrite their context."""
    rng = np.random.default_rng(11)
    shared = np.arange(mean_blocks // 8, dtype=np.int64)
    next_id = len(shared)
    paths = [shared] * at_once
    left = [int(turns * (slot + 1) / at_once) + 1 for slot in range(at_once)]
    for index in range(n_requests):
        slot = int(rng.integers(at_once))
        left[slot] -= 1
        if left[slot] < 0:
            paths[slot], left[slot] = shared, turns
        before = paths[slot]
        kept = before if rng.random() > 0.05 else before[: max(len(shared), len(before) * 3 // 4)]
        n_new = mean_blocks // 2 if len(before) == len(shared) else max(1, int(rng.exponential(mean_blocks / 20)))
        path = np.concatenate((kept, np.arange(next_id, next_id + n_new, dtype=np.int64)))
        next_id += n_new
        paths[slot] = path
        yield TraceRequest(index, float(index), 64 * len(path), 100, path)


def _agents(n_requests: int, mean_blocks: int) -> list[Row]:
    start = time.process_time()
    n = sum(len(request.blocks) for request in agent_requests(n_requests, mean_blocks))
    making = time.process_time() - start
    numbering, passed = Numbering(), ExtentPass()
    start = time.process_time()
    for request in agent_requests(n_requests, mean_blocks):
        row = numbering.add_one(0, request.blocks)
        passed.add(row, 0)
    numbered = time.process_time() - start - making
    again, start = ExtentPass(), time.process_time()
    for request in agent_requests(n_requests, mean_blocks):
        again.add(request.blocks, 0)  # type: ignore[arg-type]
    bare = time.process_time() - start - making
    assert (again.runs().distance == passed.runs().distance).all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    note = f"{n:,} references, {n_requests:,} requests, {numbering.n_distinct:,} blocks, {len(passed.runs().length):,} runs"
    return [
        Row("agent shape: making the requests", "s", (making,), note=note),
        Row("agent shape: the pass alone", "s", (max(bare, 1e-9),)),
        Row("agent shape: numbered, checked and passed", "s", (max(numbered, 1e-9),), limit=4.0),
        Row("agent shape: peak memory", "GiB", (peak,), limit=4.0),
    ]


if __name__ == "__main__":
    main()
