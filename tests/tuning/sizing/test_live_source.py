"""Live requests from files that are written meanwhile and from pipes: followed, rotated, cut, broken, taken up again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from live_writers import HEADER, PAGE, batch, log_line, trace_line

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.page_ids import page_ids
from hicachectl.tuning.sizing.live_source import LiveSource, open_live


def append(path: Path, data: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def blocks(source: LiveSource) -> list[list[int]]:
    """All requests that are there now."""
    found, empty = [], 0
    while empty < 2:
        requests = source.poll(0.0)
        empty = 0 if requests else empty + 1
        found += [request.blocks.tolist() for request in requests]
    return found


def tokens(*of: int) -> list[int]:
    return [block * PAGE + at for block in of for at in range(PAGE)]


def test_a_log_is_followed_from_its_end_and_a_line_counts_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    append(path, "INFO starting\n" + log_line([9, 9]))
    source = open_live(str(path), PAGE)
    assert (source.kind, blocks(source)) == ("request-log", [])
    line = log_line([1, 2])
    append(path, line[:400])
    assert blocks(source) == []
    append(path, line[400:] + "INFO between\n" + log_line([1]))
    assert blocks(source) == [page_ids(tokens(1, 2), PAGE).tolist(), page_ids(tokens(1), PAGE).tolist()]
    assert source.seen()["lines"] == 3
    source.close()


def test_a_file_that_ends_inside_a_line_is_followed_from_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = trace_line([5, 6])
    append(path, HEADER + trace_line([1]) + line[:30])
    source = open_live(str(path), PAGE)
    append(path, line[30:] + trace_line([7]))
    assert blocks(source) == [[7]]
    assert source.block_tokens == PAGE
    source.close()


def test_an_empty_file_tells_its_kind_when_something_comes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.touch()
    source = open_live(str(path), PAGE)
    assert (source.kind, blocks(source)) == (None, [])
    append(path, HEADER + trace_line([1, 2]))
    assert blocks(source) == [[1, 2]]
    source.close()


def test_a_rotated_file_is_read_to_its_end_and_then_the_new_one_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    append(path, "x\n")
    source = open_live(str(path), PAGE)
    os.rename(path, tmp_path / "server.log.1")
    append(tmp_path / "server.log.1", log_line([1]))
    assert blocks(source) == [page_ids(tokens(1), PAGE).tolist()]
    append(path, log_line([2]))
    assert blocks(source) == [page_ids(tokens(2), PAGE).tolist()]
    assert source.seen()["replaced"] == 1
    assert any("rotated" in note for note in source.notes.sentences())
    source.close()


def test_a_file_that_was_cut_is_read_from_its_beginning_also_when_it_is_longer_again(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    append(path, "INFO a first line\n")
    source = open_live(str(path), PAGE)
    path.write_text("")
    append(path, log_line([1]))
    assert blocks(source) == [page_ids(tokens(1), PAGE).tolist()]
    os.truncate(path, 0)
    assert blocks(source) == []
    append(path, log_line([2]))
    assert blocks(source) == [page_ids(tokens(2), PAGE).tolist()]
    assert source.seen()["cut"] == 2
    source.close()


def test_events_that_are_there_already_only_name_their_blocks(tmp_path: Path) -> None:
    path = tmp_path / "events.msgpack"
    append(path, batch([1, 2], ts=1.0))
    source = open_live(str(path), PAGE)
    whole = batch([1, 2, 3, 4], 2, ts=100.0)
    append(path, whole[:-5])
    assert blocks(source) == []
    append(path, whole[-5:])
    assert blocks(source) == []
    append(path, batch([8, 9], ts=200.0))
    assert blocks(source) == [page_ids(tokens(1, 2, 3, 4), PAGE).tolist()]
    assert [request.blocks.tolist() for request in source.flush()] == [page_ids(tokens(8, 9), PAGE).tolist()]
    assert source.kind == "kv-events"
    assert source.partial is False
    source.close()


def test_another_process_goes_on_at_the_first_byte_that_was_no_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    append(path, HEADER)
    source = open_live(str(path), PAGE)
    append(path, trace_line([1]) + trace_line([2])[:20])
    assert blocks(source) == [[1]]
    position = source.position()
    source.close()
    append(path, trace_line([2])[20:] + trace_line([3]))
    source = open_live(str(path), PAGE, position=position)
    assert blocks(source) == [[2], [3]]
    source.close()
    os.rename(path, tmp_path / "old")
    append(path, HEADER + trace_line([4]))
    source = open_live(str(path), PAGE, position=position)
    append(path, trace_line([5]))
    assert blocks(source) == [[5]]
    assert any("came between" in note for note in source.notes.sentences())
    source.close()


def test_a_pipe_ends_and_says_so() -> None:
    out, into = os.pipe()
    os.write(into, (HEADER + trace_line([1, 2], session="Ms. X")).encode())
    source = open_live("-", PAGE, stdin=out)
    (request,) = source.poll(1.0)
    assert request.blocks.tolist() == [1, 2]
    assert request.session is not None
    assert "X" not in request.session
    assert source.ended is None
    os.close(into)
    assert source.poll(1.0) == []
    assert (source.ended, source.position()) == ("end of input", None)
    os.close(out)


def test_ids_of_two_sessions_that_are_their_own_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    append(path, HEADER.replace("global", "local"))
    source = open_live(str(path), PAGE)
    append(path, "".join(trace_line([1, 2], session=name) for name in ("a", "b", "a")))
    one, other, again = blocks(source)
    assert one == again
    assert not set(one) & set(other)
    source.close()


def test_one_broken_line_in_a_hundred_is_let_pass_and_more_are_not(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    append(path, HEADER)
    source = open_live(str(path), PAGE)
    append(path, trace_line([1]) * 150 + "{broken\n" + trace_line([1]) * 49)
    assert len(blocks(source)) == 199
    assert any("broken and left out" in note and ":151" in note for note in source.notes.sentences())
    append(path, "{broken\n" * 3)
    with pytest.raises(UsageError) as caught:
        blocks(source)
    assert "4 of 203 lines are broken" in str(caught.value.why)
    assert ":151" in str(caught.value.where)
    source.close()


@pytest.mark.parametrize(
    ("data", "what"),
    [('{"a": 1}\n', "key"), ('{"trace": 2, "block_tokens": 64, "scope": "global"}\n', "trace version 2"), ("\0\1\2", "no text"),
     (HEADER + "nonsense\n", "not a JSON object")],
)  # fmt: skip
def test_what_is_no_known_kind_is_refused_with_its_first_line(tmp_path: Path, data: str, what: str) -> None:
    path = tmp_path / "what"
    path.touch()
    source = open_live(str(path), PAGE)
    append(path, data)
    with pytest.raises(UsageError, match=what) as caught:
        blocks(source)
    assert str(path) in str(caught.value.where)
    source.close()


def test_a_log_of_other_things_is_refused_when_many_lines_came(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    append(path, "x\n")
    source = open_live(str(path), PAGE)
    append(path, "INFO nothing here\n" * 20_000)
    with pytest.raises(UsageError, match="none of 20000 lines"):
        blocks(source)
    source.close()


@pytest.mark.parametrize("source", ["missing.log", ".", "tcp://x", "tcp://*:5557", "tcp://h:1:2"])
def test_what_cannot_be_followed_is_refused(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        open_live(source, PAGE)


def test_a_replay_endpoint_needs_a_publisher(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without a publisher"):
        open_live(str(tmp_path), PAGE, replay="tcp://127.0.0.1:1")
