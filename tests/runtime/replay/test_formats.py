from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.workload import open_trace


def chat(chat_id: int, parent: int = -1, **changed: Any) -> dict[str, Any]:
    return {
        "chat_id": chat_id, "parent_chat_id": parent, "timestamp": 61.114, "input_length": 33, "output_length": 132,
        "type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326], **changed,
    }  # fmt: skip


def write(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    return path


def test_a_qwen_bailian_line_becomes_a_request(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", chat(159)))
    (request,) = trace
    assert (trace.format, trace.block_tokens) == ("qwen-bailian", 16)
    assert (request.time_s, request.input_tokens, request.output_tokens) == (61.114, 33, 132)
    assert (request.blocks.tolist(), request.scope) == ([1089, 1090, 6326], 0)
    assert (request.session, request.turn, request.kind) == ("159", 2, "text")


def test_the_session_of_a_chat_is_the_first_of_its_chain_of_parents(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", chat(7), chat(9, 7), chat(8), chat(3, 9), chat(4, 99), chat(5, 4)))
    assert [request.session for request in trace] == ["7", "7", "8", "7", "4", "4"]
    assert trace.info().warnings == (
        f"1 requests name a parent chat that is not before them (first: {tmp_path / 't'}:5)",
    )


def test_a_content_id_may_come_twice_and_is_noted(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", chat(1), chat(2, hash_ids=[5, 6, 5])))
    assert [request.blocks.tolist() for request in trace][1] == [5, 6, 5]
    (warning,) = trace.info().warnings
    assert warning.startswith("1 requests hold a block id twice")
    assert warning.endswith(f"(first: {tmp_path / 't'}:2)")


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"parent_chat_id": -2}, "parent_chat_id is -2, below -1"),
        ({"chat_id": -1}, "chat_id is -1, below 0"),
        ({"type": 3}, "type is 3, not a string"),
        ({"turn": 1.5}, "turn is 1.5, not a whole number"),
        ({"input_length": 49}, "hash_ids has 3 ids, but input_length 49 in blocks of 16 = 4"),
        ({"hash_id": []}, "unknown key 'hash_id'"),
    ],
)
def test_a_broken_qwen_bailian_line_is_named_by_file_and_line(
    tmp_path: Path, changed: dict[str, Any], what: str
) -> None:
    path = write(tmp_path / "t", chat(1), {**chat(2), **changed})
    with pytest.raises(UsageError) as caught:
        list(open_trace(path))
    assert (caught.value.where, caught.value.what) == (f"{path}:2", what)
