from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from lru_model import BLOCK, Path, hits_of, paths, traced
from shared_data import shared_path

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.curve import HitCurve, curve_of, curve_of_stream
from hicachectl.tuning.sizing.extents import runs_in_arrays, runs_in_lists
from hicachectl.tuning.sizing.window import Definition, window_of

D1, D2, D3 = Definition.D1, Definition.D2, Definition.D3
GOLDEN: list[Path] = [((1, 2, 3), 4), ((1, 2, 4), 4), ((5,), 4), ((1, 2, 3), 4)]


def values(curve: HitCurve, capacities: range) -> list[int]:
    return [curve.at(capacity) for capacity in capacities]


def test_the_curve_of_four_small_requests_is_the_one_counted_by_hand() -> None:
    curve = curve_of(window_of(traced(GOLDEN), BLOCK))
    assert values(curve, range(7)) == [0, 1, 3, 4, 4, 5, 5]
    assert (curve.total, curve.n_distinct, curve.largest_distance) == (10, 5, 5)
    assert curve.rate() == 0.5
    assert curve.smallest_within(10.0) == 3


@settings(max_examples=200, deadline=None)
@given(paths())
def test_one_pass_equals_stepping_a_cache_that_drops_the_oldest_leaf_at_every_capacity(requests: list[Path]) -> None:
    window = window_of(traced(requests), BLOCK)
    capacities = range(window.n_distinct + 2)
    first = len(requests) // 2
    whole = [(ids if last == BLOCK else ids[:-1], BLOCK if len(ids) > (last != BLOCK) else 0) for ids, last in requests]
    stepped = [hits_of(requests, capacity) for capacity in capacities]
    stepped_whole = [hits_of(whole, capacity) for capacity in capacities]
    for start in (0, first):
        assert values(curve_of(window, D1, first=start), capacities) == [
            sum(len(hit) for hit in one[start:]) for one in stepped
        ]
        assert values(curve_of(window, D2, first=start), capacities) == [
            sum(sum(hit) for hit in one[start:]) for one in stepped
        ]
        assert values(curve_of(window, D3, first=start), capacities) == [
            sum(len(hit) for hit in one[start:]) for one in stepped_whole
        ]
    assert curve_of(window, D1).total == sum(len(ids) for ids, _ in requests)
    assert curve_of(window, D2).total == sum(BLOCK * (len(ids) - 1) + last for ids, last in requests if ids)
    assert curve_of(window, D3).total == sum(len(ids) for ids, _ in whole)


@settings(max_examples=100, deadline=None)
@given(paths())
def test_lists_arrays_and_a_stream_find_the_same_runs(requests: list[Path]) -> None:
    window = window_of(traced(requests), BLOCK)
    for one in (window, window.full_blocks()):
        lists, arrays = runs_in_lists(one), runs_in_arrays(one)
        for name in ("distance", "length", "short", "request", "start", "owner"):
            assert getattr(lists, name).tolist() == getattr(arrays, name).tolist()
    for definition in Definition:
        for first in (0, len(requests) // 2):
            kept = curve_of(window, definition, first=first)
            streamed = curve_of_stream(traced(requests), BLOCK, definition, first=first)
            assert streamed.hits.tolist() == kept.hits.tolist()
            assert streamed.total == kept.total


def test_a_curve_without_a_hit_is_flat() -> None:
    curve = curve_of(window_of(traced([((1, 2), 4), ((3,), 1)]), BLOCK))
    assert values(curve, range(4)) == [0, 0, 0, 0]
    assert (curve.rate(), curve.largest_distance, curve.smallest_within(1.0)) == (0.0, 0, 0)


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([[1, 2], [3, 2]], "block 1 of request 1"),
        ([[1, 2], [2]], "block 0 of request 1"),
        ([[1, 2, 1]], "block 2 of request 0"),
    ],
)
@pytest.mark.parametrize("scope", [0, 3])
def test_ids_that_do_not_name_prefixes_are_refused_with_their_place(
    rows: list[list[int]], where: str, scope: int
) -> None:
    requests = [
        TraceRequest(q, 0.0, BLOCK * len(ids), 1, np.array(ids, np.int64), scope=scope) for q, ids in enumerate(rows)
    ]
    with pytest.raises(UsageError, match=where):
        window_of(requests, BLOCK)
    with pytest.raises(UsageError, match=where):
        curve_of_stream(requests, BLOCK)


