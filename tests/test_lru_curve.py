from __future__ import annotations

import csv

import numpy as np
import pytest
from lru_curve import lru_curve
from shared_data import shared_path

from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.workload import open_trace


def test_the_curve_of_four_small_requests_is_the_one_counted_by_hand() -> None:
    paths = ([1, 2, 3], [1, 2, 4], [5], [1, 2, 3])
    requests = [TraceRequest(q, float(q), 3 * len(ids), 1, np.array(ids, np.int64)) for q, ids in enumerate(paths)]
    curve = lru_curve(requests, 3)
    assert [curve.hits(c)[0] for c in range(7)] == [0, 1, 3, 4, 4, 5, 5]
    assert curve.hits(5)[1] == 15
    assert (curve.total_blocks, curve.distinct_blocks, curve.new_blocks) == (10, 5, [3, 1, 1, 0])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "expected", "full"),
    [
        ("mooncake-fast25/conversation_trace.jsonl.gz", "mooncake_conversation_all_blocks.csv", False),
        ("mooncake-fast25/conversation_trace.jsonl.gz", "mooncake_conversation_full_blocks.csv", True),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", "mooncake_synthetic_all_blocks.csv", False),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", "mooncake_synthetic_full_blocks.csv", True),
        ("kv-cache-tester/sessions_first100.jsonl.xz", "agent100_gap60.csv", False),
    ],
)
def test_the_recorded_traces_give_the_recorded_curves(trace: str, expected: str, full: bool) -> None:
    opened = open_trace(shared_path(f"traces/{trace}"))
    curve = lru_curve(opened, opened.block_tokens, full_blocks_only=full)
    with shared_path(f"traces/expected/{expected}").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 10
    for row in rows:
        assert curve.hits(int(row["capacity_blocks"])) == (int(row["lru_hit_blocks"]), int(row["lru_hit_tokens"]))
        assert (curve.total_blocks, curve.total_tokens) == (int(row["total_blocks"]), int(row["total_tokens"]))
