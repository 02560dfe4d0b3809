"""`--costs` of run and tune size: costs of these pages and no others, and economics from files alone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from bench_files import bench_document, pages_of
from cli_runner import call
from small_traces import conversations, write_trace

from hicachectl.bench_data import Costs, LineCost, RecomputeLine
from hicachectl.data_digest import with_digest
from hicachectl.envelope import Severity
from hicachectl.errors import UsageError
from hicachectl.run_costs import read_costs, require_pages, sizing_costs, storage_warnings
from hicachectl.runtime.cost import LinearCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.probes.page_cache import FileSystem
from hicachectl.size_run import Sizing
from hicachectl.tuning.sizing.prediction import Prediction

QWEN = preset("qwen3-8b", 16)
READ = Costs(host_read=LineCost(1e-4, 2e-11, 9))
TINY = pages_of("model", "tiny-4k")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, kind: str, costs: Costs, **details: Any) -> str:
    """A file as bench writes it, with `details` of its own."""
    document = bench_document(kind, costs)
    document["data"] = with_digest(document["data"] | details)
    Path(name).write_text(json.dumps(document))
    return name


OTHERS: tuple[dict[str, Any], ...] = (
    {"name": "llama-3.1-8b", "page_bytes": 2097152}, {"page_tokens": 64, "page_bytes": 9437184}, {"page_bytes": 1179648},
    {"dtype": "fp8_e4m3"}, {"layout": "layer_first"},
)  # fmt: skip


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("kind", ["copy", "store", "model"])
def test_costs_of_other_pages_are_refused_with_both(kind: str, others: dict[str, Any]) -> None:
    written("x.json", kind, READ, **pages_of(kind, "qwen3-8b", 16, **others))
    with pytest.raises(UsageError) as caught:
        require_pages(read_costs("x.json"), QWEN, "page_first_direct")
    has = {
        "name": "qwen3-8b",
        "page_tokens": 16,
        "page_bytes": 2359296,
        "dtype": "bf16",
        "layout": "page_first_direct",
    } | others
    backend = "" if kind == "store" else " by copy backend cpu"
    assert (
        f"pages of {has['name']}, {has['page_tokens']} tokens, {has['page_bytes']} B, {has['dtype']}, {has['layout']}{backend};"
        in caught.value.what
    )
    assert "asked for are pages of qwen3-8b, 16 tokens, 2359296 B, bf16, page_first_direct" in caught.value.what
    assert caught.value.where == "x.json"


@pytest.mark.parametrize("kind", ["copy", "model"])
def test_copies_by_another_backend_than_asked_for_are_refused_with_both(kind: str) -> None:
    written("x.json", kind, READ, **pages_of(kind, "qwen3-8b", 16))
    for fits in ("auto", "cpu"):
        require_pages(read_costs("x.json"), QWEN, "page_first_direct", fits)
    with pytest.raises(UsageError) as caught:
        require_pages(read_costs("x.json"), QWEN, "page_first_direct", "torch")
    assert caught.value.what == "measured with copy backend cpu; asked for is torch"
    assert caught.value.where == "x.json"
    assert f"bench {kind} --backend torch" in str(caught.value.hint)
    written("x.json", kind, Costs(storage_read=LineCost(1e-3, 1e-9, 4)), **pages_of(kind, "qwen3-8b", 16))
    require_pages(read_costs("x.json"), QWEN, "page_first_direct", "torch")  # storage is read by none


def test_a_run_with_a_backend_refuses_the_costs_of_another() -> None:
    written("x.json", "model", READ, **TINY)
    words = ("run", "--geometry", "tiny-4k", "--page-tokens", "512", "--device", "cpu", "--costs", "x.json", "--check")
    assert call(*words).code == 0
    ran = call(*words, "--backend", "torch")
    assert ran.code == 2
    assert "measured with copy backend cpu; asked for is torch" in ran.err


HERE, THERE = FileSystem("ext4", "/", "/dev/vda"), FileSystem("xfs", "/var/cache", "/dev/nvme0n1p1")
STORED = Costs(storage_read=LineCost(1e-3, 1e-9, 4))


def measured_in(kind: str, system: FileSystem, *, warm: bool) -> dict[str, Any]:
    place = {"folder": "/x/bench", "file_system": {"kind": system.kind, "mount": system.mount, "device": system.device}}
    if kind == "model":
        return {"storage": place | {"resident_share": 0.9 if warm else 0.0}}
    return place | {"costs_of": {"storage_read": "read warm" if warm else "read cold", "storage_write": "write"}}


@pytest.mark.parametrize("kind", ["store", "model"])
def test_a_storage_read_of_another_disk_or_of_the_page_cache_is_warned_of_with_both(kind: str) -> None:
    tier = Path("/var/cache/pages")

    def told(system: FileSystem, *, warm: bool, folder: Path | None = tier) -> list[str]:
        written("l3.json", kind, STORED, **measured_in(kind, system, warm=warm))
        found = storage_warnings(read_costs("l3.json"), folder, file_system_of=lambda folder: THERE)
        assert {(one.code, one.severity, one.subject) for one in found} <= {("HC-COSTS-L3", Severity.WARN, "l3.json")}
        return [one.message for one in found]

    assert told(THERE, warm=False) == []
    (disk,) = told(HERE, warm=False)
    assert (
        "measured in /x/bench, ext4 on /dev/vda; the storage tier is in /var/cache/pages, xfs on /dev/nvme0n1p1" in disk
    )
    (cache,) = told(THERE, warm=True)
    assert "stayed in the page cache" in cache
    assert len(told(HERE, warm=True)) == 2
    assert told(HERE, warm=True, folder=None) == [cache]
    unknown = FileSystem(None, None, None, "no list of mounts")
    assert told(unknown, warm=False) == []  # nothing unread is different


def test_a_storage_tier_in_memory_is_read_from_memory_and_no_disk_is_asked_for() -> None:
    memory, kind = FileSystem("tmpfs", "/dev/shm", "tmpfs"), "store"
    for system, n in ((memory, 0), (HERE, 1)):
        written("l3.json", kind, STORED, **measured_in(kind, system, warm=True))
        found = storage_warnings(read_costs("l3.json"), Path("/dev/shm/pages"), file_system_of=lambda folder: memory)
        assert len(found) == n
        assert not any("one from the disk takes longer" in one.message for one in found)


RUN, SIZE = ("run", "--check"), ("tune", "size", "--steps", "none")


@pytest.mark.parametrize(
    ("command", "is_told"),
    [
        ((*RUN, "--storage-path", "l3"), True), ((*RUN, "--storage-path", "none"), False),
        ((*SIZE, "--l3", "infinite"), True), (SIZE, False),
    ],
)  # fmt: skip
def test_a_command_with_a_storage_tier_tells_of_a_storage_read_from_the_page_cache(
    command: tuple[str, ...], is_told: bool
) -> None:
    write_trace(Path("t.jsonl"), conversations(20, 4))
    costs = written("l3.json", "store", STORED, **pages_of("store", "tiny-4k"), **measured_in("store", HERE, warm=True))
    ran = call(
        *command, "--trace", "t.jsonl", "--geometry", "tiny-4k", "--page-tokens", "512", "--device", "cpu", "--costs", costs,
        "-o", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    told = [one for one in ran.json["diagnostics"] if one["code"] == "HC-COSTS-L3"]
    assert bool(told) == is_told  # of the page cache, or of another file system where that of tests is in memory


def test_a_sizing_goes_on_with_the_same_file_of_costs_under_another_spelling() -> None:
    write_trace(Path("t.jsonl"), conversations(20, 4))
    facts = bench_document("model", STORED)["data"]["facts"] | {
        "/costs/host_read": {"reason": "its lengths gave no answer"}
    }
    costs = written("l3.json", "model", STORED, **TINY, facts=facts)
    words = (
        "tune", "size", "--trace", "t.jsonl", "--geometry", "tiny-4k", "--page-tokens", "512", "--device", "cpu", "--no-waterfall",
        "--state-dir", "state", "--time-budget", "0",
    )  # fmt: skip
    assert call(*words, "--costs", costs).code == 9
    again = call(*words, "--costs", f"./{costs}", "--resume")
    assert again.code == 9, again.err


def test_a_sizing_ends_with_the_costs_it_began_with_whatever_becomes_of_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_trace(Path("t.jsonl"), conversations(20, 4))
    costs = written("l3.json", "store", STORED, **pages_of("store", "tiny-4k"), **measured_in("store", HERE, warm=True))
    predict = Sizing.predict

    def gone(run: Sizing) -> Prediction:
        Path(costs).unlink(missing_ok=True)
        return predict(run)

    monkeypatch.setattr(Sizing, "predict", gone)
    ran = call(
        *SIZE, "--l3", "infinite", "--trace", "t.jsonl", "--geometry", "tiny-4k", "--page-tokens", "512", "--device", "cpu",
        "--costs", costs, "-o", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert not Path(costs).exists()
    assert "HC-COSTS-L3" in [one["code"] for one in ran.json["diagnostics"]]


def test_a_file_without_a_cost_that_run_uses_is_told_and_not_repeated_in_what_comes_next() -> None:
    write_trace(Path("t.jsonl"), conversations(20, 4))
    written("pool.json", "pool", Costs(make_s_per_gib=0.25))
    written("model.json", "model", READ, **TINY)
    line = (
        "run",
        "--trace",
        "t.jsonl",
        "--geometry",
        "tiny-4k",
        "--page-tokens",
        "512",
        "--device",
        "cpu",
        "--storage-path",
        "none",
    )
    ran = call(*line, "--limit", "9", "--costs", "pool.json", "-o", "json", "--report", "out.html")
    assert (ran.code, ran.json["status"]) == (0, "findings")
    (told,) = ran.json["diagnostics"]
    assert (told["code"], told["severity"], told["subject"]) == ("HC-COSTS-UNUSED", "note", "pool.json")
    assert "note HC-COSTS-UNUSED" in ran.err
    before, made_by = Path("out.html").read_text().split("Made by")
    assert ("--costs" in before, "--costs pool.json" in made_by) == (False, True)
    for costs, again in (
        ("pool.json", []),
        ("pool.json,model.json", ["--costs model.json"] * 2),
        ("model.json", ["--costs model.json"] * 2),
    ):
        screen = call(*line, "--limit", "9", "--costs", costs).out
        following = " ".join(screen.split("NEXT")[1].split("FINDINGS")[0].split())
        assert re.findall(r"--costs \S+", following) == again, screen
        assert ("HC-COSTS-UNUSED" in screen) == ("pool" in costs)
    assert not call(*line, "--check", "--costs", "model.json", "-o", "json").json["diagnostics"]
    assert call(*line, "--check", "--costs", "pool.json", "-o", "json").json["diagnostics"] == [told]


def test_each_file_without_a_cost_that_run_uses_is_named_on_stderr_and_one_named_twice_is_told_once() -> None:
    for name in ("pool.json", "other.json"):
        written(name, "pool", Costs(make_s_per_gib=0.25))
    Path("link.json").symlink_to("pool.json")
    line = ("run", "--synthetic", "one-shot", "--limit", "3", "--device", "cpu", "--costs")
    ran = call(*line, "./pool.json,pool.json, link.json,other.json", "-o", "json")
    assert [one["subject"] for one in ran.json["diagnostics"]] == ["./pool.json", "other.json"]
    told = [text for text in ran.err.splitlines() if "HC-COSTS-UNUSED" in text]
    assert [text.partition(" it holds")[0] for text in told] == [
        "note HC-COSTS-UNUSED: ./pool.json:", "note HC-COSTS-UNUSED: other.json:",
    ]  # fmt: skip
    screen = call(*line, "./pool.json,pool.json").out
    assert "--costs" not in screen.split("NEXT")[1].split("FINDINGS")[0]
    assert [one.path for one in read_costs("./pool.json,other.json,pool.json")] == ["./pool.json", "other.json"]


def test_costs_of_another_host_are_refused_with_both() -> None:
    for host, words in (("elsewhere", "elsewhere"), (None, "a host without a name")):
        document = bench_document("pool", Costs(make_s_per_gib=0.25), host=host)
        Path("pool.json").write_text(json.dumps(document))
        with pytest.raises(UsageError, match=f"it was measured on {words}, this is {os.uname().nodename}") as caught:
            read_costs("pool.json")
        assert caught.value.where == "pool.json"


@pytest.mark.parametrize("command", ["run", "tune size"])
@pytest.mark.parametrize(
    "costs", [Costs(make_s_per_gib=0.25), Costs(recompute=RecomputeLine(0.01, 3e-5, 0.0, "tiny-64k", "made up")), READ]
)
def test_a_command_refuses_costs_of_another_device(command: str, costs: Costs) -> None:
    written("model.json", "model", costs)
    document = json.loads(Path("model.json").read_text())
    document["data"]["setting"]["device"] = "cuda:3"
    document["data"] = with_digest(document["data"])
    Path("model.json").write_text(json.dumps(document))
    ran = call(*command.split(), "--device", "cpu", "--costs", "model.json")
    assert ran.code == 2
    assert "model.json: this result was measured on cuda:3, this run is on cpu" in ran.err


def test_costs_of_these_pages_and_of_none_are_taken() -> None:
    written("model.json", "model", READ, **pages_of("model", "qwen3-8b", 16))
    written("pool.json", "pool", Costs(make_s_per_gib=0.25))
    written("later.json", "copy", Costs(host_read=LineCost(9e-4, 9e-11, 9)), **pages_of("copy", "qwen3-8b", 16))
    results = read_costs("model.json,pool.json,later.json")
    require_pages(results, QWEN, "page_first_direct")
    given = sizing_costs(results)
    assert (given.host_read, given.storage_read, given.make_s_per_gib) == (LinearCost(1e-4, 2e-11), None, 0.25)


def test_a_file_without_a_cost_and_one_whose_pages_were_edited_are_refused() -> None:
    written("link.json", "link", Costs())
    with pytest.raises(UsageError, match="no cost was measured in this file"):
        read_costs("link.json")
    document = bench_document("store")
    why = "read cold by one thread: calls of one size, a line needs two --batch sizes (and --threads 1)"
    document["data"]["facts"]["/costs/storage_read"] = {"reason": why}
    document["data"] = with_digest(document["data"])
    Path("store.json").write_text(json.dumps(document))
    with pytest.raises(UsageError) as caught:
        read_costs("store.json")
    assert caught.value.why == why
    written("broken.json", "model", READ, geometry={"name": "qwen3-8b"})
    with pytest.raises(UsageError, match="the pages are given as name 'qwen3-8b', page_tokens None, page_bytes None"):
        require_pages(read_costs("broken.json"), QWEN, "page_first_direct")
    for geometry in (None, [1], 7):
        written("broken.json", "model", READ, geometry=geometry)
        with pytest.raises(UsageError, match="the pages are given as") as caught:
            require_pages(read_costs("broken.json"), QWEN, "page_first_direct")
        assert caught.value.where == "broken.json"


@pytest.mark.parametrize("command", ["run", "tune size"])
def test_a_command_refuses_a_file_of_other_pages_and_of_another_version(command: str) -> None:
    written("model.json", "model", READ, **TINY)
    ran = call(*command.split(), "--geometry", "tiny-64k", "--costs", "model.json")
    assert ran.code == 2
    assert "measured with pages of tiny-4k" in ran.err
    document = json.loads(Path("model.json").read_text()) | {"schema": "hicachectl.bench-model/9"}
    Path("model.json").write_text(json.dumps(document))
    ran = call(*command.split(), "--geometry", "tiny-4k", "--costs", "model.json")
    assert ran.code == 2
    assert "version 9 of bench-model, this release reads 1" in ran.err


def test_a_restore_that_no_file_has_is_named_with_the_files_own_reason_and_what_to_do() -> None:
    write_trace(Path("trace.jsonl"), conversations(20, 4, 2))
    line = ("tune", "size", "--trace", "trace.jsonl", "--geometry", "tiny-4k", "--steps", "none", "--state-dir", "s", "--device-slots", "8",
            "--device", "cpu", "--force", "-o", "json", "--costs")  # fmt: skip
    prefill = RecomputeLine(0.01, 3e-5, 0.0, "tiny-4k", "made up")
    written("model.json", "model", Costs(storage_read=LineCost(0.015, 1e-12, 9), recompute=prefill), **TINY)
    written("pool.json", "pool", Costs(make_s_per_gib=0.25))
    document = json.loads(Path("model.json").read_text())
    noisy = "host tier, 512 tokens, restore_s: the middle half of 5 samples spreads over 151 % of their median, 50 % is the most that counts as an answer"
    document["data"]["facts"] = {"/costs/host_read": {"reason": noisy}}
    document["data"] = with_digest(document["data"])
    Path("model.json").write_text(json.dumps(document))
    asked = call(*line, "model.json,pool.json")
    assert asked.code == 0, asked.err
    reason = asked.json["data"]["costs_reason"]
    assert reason.startswith("no step made a pool, and no file of --costs has what a restore costs (costs.host_read): ")
    assert f"model.json: {noisy}" in reason
    assert "hicachectl bench model -o json --output-file model.json" in reason
    assert "pool.json" not in reason
    none = sizing_costs(read_costs("pool.json")).why_no_host_read
    assert none is not None
    assert none.endswith(
        "(costs.host_read): measure it with hicachectl bench copy or bench model -o json --output-file FILE"
    )
    written("copy.json", "copy", Costs(host_read=LineCost(0.015, 1e-12, 9)))
    assert sizing_costs(read_costs("pool.json,copy.json")).why_no_host_read is None
    assert sizing_costs(()).why_no_host_read is None


def test_a_size_is_chosen_by_economics_from_files_alone() -> None:
    write_trace(Path("trace.jsonl"), conversations(20, 4, 2))
    line = ("tune", "size", "--trace", "trace.jsonl", "--geometry", "tiny-4k", "--steps", "none", "--state-dir", "s", "--device-slots", "8",
            "--device", "cpu", "--force", "-o", "json")  # fmt: skip
    assert call(*line).json["data"]["costs"] is None
    prefill = RecomputeLine(0.01, 3e-5, 0.0, "tiny-4k", "made up")
    written("model.json", "model", Costs(host_read=LineCost(0.015, 1e-12, 9), recompute=prefill), **TINY)
    without = call(*line, "--costs", "model.json")
    assert without.json["data"]["costs"] is None
    assert "bench pool" in without.json["data"]["costs_reason"]
    written("pool.json", "pool", Costs(make_s_per_gib=0.25))
    ran = call(*line, "--costs", "model.json,pool.json")
    assert ran.code == 0, ran.err
    costs = ran.json["data"]["costs"]
    assert costs["make_s_per_gib"] == 0.25
    assert costs["crossover_tokens"] == 501  # 15 ms over 30 us a token
    assert costs["storage_restore_s"] is None
    assert ran.json["data"]["choice"]["rule"] == "economics"
