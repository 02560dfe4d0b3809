from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from lru_model import BLOCK, Path, paths, traced
from shared_data import shared_path

from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.confidence import confidence_of, jackknife_of
from hicachectl.tuning.sizing.sampling import WIDENED, sample
from hicachectl.tuning.sizing.window import Definition, window_of

PROMPT = (0, 1, 2)


def sessions(requests: list[Path]) -> list[int]:
    """The session of each request, numbered as they come."""
    found = window_of(traced(requests), BLOCK).session.tolist()
    return [sorted(set(found), key=found.index).index(one) for one in found]


def asked(*own: int, prompt: tuple[int, ...] = PROMPT) -> Path:
    return (*prompt, *own), BLOCK


@pytest.mark.parametrize("n_shared", [0, 1, 3, 9])
def test_a_session_begins_past_what_most_requests_share_however_many_blocks_that_is(n_shared: int) -> None:
    prompt = tuple(range(n_shared))
    turns = [asked(*range(100 * s, 100 * s + turn), prompt=prompt) for turn in (1, 2, 4) for s in range(1, 31)]
    assert sessions(turns) == [*range(30)] * 3


def test_just_half_of_the_requests_are_not_most() -> None:
    other = [asked(10 + n, prompt=(9,)) for n in range(3)]
    assert sessions([*(asked(100 + n) for n in range(3)), *other]) == [0, 0, 0, 1, 1, 1]
    assert sessions([*(asked(100 + n) for n in range(4)), *other]) == [0, 1, 2, 3, 4, 4, 4]


def test_requests_that_end_within_what_most_share_are_one_session() -> None:
    inside = [((0, 1), BLOCK), ((0,), BLOCK), (PROMPT, BLOCK), ((0, 1, 50), 1)]
    assert sessions([*(asked(100 + n) for n in range(5)), *inside]) == [0, 1, 2, 3, 4, 5, 5, 5, 6]
    assert sessions([((), 0), asked(100), asked(101)]) == [0, 1, 2]


def test_a_trace_that_names_no_sessions_and_of_which_none_are_told_apart_says_that() -> None:
    alike = window_of(traced([asked(7)] * 30), BLOCK)
    why = "sessions cannot be told apart: not all are named, and requests begin in {} past what most share, fewer than 10: no interval"
    found = confidence_of(alike, Definition.D1, 1.0)
    assert (found.jackknife, found.reason) == (None, why.format("1 way"))
    two = window_of(traced([asked(7), asked(8)] * 15), BLOCK)
    assert confidence_of(two, Definition.D3, 1.0).reason == why.format("2 ways")


@settings(max_examples=80, deadline=None)
@given(paths())
def test_a_root_is_the_first_block_that_half_of_the_requests_or_fewer_hold(requests: list[Path]) -> None:
    def root(ids: tuple[int, ...]) -> int | None:
        own = [one for one in ids if 2 * sum(one in other for other, _ in requests) <= len(requests)]
        return own[0] if own else (ids[0] if ids else None)

    roots = [root(ids) for ids, _ in requests]
    assert sessions(requests) == [list(dict.fromkeys(roots)).index(one) for one in roots]


def test_the_sampled_pass_tells_the_same_sessions_apart() -> None:
    turns = [asked(100 * s) for _ in range(3) for s in range(1, 101)]
    found = sample(traced(turns), BLOCK, 1)
    assert found.band is not None
    assert found.band.rate_error() < 0.001  # a tenth less of them has as many first looks at the prompt


def test_names_that_not_every_request_has_tell_no_sessions_apart_in_the_sampled_pass_either() -> None:
    turns = [asked(*range(100 * s, 100 * s + 1 + s % 7)) for _ in range(4) for s in range(1, 121)]
    requests = traced(turns)
    all_named = [replace(request, session=f"user {q}") for q, request in enumerate(requests)]
    half_named = [
        named if q % 2 else unnamed for q, (named, unnamed) in enumerate(zip(all_named, requests, strict=True))
    ]
    exact, named = jackknife_of(window_of(half_named, BLOCK), Definition.D1), sample(all_named, BLOCK, 1).band
    half, roots = (sample(one, BLOCK, 1).band for one in (half_named, requests))
    assert half is not None
    assert roots is not None
    assert named is not None
    for capacity in (None, 300, 500):
        assert half.rate_error(capacity) == roots.rate_error(capacity)
        assert 0.5 < half.rate_error(capacity) / (WIDENED * exact.rate_error(capacity)) < 2, capacity
        assert named.rate_error(capacity) != half.rate_error(capacity)


@pytest.mark.shared
@pytest.mark.parametrize(("trace", "n_sessions"), [("conversation", 7_373), ("synthetic", 2_211)])
def test_the_recorded_traces_share_one_block_at_most(trace: str, n_sessions: int) -> None:
    opened = open_trace(shared_path(f"traces/mooncake-fast25/{trace}_trace.jsonl.gz"))
    window = window_of(opened, opened.block_tokens)
    is_shared = np.bincount(window.ids) * 2 > window.n_requests
    assert (int(is_shared.sum()), len(np.unique(window.session))) == (1 if trace == "conversation" else 0, n_sessions)
