from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from lru_curve import Curve, lru_curve

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.synthetic import CLASSES, synthetic
from hicachectl.runtime.replay.tokens import TokenMaker
from hicachectl.runtime.replay.trace1 import write_trace
from hicachectl.runtime.replay.workload import open_trace

# What the recorded traces show (Mooncake FAST'25 conversation; 100 kv-cache-tester sessions a minute apart), in their own
# number of requests: stack distance and reuse time p50 and p90, hit rate in percent at capacities (None: unlimited).
CONVERSATION = 12_031
AGENT100 = 5_571
SHAPES = [
    ("multi-turn", CONVERSATION, (8_295, 31_435), (114, 519),
     {1_000: 4.453, 8_000: 17.805, 16_000: 26.271, 32_000: 33.200, 64_000: 35.927}),
    # At 1,000 blocks ours is 6 points above the recorded 7.8: our agents share their system prompt, theirs do not.
    ("agent", AGENT100, (12_032, 38_388), (26, 149),
     {8_000: 36.758, 16_000: 57.284, 32_000: 81.086, 64_000: 92.093, None: 95.110}),
]  # fmt: skip


@cache
def made(name: str, n_requests: int | None = None) -> tuple[list[TraceRequest], Curve]:
    trace = synthetic(name, n_requests=n_requests)
    requests = list(trace)
    return requests, lru_curve(requests, trace.block_tokens)


def percentiles(values: list[int], *shares: int) -> list[float]:
    return [float(np.percentile(values, share)) for share in shares]


def within(got: list[float], want: list[float], tolerance: float) -> bool:
    return all(abs(g - w) <= tolerance * w for g, w in zip(got, want, strict=True))


