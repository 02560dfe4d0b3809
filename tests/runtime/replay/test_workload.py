from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import zstandard
from shared_data import shared_path

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.workload import open_trace


def mooncake(**changed: Any) -> dict[str, Any]:
    return {"timestamp": 1500, "input_length": 1000, "output_length": 7, "hash_ids": [3, 4], **changed}


def write(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    return path


def refused(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        list(open_trace(path))
    return caught.value


def test_a_mooncake_line_becomes_a_request(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", mooncake(), mooncake(timestamp=2000, hash_ids=[3, 9])))
    first, second = trace
    assert (trace.format, trace.block_tokens) == ("mooncake", 512)
    assert (first.index, first.time_s, first.input_tokens, first.output_tokens) == (0, 1.5, 1000, 7)
    assert (first.blocks.tolist(), first.scope, first.session, first.kind) == ([3, 4], 0, None, None)
    assert (second.index, second.time_s, second.blocks.tolist()) == (1, 2.0, [3, 9])
    assert second.blocks.dtype == "int64"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, zstandard.compress])
def test_compression_is_told_by_content_not_by_name(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(pack("".join(json.dumps(mooncake(timestamp=n)) + "\n" for n in range(3)).encode()))
    assert [request.time_s for request in open_trace(path)] == [0.0, 0.001, 0.002]


def test_several_frames_one_after_another_are_one_trace(tmp_path: Path) -> None:
    line = (json.dumps(mooncake()) + "\n").encode()
    for pack in (gzip.compress, lzma.compress, zstandard.compress):
        path = tmp_path / "t"
        path.write_bytes(pack(line) + pack(line + line))
        assert len(list(open_trace(path))) == 3


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
def test_a_cut_or_damaged_stream_is_refused_at_its_line(tmp_path: Path, pack: Any) -> None:
    text = "".join(json.dumps(mooncake(timestamp=n * 7919 % 10007)) + "\n" for n in range(2000)).encode()
    packed = bytearray(pack(text))
    path = tmp_path / "t"
    path.write_bytes(packed[:-9])
    cut = refused(path)
    assert "cut short" in cut.what
    assert cut.where is not None
    assert cut.where.startswith(f"{path}:")
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    path.write_bytes(packed)
    assert "damaged" in refused(path).what or "not a JSON object" in refused(path).what


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("{", "not a JSON object", "one JSON object a line"),
        ("[1, 2]", "[1, 2] is not a JSON object", None),
        ("\xff", "not a JSON object", None),
        ("", "the line is empty", None),
        (json.dumps(mooncake(timestamp=10**400)), f"timestamp is {10**39}, not a time of zero or more", None),
        (json.dumps(mooncake(timestamp=0)).replace("0,", "1e999,", 1), "timestamp is inf, not a time", None),
        (json.dumps(mooncake(input_length=2**54)), "input_length is 18014398509481984, above 2^53", None),
        ('{"timestamp": 0, "timestamp": 5}', "key 'timestamp' twice", None),
        ("[" * 100_000, "nested too deeply", None),
        (json.dumps(mooncake(timestamp=0)).replace("0,", "NaN,", 1), "NaN is no JSON number", None),
        (json.dumps(mooncake(timestamp=-1)), "timestamp is -1, not a time of zero or more", None),
        (json.dumps(mooncake(timestamp="1")), 'timestamp is "1", not a number', None),
        (json.dumps(mooncake(timestamp=True)), "timestamp is true, not a number", None),
        (json.dumps(mooncake(input_length=-5)), "input_length is -5, below 0", None),
        (json.dumps(mooncake(input_length=1000.5)), "input_length is 1000.5, not a whole number", None),
        (json.dumps(mooncake(output_length=None)), "output_length is null, not a whole number", None),
        (
            json.dumps(mooncake(input_length=1025)),
            "hash_ids has 2 ids, but input_length 1025 in blocks of 512 = 3",
            None,
        ),
        (json.dumps(mooncake(hash_ids=[3])), "hash_ids has 1 ids, but input_length 1000 in blocks of 512 = 2", None),
        (json.dumps(mooncake(hash_ids=[3, 3])), "id 3 twice in hash_ids, at 0 and 1", None),
        (json.dumps(mooncake(hash_ids=[3, -4])), "hash_ids[1] is -4, outside 0..2^63-1", None),
        (json.dumps(mooncake(hash_ids=[3, 2**63])), "hash_ids[1] is 9223372036854775808, outside", None),
        (json.dumps(mooncake(hash_ids=[3, "4"])), 'hash_ids[1] is "4", not a whole number', None),
        (json.dumps(mooncake(hash_ids=[3, True])), "hash_ids[1] is true, not a whole number", None),
        (json.dumps(mooncake(hash_ids=7)), "hash_ids is 7, not a list", None),
        (json.dumps(mooncake(hash_idz=[1])), "unknown key 'hash_idz'", "did you mean hash_ids?"),
        (json.dumps({"timestamp": 0, "input_length": 5, "output_length": 1}), "key 'hash_ids' is missing", None),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: str, what: str, hint: str | None) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes((json.dumps(mooncake()) + "\n" + line + "\n").encode("latin-1"))
    error = refused(path)
    assert error.where == f"{path}:2"
    assert what in error.what
    assert hint is None or (error.hint is not None and hint in error.hint)


def test_a_file_that_ends_inside_a_line_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(), mooncake())
    path.write_bytes(path.read_bytes()[:-20])
    assert "the file ends inside this line" in refused(path).what


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "bz").write_bytes(b"BZh91AY")
    assert "the trace is empty" in refused(tmp_path / "empty").what
    assert "bzip2" in refused(tmp_path / "bz").what
    assert "cannot read the trace" in refused(tmp_path / "missing").what
    assert "not a regular file" in refused(tmp_path).what
    unknown = refused(write(tmp_path / "t", {"prompt": "hello"}))
    assert "keys prompt are no known trace format" in unknown.what
    assert unknown.hint is not None
    assert "hash_ids" in unknown.hint


def test_a_misspelt_sign_still_finds_the_format_and_the_key(tmp_path: Path) -> None:
    item = mooncake()
    item["timestamps"] = item.pop("timestamp")
    error = refused(write(tmp_path / "t", item))
    assert (error.what, error.hint) == ("unknown key 'timestamps'", "did you mean timestamp?")


def test_the_summary_counts_what_the_requests_hold(tmp_path: Path) -> None:
    path = write(tmp_path / "t", mooncake(), mooncake(timestamp=1000, input_length=512, hash_ids=[8]))
    info = open_trace(path).info()
    assert (info.n_requests, info.max_input_tokens, info.total_input_tokens) == (2, 1000, 1512)
    assert (info.max_block_id, info.scopes, info.total_blocks, info.total_output_tokens) == (8, 0, 3, 14)
    assert info.warnings == (
        "1 requests are earlier than the one before (request 1: 1 s after 1.5 s); file order is kept",
    )


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "n_requests", "n_blocks"), [("conversation", 12_031, 288_500), ("synthetic", 3_993, 121_877)]
)
def test_the_recorded_mooncake_traces_read_whole(name: str, n_requests: int, n_blocks: int) -> None:
    info = open_trace(shared_path(f"traces/mooncake-fast25/{name}_trace.jsonl.gz")).info()
    assert (info.n_requests, info.total_blocks, info.scopes) == (n_requests, n_blocks, 0)
