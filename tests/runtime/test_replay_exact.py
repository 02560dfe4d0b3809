"""Replays of public traces hit as often as the exact leaf-first LRU curve says, to the page, and survive a kill."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shared_data import shared_path

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import Replay, ReplayConfig, Stop
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.runtime.tiers import Tier

pytestmark = pytest.mark.shared

SLOW = pytest.mark.slow
RECOMPUTE = RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)


def config_of(host_slots: int, **more: object) -> ReplayConfig:
    cache = CacheConfig(restore="always", strict=True, seen_keys=1 << 18)
    return ReplayConfig(
        preset("tiny-4k", 512), cache, Layout.PAGE_FIRST_DIRECT, Backend.CPU, None, host_slots, CostModel(RECOMPUTE),
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def expected_hits(name: str, capacity: int) -> tuple[int, int]:
    """Return hit pages and all pages of the exact curve at `capacity` full blocks."""
    with shared_path(f"traces/expected/mooncake_{name}_full_blocks.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if int(row["capacity_blocks"]) == capacity)
    return int(row["lru_hit_blocks"]), int(row["total_blocks"])


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("conversation", 500),
        ("conversation", 2000),
        pytest.param("conversation", 8000, marks=SLOW),
        pytest.param("conversation", 16000, marks=SLOW),
        ("synthetic", 500),
        ("synthetic", 2000),
        ("synthetic", 8000),
        ("synthetic", 16000),
    ],
)
def test_pages_hit_equal_the_exact_lru_curve_to_the_integer(name: str, capacity: int) -> None:
    trace = open_trace(shared_path(f"traces/mooncake-fast25/{name}_trace.jsonl.gz"))
    want_hits, want_pages = expected_hits(name, capacity)
    with Replay(trace, config_of(capacity)) as replay:
        assert replay.run() is Stop.COMPLETE
        counters, recorder = replay.cache.counters, replay.recorder
        assert counters.pages_total == want_pages
        assert sum(counters.hit_pages) == want_hits
        assert recorder.pages_mismatched == 0
        assert recorder.pages_verified == sum(counters.restored_pages) > 0
        missed = sum(counters.missed_tokens.values())
        assert missed + counters.used_pages * 512 == counters.input_tokens
        assert not counters.failures


CHILD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from test_replay_exact import config_of
from hicachectl.runtime.replay.driver import Replay
from hicachectl.runtime.replay.workload import open_trace
config = config_of(int(sys.argv[3]), storage_path=Path(sys.argv[2]), storage_bytes=4 << 30)
def tell(recorder):
    if recorder.n_requests == 400:
        print("400 requests", flush=True)
with Replay(open_trace(Path(sys.argv[1])), config) as replay:
    replay.run(tell)
"""


def test_a_replay_killed_in_the_middle_goes_on_from_what_storage_kept_without_a_wrong_byte(tmp_path: Path) -> None:
    trace, folder = shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz"), tmp_path / "l3"
    here = Path(__file__).parent
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(trace), str(folder), "500", str(here), str(here.parent)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "400 requests\n"
    finally:
        child.kill()
        _, _ = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    config = config_of(500, storage_path=folder, storage_bytes=4 << 30, limit=200)
    with Replay(open_trace(trace), config) as replay:
        assert replay.storage is not None
        assert replay.storage.stats().n_objects > 100, "the folder was found as the killed process left it"
        replay.run()
        counters, recorder = replay.cache.counters, replay.recorder
        assert counters.hit_pages[Tier.STORAGE] > 100
        assert counters.restored_pages[Tier.STORAGE] > 100
        assert recorder.pages_verified == sum(counters.restored_pages)
        assert recorder.pages_mismatched == 0
        replay.storage.check()
