"""`hicachectl tune size` on tiny pools: predict, choose, prove, write a configuration that reproduces it."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET, Ran, call, command_line, spawn
from shared_data import shared_path
from small_traces import conversations, write_trace
from tune_desk import THP, Desk, document

from hicachectl.runtime.memory.faults import Fault, with_fault
from hicachectl.runtime.memory.host_pool import map_pool
from hicachectl.runtime.memory.syscalls import PoolCalls


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # 40 chats of 6 pages, of which the last 25 come back: the plateau is where all of them fit
    write_trace(tmp_path / "chats.jsonl", [*conversations(40, 6, 1), *conversations(25, 6, 2)])


def run(*argv: str) -> Ran:
    return call(
        "tune", "size", "--geometry", "tiny-4k", "--state-dir", "state", "--progress", "none", "-o", "json", *argv
    )


def size(*argv: str) -> Any:
    ran = run(*argv)
    assert ran.code == 0, ran.err
    return ran.json["data"]


def test_every_step_hits_what_the_curve_says_to_the_page_and_the_plateau_is_confirmed() -> None:
    data = size("--trace", "chats.jsonl")
    assert data["ended"] == "plateau confirmed"
    assert len(data["steps"]) == 3
    for step in data["steps"]:
        assert (step["state"], step["difference_pages"], step["must_be_exact"]) == ("done", 0, True)
        assert step["trial"]["n_bytes"] == step["pages"] * 4096
        assert step["trial"]["register_s"] is None
    assert data["base"]["measured_hits"] == data["base"]["predicted_hits"]
    assert [step["pages"] for step in data["steps"]] == [120, 240, 480]
    assert (data["choice"]["pages"], data["choice"]["bound"], data["choice"]["rule"]) == (240, "plateau", "points")
    assert data["costs"] is None
    assert "qwen3-8b" in data["costs_reason"]
    assert data["waterfall"][0]["stage"] == "L1 only"


def test_all_of_a_pool_is_resident_in_its_step(tmp_path: Path) -> None:
    ran = spawn(
        "tune", "size", "--trace", "chats.jsonl", "--geometry", "tiny-64k", "--state-dir", "state", "-o", "json",
        cwd=tmp_path,
    )  # fmt: skip
    trials = [step["trial"] for step in json.loads(ran.stdout)["data"]["steps"]]
    assert [trial["memory"]["resident_bytes"] for trial in trials] == [trial["n_bytes"] for trial in trials]


def test_the_steps_say_what_a_gib_costs_and_whether_the_larger_pool_restores_more_slowly() -> None:
    data = size("--trace", "chats.jsonl")
    costs = data["pool_costs"]
    assert costs["populate_s_per_gib"] > 0
    assert costs["register_s_per_gib"] is None
    assert "no driver to register with" in costs["make_reason"]
    assert [(pair["small_pages"], pair["large_pages"]) for pair in costs["restores"]] == [(120, 240), (240, 480)]
    assert "100 are needed" in costs["restores"][0]["reason"]  # 25 chats come back
    assert data["device"] == "cpu"
    for step in data["steps"]:
        made, trial = step["trial"]["made"], step["trial"]
        assert made["resident_bytes"] >= trial["n_bytes"]
        assert trial["verified_pages"] == trial["restored_pages"]
        assert "restores" not in trial


def test_the_chain_has_a_row_for_the_memory_and_says_why_there_is_none_for_copies() -> None:
    data = size("--trace", "chats.jsonl")
    stages = [row["stage"] for row in data["waterfall"]]
    assert (stages[:2], stages[3:]) == (
        ["L1 only", "+ host pool, copy backend cpu, small pages"],
        ["+ capacity", "+ capacity"],
    )
    assert stages[2].startswith("+ ")
    assert data["waterfall_left_out"] == [{"stage": "a copy a chunk", "reason": "direct comes with an accelerator"}]
    assert data["pool_costs"]["again"]["small_pages"] == data["pool_costs"]["again"]["large_pages"] == 240
    short = size("--trace", "chats.jsonl", "--no-waterfall", "--force")
    assert [row["stage"] for row in short["waterfall"]][2:] == ["+ capacity", "+ capacity"]
    assert short["pool_costs"]["again_reason"] == "not made (--no-waterfall)"


@pytest.mark.parametrize("fault", [Fault.REGISTER_DRIVER_ERROR, Fault.POPULATE_NO_MEMORY, Fault.DEVICE_LOST])
def test_a_step_whose_memory_is_refused_ends_the_search_with_the_last_good_one(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(geometry: Any, n_slots: int, layout: Any, spec: Any, *, registrar: Any) -> Any:
        calls: Any = PoolCalls()
        if n_slots > 200:
            calls, registrar = with_fault(fault, calls, registrar)
        return map_pool(geometry, n_slots, layout, spec, registrar=registrar, calls=calls)

    monkeypatch.setattr("hicachectl.tuning.sizing.pool_trials.map_pool", refusing)
    ran = run("--trace", "chats.jsonl", "--geometry", "tiny-512k")
    data = ran.json["data"]
    assert (ran.code, data["ended"]) == (9, "a step failed")
    assert [(step["pages"], step["state"]) for step in data["steps"]] == [(120, "done"), (240, "failed")]
    assert "injected" in data["steps"][1]["reason"]
    assert (data["choice"]["pages"], data["config_host_pages"]) == (240, 120)
    assert "host_slots: 120" in Path("hicache.yaml").read_text()
    assert {left["reason"] for left in data["waterfall_left_out"]} == {
        "direct comes with an accelerator", "the steps ended before: a step failed"
    }  # fmt: skip
    assert any(found["code"] == "HC-SIZE-STEP" for found in ran.json["diagnostics"])


def test_a_device_that_is_not_there_is_refused_before_any_step() -> None:
    refused = run("--trace", "chats.jsonl", "--device", "cuda:7")
    assert refused.code == 2
    assert "--device" in refused.err
    assert not Path("state").exists()


@pytest.mark.parametrize("kind", ["memfd", "tmpfs"])
def test_pools_of_another_kind_hit_the_same_and_leave_nothing_on_their_mount(kind: str) -> None:
    before = set(Path("/dev/shm").iterdir())
    named = ["--host-memory-path", "/dev/shm/hicache-size-test"] if kind == "tmpfs" else []
    data = size("--trace", "chats.jsonl", "--host-memory-kind", kind, *named, "--steps", "200,400")
    assert [step["difference_pages"] for step in data["steps"]] == [0, 0]
    assert [step["trial"]["made"]["kind"] for step in data["steps"]] == [kind, kind]
    assert set(Path("/dev/shm").iterdir()) == before
    assert f'kind: "{kind}"' in Path("hicache.yaml").read_text()


def test_run_takes_the_configuration_and_hits_what_the_chosen_step_hit(tmp_path: Path) -> None:
    data = size("--trace", "chats.jsonl")
    chosen = next(step for step in data["steps"] if step["pages"] == data["choice"]["pages"])
    ran = call("run", "--config", "hicache.yaml", "--progress", "none", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json["data"]["pages_hit"] == chosen["measured_hits"]
    text = (tmp_path / "hicache.yaml").read_text()
    assert all("  # " in line for line in text.splitlines() if ": " in line and not line.startswith("#"))
    assert "host_slots: 240  # measured, tune size s-0001: bound by plateau" in text


def test_a_configuration_that_is_there_is_not_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "hicache.yaml").write_text("run:\n  seed: 3\n")
    refused = run("--trace", "chats.jsonl")
    assert refused.code == 2
    assert "--force" in refused.err
    assert size("--trace", "chats.jsonl", "--write", "other.yaml")["config"] == "other.yaml"
    assert (tmp_path / "hicache.yaml").read_text() == "run:\n  seed: 3\n"


def test_a_placement_is_among_the_terms_of_the_budget_and_in_the_record_of_each_step() -> None:
    data = size("--trace", "chats.jsonl", "--host-memory-placement", "interleave")
    terms = {term["name"]: term for term in data["budget"]["terms"]}
    free = [term["n_bytes"] for name, term in terms.items() if name.startswith("free on node")]
    assert terms["placement interleave"]["n_bytes"] == len(free) * min(free)
    assert data["budget"]["trial_bytes"] <= data["budget"]["can_use_bytes"]
    assert all(
        "interleave" in step["trial"]["made"]["placement"] or "bind" in str(step["trial"]["made"]["steps"])
        for step in data["steps"]
    )
    assert 'placement: "interleave"' in Path("hicache.yaml").read_text()


def test_less_memory_than_the_plateau_is_bound_by_memory() -> None:
    data = size("--trace", "chats.jsonl", "--max-bytes", "600KiB")
    assert (data["choice"]["pages"], data["choice"]["bound"]) == (150, "memory")
    assert data["budget"]["bound"] == "--max-bytes"
    assert [step["pages"] for step in data["steps"]] == [75, 150]
    assert run("--trace", "chats.jsonl", "--max-bytes", "8KiB", "--force").code == 10


def test_a_workload_that_never_comes_back_says_do_not_grow_and_makes_no_pool(tmp_path: Path) -> None:
    write_trace(tmp_path / "once.jsonl", conversations(30, 4, 1))
    data = size("--trace", "once.jsonl")
    assert (data["choice"]["pages"], data["choice"]["bound"], data["steps"]) == (0, "no reuse", [])
    assert "do not grow the pool" in data["choice"]["reason"]
    assert "host_slots: 0" in (tmp_path / "hicache.yaml").read_text()
    assert call("run", "--config", "hicache.yaml", "--progress", "none").code == 0


def test_named_steps_are_tried_in_order_whatever_their_order_and_unit() -> None:
    data = size("--trace", "chats.jsonl", "--steps", "200,400KiB")
    assert [step["pages"] for step in data["steps"]] == [100, 200]
    assert data["ended"].startswith("steps done")
    assert run("--trace", "chats.jsonl", "--steps", "x", "--force").code == 2


def test_another_policy_is_held_to_the_slack_and_named() -> None:
    data = size("--trace", "chats.jsonl", "--write-policy", "write_through_selective", "--steps", "300")
    assert "write_through_selective" in data["steps"][0]["assumption"]
    assert data["steps"][0]["must_be_exact"] is False


def test_the_prefill_of_the_model_whose_pages_move_lets_economics_choose(tmp_path: Path) -> None:
    (tmp_path / "compute.yaml").write_text(
        "run:\n  compute:\n    a_s: 0.001\n    b_s: 0.001\n    c_s: 0.0\n    model: tiny-4k\n    hardware: made up\n"
    )
    data = size("--trace", "chats.jsonl", "--config", "compute.yaml")
    assert (data["choice"]["rule"], data["choice"]["bound"]) == ("economics", "economics")
    assert data["costs"]["prefill_s"] > data["costs"]["restore_s"]
    assert data["choice"]["pages"] in [step["pages"] for step in data["steps"]]
    assert any(row["payback_h"] is not None for row in data["curve"]["rows"])


def test_exclusive_tiers_need_a_smaller_pool_and_its_steps_claim_no_equality() -> None:
    data = size("--trace", "chats.jsonl", "--device-slots", "60", "--l2", "exclusive", "--steps", "90,180,360")
    assert (data["choice"]["pages"], data["choice"]["inclusive_pages"], data["pool"]["pages"]) == (180, 240, 180)
    flags = {flag["flag"]: flag["value"] for flag in data["flags"]}
    assert flags["cpu_bytes_to_use"] == str(180 * 4096)
    for step in data["steps"]:
        assert (step["must_be_exact"], step["difference_pages"], step["state"]) == (False, 0, "done")
        assert "inclusive" in step["assumption"]
    rows = {row["capacity_pages"]: row for row in data["curve"]["rows"]}
    assert rows[180]["to_ceiling"] == pytest.approx(0.0)
    assert data["steps"][1]["measured_hit_rate"] < rows[180]["hit_rate"]
    assert run("--trace", "chats.jsonl", "--l2", "both", "--force").code == 2


def test_the_answer_is_told_in_pages_on_the_host_a_rank_and_in_each_engines_unit() -> None:
    data = size(
        "--trace", "chats.jsonl", "--geometry", "qwen3-8b", "--ranks", "4", "--steps", "none", "--max-bytes", "100GiB"
    )
    pages, page = data["choice"]["pages"], data["page_bytes"]
    assert data["pool"] == {
        "pages": pages, "page_bytes": page, "n_ranks": 4, "shared": False, "host_bytes": pages * page,
        "rank_bytes": pages * page // 4,
    }  # fmt: skip
    flags = {(flag["engine"], flag["flag"]): float(flag["value"]) for flag in data["flags"]}
    assert flags["vLLM", "--kv-offloading-size"] == pytest.approx(pages * page / 2**30, abs=0.01)
    assert flags["SGLang", "--hicache-size"] == math.ceil(pages * page / 4 / 10**9)
    assert flags["LMCache in-process", "max_local_cpu_size"] == pytest.approx(pages * page / 4 / 10**9, abs=0.01)


def test_requests_that_run_take_their_pages_off_l1_and_what_that_does_is_shown() -> None:
    data = size("--trace", "chats.jsonl", "--device-slots", "240", "--concurrency", "10", "--steps", "none")
    assert (data["device_pages"], data["device_pages_held_by_running"]) == (240, 61)
    tiers = data["tiers"]
    assert (tiers["concurrency"], tiers["device_pages_free"]) == (10, 179)
    assert tiers["device_hit_rate"] < tiers["device_hit_rate_idle"]
    assert data["choice"]["pages"] == 240
    screen = call(
        "tune", "size", "--trace", "chats.jsonl", "--geometry", "tiny-4k", "--device-slots", "240", "--concurrency",
        "10", "--steps", "none", "--state-dir", "state", "--force",
    ).out  # fmt: skip
    assert "61 held by 10 running requests" in " ".join(screen.split())


def test_storage_below_is_predicted_tier_by_tier_and_its_reads_have_host_pages() -> None:
    data = size("--trace", "chats.jsonl", "--l3", "infinite", "--concurrency", "3", "--steps", "none")
    assert (
        data["tiers"] | {"storage": True, "storage_pages": None, "bounce_pages": 18, "least_pages": 24} == data["tiers"]
    )
    choice = data["choice"]
    assert choice["served_by_storage_anyway"] == pytest.approx(choice["host_hit_rate"])
    assert "not taken off" in choice["reason"]
    assert data["facts"]["/tiers/storage_pages"]["reason"] == "without a limit"
    small = data["curve"]["rows"][0]
    assert small["hit_rate"] + small["storage_hit_rate"] == pytest.approx(data["curve"]["ceiling"])
    for given, pages in (("100", 100), ("400KiB", 100)):
        told = size("--trace", "chats.jsonl", "--l3", given, "--steps", "none", "--force")
        assert told["tiers"]["storage_pages"] == pages
    for wrong in ("0", "1KiB", "all"):
        assert run("--trace", "chats.jsonl", "--l3", wrong, "--steps", "none", "--force").code == 2


def test_another_question_about_the_tiers_is_not_gone_on_with() -> None:
    assert run("--trace", "chats.jsonl", "--time-budget", "0").code == 9
    for other in (("--l2", "exclusive"), ("--l3", "100"), ("--concurrency", "2")):
        ran = run("--trace", "chats.jsonl", "--resume", "--force", *other)
        assert (ran.code, "asked for something else" in ran.err) == (2, True)


def test_policies_come_after_capacity_and_are_simulated() -> None:
    data = size("--trace", "chats.jsonl", "--policies")
    first = data["policies"][0]
    assert first["policy"] == "lru, write_through"
    assert first["device_hit_pages"] + first["host_hit_pages"] == data["steps"][1]["measured_hits"]
    assert [one["policy"] for one in data["policies"]] == [
        "lru, write_through", "fifo, write_through", "lfu, write_through", "slru, write_through",
        "lru, write_through_selective at 2 hits", "lru, write_through_selective at 2 hits, ghost 6",
        "lru, write_through_selective at 2 hits, ghost 240", "lru, write_back",
    ]  # fmt: skip
    own = size("--trace", "chats.jsonl", "--policies", "--eviction", "priority", "--steps", "none", "--force")
    assert own["policies"][-1]["policy"] == "priority, write_through"


def test_the_report_is_one_page_with_curve_steps_and_choice(tmp_path: Path) -> None:
    size("--trace", "chats.jsonl", "--report", "size.html")
    page = (tmp_path / "size.html").read_text()
    assert page.count("<svg") >= 1
    for word in ("bound by plateau", "chosen 240 pages", "--hicache-size", "s-0001"):
        assert word in page
    assert "<script" not in page


def killed(tmp_path: Path, mark: str, *argv: str) -> list[str]:
    """Start a sizing, kill it when its record holds `mark`, and return the kinds of records that were whole."""
    write_trace(tmp_path / "long.jsonl", [*conversations(400, 6, 3), *conversations(40, 6, 2)])
    line = [
        "tune",
        "size",
        "--trace",
        "long.jsonl",
        "--geometry",
        "tiny-4k",
        "--state-dir",
        "state",
        "--progress",
        "none",
    ]
    process = subprocess.Popen(
        command_line(*line, *argv), env=QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    records = tmp_path / "state" / "size" / "s-0001" / "steps.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (records.exists() and f'"kind": "{mark}"' in records.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return [json.loads(text)["kind"] for text in records.read_text().splitlines(keepends=True) if text.endswith("\n")]


def test_a_killed_run_leaves_its_record_alone_and_resume_goes_on(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    kind = ["--host-memory-kind", "tmpfs", "--host-memory-path", "/dev/shm/hicache-size-killed"]
    kinds = killed(tmp_path, "done", *kind)
    assert "end" not in kinds, "killed too late for this test"
    n_done = kinds.count("done")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chats.jsonl", "long.jsonl", "state"]
    assert set(Path("/dev/shm").iterdir()) == before
    data = size("--trace", "long.jsonl", "--resume", *kind)
    assert data["id"] == "s-0001"
    assert [data["base"], *data["steps"]][n_done - 1]["resumed"] is True
    assert data["steps"][-1]["resumed"] is False
    assert {step["difference_pages"] for step in data["steps"]} == {0}
    other = run("--trace", "chats.jsonl", "--resume", "--force", *kind)
    assert other.code == 2
    assert "asked for something else" in other.err
    (tmp_path / "hicache.yaml").unlink()  # it names the kind
    assert "host_memory" in run("--trace", "long.jsonl", "--resume").err


def test_a_run_killed_among_the_replays_beside_the_steps_makes_only_the_missing_ones(tmp_path: Path) -> None:
    kinds = killed(tmp_path, "stage")
    assert kinds.count("stage") == 1, "killed too late for this test"
    data = size("--trace", "long.jsonl", "--resume")
    assert all(step["resumed"] for step in data["steps"])
    records = [json.loads(line) for line in Path("state/size/s-0001/steps.jsonl").read_text().splitlines()]
    made = [record["name"] for record in records if record["kind"] == "stage"]
    assert made == ["the same again", "copy backend"]
    assert data["pool_costs"]["again"]["n_requests"] > 0


def test_a_run_that_goes_on_keeps_the_sizes_it_began_with(tmp_path: Path) -> None:
    begun = run("--trace", "chats.jsonl", "--time-budget", "0", "--max-bytes", "600KiB")
    assert (begun.code, begun.json["data"]["ended"]) == (9, "time budget")
    again = size("--trace", "chats.jsonl", "--resume", "--force", "--max-bytes", "900KiB")
    assert [step["pages"] for step in again["steps"]] == [75, 150]
    assert (again["choice"]["pages"], again["choice"]["bound"], again["config_host_pages"]) == (150, "memory", 150)


def test_memory_that_went_meanwhile_ends_the_steps_with_the_last_good_one(tmp_path: Path) -> None:
    run("--trace", "chats.jsonl", "--time-budget", "0", "--max-bytes", "600KiB")
    ran = run("--trace", "chats.jsonl", "--resume", "--force", "--max-bytes", "400KiB")
    data = ran.json["data"]
    assert (ran.code, data["ended"]) == (9, "a step failed")
    assert [step["state"] for step in data["steps"]] == ["done", "failed"]
    assert "--max-bytes" in data["steps"][1]["reason"]
    assert (data["choice"]["pages"], data["config_host_pages"]) == (150, 75)
    assert "host_slots: 75" in (tmp_path / "hicache.yaml").read_text()


def test_ctrl_c_ends_with_130_and_leaves_a_record_to_go_on_from(tmp_path: Path) -> None:
    write_trace(tmp_path / "long.jsonl", conversations(400, 6, 3))
    argv = [
        "tune",
        "size",
        "--trace",
        "long.jsonl",
        "--geometry",
        "tiny-4k",
        "--state-dir",
        "state",
        "--progress",
        "none",
    ]
    process = subprocess.Popen(
        command_line(*argv), env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    records = tmp_path / "state" / "size" / "s-0001" / "steps.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (records.exists() and '"step"' in records.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert '"end"' not in records.read_text()
    assert not (tmp_path / "hicache.yaml").exists()


def test_nothing_to_resume_is_said() -> None:
    assert run("--trace", "chats.jsonl", "--resume").code == 2


def test_the_screen_has_budget_curve_steps_choice_and_flags() -> None:
    out = call(
        "tune", "size", "--trace", "chats.jsonl", "--geometry", "tiny-4k", "--state-dir", "state", "--explain", "--ascii",
        env={"COLUMNS": "120"},
    ).out  # fmt: skip
    for word in (
        "SIZE    s-0001",
        "BUDGET",
        "CURVE",
        "<- smallest within 1 point",
        "done, equal, chosen",
        "CHOICE",
        "--hicache-size",
        "S-shaped",
    ):
        assert word in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.shared
def test_the_recorded_conversation_has_the_recorded_plateaus() -> None:
    trace = str(shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz"))
    data = size("--trace", trace, "--steps", "none")
    assert (data["curve"]["plateau_d1_pages"], data["curve"]["plateau_pages"]) == (52_882, 50_092)
    assert data["choice"] | {"reason": ""} == data["choice"] | {
        "pages": 50_092,
        "bound": "trace too short",
        "reason": "",
    }
    assert (data["curve"]["total"], data["device_pages"]) == (276_491, 246)


@pytest.mark.shared
def test_one_shot_traffic_is_told_not_to_grow_the_pool() -> None:
    data = size("--synthetic", "one-shot", "--page-tokens", "64")
    assert (data["choice"]["bound"], data["choice"]["pages"]) == ("no reuse", 0)


def test_a_pool_is_not_sized_on_a_host_that_is_no_longer_as_tune_set_it(desk: Desk) -> None:
    trace = write_trace(desk.folder / "t.jsonl", conversations(4, 4, 2))
    line = (
        "tune", "size", "--trace", str(trace), "--geometry", "tiny-4k", "--steps", "none", "--progress", "none", "-o", "json",
        "--force", "--write", str(desk.folder / "size.yaml"), "--state-dir", str(desk.folder / "sizes"),
    )  # fmt: skip
    desk.make_plan("--only", "thp")
    assert document(desk.call(*line), "tune-size")["host"] == "nothing of tune is in place on this host"
    assert desk.call("tune", "apply", "PLAN", "--yes").code == 0
    assert document(desk.call(*line), "tune-size")["host"] == "as tune set it"
    desk.host.root.at(f"{THP}/enabled").write_text("always madvise [never]\n")
    refused = desk.call(*line)
    assert (refused.code, refused.json["data"]) == (3, None)
    assert "--anyway" in refused.err
    assert "differs" in document(desk.call(*line, "--anyway"), "tune-size")["host"]
