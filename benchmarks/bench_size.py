"""Sizing the host pool on real pools: half the hit-rate plateau, at it, and twice as much, each made, registered and replayed through.

Run: python benchmarks/bench_size.py [--device cpu|cuda] [--geometry NAME] [--json FILE] [--quick] [--trace FILE] [--commit SHA]
     [--pool-kind KIND] [--time-budget S]

On an accelerator: --device cuda --geometry tiny-512k (twice the plateau of the conversation trace is 49 GiB of host memory).

What `hicachectl tune size` measures, by the same library calls; needs torch and numpy alone. `--device cuda` keeps L1 in device
memory and registers the pools. Refuses to report steps that did not hit what the exact curve says.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from _accelerator import accelerator
from _bench import Row, arguments, report

from hicachectl.errors import HicacheError
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.keytable import table_bytes
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.replay.driver import ComputeSource, ReplayConfig
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.request import longest_input_tokens
from hicachectl.runtime.replay.workload import TraceFile, open_trace
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.budget import Budget, budget_of
from hicachectl.tuning.sizing.pool_costs import PoolCosts, pool_costs
from hicachectl.tuning.sizing.pool_trials import PoolTrials
from hicachectl.tuning.sizing.prediction import Prediction, assumption_of, predict
from hicachectl.tuning.sizing.restores import tenths
from hicachectl.tuning.sizing.size_journal import SizeJournal
from hicachectl.tuning.sizing.stages import AGAIN, measure_stages
from hicachectl.tuning.sizing.steps import Climbed, Step, climb
from hicachectl.tuning.sizing.trial import Trial
from hicachectl.tuning.sizing.waterfall import Waterfall, waterfall
from hicachectl.units import format_bytes

METHOD = (
    "the Mooncake conversation trace (FAST'25), pages of 512 tokens, device slots for the longest request, write_through, --restore "
    "always, strict order, page_first_direct, every restored page compared; sizes from the exact curve of full pages (D3), from small "
    "to large, each pool populated, looked at, registered where there is a device, replayed through and given back; the plateau's size "
    "once more after the largest one; then the smallest size with small pageable memory, a copy a chunk and with the steps' backend; "
    "prefill is modelled (Qwen3-8B on one H200), restores are of pages of this geometry"
)
TRACE = "traces/mooncake-fast25/conversation_trace.jsonl.gz"
PAGE_TOKENS, QUICK_REQUESTS, SEEN_KEYS = 512, 1500, 1 << 20
PREFILL = RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)  # Qwen3-8B on one H200: docs/facts.md#h200-prefill
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Found:
    """Everything one sizing found out."""

    prediction: Prediction
    budget: Budget
    climbed: Climbed
    stages: dict[str, Trial | str]
    costs: PoolCosts
    chain: Waterfall
    wall_s: float

    @property
    def pools(self) -> list[Trial]:
        """The steps with a host pool, the smallest first."""
        return [step.trial for step in self.climbed.steps if step.trial is not None and step.pages]


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0], _flags)
    shared = Path(os.environ.get("HICACHECTL_SHARED") or ROOT.parent / "shared")
    path = options.trace or shared / TRACE
    if not path.is_file():
        print(f"bench_size: skipped, {path} is not there (give --trace FILE or set HICACHECTL_SHARED)", file=sys.stderr)
        return
    try:
        with tempfile.TemporaryDirectory() as state:
            found = sized(open_trace(path), options, Path(state))
    except HicacheError as error:
        raise SystemExit(f"bench_size: {error}") from error
    _require_equal(found.climbed)
    more = {**accelerator(torch.device(options.device)), "found": document(found)}
    report("bench_size" if options.device == "cpu" else "bench_size_device", METHOD, rows_of(found), options, more)


def sized(trace: TraceFile, options: argparse.Namespace, state: Path) -> Found:
    """Predict, try the sizes on real pools, and make the replays beside them. `state` is a folder for the record."""
    began, info, root = monotonic(), trace.info(), HostRoot("/")
    geometry = preset(options.geometry, PAGE_TOKENS)
    limit = QUICK_REQUESTS if options.quick else None
    base = ReplayConfig(
        geometry, CacheConfig(restore="always", strict=True, seen_keys=SEEN_KEYS), Layout.PAGE_FIRST_DIRECT,
        None if options.backend is None else Backend.parse(options.backend), None, 0, CostModel(PREFILL), limit=limit,
        compute=ComputeSource(preset("qwen3-8b", PAGE_TOKENS), "one H200"), device=options.device,
        host_memory=MappingSpec(kind=Kind(options.pool_kind), path="/dev/shm" if options.pool_kind == "tmpfs" else None),
    )  # fmt: skip
    longest = max(1, longest_input_tokens(trace, info, limit) // PAGE_TOKENS)
    taken = table_bytes(SEEN_KEYS) + (longest * geometry.page_bytes if options.device == "cpu" else 0)
    budget = budget_of(read_memory(root), taken_bytes=taken)
    found = predict(trace, info, base, budget, device_pages=longest, longest_pages=longest)
    print(f"bench_size: {found.choice.reason}; steps {found.sizes}", file=sys.stderr)
    journal = SizeJournal.begin(state, {})
    trials = PoolTrials(trace, info, base, root=root, progress=_progress)
    climbed = climb(
        (0, *found.sizes), found.choice.host_pages, try_size=trials.step, predict=found.hits, total_pages=found.curve.total,
        assume=lambda pages: assumption_of(base, longest, pages), journal=journal, time_budget_s=options.time_budget, tell=_tell,
    )  # fmt: skip
    left = options.time_budget - (monotonic() - began)
    stages = measure_stages(base, climbed, try_stage=trials.stage, journal=journal, time_budget_s=left)
    made = [step.trial for step in climbed.steps if step.trial is not None]
    costs = pool_costs(made, info.span_s, stages.get(AGAIN, "not made"))
    return Found(found, budget, climbed, stages, costs, waterfall(climbed, stages), monotonic() - began)


def rows_of(found: Found) -> list[Row]:
    """One row a number. Pure."""
    rows = [Row("the whole sizing", "s", (found.wall_s,), None, f"ended: {found.climbed.ended.value}")]
    for trial in found.pools:
        rows += _pool_rows(trial)
    for pair in (*found.costs.restores, *([found.costs.again] if found.costs.again else [])):
        name = "the same again" if pair.small_pages == pair.large_pages else f"{pair.large_pages} pages"
        if pair.ratio is None or pair.noise is None:
            continue
        verdict = ("slower" if pair.ratio > 1 else "faster") if pair.differs else "not to be told apart"
        if pair.differs is None:
            verdict = f"not known, {pair.reason}"
        note = f"{pair.ratio:.3f} +- {pair.noise:.3f} over {pair.n_requests:,} equal restores: {verdict}"
        rows.append(Row(f"restores, {name} against {pair.small_pages}", "times", pair.by_tenth, None, note))
    rows += [
        Row(f"to the first token: {row.stage}, {row.host_pages} pages", "ms", (1e3 * row.ttft_modelled_mean_s,), None,
            f"hit {100 * row.hit_rate:.2f} %, {100 * row.relative:+.2f} %")
        for row in found.chain.rows
    ]  # fmt: skip
    return rows


def _pool_rows(trial: Trial) -> list[Row]:
    made = trial.made
    assert made is not None
    name = f"{trial.host_pages} pages, {format_bytes(trial.n_bytes)}"
    huge = "huge pages not known" if made.huge_share is None else f"{100 * made.huge_share:.0f} % huge pages"
    resident = trial.memory.resident_bytes if trial.memory is not None else None
    there = "not read" if resident is None else f"{100 * resident / trial.n_bytes:.1f} % resident"
    fallbacks = ", ".join(f"{key} {value}" for key, value in trial.counters.items() if key != "thp_fault_alloc")
    rows = [Row(f"{name}: populate", "s", (trial.fill_s,), None, f"{made.kind}, {huge}, {there}; {fallbacks}")]
    if trial.register_s is not None:
        rows.append(Row(f"{name}: register", "s", (trial.register_s,), None, f"{made.n_registrations} chunks, {made.registered_with}"))  # fmt: skip
    note = f"hit {100 * trial.rate:.2f} %, {trial.verified_pages:,} pages compared, backend {trial.backend}"
    rows.append(Row(f"{name}: replay", "s", (trial.replay_s,), None, note))
    if trial.restore_p50_s is not None and trial.restore_p99_s is not None:
        each = tuple(1e6 * value for value in tenths(trial.restores))
        note = f"a request waits p50 {1e3 * trial.restore_p50_s:.3f} ms, p99 {1e3 * trial.restore_p99_s:.3f} ms"
        rows.append(Row(f"{name}: restore a page, by tenths of the window", "us", each, None, note))
    if trial.restore_bytes_per_s is not None:
        rows.append(Row(f"{name}: restore rate while copying", "GB/s", (trial.restore_bytes_per_s / 1e9,)))
    return rows


def document(found: Found) -> dict[str, Any]:
    """What the JSON file keeps beside the rows: prediction, budget, trials with how their memory was made, costs, chain. Pure."""
    prediction = found.prediction
    return {
        "choice": {**asdict(prediction.choice), "bound": prediction.choice.bound.value, "rule": prediction.choice.rule.value},
        "plateau_d1_pages": prediction.plateau_d1_pages,
        "budget": asdict(found.budget),
        "steps": [_step(step) for step in found.climbed.steps],
        "beside": {name: trial if isinstance(trial, str) else _trial(trial) for name, trial in found.stages.items()},
        "pool_costs": asdict(found.costs),
        "waterfall": asdict(found.chain),
        "ended": found.climbed.ended.value,
    }  # fmt: skip


def _step(step: Step) -> dict[str, Any]:
    return {
        "pages": step.pages, "predicted_hits": step.predicted_hits, "difference": step.difference, "reason": step.reason,
        "trial": None if step.trial is None else _trial(step.trial),
    }  # fmt: skip


def _trial(trial: Trial) -> dict[str, Any]:
    kept = asdict(trial)
    del kept["restores"]
    return kept


def _require_equal(climbed: Climbed) -> None:
    for step in climbed.steps:
        if step.trial is not None and step.exact and step.difference != 0:
            raise SystemExit(
                f"bench_size: {step.trial.hit_pages} pages hit with {step.pages}, the exact curve says {step.predicted_hits}"
            )


def _progress(recorder: Recorder) -> None:
    if recorder.n_requests % 2000 == 0:
        print(f"bench_size: {recorder.n_requests} requests", file=sys.stderr)


def _tell(step: Step) -> None:
    what = step.reason if step.trial is None else f"hit {step.trial.hit_pages} in {step.trial.replay_s:.1f} s"
    print(f"bench_size: {step.pages} pages {what}", file=sys.stderr)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help="another copy of the conversation trace")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or another torch device")
    parser.add_argument("--backend", metavar="NAME", help="copy backend; measured with the first pool by default")
    parser.add_argument("--geometry", default="tiny-4k", metavar="NAME", help="tiny-4k by default")
    parser.add_argument(
        "--pool-kind", default="anonymous", choices=[kind.value for kind in Kind], help="anonymous by default"
    )
    parser.add_argument(
        "--time-budget", type=float, default=420.0, metavar="S", help="no further replay after it (420 by default)"
    )


if __name__ == "__main__":
    main()