def test_a_trace_without_requests_is_refused() -> None:
    for read in (window_of, curve_of_stream):
        with pytest.raises(UsageError, match="no requests"):
            read([], BLOCK)


def test_an_id_means_something_else_in_another_scope_and_large_ids_are_numbers_like_others() -> None:
    def request(scope: int, *ids: int) -> TraceRequest:
        return TraceRequest(0, 0.0, BLOCK * len(ids), 1, np.array(ids, np.int64), scope=scope)

    scoped = window_of([request(1, 0, 1), request(2, 1, 0), request(1, 0, 1)], BLOCK)
    assert (scoped.n_distinct, curve_of(scoped).at(4)) == (4, 2)
    large = 1 << 61
    sparse = window_of([request(0, 7, large), request(0, 7, large, large + 1), request(0, 7)], BLOCK)
    assert (sparse.n_distinct, curve_of(sparse).at(3)) == (3, 3)


def test_a_session_is_the_named_one_else_the_block_after_a_shared_first_one() -> None:
    named = [TraceRequest(q, 0.0, 4, 1, np.array([q], np.int64), session=name) for q, name in enumerate("aba")]
    assert window_of(named, BLOCK).session.tolist() == [0, 1, 0]
    shared = window_of(traced([((0, 1, 2), 4), ((0, 3), 4), ((0, 1), 4), ((0, 3), 4)]), BLOCK).session
    assert shared[0] == shared[2] != shared[1] == shared[3]
    plain = window_of(traced([((0, 1), 4), ((3, 4), 4), ((0, 5), 4), ((6,), 4)]), BLOCK).session
    assert plain[0] == plain[2]
    assert len(set(plain.tolist())) == 3


RECORDED = [
    ("mooncake-fast25/conversation_trace.jsonl.gz", "mooncake_conversation", 52_882, 50_092),
    ("mooncake-fast25/synthetic_trace.jsonl.gz", "mooncake_synthetic", 32_887, 30_918),
    ("kv-cache-tester/sessions_first100.jsonl.xz", "agent100", 109_677, 109_677),
]


@pytest.mark.shared
@pytest.mark.parametrize(("trace", "name", "d1", "d3"), RECORDED)
def test_the_recorded_traces_give_the_recorded_curves_and_plateaus(trace: str, name: str, d1: int, d3: int) -> None:
    opened = open_trace(shared_path(f"traces/{trace}"))
    window = window_of(opened, opened.block_tokens)
    agent = name == "agent100"
    curves = {definition: curve_of(window, definition) for definition in Definition}
    for suffix, blocks, tokens in (("all_blocks", D1, D2), ("full_blocks", D3, None)):
        file_name = f"{name}_gap60.csv" if agent else f"{name}_{suffix}.csv"
        with shared_path(f"traces/expected/{file_name}").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) > 10
        for row in rows:
            capacity = int(row["capacity_blocks"])
            assert curves[blocks].at(capacity) == int(row["lru_hit_blocks"])
            assert curves[blocks].total == int(row["total_blocks"])
            if tokens is not None:
                assert curves[tokens].at(capacity) == int(row["lru_hit_tokens"])
                assert curves[tokens].total == int(row["total_tokens"])
    assert (curves[D1].smallest_within(1.0), curves[D3].smallest_within(1.0)) == (d1, d3)


@pytest.mark.shared
def test_the_warm_half_counts_what_the_first_half_left_behind() -> None:
    opened = open_trace(shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz"))
    window = window_of(opened, opened.block_tokens)
    warm = curve_of(window, D1, first=window.n_requests // 2)
    assert round(100 * warm.rate(), 2) == 39.00
    assert round(100 * warm.rate(32_000), 2) == 34.49
    assert round(100 * curve_of(window, D2, first=window.n_requests // 2).rate(), 2) == 39.81
