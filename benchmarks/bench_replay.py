"""Replaying a public trace through device and host tier, every restored page compared: requests a second, and no wrong byte.

Run: python benchmarks/bench_replay.py [--device cpu|cuda] [--backend NAME] [--verify all|sample:N|off] [--json FILE] [--quick]
     [--trace FILE] [--runs N] [--commit SHA]

`--device cuda` keeps L1 in device memory and the host pool registered, and compares pages on the device; its result is called
bench_replay_device. Needs torch and numpy alone.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import torch
from _accelerator import accelerator
from _bench import Row, arguments, report

from hicachectl.errors import HicacheError, InvariantBroken
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.replay.driver import PageMismatch, Replay, ReplayConfig, Stop, Verify
from hicachectl.runtime.replay.latency import latency_histogram
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.window import Definition, window_of

METHOD = (
    "the Mooncake conversation trace (FAST'25), pages of 512 tokens, device slots for the longest request, 16,000 host slots, "
    "write_through, --restore always, strict order, page_first_direct; wall time from the first request until all copies are "
    "over, trace reading, page keys and comparing included, a fresh cache a run"
)
TRACE = "traces/mooncake-fast25/conversation_trace.jsonl.gz"
EXPECTED = "traces/expected/mooncake_conversation_full_blocks.csv"
PAGE_TOKENS, HOST_SLOTS, QUICK_REQUESTS = 512, 16_000, 300
LIMIT_MS = 2.5  # 400 requests a second
NO_TARGET = "no target: making and comparing pages on the device is in it, so it says little about the transfers"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Setup:
    """What to replay on. `backend` None: measured at start; `limit`: requests, None for all."""

    device: str
    backend: Backend | None
    verify: Verify
    limit: int | None

    @property
    def on_accelerator(self) -> bool:
        """Whether L1 is memory of a device of its own."""
        return torch.device(self.device).type != "cpu"

    @property
    def name(self) -> str:
        """What the result is called."""
        return "bench_replay_device" if self.on_accelerator else "bench_replay"

    def config(self) -> ReplayConfig:
        """The replay: larger pages and a host pool that must be registered where there is a link to cross."""
        return ReplayConfig(
            preset("tiny-512k" if self.on_accelerator else "tiny-64k", PAGE_TOKENS),
            CacheConfig(restore="always", strict=True, seen_keys=1 << 20),
            Layout.PAGE_FIRST_DIRECT,
            self.backend,
            None,
            HOST_SLOTS,
            CostModel(RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)),  # does not decide here: --restore always
            verify=self.verify,
            limit=self.limit,
            device=self.device,
            host_memory=MappingSpec(must_register=self.on_accelerator),
        )


def main() -> None:
    """Measure and report. A run that hits other pages than the exact curve says is not the work to be timed; nor is one that
    held a wrong byte, but that is reported.
    """
    options = arguments(__doc__.splitlines()[0], _add)
    setup = _setup(options)
    shared = Path(os.environ.get("HICACHECTL_SHARED") or ROOT.parent / "shared")
    path = options.trace or shared / TRACE
    if not path.is_file():
        print(
            f"bench_replay: skipped, {path} is not there (give --trace FILE or set HICACHECTL_SHARED)", file=sys.stderr
        )
        return
    expected = expected_hits(path, setup.limit, None if options.trace else shared / EXPECTED)
    runs = [Timed(path, setup)]
    while runs[-1].wrong is None and len(runs) < (1 if options.quick else options.runs):
        runs.append(Timed(path, setup))
    for run in runs:
        run.require(expected)
    first = runs[0]
    more: dict[str, Any] = {"operands": first.operands, "runs": [run.told() for run in runs]}
    method = f"{METHOD}; {first.what}; {_comparing(setup)}"
    report(setup.name, method, rows(setup, runs, expected), options, more | accelerator(torch.device(setup.device)))
    wrong = runs[-1].wrong
    if wrong is not None:
        raise SystemExit(f"bench_replay: wrong bytes: {wrong}")


class Timed:
    """One replay and what it counted. `wrong` is the page that held a wrong byte, which ended it; None when there was none."""

    def __init__(self, path: Path, setup: Setup) -> None:
        config = setup.config()
        self.wrong: PageMismatch | None = None
        with Replay(open_trace(path), config) as replay:
            began = thread_time()
            try:
                ended = replay.run()
            except PageMismatch as error:
                self.wrong, ended = error, Stop.FAILED
            self.thread_s = thread_time() - began
            if ended is Stop.INTERRUPTED:
                raise SystemExit(f"bench_replay: the replay ended with {ended.value}")
            counters, recorder = replay.cache.counters, replay.recorder
            self.hits = sum(counters.hit_pages)
            self.restored = sum(counters.restored_pages)
            self.compared, self.mismatched = recorder.pages_verified, recorder.pages_mismatched
            self.moved = counters.loaded_pages + counters.backup_pages
            self.failures = replay.failures()
            self.unfinished = dict(recorder.unfinished_pages)
            self.requests = max(1, recorder.n_requests)
            self.elapsed_s = recorder.elapsed_s
            waits_s = recorder.column("restore_wait_s")
            self.waits_s = waits_s[recorder.column("restored_host") > 0].copy()
            self.device_slots = replay.device_slots
            self.operands = _operands(replay)
            self.what = _what(replay)

    def require(self, expected: int) -> None:
        """Raise InvariantBroken unless exactly the pages hit that must, and no copy failed; a run with a wrong byte is let through."""
        if self.wrong is not None:
            return
        if self.device_slots <= HOST_SLOTS and self.hits != expected:
            raise InvariantBroken(
                f"{self.hits} pages hit, the exact curve says {expected}", where="not the work to be timed"
            )
        if any(self.failures.values()) or self.unfinished:
            raise InvariantBroken(
                f"copies failed: {self.failures}; unfinished: {self.unfinished}", where="not the work to be timed"
            )

    def told(self) -> dict[str, Any]:
        """What the JSON file keeps of a run beside its rows."""
        histogram = latency_histogram(self.waits_s)
        return {
            "requests": self.requests,
            "elapsed_s": self.elapsed_s,
            "restore_wait": asdict(histogram),
            "wrong": None if self.wrong is None else str(self.wrong),
        }


def rows(setup: Setup, runs: Sequence[Timed], expected: int) -> list[Row]:
    """Everything that is reported, one sample a run."""

    def row(
        name: str, unit: str, of: Callable[[Timed], float], limit: float | None = None, note: str = "", **more: bool
    ) -> Row:
        return Row(name, unit, tuple(of(run) for run in runs), limit, note, **more)

    first = runs[0]
    exact = expected if first.device_slots <= HOST_SLOTS else None
    every = first.restored if setup.verify.every == 1 else None
    timed = setup.limit is None and not setup.on_accelerator
    waits = f"{len(first.waits_s):,} of {first.requests:,} requests restored pages"
    found = [
        row("pages hit", "pages", lambda run: run.hits, exact, f"the exact LRU curve says {expected:,}", at_least=True),
        row("pages restored", "pages", lambda run: run.restored, None, "from the host tier"),
        row("pages compared", "pages", lambda run: run.compared, every, _comparing(setup), at_least=True),
        row("pages wrong", "pages", lambda run: run.mismatched, 0, "the first wrong byte ends a run"),
        row("time a request", "ms", lambda run: 1e3 * run.elapsed_s / run.requests, LIMIT_MS if timed else None),
        row(
            "requests a second", "1/s", lambda run: run.requests / run.elapsed_s, None,
            NO_TARGET if setup.on_accelerator else "400 is what 2.5 ms a request gives",
        ),
        row("pages moved a second, both ways", "1/s", lambda run: run.moved / run.elapsed_s),
        row("time in this thread a request", "ms", lambda run: 1e3 * run.thread_s / run.requests, None, "processor time"),
    ]  # fmt: skip
    if all(len(run.waits_s) for run in runs):
        for share in (50, 99):
            p = f"restore wait, p{share}"
            found.append(row(p, "ms", lambda run, q=share: 1e3 * float(np.percentile(run.waits_s, q)), None, waits))
    return found


def expected_hits(path: Path, limit: int | None, recorded: Path | None) -> int:
    """Return how many pages must hit: the exact LRU curve of full blocks at the host slots, worked out from the trace.

    Raises InvariantBroken where the `recorded` curve of the whole trace says something else.
    """
    trace = open_trace(path)
    if trace.block_tokens != PAGE_TOKENS:
        raise SystemExit(f"bench_replay: {path} has blocks of {trace.block_tokens} tokens, needed are {PAGE_TOKENS}")
    window = window_of(trace, trace.block_tokens)
    if limit is not None:
        window = window.first(min(limit, window.n_requests))
    exact = curve_of(window, Definition.D3).at(HOST_SLOTS)
    if limit is None and recorded is not None and recorded.is_file():
        with recorded.open(newline="") as file:
            at = {int(line["capacity_blocks"]): int(line["lru_hit_blocks"]) for line in csv.DictReader(file)}
        if at.get(HOST_SLOTS, exact) != exact:
            raise InvariantBroken(f"{exact} pages by this pass, {at[HOST_SLOTS]} recorded", where=str(recorded))
    return exact


def _setup(options: argparse.Namespace) -> Setup:
    on_accelerator = options.device != "cpu"
    backend = options.backend or ("strided" if on_accelerator else "cpu")
    return Setup(
        options.device,
        None if backend == "auto" else Backend(backend),
        Verify.parse(options.verify),
        QUICK_REQUESTS if options.quick else None,
    )


def _comparing(setup: Setup) -> str:
    where = "on the device" if setup.on_accelerator else "by the processor"
    which = {0: "no restored page", 1: "every restored page"}.get(
        setup.verify.every, f"one restored page in {setup.verify.every}"
    )
    return f"{which} compared byte for byte {where}"


def _what(replay: Replay) -> str:
    memory = replay.host_pool.report if replay.host_pool is not None else None
    registered = memory.registered_with if memory is not None else None
    page_kib = replay.config.geometry.page_bytes >> 10
    return (
        f"{page_kib} KiB a page, L1 on {replay.device_pool.device} ({replay.device_slots} slots), host pool "
        f"{f'registered by {registered}' if registered else 'not registered'}, backend {replay.backend_name}"
    )


def _operands(replay: Replay) -> dict[str, Any]:
    memory = replay.host_pool.report if replay.host_pool is not None else None
    return {
        "geometry": asdict(replay.config.geometry) | {"kind": replay.config.geometry.kind.value},
        "device": str(replay.device_pool.device),
        "device_slots": replay.device_slots,
        "host_slots": HOST_SLOTS,
        "backend": replay.backend_name,
        "backend_reason": replay.backend_reason,
        "notes": replay.transfer_notes(),
        "host_memory": None
        if memory is None
        else {
            "kind": memory.kind,
            "n_bytes": memory.n_bytes,
            "huge_share": memory.huge_share,
            "registered_with": memory.registered_with,
            "registered_bytes": memory.registered_bytes,
        },
    }


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu by default; cuda, or cuda:1")
    backends = ["auto", *(backend.value for backend in Backend)]
    parser.add_argument("--backend", choices=backends, help="strided on an accelerator, else cpu; auto measures")
    parser.add_argument("--verify", default="all", metavar="WHICH", help="all by default; sample:N or off")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="another copy of the conversation trace")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="3 by default")


if __name__ == "__main__":
    try:
        main()
    except HicacheError as error:
        raise SystemExit(f"bench_replay: {error}" + (f"\n  -> {error.hint}" if error.hint else "")) from error
