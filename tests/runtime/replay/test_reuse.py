from __future__ import annotations

import csv
from collections import OrderedDict

import numpy as np
import pytest
from shared_data import shared_path

from hicachectl.runtime.keys import key64, page_keys
from hicachectl.runtime.replay.reuse import CurvePoint, ReuseDistances
from hicachectl.runtime.replay.tokens import TokenMaker
from hicachectl.runtime.replay.workload import open_trace

MINI = ([1, 2, 3], [1, 2, 4], [5], [1, 2, 3])


def counted(paths: object, bound: int = 1 << 20) -> ReuseDistances:
    reuse = ReuseDistances(bound)
    for path in paths:  # type: ignore[attr-defined]
        reuse.add(np.array(path, dtype=np.uint64))
    return reuse


def tree_paths(n: int, seed: int) -> list[list[int]]:
    """Random walks down a tree; a page's number names its whole path."""
    random = np.random.default_rng(seed)
    names: dict[tuple[int, ...], int] = {}
    paths = []
    for _ in range(n):
        steps = tuple(random.integers(0, 3, random.integers(0, 7)).tolist())
        paths.append([names.setdefault(steps[: i + 1], len(names) + 1) for i in range(len(steps))])
    return paths


def lru_hits(paths: list[list[int]], capacity: int) -> int:
    """Step by step: hits from the front, then touch tail to head, then evict the least recent."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for path in paths:
        for page in path:
            if page not in cache:
                break
            hits += 1
        for page in reversed(path):
            cache[page] = None
            cache.move_to_end(page)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def test_four_small_requests_have_the_distances_counted_by_hand() -> None:
    reuse = counted(MINI)
    assert [reuse.hit_pages(c) for c in range(8)] == [0, 1, 3, 4, 4, 5, 5, 5]
    histogram = reuse.histogram(device_slots=2, host_slots=4)
    assert (histogram.pages, histogram.first_touches) == (10, 5)
    assert histogram.bins_log2 == (1, 3, 1)  # {1} {2, 2, 3} {5}
    assert histogram.curve[0] == CurvePoint(1, 1)
    assert histogram.curve[-1].hit_pages == 5
    assert (histogram.hit_pages_device_slots, histogram.hit_pages_host_slots) == (3, 4)
    assert (histogram.hit_pages_double_host_slots, histogram.pages_for_all_hits) == (5, 5)
    assert not histogram.bound_reached


@pytest.mark.parametrize("seed", range(5))
def test_the_curve_equals_a_step_by_step_lru_at_every_size(seed: int) -> None:
    paths = tree_paths(300, seed)
    reuse = counted(paths)
    for capacity in (1, 2, 3, 7, 20, 50, 200, 1000):
        assert reuse.hit_pages(capacity) == lru_hits(paths, capacity), capacity


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bound", [1, 5, 40])
def test_forgetting_old_pages_keeps_every_answer_up_to_the_bound(seed: int, bound: int) -> None:
    paths = tree_paths(400, seed)
    bounded, free = counted(paths, bound), counted(paths)
    assert bounded.bound_reached
    assert [bounded.hit_pages(c) for c in range(bound + 1)] == [free.hit_pages(c) for c in range(bound + 1)]
    assert bounded.histogram(1, 1).first_touches == free.pages - free.hit_pages(bound)
    assert len(bounded._owner) <= bound + bound // 4 + 8


def test_the_bins_and_the_first_touches_are_all_pages() -> None:
    histogram = counted(tree_paths(500, 9)).histogram(10, 20)
    assert sum(histogram.bins_log2) + histogram.first_touches == histogram.pages
    assert histogram.curve[-1].hit_pages == sum(histogram.bins_log2)
    assert histogram.plateau_pages <= histogram.pages_for_all_hits


@pytest.mark.parametrize("paths", [[], [[]], [[1, 2, 3]], [[1], [2], [3]]])
def test_without_reuse_every_page_is_a_first_touch(paths: list[list[int]]) -> None:
    histogram = counted(paths).histogram(4, 8)
    assert histogram.first_touches == histogram.pages == sum(map(len, paths))
    assert (histogram.bins_log2, histogram.curve, histogram.pages_for_all_hits) == ((), (), 0)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "plateau", "largest"), [("conversation", 50_092, 147_881), ("synthetic", 30_918, 38_239)]
)
def test_a_recorded_trace_gives_the_recorded_curve(name: str, plateau: int, largest: int) -> None:
    trace = open_trace(shared_path(f"traces/mooncake-fast25/{name}_trace.jsonl.gz"))
    maker, reuse = TokenMaker(trace.info()), ReuseDistances()
    for request in trace:
        reuse.add(key64(page_keys(maker.tokens(request, request.input_tokens), 512)))
    with shared_path(f"traces/expected/mooncake_{name}_full_blocks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 10
    for row in rows:
        assert reuse.hit_pages(int(row["capacity_blocks"])) == int(row["lru_hit_blocks"])
        assert reuse.pages == int(row["total_blocks"])
    histogram = reuse.histogram(500, 2000)
    assert (histogram.plateau_pages, histogram.pages_for_all_hits) == (plateau, largest)
