"""Replaying a public trace through device and host tier, every restored page compared: requests a second.

Run: python benchmarks/bench_replay.py [--json FILE] [--quick] [--trace FILE] [--runs N]
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path
from time import thread_time

from _bench import Row, arguments, report

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import Replay, ReplayConfig, Stop, Verify
from hicachectl.runtime.replay.workload import open_trace

METHOD = (
    "the Mooncake conversation trace (FAST'25), pages of 512 tokens, 64 KiB a page, device slots for the longest request, 16,000 "
    "host slots, write_through, --restore always, strict order, page_first_direct, cpu backend, every restored page compared byte "
    "for byte; wall time from the first request until all copies are over, trace reading and page keys included, a fresh cache a run"
)
TRACE = "traces/mooncake-fast25/conversation_trace.jsonl.gz"
EXPECTED = "traces/expected/mooncake_conversation_full_blocks.csv"
PAGE_TOKENS, HOST_SLOTS = 512, 16_000
LIMIT_MS = 2.5  # 400 requests a second
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0], _add)
    shared = Path(os.environ.get("HICACHECTL_SHARED") or ROOT.parent / "shared")
    path = options.trace or shared / TRACE
    if not path.is_file():
        print(
            f"bench_replay: skipped, {path} is not there (give --trace FILE or set HICACHECTL_SHARED)", file=sys.stderr
        )
        return
    limit = 300 if options.quick else None
    runs = [_Timed(path, limit) for _ in range(1 if options.quick else options.runs)]
    expected = None if options.quick or options.trace else _expected_hits(shared / EXPECTED)
    for run in runs:
        if expected is not None and run.hits != expected:
            raise SystemExit(
                f"bench_replay: {run.hits} pages hit, the exact curve says {expected}: not the work to be timed"
            )
    first = runs[0]
    per_request = tuple(1e3 * run.elapsed_s / run.n_requests for run in runs)
    note = f"{first.n_requests:,} requests, {first.hits:,} pages hit, {first.verified:,} compared"
    rows = [
        Row("time a request", "ms", per_request, None if options.quick else LIMIT_MS, note),
        Row("requests a second", "1/s", tuple(1e3 / x for x in per_request), None, "400 is what 2.5 ms a request gives"),
        Row("pages moved a second, both ways", "1/s", tuple(run.moved / run.elapsed_s for run in runs)),
        Row("time in this thread a request", "ms", tuple(1e3 * run.thread_s / run.n_requests for run in runs), None, "processor time"),
    ]  # fmt: skip
    report("bench_replay", METHOD, rows, options)


class _Timed:
    """One replay and what it counted."""

    def __init__(self, path: Path, limit: int | None) -> None:
        config = ReplayConfig(
            preset("tiny-64k", PAGE_TOKENS),
            CacheConfig(restore="always", strict=True, seen_keys=1 << 20),
            Layout.PAGE_FIRST_DIRECT,
            Backend.CPU,
            None,
            HOST_SLOTS,
            CostModel(RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)),  # does not decide here: --restore always
            verify=Verify(1),
            limit=limit,
        )
        with Replay(open_trace(path), config) as replay:
            began = thread_time()
            ended = replay.run()
            self.thread_s = thread_time() - began
            if ended is not (Stop.COMPLETE if limit is None else Stop.LIMIT):
                raise SystemExit(f"bench_replay: the replay ended with {ended.value}")
            counters, recorder = replay.cache.counters, replay.recorder
            self.hits = sum(counters.hit_pages)
            self.verified = recorder.pages_verified
            self.moved = counters.loaded_pages + counters.backup_pages
            self.n_requests = recorder.n_requests
            self.elapsed_s = recorder.elapsed_s


def _expected_hits(path: Path) -> int | None:
    if not path.is_file():
        return None
    with path.open(newline="") as file:
        rows = {int(row["capacity_blocks"]): int(row["lru_hit_blocks"]) for row in csv.DictReader(file)}
    return rows.get(HOST_SLOTS)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help="another copy of the conversation trace")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="3 by default")


if __name__ == "__main__":
    main()
