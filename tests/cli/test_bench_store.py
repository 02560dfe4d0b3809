"""`bench store`: refused before the first byte where it does not fit, and nothing left of it however it ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from cli_runner import call, signalled
from files import files_below

from hicachectl.bench_results import priors_of, read_bench
from hicachectl.commands.bench_store import _pages_a_round
from hicachectl.disk_room import require_disk_room
from hicachectl.errors import CapacityError, UsageError
from hicachectl.runtime.cost import Path as CostPath
from hicachectl.runtime.probes.store_rows import StoreCase

SMALL = ("bench", "store", "--geometry", "tiny-4k", "--page-tokens", "64", "--size", "8KiB", "--threads", "1")


def test_a_result_is_a_file_whose_costs_the_cost_model_may_start_from(tmp_path: Path) -> None:
    path, where = tmp_path / "store.json", tmp_path / "disk"
    ran = call(*SMALL, "--batch", "1,4", "--no-fsync", "--path", str(where), "-o", "json", "--output-file", str(path))
    assert ran.code in (0, 9)  # 9: another load on this machine
    assert not where.exists()
    assert (
        f"{where} is not there: made for this measurement and removed again, on the file system of {tmp_path}\n"
        in ran.err
    )
    document = json.loads(path.read_text()) | {"exit_code": 0, "status": "ok"}
    path.write_text(json.dumps(document))
    found = read_bench(path)
    data = document["data"]
    assert (found.kind, data["geometry"]["name"], data["geometry"]["page_tokens"]) == ("store", "tiny-4k", 64)
    assert data["folder_reason"] == "asked for"
    assert data["left"] == []
    rate = found.find("read warm, 4 pages a call, 1 thread", "bytes_per_s")
    assert rate is not None
    assert len(rate.samples) == 3
    assert set(priors_of(found)) <= {CostPath.STORAGE_READ, CostPath.STORAGE_WRITE}
    for name in ("storage_read", "storage_write"):
        cost, pointer = data["costs"][name], f"/costs/{name}"
        assert (cost is None) == (pointer in data["facts"])


def test_a_size_below_the_least_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    where = tmp_path / "new"
    ran = call("bench", "store", "--size", "1MB", "--geometry", "qwen3-8b", "--page-tokens", "64", "--path", str(where))
    assert ran.code == 2
    words = " ".join(ran.err.split())
    assert "1000000 bytes (976.6 KiB) a round; least is 16 pages x 4 threads x 9437184 bytes = 603979776 bytes" in words
    assert "--size 603979776" in words
    assert not where.exists()


def test_the_size_is_what_is_written_at_most_and_the_default_is_never_below_the_least() -> None:
    cases = (StoreCase(1, 4), StoreCase(16, 4), StoreCase(16, 1))
    assert _pages_a_round(64 * 100 + 99, cases, 100) == 64
    with pytest.raises(UsageError, match="least is 16 pages x 4 threads x 100 bytes = 6400 bytes"):
        _pages_a_round(6399, cases, 100)
    assert _pages_a_round(None, cases, 9437184) == 64
    assert _pages_a_round(None, cases, 1 << 20) == 128


def test_help_says_the_least_size() -> None:
    words = " ".join(call("bench", "store", "--help", env={"COLUMNS": "200"}).out.split())
    assert "least: the largest --batch x the most --threads x the bytes of a page" in words
    assert "128MiB, or the least where that is more" in words


def test_calls_of_one_size_give_no_line_and_say_so(tmp_path: Path) -> None:
    ran = call(*SMALL, "--batch", "2", "--path", str(tmp_path), "--rounds", "3", "-o", "json")
    assert ran.code in (0, 9)  # 9: another load on this machine
    assert "is not there" not in ran.err
    reason = ran.json["data"]["facts"]["/costs/storage_read"]["reason"]
    assert (
        "by one thread: calls of one size, a line needs two --batch sizes" in reason
        or "that counts as an answer" in reason
    )


@pytest.mark.parametrize("size", ["500TiB", "100PiB"])
def test_what_does_not_fit_the_disk_is_refused_with_the_arithmetic_before_a_folder_is_made(
    tmp_path: Path, size: str
) -> None:
    ran = call(*SMALL[:-4], "--size", size, "--path", str(tmp_path / "new"))
    assert ran.code == 10
    for term in ("pages of 512 B", "headers and rounding to blocks", "folders", "free", "left to others, a twentieth"):
        assert term in ran.err
    assert not (tmp_path / "new").exists()


def test_a_twentieth_of_the_disk_stays_free(tmp_path: Path) -> None:
    require_disk_room(tmp_path / "new", [("pages", 94), ("headers", 1)], "h", free_bytes=lambda folder: 100)
    with pytest.raises(CapacityError, match=r"96 B \(96 B\) are to be written, .* has room for 95 B") as caught:
        require_disk_room(tmp_path / "new", [("pages", 95), ("headers", 1)], "h", free_bytes=lambda folder: 100)
    assert caught.value.terms == (("pages", 95), ("headers", 1), ("free", 100), ("left to others, a twentieth", -5))


def test_the_folder_is_that_of_the_configuration_where_none_is_given(tmp_path: Path) -> None:
    there = tmp_path / "l3"
    ran = call(*SMALL, "--batch", "1", "--rounds", "1", "-o", "json", env={"HICACHECTL_RUN_STORAGE_PATH": str(there)})
    assert ran.code == 9
    assert ran.json["diagnostics"][0]["message"].startswith("bytes_per_s: 1 sample: spread unknown")
    assert Path(ran.json["data"]["folder"]).parent == there
    assert ran.json["data"]["folder_reason"] == "storage_path of the configuration"
    assert not there.exists()


def test_no_time_is_no_answer(tmp_path: Path) -> None:
    ran = call(*SMALL, "--path", str(tmp_path), "--time-budget", "0", "-o", "json")
    assert ran.code == 9
    assert ran.json["data"]["rows"][0]["refused"] is None
    (nothing,) = ran.json["diagnostics"]
    assert nothing["hint"] == "give a longer --time-budget, or leave it out"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--path", ""), 2, "'' names no folder"),
        (("--batch", "0"), 2, "'0' are no counts"),
        (("--batch", "\u00b2"), 2, "'\u00b2' are no counts"),
        (("--batch", "9" * 5000), 2, "are no counts"),
        (("--threads", "1,x"), 2, "'1,x' are no counts"),
        (("--size", "much"), 2, "much"),
        (("--geometry", "qwen3-8"), 2, "did you mean 'qwen3-8b'"),
        (("--layout", "pages"), 2, "layout"),
        (("--root", "/"), 2, "snapshot"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_code(more: tuple[str, ...], code: int, words: str) -> None:
    ran = call(*SMALL, *more)
    assert ran.code == code, ran.err
    assert words in ran.err


def test_a_folder_that_cannot_be_made_is_named_and_not_ready(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    ran = call(*SMALL, "--path", str(tmp_path / "file" / "below"))
    assert ran.code == 10
    assert "no temporary folder can be made" in ran.err
    assert str(tmp_path / "file" / "below") in ran.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_it_with_its_code_and_leaves_nothing_but_the_files_of_others(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "mine").write_text("of another")
    ran = signalled(
        number, *SMALL[:-4], "--size", "4MiB", "--rounds", "1000", "--path", str(tmp_path), "-o", "json",
        when=lambda: files_below(tmp_path, ".page"),
    )  # fmt: skip
    assert ran.code == code, ran.err
    assert ran.json["exit_code"] == code
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_a_killed_run_left_is_removed_and_told_by_the_next_even_one_that_the_disk_refuses(tmp_path: Path) -> None:
    killed = signalled(
        signal.SIGKILL, *SMALL[:-4], "--size", "4MiB", "--rounds", "1000", "--path", str(tmp_path),
        when=lambda: files_below(tmp_path, ".page"),
    )  # fmt: skip
    assert killed.code == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    ran = call(*SMALL[:-4], "--size", "500TiB", "--path", str(tmp_path))
    assert ran.code == 10
    assert f"removed {left}, which a killed process left" in "".join(ran.err.splitlines())
    assert list(tmp_path.iterdir()) == []