def dispersion(requests: list[TraceRequest], window_s: float) -> float:
    """Variance over mean of the requests in windows; 1 for arrivals that know nothing of each other."""
    counts = np.bincount(np.array([request.time_s // window_s for request in requests], np.int64))
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize(("name", "n_requests", "distance", "reuse_s", "rates"), SHAPES)
def test_the_shape_of_the_recorded_trace_is_met(
    name: str,
    n_requests: int,
    distance: tuple[int, int],
    reuse_s: tuple[int, int],
    rates: dict[int | None, float],
) -> None:
    requests, curve = made(name, n_requests)
    assert len(requests) == n_requests
    assert within([curve.distance_percentile(share) for share in (0.5, 0.9)], list(distance), 0.2)
    assert within([curve.reuse_percentile(share) for share in (0.5, 0.9)], list(reuse_s), 0.2)
    for capacity, rate in rates.items():
        assert abs(curve.rate(capacity) - rate) <= 2, f"at {capacity}: {curve.rate(capacity)}, not {rate}"


def test_multi_turn_is_mostly_first_turns_and_s_shaped() -> None:
    requests, curve = made("multi-turn", CONVERSATION)
    only_first = sum(len(r.blocks) - new == 1 for r, new in zip(requests, curve.new_blocks, strict=True))
    assert 0.55 < only_first / len(requests) < 0.68
    assert 34 < curve.rate() < 40
    assert 0.25 < curve.plateau() / curve.distinct_blocks < 0.35
    gains = [curve.rate(2 * c) - curve.rate(c) for c in (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)]
    per_block = [
        gain / c for gain, c in zip(gains, (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000), strict=True)
    ]
    assert max(per_block[2:5]) > 2 * per_block[0], "a desert before the session reuse"
    assert per_block[-1] < 0.2 * max(per_block)
    assert within(percentiles([r.input_tokens for r in requests], 10, 50, 90, 99), [964, 6_909, 27_367, 85_400], 0.1)
    assert within(percentiles([r.output_tokens for r in requests], 10, 50, 90, 99), [24, 350, 597, 1_118], 0.1)


def test_agents_grow_by_small_steps_behind_a_shared_prompt() -> None:
    requests, curve = made("agent", AGENT100)
    assert 94 < curve.rate() < 97
    first_of = {request.session: request.blocks for request in reversed(requests)}
    shared = [int((blocks[:250] == np.arange(len(blocks[:250]))).sum()) * 64 for blocks in first_of.values()]
    assert min(shared) >= 12_000 - 64
    assert max(shared) <= 16_000
    grown = []
    last: dict[str | None, int] = {}
    for request in requests:
        before = last.get(request.session)
        if before is not None and request.input_tokens > before:
            grown.append(request.input_tokens - before)
        last[request.session] = request.input_tokens
    assert 700 < float(np.median(grown)) < 1_000
    sizes = [sum(1 for r in requests if r.session == session) for session in first_of]
    assert within(percentiles(sizes, 10, 50, 90), [6, 26.5, 131], 0.35)
    assert within(percentiles([r.input_tokens for r in requests], 10, 50, 90), [44_679, 108_248, 216_295], 0.2)


def test_a_tiny_cache_keeps_most_of_what_shared_system_prompts_give() -> None:
    _, curve = made("shared-system")
    assert curve.rate(curve.distinct_blocks // 100) >= 0.6 * curve.rate()


def test_one_shot_gives_nothing_beyond_the_system_prompt() -> None:
    requests, curve = made("one-shot")
    system = len(requests) - 1
    assert 100 * (int(curve.hit_blocks[-1]) - system) / curve.total_blocks < 1
    assert curve.plateau() <= 1


def test_arrivals_disperse_as_recorded() -> None:
    # Mooncake's synthetic trace, whose times are not in 3-s ticks: 1.1 and 1.4; the 100 sessions: 1.3, 3.6 and 18.
    chats, agents = made("multi-turn", CONVERSATION)[0], made("agent", AGENT100)[0]
    assert within([dispersion(chats, 1), dispersion(chats, 10)], [1.1, 1.4], 0.3)
    assert within([dispersion(agents, window) for window in (1, 10, 60)], [1.26, 3.62, 18.35], 0.35)


@pytest.mark.parametrize("name", CLASSES)
def test_a_seed_gives_the_same_requests_and_another_seed_others(name: str) -> None:
    def values(seed: int) -> list[tuple[object, ...]]:
        return [
            (r.index, r.time_s, r.input_tokens, r.output_tokens, r.session, r.turn, r.blocks.tobytes())
            for r in synthetic(name, seed=seed, n_requests=50)
        ]

    assert values(3) == values(3)
    assert values(3) != values(4)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("block_tokens", [16, 64, 512])
def test_requests_are_in_order_and_their_ids_fit_their_lengths(name: str, block_tokens: int) -> None:
    for n_requests in (1, 2, 60):
        trace = synthetic(name, n_requests=n_requests, block_tokens=block_tokens)
        requests = list(trace)
        assert [request.index for request in requests] == list(range(n_requests))
        assert requests[0].time_s == 0
        assert all(a.time_s <= b.time_s for a, b in pairwise(requests))
        assert all(len(r.blocks) == -(-r.input_tokens // block_tokens) for r in requests)
        assert all(len(np.unique(r.blocks)) == len(r.blocks) for r in requests)
        assert all(r.output_tokens >= 1 for r in requests)
        assert trace.info().warnings == ()
        assert trace.info().names_partial_blocks


@pytest.mark.parametrize("name", CLASSES)
def test_an_id_always_follows_the_same_id_and_an_incomplete_block_is_nobody_elses(name: str) -> None:
    trace = synthetic(name, n_requests=200)
    before: dict[int, int] = {}
    partial: set[int] = set()
    for request in trace:
        ids = request.blocks.tolist()
        assert not partial & set(ids)
        for parent, id_ in zip([-1, *ids[:-1]], ids, strict=True):
            assert before.setdefault(id_, parent) == parent
        if request.input_tokens % trace.block_tokens:
            partial.add(ids[-1])


def test_the_same_traffic_in_smaller_blocks_has_the_same_lengths_and_times() -> None:
    coarse, fine = (list(synthetic("agent", n_requests=100, block_tokens=n)) for n in (512, 64))
    assert [(r.time_s, r.input_tokens, r.session) for r in coarse] == [
        (r.time_s, r.input_tokens, r.session) for r in fine
    ]


def test_the_default_multi_turn_is_small_and_leaves_work_for_every_tier() -> None:
    requests, curve = made("multi-turn")
    longest = max(len(request.blocks) for request in requests)
    assert curve.total_blocks < 25_000
    assert curve.rate(longest) < curve.rate(4 * longest) - 5, "a host pool of four longest requests adds hits"
    assert curve.rate(4 * longest) < curve.rate() - 3, "and storage adds more"


def test_a_workload_survives_being_written_and_read(tmp_path: object) -> None:
    path = f"{tmp_path}/t.zst"
    trace = synthetic("agent", n_requests=40)
    assert write_trace(trace, path) == 40
    again = open_trace(path)
    for one, other in zip(trace, again, strict=True):
        assert (one.time_s, one.input_tokens, one.session, one.turn) == (
            other.time_s, other.input_tokens, other.session, other.turn)  # fmt: skip
        assert np.array_equal(one.blocks, other.blocks)
    assert again.info().max_block_id == trace.info().max_block_id


def test_global_ids_of_a_workload_become_tokens_directly() -> None:
    trace = synthetic("one-shot", n_requests=3)
    maker = TokenMaker(trace.info())
    request = next(iter(trace))
    tokens = np.frombuffer(maker.tokens(request, 1024), "<u4")
    assert tokens[0] == request.blocks[0] * 512
    assert tokens[512] == request.blocks[1] * 512


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        ({"name": "multi-turns"}, "unknown synthetic workload 'multi-turns'", "did you mean multi-turn?"),
        ({"name": "xyz"}, "unknown synthetic workload 'xyz'", "classes: multi-turn, agent, shared-system, one-shot"),
        ({"name": "agent", "n_requests": 0}, "0 requests, not 1..1000000", None),
        ({"name": "agent", "block_tokens": 0}, "blocks of 0 tokens, not at least 1", None),
        ({"name": "agent", "seed": -1}, "seed -1 is negative", None),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value(arguments: dict[str, object], what: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        synthetic(**arguments)  # type: ignore[arg-type]
    assert (caught.value.what, caught.value.hint) == (what, hint)
