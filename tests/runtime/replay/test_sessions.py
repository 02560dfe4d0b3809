from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.workload import open_trace


def asked(t: float, ids: list[int], **changed: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": 64 * len(ids) + 5, "out": 3, "hash_ids": ids, **changed}


def agent(t: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "requests": list(requests)}


def session(name: str, *requests: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **changed}


def write(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    return path


def test_sessions_interleave_by_start_and_time(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t",
        session("a", asked(0, [1, 2]), asked(70, [1, 2, 3]), asked(200, [9])),
        session("b", asked(1.5, [1])),
    )
    trace = open_trace(path)
    got = [(r.index, r.time_s, r.session, r.scope, r.turn, r.kind, r.blocks.tolist()) for r in trace]
    assert (trace.format, trace.block_tokens) == ("kv-cache-tester", 64)
    assert got == [
        (0, 0.0, "a", 1, 1, "n", [1, 2]),
        (1, 61.5, "b", 2, 1, "n", [1]),
        (2, 70.0, "a", 1, 2, "n", [1, 2, 3]),
        (3, 200.0, "a", 1, 3, "n", [9]),
    ]
    assert [r.session for r in open_trace(path, session_gap_s=1000)] == ["a", "a", "a", "b"]
    assert [r.time_s for r in open_trace(path, session_gap_s=0)] == [0.0, 1.5, 70.0, 200.0]


def test_a_sub_agents_times_count_from_its_own_start(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t", session("a", asked(0, [1]), agent(10, asked(0, [2]), asked(30, [2, 3])), asked(20, [1]))
    )
    assert [(r.time_s, r.kind) for r in open_trace(path)] == [(0, "n"), (10, "subagent"), (20, "n"), (40, "subagent")]


def test_equal_times_keep_session_order_then_file_order(tmp_path: Path) -> None:
    path = write(tmp_path / "t", session("a", asked(60, [1]), asked(60, [2])), session("b", asked(0, [3])))
    assert [r.blocks.tolist() for r in open_trace(path)] == [[1], [2], [3]]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 400), st.lists(st.integers(1, 5), unique=True, max_size=5)), max_size=6),
        min_size=1, max_size=6,
    ),
    st.sampled_from([0.0, 60.0, 500.0]),
)  # fmt: skip
def test_the_stream_equals_sorting_everything_at_once(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[list[tuple[int, list[int]]]], gap_s: float
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    write(path, *(session(str(k), *(asked(t, ids) for t, ids in requests)) for k, requests in enumerate(sessions)))
    want = []
    for k, requests in enumerate(sessions):
        for at, (t, ids) in enumerate(sorted(requests, key=lambda item: item[0])):
            want.append((gap_s * k + t, k, at, ids))
    got = [(r.time_s, r.scope - 1, r.turn - 1, r.blocks.tolist()) for r in open_trace(path, session_gap_s=gap_s)]  # type: ignore[operator]
    assert got == sorted(want)


def test_the_tokens_past_the_last_whole_block_have_no_id(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", session("a", asked(0, [1, 2]))))
    (request,) = trace
    assert (request.input_tokens, len(request.blocks)) == (133, 2)
    assert not trace.info().names_partial_blocks
    assert trace.info().scopes == 1


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (session("a", asked(0, [1])), "session id 'a' is already on line 1"),
        (session("b", asked(0, [1]), block_size=32), "block_size is 32, but 64 in the first session"),
        (session("b", block_size=0), "block_size is 0, below 1"),
        (session("b", hash_id_scope="global"), "hash_id_scope is 'global', not 'local'"),
        (session("b", asked(0, [1], type="x")), "requests[0]: type is 'x', not one of n, s, subagent"),
        (session("b", asked(0, [1], **{"in": 200})), "requests[0]: hash_ids has 1 ids, but in 200 holds whole blocks of 64 = 3"),
        (session("b", asked(0, [1, 1])), "requests[0]: id 1 twice in hash_ids, at 0 and 1"),
        (session("b", asked(-1, [1])), "requests[0]: t is -1, not a time of zero or more"),
        (session("b", asked(0, [1], outt=1)), "requests[0]: unknown key 'outt'"),
        (session("b", agent(0, agent(0))), "requests[0].requests[0]: unknown key 'requests'"),
        (session("b", {**agent(0), "requests": [7]}), "requests[0]: requests[0] is 7, not an object"),
        (session("b", request=[]), "unknown key 'request'"),
    ],
)  # fmt: skip
def test_a_broken_session_is_named_by_file_line_and_way(tmp_path: Path, second: dict[str, Any], what: str) -> None:
    path = write(tmp_path / "t", session("a", asked(0, [1])), second)
    with pytest.raises(UsageError) as caught:
        list(open_trace(path))
    assert caught.value.where == f"{path}:2"
    assert what in caught.value.what


@pytest.mark.parametrize("gap_s", [-1.0, float("nan"), float("inf")])
def test_a_session_gap_is_a_finite_time_of_zero_or_more(tmp_path: Path, gap_s: float) -> None:
    path = write(tmp_path / "t", session("a", asked(0, [1])))
    with pytest.raises(UsageError, match="session gap"):
        open_trace(path, session_gap_s=gap_s)


def test_a_growing_conversation_comes_back_whole(tmp_path: Path) -> None:
    grown = [asked(k, list(range(1, 400 + k))) for k in range(40)]
    first, *rest = open_trace(write(tmp_path / "t", session("a", *grown)))
    assert first.blocks.tolist() == list(range(1, 400))
    assert all(np.array_equal(r.blocks, np.arange(1, 400 + k)) for k, r in enumerate(rest, 1))
