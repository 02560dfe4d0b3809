"""`hicachectl trace`: curves, descriptions, conversions, synthetic workloads."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call
from shared_data import shared_path
from small_traces import conversations, mooncake_line, write_trace

KEYS = ("capacity_pages", "hits", "total", "hit_rate")


@pytest.fixture
def golden(tmp_path: Path) -> str:
    return str(write_trace(tmp_path / "golden.jsonl", [[1, 2, 3], [1, 2, 4], [5], [1, 2, 3]]))


def curve(*argv: str) -> Any:
    ran = call("trace", "curve", *argv, "-o", "json")
    assert ran.code == 0, ran.err
    return ran.json["data"]


def hits(data: Any) -> list[int]:
    return [row["hits"] for row in data["curve"]]


def test_the_curve_of_four_small_requests_is_the_one_counted_by_hand(golden: str) -> None:
    data = curve(golden, "--capacities", "1,2,3,4,5,6")
    assert hits(data) == [1, 3, 4, 4, 5, 5]
    assert [row["capacity_pages"] for row in data["curve"]] == [1, 2, 3, 4, 5, 6]
    assert data["curve"][0]["hit_rate"] == 0.1
    assert (data["unit"], data["distinct_pages"], data["plateau_pages"]) == ("blocks", 5, 5)
    assert (data["definition"], data["policy"], data["counted"]) == ("D1", "lru", "all")


def test_tokens_full_blocks_and_the_warm_half_are_counted_when_asked_for(tmp_path: Path) -> None:
    lines = [mooncake_line([1, 2], 0, input_length=700), mooncake_line([1, 2], 1, input_length=700)]
    path = tmp_path / "partial.jsonl"
    path.write_text("\n".join(lines) + "\n")
    tokens = curve(str(path), "--definition", "D2", "--capacities", "1,2")
    assert (tokens["unit"], hits(tokens), tokens["total"]) == ("tokens", [512, 700], 1400)
    full = curve(str(path), "--definition", "D3", "--capacities", "1,2")
    assert (hits(full), full["total"]) == ([1, 1], 2)
    warm = curve(str(path), "--count", "warm-half", "--capacities", "2")
    assert (hits(warm), warm["total"], warm["requests"]) == ([2], 2, 1)


def test_fifo_lies_below_and_the_known_future_above(golden: str) -> None:
    sizes = ("--capacities", "1,2,3,4,5")
    fifo, lru, opt = (curve(golden, "--policy", policy, *sizes) for policy in ("fifo", "lru", "opt"))
    assert all(a <= b <= c for a, b, c in zip(hits(fifo), hits(lru), hits(opt), strict=True))
    assert hits(opt) == [2, 4, 5, 5, 5]
    assert opt["plateau_pages"] == 3
    assert fifo["plateau_pages"] is None
    assert "smallest" in fifo["facts"]["/plateau_pages"]["reason"]


def test_a_geometry_gives_sizes_in_bytes(golden: str) -> None:
    data = curve(golden, "--geometry", "tiny-4k", "--capacities", "5")
    assert (data["page_bytes"], data["curve"][0]["capacity_bytes"]) == (4096, 5 * 4096)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[{"hash_ids": [1], "input_length": 5, "timestamp": 0}]\n', "jq -c '.[]'"),
        ('[\n {"hash_ids": [1], "input_length": 5, "timestamp": 0}\n]\n', "jq -c '.[]'"),
        ('{\n "hash_ids": [1]\n}\n', "jq -c ."),
        (f"{mooncake_line([1], 0)}\n{mooncake_line([1], 1)[:20]}", "fetch the file again, or leave its last line out"),
        ('{"trace":1,"block_tokens":64,"scope":"global"}\n', "next: give a trace with at least one request line"),
    ],
    ids=["array", "spread array", "spread object", "cut", "no request"],
)
@pytest.mark.parametrize("command", ["info", "curve"])
def test_a_file_that_is_no_trace_is_told_what_makes_one_of_it(
    command: str, text: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "my.jsonl"
    path.write_text(text)
    ran = call("trace", command, str(path))
    assert (ran.code, hint in ran.err) == (2, True), ran.err


def test_a_band_needs_ten_sessions(golden: str, tmp_path: Path) -> None:
    few = curve(golden)
    assert few["ceiling_error"] is None
    assert "fewer than 10" in few["facts"]["/ceiling_error"]["reason"] == few["ceiling_error_reason"]
    said = " ".join(call("trace", "curve", golden).out.split())
    assert "no +- is known: sessions cannot be told apart: not all are named, and requests begin in 3 ways past" in said
    many = curve(str(write_trace(tmp_path / "many.jsonl", conversations(30, 3, 2))))
    assert many["ceiling_error"] is not None
    assert many["plateau_low_pages"] <= many["plateau_pages"] <= many["plateau_high_pages"]


def test_a_trace_too_long_to_hold_is_sampled_with_a_band_and_only_for_lru(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = str(write_trace(tmp_path / "many.jsonl", conversations(300, 3, 2)))
    exact = curve(trace, "--capacities", "900,2000")
    monkeypatch.setattr("hicachectl.commands.trace.LONG_FILE_BYTES", 0)
    monkeypatch.setattr("hicachectl.tuning.sizing.sampling.SAMPLE_ABOVE", 1_000)
    data = curve(trace, "--capacities", "900,2000")
    assert (exact["sampled_one_in"], data["sampled_one_in"]) == (None, 10)
    assert data["curve"][1]["hit_rate"] == pytest.approx(exact["curve"][1]["hit_rate"], abs=0.1)
    assert data["ceiling_error"] is not None
    assert all(row["hit_rate_error"] is not None for row in data["curve"])
    assert data["plateau_low_pages"] <= data["plateau_pages"] <= data["plateau_high_pages"]
    assert "sampled" in data["facts"]["/window_too_short"]["reason"]
    assert "one block in 10" in call("trace", "curve", trace).out
    assert call("trace", "curve", trace, "--policy", "fifo").code == 2


@pytest.mark.parametrize("sizes", ["0", "x", "8,", "-3", "", "\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_a_list_of_sizes_that_is_none_is_refused(golden: str, sizes: str) -> None:
    ran = call("trace", "curve", golden, "--capacities", sizes)
    assert ran.code == 2
    assert "--capacities" in ran.err


def test_ids_of_contents_have_no_prefix_curve_and_info_says_so(tmp_path: Path) -> None:
    path = str(write_trace(tmp_path / "contents.jsonl", [[1, 2], [3, 2]]))
    ran = call("trace", "curve", path)
    assert ran.code == 2
    assert (
        f"{path}: block 1 of request 1 (counted from 0) follows two different blocks in this trace: here block 0; before, another one"
        in " ".join(ran.err.split())
    )
    started = str(write_trace(tmp_path / "started.jsonl", [[1, 2], [2]]))
    sized = call(
        "tune", "size", "--trace", started, "--geometry", "tiny-4k", "--steps", "none", "--state-dir", str(tmp_path)
    )
    assert sized.code == 2
    assert f"{started}: block 0 of request 1" in sized.err
    assert "here none, it begins the request; before, another one" in sized.err
    data = call("trace", "info", path, "-o", "json").json["data"]
    assert (data["requests"], data["distinct_blocks"]) == (2, None)
    assert "two different blocks" in data["facts"]["/distinct_blocks"]["reason"]
    assert "distinct blocks          not known: block 1 of request 1" in call("trace", "info", path).out


def test_info_counts_what_the_trace_holds(golden: str) -> None:
    data = call("trace", "info", golden, "-o", "json").json["data"]
    assert (data["requests"], data["blocks"], data["distinct_blocks"], data["longest_request_blocks"]) == (4, 10, 5, 3)
    assert data["input_tokens_quantiles"]["50"] in (512, 1536)
    assert "golden.jsonl" in call("trace", "info", golden).out


def test_a_converted_trace_has_the_same_curve(golden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "golden.trace.zst")
    ran = call("trace", "convert", golden, out, "-o", "json")
    assert (ran.code, ran.json["data"]["requests"]) == (0, 4)
    sizes = ("--capacities", "1,2,3,4,5")
    assert hits(curve(out, *sizes)) == hits(curve(golden, *sizes))
    again = call("trace", "convert", golden, out)
    assert again.code == 2
    assert "--force" in again.err
    assert call("trace", "convert", golden, out, "--force").code == 0
    monkeypatch.chdir(tmp_path)
    refused = call("trace", "convert", golden, "-")
    assert (refused.code, "name a file" in refused.err, Path("-").exists()) == (2, True, False)
    assert "write the trace to a file first" in call("trace", "info", "-").err


def test_a_synthetic_trace_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    made = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    for path, seed in zip(made, ("3", "3", "4"), strict=True):
        assert call("trace", "synth", "multi-turn", str(path), "--seed", seed, "--requests", "50").code == 0
    assert made[0].read_bytes() == made[1].read_bytes() != made[2].read_bytes()
    assert call("trace", "synth", "agents", str(tmp_path / "d.jsonl")).code == 2


def test_the_screen_marks_the_plateau_and_the_longest_request(golden: str) -> None:
    out = call("trace", "curve", golden, "--ascii", env={"COLUMNS": "100"}).out
    assert "<- smallest within 1 point" in out
    assert "longest request" in out
    assert "#" not in out  # a pipe gets plain lines, a terminal the bars too
    assert out.isascii()


@pytest.mark.shared
@pytest.mark.parametrize("definition", ["D1", "D2", "D3"])
def test_the_recorded_trace_gives_the_recorded_numbers(definition: str) -> None:
    name = {"D1": "all", "D2": "all", "D3": "full"}[definition]
    column = "tokens" if definition == "D2" else "blocks"
    with shared_path(f"traces/expected/mooncake_conversation_{name}_blocks.csv").open() as file:
        rows = list(csv.DictReader(file))
    data = curve(
        str(shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz")), "--definition", definition,
        "--capacities", ",".join(row["capacity_blocks"] for row in rows),
    )  # fmt: skip
    assert [tuple(row[key] for key in KEYS[:3]) for row in data["curve"]] == [
        (int(row["capacity_blocks"]), int(row[f"lru_hit_{column}"]), int(row[f"total_{column}"])) for row in rows
    ]
    assert data["plateau_pages"] == {"D1": 52_882, "D2": data["plateau_pages"], "D3": 50_092}[definition]
