"""What other orders hit: first in first out below, the future known above, the runtime's own policies between."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path as FilePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lru_model import BLOCK, Path, paths, traced
from shared_data import shared_path
from small_traces import conversations, write_trace

from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.runtime.write_policy import WritePolicy
from hicachectl.tuning.sizing.confidence import jackknife_of
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.extents import runs_of
from hicachectl.tuning.sizing.fifo import fifo_hits
from hicachectl.tuning.sizing.opt import opt_hits
from hicachectl.tuning.sizing.sampling import WIDENED, sample
from hicachectl.tuning.sizing.simulate import Policy, policies_to_compare, simulate
from hicachectl.tuning.sizing.window import Definition, window_of

D1, D2 = Definition.D1, Definition.D2


def weights(ids: Sequence[int], last: int) -> list[int]:
    return [BLOCK] * (len(ids) - 1) + [last] if ids else []


def fifo_model(requests: list[Path], capacity: int, first: int) -> tuple[int, int]:
    """A list of blocks, the oldest in front; new ones enter from a request's tail to its head."""
    queue: list[int] = []
    blocks = tokens = 0
    for q, (ids, last) in enumerate(requests):
        n = next((n for n, one in enumerate(ids) if one not in queue), len(ids))
        if q >= first:
            blocks, tokens = blocks + n, tokens + sum(weights(ids, last)[:n])
        queue += [one for one in reversed(ids) if one not in queue]
        queue = queue[max(0, len(queue) - capacity) :]
    return blocks, tokens


def future_model(requests: list[Path], capacity: int, first: int) -> tuple[int, int]:
    """After each request keep the blocks whose next use is nearest, of equal ones the shallowest."""
    kept: set[int] = set()
    blocks = tokens = 0
    for q, (ids, last) in enumerate(requests):
        n = next((n for n, one in enumerate(ids) if one not in kept), len(ids))
        if q >= first:
            blocks, tokens = blocks + n, tokens + sum(weights(ids, last)[:n])
        rank = {}
        for one in kept | set(ids):
            rank[one] = next(
                ((r, requests[r][0].index(one)) for r in range(q + 1, len(requests)) if one in requests[r][0]),
                (len(requests), 0),
            )
        kept = set(sorted((one for one in rank if rank[one][0] < len(requests)), key=rank.__getitem__)[:capacity])
    return blocks, tokens


@settings(max_examples=120, deadline=None)
@given(paths(), st.integers(0, 12))
def test_fifo_and_the_bound_equal_their_plain_models_and_the_curve_stays_below_the_bound(
    requests: list[Path], capacity: int
) -> None:
    window = window_of(traced(requests), BLOCK)
    runs = runs_of(window)
    for first in (0, len(requests) // 2):
        fifo = fifo_hits(window, capacity, D1, first=first), fifo_hits(window, capacity, D2, first=first)
        assert fifo == fifo_model(requests, capacity, first)
        bound = opt_hits(runs, window, capacity, D1, first=first), opt_hits(runs, window, capacity, D2, first=first)
        assert bound == future_model(requests, capacity, first)
    assert curve_of(window, runs=runs).at(capacity) <= opt_hits(runs, window, capacity)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "expected", "full"),
    [
        ("mooncake-fast25/conversation_trace.jsonl.gz", "mooncake_conversation_all_blocks.csv", False),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", "mooncake_synthetic_full_blocks.csv", True),
        ("kv-cache-tester/sessions_first100.jsonl.xz", "agent100_gap60.csv", False),
    ],
)
def test_the_recorded_traces_give_the_recorded_fifo_and_bound(trace: str, expected: str, full: bool) -> None:
    opened = open_trace(shared_path(f"traces/{trace}"))
    window = window_of(opened, opened.block_tokens)
    window = window.full_blocks() if full else window
    runs = runs_of(window)
    with shared_path(f"traces/expected/{expected}").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows[:: 4 if "agent" in expected else 1]:
        capacity = int(row["capacity_blocks"])
        for name, definition in (("blocks", D1), ("tokens", D2)):
            assert fifo_hits(window, capacity, definition) == int(row[f"fifo_hit_{name}"])
            assert opt_hits(runs, window, capacity, definition) == int(row[f"opt_hit_{name}"])


@settings(max_examples=60, deadline=None)
@given(paths(), st.sampled_from(list(Definition)), st.booleans())
def test_a_sample_of_everything_is_the_exact_curve(requests: list[Path], definition: Definition, warm: bool) -> None:
    first = len(requests) // 2 if warm else 0
    exact = curve_of(window_of(traced(requests), BLOCK), definition, first=first)
    sampled = sample(traced(requests), BLOCK, 1, definition, first=first).curve
    assert sampled.total == exact.total
    assert [sampled.at(c) for c in range(60)] == [exact.at(c) for c in range(60)]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "worst"),
    [("mooncake-fast25/conversation_trace.jsonl.gz", 1.0), ("kv-cache-tester/sessions_first100.jsonl.xz", 1.0)],
)
def test_one_block_in_ten_with_hot_ones_kept_is_within_a_point(trace: str, worst: float) -> None:
    opened = open_trace(shared_path(f"traces/{trace}"))
    requests = list(opened)
    exact = curve_of(window_of(requests, opened.block_tokens))
    sampled = sample(requests, opened.block_tokens, 10).curve
    for capacity in (2_000, 8_000, 16_000, 32_000, 64_000, 200_000):
        assert abs(100 * sampled.rate(capacity) - 100 * exact.rate(capacity)) < worst


