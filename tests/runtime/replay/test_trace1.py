from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import Trace, TraceRequest
from hicachectl.runtime.replay.trace1 import write_trace
from hicachectl.runtime.replay.workload import TraceFile, open_trace

HEADER = {"trace": 1, "block_tokens": 4, "scope": "global"}


def line(**changed: Any) -> dict[str, Any]:
    return {"time_s": 0.25, "input_tokens": 7, "output_tokens": 2, "blocks": [5, 6], **changed}


def write(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    return path


def values(trace: Trace) -> list[tuple[object, ...]]:
    return [
        (r.index, r.time_s, r.input_tokens, r.output_tokens, r.blocks.tolist(), r.scope, r.session, r.turn, r.kind)
        for r in trace
    ]


def test_a_trace1_line_becomes_a_request(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", HEADER, line(), line(session="a", turn=3, kind="chat")))
    assert (trace.format, trace.block_tokens) == ("trace/1", 4)
    assert values(trace) == [
        (0, 0.25, 7, 2, [5, 6], 0, None, None, None),
        (1, 0.25, 7, 2, [5, 6], 0, "a", 3, "chat"),
    ]


def test_local_ids_are_scoped_by_session_in_order_of_appearance(tmp_path: Path) -> None:
    header = {**HEADER, "scope": "local"}
    trace = open_trace(write(tmp_path / "t", header, line(session="b"), line(session="a"), line(session="b")))
    assert [request.scope for request in trace] == [1, 2, 1]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.xz", "jsonl.zst"])
def test_what_is_written_reads_back_the_same(tmp_path: Path, suffix: str) -> None:
    sources = [
        write(tmp_path / "mooncake", *(
            {"timestamp": n, "input_length": 1000, "output_length": 7, "hash_ids": [3, n + 4]} for n in range(3))),
        write(tmp_path / "sessions", *(
            {"id": name, "block_size": 64, "hash_id_scope": "local",
             "requests": [{"t": 0, "type": "n", "in": 130, "out": 3, "hash_ids": [1, 2]}]} for name in "ab")),
        write(tmp_path / "qwen", {
            "chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 33, "output_length": 1,
            "type": "text", "turn": 1, "hash_ids": [7, 8, 7]}),
    ]  # fmt: skip
    for source in map(open_trace, sources):
        target = tmp_path / f"{source.format}.{suffix}"
        assert write_trace(source, target) == source.info().n_requests
        again = open_trace(target)
        assert again.format == "trace/1"
        assert values(again) == values(source)
    assert sorted(path.name for path in tmp_path.iterdir() if "tmp" in path.name) == []


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = open_trace(write(tmp_path / "t", HEADER, line()))
    write_trace(source, tmp_path / "a.gz")
    write_trace(source, tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_a_write_that_fails_leaves_nothing_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(TraceFile):
        def __iter__(self) -> Iterator[TraceRequest]:
            raise UsageError("broken")

    good = open_trace(write(tmp_path / "t", HEADER, line()))
    target = tmp_path / "out"
    write_trace(good, target)
    before = target.read_bytes()
    broken = Broken(good.path, good._format, 4, 60.0)
    with pytest.raises(UsageError, match="broken"):
        write_trace(broken, target)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "t"]
    with pytest.raises(UsageError, match="cannot write the trace") as caught:
        write_trace(good, tmp_path / "missing" / "out")
    assert (caught.value.code, caught.value.hint) == ("HC-OUTPUT", "name a writable file in an existing folder")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_trace(good, target)
    assert (caught.value.code, caught.value.hint) == ("HC-OUTPUT", "free room there, or name a file elsewhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "t"]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("objects", "where", "what"),
    [
        ([{**HEADER, "trace": 2}], 1, "trace version 2, not 1"),
        ([{**HEADER, "scope": "both"}], 1, "scope is 'both', not 'global' or 'local'"),
        ([{**HEADER, "block_tokens": 0}], 1, "block_tokens is 0, below 1"),
        ([{**HEADER, "blocktokens": 4}], 1, "unknown key 'blocktokens'"),
        ([{"trace": 1, "scope": "global"}], 1, "key 'block_tokens' is missing"),
        ([{**HEADER, "partial_blocks": 1}], 1, "partial_blocks is 1, not true or false"),
        ([HEADER, line(blocks=[5])], 2, "blocks has 1 ids, but input_tokens 7 in blocks of 4 = 2"),
        ([HEADER, line(blocks=[5, 5])], 2, "id 5 twice in blocks, at 0 and 1"),
        ([HEADER, line(turn=0)], 2, "turn is 0, below 1"),
        ([HEADER, line(time=0)], 2, "unknown key 'time'"),
        ([{**HEADER, "scope": "local"}, line()], 2, "key 'session' is missing"),
        (
            [{**HEADER, "partial_blocks": False}, line()],
            2,
            "blocks has 2 ids, but input_tokens 7 in whole blocks of 4 = 1",
        ),
    ],
)
def test_a_broken_trace1_line_is_named_by_file_and_line(
    tmp_path: Path, objects: list[object], where: int, what: str
) -> None:
    path = write(tmp_path / "t", *objects)
    with pytest.raises(UsageError) as caught:
        list(open_trace(path))
    assert (caught.value.where, caught.value.what) == (f"{path}:{where}", what)


def test_a_trace_without_requests_has_no_summary(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the trace holds no requests"):
        open_trace(write(tmp_path / "t", HEADER)).info()
