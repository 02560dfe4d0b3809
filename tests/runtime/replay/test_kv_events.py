"""Requests from streams of KV events, hand-made in the forms of vLLM and SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.events import BlockStored, EventBatch
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.window import window_of

SIZE = 16
NAN = [float("nan"), [["BlockStored", [7], None, list(range(SIZE)), SIZE, None, "GPU"]]]


def stored(hashes: list[Any], parent: Any = None, medium: str | None = "GPU") -> list[Any]:
    """An event as vLLM up to 0.15 and SGLang up to 0.5.22 write it."""
    return ["BlockStored", hashes, parent, list(range(SIZE * len(hashes))), SIZE, None, medium]


def write(folder: Path, *batches: Any) -> Path:
    path = folder / "events.msgpack"
    path.write_bytes(b"".join(batch if isinstance(batch, bytes) else msgpack.packb(batch) for batch in batches))
    return path


def requests(path: Path) -> list[list[int]]:
    return [request.blocks.tolist() for request in open_trace(path)]


def test_blocks_after_a_known_one_are_a_request_for_the_whole_path(tmp_path: Path) -> None:
    path = write(tmp_path, [100.0, [stored([11, 12, 13])]], [110.0, [stored([21, 22], 12)], 0], [120.0, [stored([31])]])
    trace = open_trace(path)
    assert (trace.format, trace.block_tokens) == ("kv-events", SIZE)
    assert requests(path) == [[0, 1, 2], [0, 1, 3, 4], [5]]
    assert [(r.time_s, r.input_tokens) for r in trace] == [(0.0, 48), (10.0, 64), (20.0, 16)]
    assert any("those that hit entirely are not seen" in note for note in trace.info().warnings)


def test_maps_and_hashes_of_bytes_read_like_arrays_and_numbers(tmp_path: Path) -> None:
    mapped = {
        "type": "BlockStored",
        "block_hashes": [b"\x01" * 32, b"\x02" * 32],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": SIZE,
    }
    after = {
        **mapped,
        "block_hashes": [b"\x03" * 32, b"\x04" * 32],
        "parent_block_hash": b"\x01" * 32,
        "medium": "GPU",
        "group_idx": 0,
    }
    assert requests(write(tmp_path, [1.0, [mapped]], [9.0, [after]])) == [[0, 1], [0, 2, 3]]


def test_our_own_events_are_read_back(tmp_path: Path) -> None:
    batch = EventBatch(1.0, (BlockStored((5, 6), None, tuple(range(32)), SIZE, medium="GPU"),))
    assert requests(write(tmp_path, batch.encode())) == [[0, 1]]


def test_chunks_of_one_prefill_are_one_request_and_a_later_turn_is_another(tmp_path: Path) -> None:
    path = write(
        tmp_path, [0.0, [stored([1, 2])]], [0.5, [stored([3, 4], 2)]], [1.0, [stored([9, 10])]], [1.4, [stored([5, 6], 4)]],
        [60.0, [stored([7, 8], 6)]],
    )  # fmt: skip
    assert requests(path) == [[0, 1, 2, 3, 6, 7], [4, 5], [0, 1, 2, 3, 6, 7, 8, 9]]


def test_single_blocks_at_the_end_of_a_path_are_output_and_no_request(tmp_path: Path) -> None:
    path = write(
        tmp_path, [0.0, [stored([1, 2])]], [5.0, [stored([3], 2)]], [9.0, [stored([4], 3)]], [60.0, [stored([5, 6], 4)]]
    )
    assert requests(path) == [[0, 1], [0, 1, 2, 3, 4, 5]]
    assert any("2 single blocks" in note for note in open_trace(path).info().warnings)


def test_a_path_that_began_before_the_recording_begins_with_its_first_known_block(tmp_path: Path) -> None:
    path = write(tmp_path, [0.0, [stored([5, 6], 4)]], [9.0, [stored([7, 8], 5)]])
    assert requests(path) == [[0, 1], [0, 2, 3]]
    assert any("before the recording" in note for note in open_trace(path).info().warnings)


def test_other_media_removals_and_clears_tell_nothing_of_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [0.0, [stored([1]), ["BlockRemoved", [1], "GPU"], ["AllBlocksCleared"], stored([2], None, "CPU_PINNED")]],
    )
    assert requests(path) == [[0]]


def test_of_several_groups_of_layers_the_first_one_counts(tmp_path: Path) -> None:
    first, second = stored([1, 2]), stored([1, 2])
    first += [None, None, 0]
    second += [None, None, 1]
    second[4] = 4 * SIZE
    mapped = {
        "type": "BlockStored",
        "block_hashes": [7],
        "parent_block_hash": None,
        "block_size": 4 * SIZE,
        "group_idx": 1,
    }
    assert requests(write(tmp_path, [0.0, [first, second, mapped]])) == [[0, 1]]


@pytest.mark.parametrize(
    ("batch", "what"),
    [(NAN, "time nan is not finite"), ([float("-inf"), []], "time -inf is not finite"), ([1.0, "x"], "not a batch"), ([1.0, [3]], "neither an array nor a map"), ([1.0, [["BlockStored", []]]], "without block_hashes"),
     ([2.0, [["BlockStored", [9], None, [], 32, None, None]]], "32 tokens after blocks of 16")],
)  # fmt: skip
def test_what_is_no_batch_is_refused_with_its_place(tmp_path: Path, batch: Any, what: str) -> None:
    path = write(tmp_path, [0.0, [stored([1])]], batch)
    with pytest.raises(UsageError, match=what):
        requests(path)


def test_a_first_batch_without_a_time_is_refused_not_a_trace_without_requests(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="time nan is not finite") as caught:
        requests(write(tmp_path, NAN, *([float(10 * n), [stored([n])]] for n in range(1, 30))))
    assert "before byte" in str(caught.value.where)


def test_a_stream_cut_short_is_refused(tmp_path: Path) -> None:
    whole = msgpack.packb([0.0, [stored([1])]])
    with pytest.raises(UsageError, match="cut short"):
        requests(write(tmp_path, whole, whole[:-3]))


def test_a_path_stored_again_with_its_true_beginning_keeps_ids_that_name_prefixes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [0.0, [stored([5, 6], 4)]],
        [10.0, [stored([3, 4])]],
        [20.0, [stored([5, 6], 4)]],
        [30.0, [stored([7, 8], 6)]],
    )
    assert requests(path) == [[0, 1], [2, 3], [2, 3, 4, 5], [2, 3, 4, 5, 6, 7]]
    assert curve_of(window_of(open_trace(path), SIZE)).at(100) == 6