@pytest.mark.shared
def test_the_band_of_a_sample_is_that_of_the_whole_widened() -> None:
    opened = open_trace(shared_path("traces/kv-cache-tester/sessions_first100.jsonl.xz"))
    requests = list(opened)
    exact = jackknife_of(window_of(requests, opened.block_tokens), D1)
    band = sample(requests, opened.block_tokens, 10).band
    assert band is not None
    for capacity in (8_000, 16_000, 32_000, 64_000):
        assert 0.8 < band.rate_error(capacity) / (WIDENED * exact.rate_error(capacity)) < 1.25
    assert 0.6 < band.plateau_error(1.0) / (WIDENED * exact.plateau_error(1.0)) < 1.5


def test_sessions_that_are_all_alike_have_no_band_and_few_have_none_with_the_reason() -> None:
    alike = [((10 * s, 10 * s + 1), BLOCK) for _ in range(3) for s in range(60)]
    found = sample(traced(alike), BLOCK, 1)
    assert found.band is not None
    assert [found.band.rate_error(c) for c in (None, 110, 120)] == [pytest.approx(0, abs=1e-12)] * 3
    assert found.band.plateau_error(1.0) == pytest.approx(0, abs=1e-9)
    mixed = sample(traced([*alike, *[((5_000 + n,), BLOCK) for n in range(90)]]), BLOCK, 1)
    assert mixed.band is not None
    assert mixed.band.rate_error() > 0.005
    few = sample(traced(alike[:3]), BLOCK, 1)
    assert (few.band, few.reason) == (None, "not every tenth has a session: no interval")


def test_the_runtime_simulated_with_lru_hits_as_the_curve_says_and_a_lazy_policy_copies_less(
    tmp_path: FilePath,
) -> None:
    rows = [*conversations(6, 4, 2), *conversations(3, 4, 4)]
    trace = open_trace(write_trace(tmp_path / "t.jsonl", rows))
    curve = curve_of(window_of(trace, 512), Definition.D3)
    for host_pages in (4, 11, 12, 20, 40):
        found = simulate(trace, Policy(), page_tokens=512, device_pages=4, host_pages=host_pages)
        assert found.device_hit_pages + found.host_hit_pages == curve.at(host_pages)
        assert found.total_pages == curve.total
    once = open_trace(write_trace(tmp_path / "once.jsonl", conversations(6, 4, 1)))
    eager, lazy = (
        simulate(once, Policy(Eviction.LFU, policy, ghost_pages=64), page_tokens=512, device_pages=4, host_pages=40)
        for policy in (WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE)
    )
    assert (eager.backed_up_pages, lazy.backed_up_pages) == (24, 0)
    assert str(lazy.policy) == "lfu, write_through_selective at 2 hits, ghost 64"


def test_a_ghost_window_as_long_as_the_way_back_copies_what_returns_and_a_shorter_one_does_not(
    tmp_path: FilePath,
) -> None:
    # 6 chats of 4 pages in turn: between two turns of one 20 other pages pass through an L1 of 4
    trace = open_trace(write_trace(tmp_path / "turns.jsonl", conversations(6, 4, 3)))

    def found(ghost_pages: int) -> tuple[int, int]:
        policy = Policy(write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, ghost_pages=ghost_pages)
        one = simulate(trace, policy, page_tokens=512, device_pages=4, host_pages=24)
        return one.hit_pages, one.backed_up_pages

    assert found(0) == found(8) == (0, 0)
    assert found(24) == (24, 24)
    through = simulate(trace, Policy(), page_tokens=512, device_pages=4, host_pages=24)
    assert (through.hit_pages, through.backed_up_pages) == (48, 24)


def test_the_curves_policy_is_compared_with_every_order_and_the_configured_one() -> None:
    compared = policies_to_compare(Policy(), device_pages=4, host_pages=24)
    assert compared[0] == Policy()
    assert {policy.eviction for policy in compared} == {Eviction.LRU, Eviction.FIFO, Eviction.LFU, Eviction.SLRU}
    assert {policy.write_policy for policy in compared} == set(WritePolicy)
    assert {policy.ghost_pages for policy in compared} == {0, 4, 24}
    own = Policy(Eviction.PRIORITY, WritePolicy.WRITE_BACK)
    assert policies_to_compare(own, device_pages=4, host_pages=24) == (*compared, own)
    assert len(set(policies_to_compare(Policy(), device_pages=24, host_pages=24))) == 7


def test_orders_of_eviction_hit_what_a_cache_stepped_by_the_same_order_hits(tmp_path: FilePath) -> None:
    rows = [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [10, 11, 12, 13],
        [20, 21, 22, 23],
        [30, 31, 32, 33],
        [0, 1, 2, 3],
        [10, 11, 12, 13],
    ]
    trace = open_trace(write_trace(tmp_path / "orders.jsonl", rows))

    def hits(eviction: Eviction) -> int:
        return simulate(trace, Policy(eviction), page_tokens=512, device_pages=4, host_pages=8).hit_pages

    # LRU keeps the last two chats, LFU the one that came back: by hand
    assert hits(Eviction.LRU) == 8
    assert hits(Eviction.LFU) == 12
