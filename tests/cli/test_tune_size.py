"""`hicachectl tune size` on tiny pools: predict, choose, prove, write a configuration that reproduces it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from cli_runner import call
from shared_data import shared_path
from size_calls import run, size
from small_traces import conversations, mooncake_line, write_trace
from tune_desk import THP, Desk, document

from hicachectl.units import format_bytes

pytestmark = pytest.mark.usefixtures("chats_folder")


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


@pytest.mark.parametrize(
    ("policy", "code", "state"), [("write_back", 0, "done"), ("write_through_selective", 9, "differs")]
)
def test_another_policy_is_held_to_the_slack_and_named(policy: str, code: int, state: str) -> None:
    ran = run("--trace", "chats.jsonl", "--write-policy", policy, "--steps", "300")
    assert ran.code == code
    (step,) = ran.json["data"]["steps"]
    assert (step["state"], step["must_be_exact"]) == (state, False)
    assert policy in step["assumption"]


def test_the_prefill_of_the_model_whose_pages_move_lets_economics_choose(tmp_path: Path) -> None:
    (tmp_path / "compute.yaml").write_text(
        "run:\n  compute:\n    a_s: 0.001\n    b_s: 0.001\n    c_s: 0.0\n    model: tiny-4k\n    hardware: made up\n"
    )
    data = size("--trace", "chats.jsonl", "--config", "compute.yaml")
    assert (data["choice"]["rule"], data["choice"]["bound"]) == ("economics", "economics")
    assert data["costs"]["prefill_s"] > data["costs"]["restore_s"]
    assert data["choice"]["pages"] in [step["pages"] for step in data["steps"]]
    assert any(row["payback_h"] is not None for row in data["curve"]["rows"])


def test_the_tokens_of_an_hour_are_those_of_the_requests_that_were_read_and_can_hit(tmp_path: Path) -> None:
    (tmp_path / "compute.yaml").write_text(
        "run:\n  compute:\n    a_s: 0.001\n    b_s: 0.001\n    c_s: 0.0\n    model: tiny-4k\n    hardware: made up\n"
    )
    line = mooncake_line(range(9000, 9004), 900_000, input_length=512 * 3 + 1)
    with (tmp_path / "chats.jsonl").open("a") as file:  # a last request, long after, that ends in a page of one token
        file.write(line + "\n")
    asked = ("--trace", "chats.jsonl", "--config", "compute.yaml", "--steps", "168", "--no-waterfall")
    whole = size(*asked, "--write", "a.yaml")
    assert whole["costs"]["tokens_per_h"] == pytest.approx((90 * 6 + 3) * 512 / 900 * 3600)
    part = size(*asked, "--limit", "80", "--write", "b.yaml")
    assert part["costs"]["tokens_per_h"] == pytest.approx(80 * 6 * 512 / 79 * 3600)


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


@pytest.mark.parametrize(
    ("geometry", "ranks", "copies"), [("qwen3-235b-a22b", 4, 1), ("qwen3-235b-a22b", 8, 2), ("mla-78", 2, 2)]
)
def test_the_inclusive_pool_that_hits_as_much_has_the_bytes_of_all_ranks(
    geometry: str, ranks: int, copies: int
) -> None:
    words = [
        "tune", "size", "--trace", "chats.jsonl", "--geometry", geometry, "--ranks", str(ranks), "--l2", "exclusive", "--steps", "none",
        "--device-slots", "60", "--max-bytes", "1TiB", "--state-dir", "state", "--progress", "none",
    ]  # fmt: skip
    data = call(*words, "-o", "json").json["data"]
    pages = data["pool"]["pages"] + data["tiers"]["device_pages_free"]
    told = " ".join(call(*words).out.split())
    assert data["pool"]["host_bytes"] == copies * data["pool"]["pages"] * data["page_bytes"]
    assert f"needs {pages} pages, {format_bytes(copies * pages * data['page_bytes'])}, to hit as much" in told


def test_steps_that_cannot_prove_an_exclusive_size_say_so_and_not_to_try_them_again() -> None:
    ran = run("--trace", "chats.jsonl", "--device-slots", "60", "--l2", "exclusive", "--no-waterfall")
    assert (ran.code, ran.json["data"]["choice"]["pages"]) == (0, 180)
    (found,) = [one for one in ran.json["diagnostics"] if one["code"] == "HC-SIZE-UNCONFIRMED"]
    assert "180 pages reach 180 there, not 240" in found["message"]
    assert "--steps auto" not in found["hint"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--steps", "9" * 5000),
        ("--l3", "9" * 17),
        ("--l3", "9" * 23),
        ("--l3", "9" * 5000),
        ("--max-bytes", "9" * 400 + ".5GiB"),
    ],
)
def test_numbers_past_all_use_are_refused_and_are_no_fault_of_the_program(flags: tuple[str, str]) -> None:
    ran = run("--trace", "chats.jsonl", *flags)
    assert ran.code == 2
    assert flags[0] in ran.err


def test_times_that_go_back_are_told(tmp_path: Path) -> None:
    lines = [mooncake_line([n], at) + "\n" for n, at in enumerate((0, 9000, 1000))]
    (tmp_path / "back.jsonl").write_text("".join(lines))
    ran = run("--trace", "back.jsonl", "--steps", "none")
    assert (ran.code, "trace: 1 requests are earlier than the one before" in ran.err) == (0, True)


def test_one_request_tells_no_reuse_and_says_that_it_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(mooncake_line([1, 2, 3]) + "\n")
    ran = run("--trace", "one.jsonl")
    assert (ran.code, ran.json["data"]["choice"]["bound"]) == (0, "no reuse")
    assert "too short" in ran.json["data"]["choice"]["reason"]
    (found,) = ran.json["diagnostics"]
    assert (found["code"], "cannot be told of 1 request" in found["message"]) == ("HC-WINDOW-SHORT", True)


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


def test_ranks_that_share_a_pool_are_told_no_flag_that_each_of_them_would_take_in_full() -> None:
    asked = ("--trace", "chats.jsonl", "--geometry", "deepseek-v3", "--ranks", "8", "--steps", "none")
    told = size(*asked, "--max-bytes", "100GiB", "--shared")
    flags = {(flag["engine"], flag["flag"]): flag for flag in told["flags"]}
    host = told["pool"]["host_bytes"]
    assert 0 <= 8 * int(flags["Mooncake", "global_segment_size"]["value"]) - host < 8
    assert 0 <= int(flags["Mooncake in SGLang", "global_segment_size"]["value"]) - host < 8
    assert flags["SGLang", "--hicache-size"]["value"] is None
    index = told["flags"].index(flags["SGLang", "--hicache-size"])
    assert flags["SGLang", "--hicache-size"]["pages"] is None
    for field in ("value", "pages"):
        assert "without --shared" in told["facts"][f"/flags/{index}/{field}"]["reason"]
    assert "/flags/0/pages" not in told["facts"]


def test_progress_counts_no_requests_where_no_step_is_made() -> None:
    ran = run("--trace", "chats.jsonl", "--steps", "none", "--progress", "plain")
    assert (ran.code, "steps  done in" in ran.err, "requests" in ran.err) == (0, True, False), ran.err


def test_more_ranks_than_kv_heads_are_told_what_each_holds_and_ranks_that_do_not_fit_the_heads_are_refused() -> None:
    asked = ("--trace", "chats.jsonl", "--geometry", "qwen3-235b-a22b", "--steps", "none", "--max-bytes", "1TiB")
    four, eight = (size(*asked, "--ranks", n)["pool"] for n in ("4", "8"))
    assert four["rank_bytes"] == eight["rank_bytes"] == four["host_bytes"] // 4
    assert eight["host_bytes"] == 2 * four["host_bytes"]
    ran = run(*asked, "--ranks", "3")
    assert (ran.code, "3 ranks, qwen3-235b-a22b has 4 KV heads" in ran.err) == (2, True)


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


def test_steps_with_a_storage_tier_hit_all_three_tiers_as_predicted_and_leave_nothing_on_the_disk(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    data = size(
        "--trace", "chats.jsonl", "--l3", "infinite", "--l3-path", "disk", "--device-slots", "12", "--steps", "60,240,300",
        "--no-waterfall",
    )  # fmt: skip
    for step in data["steps"]:
        assert (step["state"], step["difference_pages"], step["must_be_exact"]) == ("done", 0, True)
        assert step["measured_storage_hits"] == step["predicted_storage_hits"] == step["trial"]["storage_hit_pages"]
    assert data["steps"][0]["measured_storage_hits"] > 0
    assert data["steps"][0]["trial"]["storage_restore_s_per_token"] > 0
    assert data["costs"] is None
    assert "as economics was not used" in data["choice"]["reason"]
    assert "not measured" not in data["choice"]["reason"]
    assert data["steps"][1]["measured_storage_hits"] == 0
    assert data["base"]["measured_storage_hits"] is None
    assert list((tmp_path / "disk").iterdir()) == []
    for wrong in (("--l3-path", "disk"), ("--l3", "infinite", "--l3-path", "nowhere")):
        assert run("--trace", "chats.jsonl", "--force", *wrong).code == 2


def test_a_storage_tier_of_the_steps_that_does_not_hold_one_request_is_refused_up_front(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    asked = ("--trace", "chats.jsonl", "--l3-path", "disk", "--device-slots", "12", "--no-waterfall", "--force")
    ran = run(*asked, "--l3", "5")
    assert (ran.code, "HC-CAPACITY" in ran.err) == (10, True), ran.err
    assert "--l3: a storage tier of 5 pages does not hold one request of 6" in ran.err
    assert "give --l3 6 or more, or leave --l3-path out" in ran.err
    assert not (tmp_path / "state").exists()
    assert all(step["state"] == "done" for step in size(*asked, "--l3", "6")["steps"])
    predicted = ("--trace", "chats.jsonl", "--l3", "5", "--steps", "none", "--force")
    assert size(*predicted)["tiers"]["storage_pages"] == 5  # nothing is stored


def test_economics_takes_off_what_measured_storage_would_serve(tmp_path: Path) -> None:
    (tmp_path / "compute.yaml").write_text(
        "run:\n  compute:\n    a_s: 0.001\n    b_s: 0.001\n    c_s: 0.0\n    model: tiny-4k\n    hardware: made up\n"
    )
    data = size(
        "--trace", "chats.jsonl", "--config", "compute.yaml", "--l3", "infinite", "--l3-path", str(tmp_path), "--no-waterfall",
        "--steps", "60,240",
    )  # fmt: skip
    assert data["costs"]["storage_restore_s"] > 0
    assert data["choice"]["rule"] == "economics"
    assert "over what storage would serve anyway" in data["choice"]["reason"]
    assert data["choice"]["pages"] in [row["capacity_pages"] for row in data["curve"]["rows"]]
    last = data["curve"]["rows"][-1]
    alone = data["costs"]["tokens_per_h"] * (data["costs"]["prefill_s"] - data["costs"]["restore_s"])
    assert last["saved_s_per_h"] < 0.5 * alone * data["choice"]["host_hit_rate"]


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


def _small_host(monkeypatch: pytest.MonkeyPatch, available_bytes: int) -> None:
    """Let the sizing see a host with so much memory left."""
    from dataclasses import replace

    from hicachectl.tuning.host import memory

    read = memory.read_memory

    def small(root: object) -> object:
        found = read(root)  # type: ignore[arg-type]
        return replace(found, available_bytes=replace(found.available_bytes, value=available_bytes))

    monkeypatch.setattr(memory, "read_memory", small)


def test_a_prediction_is_also_for_a_larger_host_than_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _small_host(monkeypatch, 4096)
    told = run("--trace", "chats.jsonl", "--force")
    assert told.code == 10
    assert "this run's other memory" in told.err
    assert "--steps none" in told.err
    data = size("--trace", "chats.jsonl", "--steps", "none")
    assert data["choice"]["bound"] == "plateau"
    assert data["curve"]["rows"]
    assert "predicted for a larger host" in data["budget_note"]
    assert data["budget"]["can_use_bytes"] == 0
    other = next(term for term in data["budget"]["terms"] if term["name"] == "this run's other memory")
    assert other["n_bytes"] > 0
    assert "L1 on this host" in other["reason"]
    data = size("--trace", "chats.jsonl", "--steps", "none", "--max-bytes", "600KiB")
    assert (data["choice"]["bound"], data["choice"]["pages"]) == ("memory", 150)
    assert "(--max-bytes)" in data["budget_note"]


def test_memory_for_a_pool_that_hits_nothing_beyond_l1_is_told_and_no_pool_chosen(tmp_path: Path) -> None:
    data = size("--trace", "chats.jsonl", "--max-bytes", "400KiB", "--write", "none.yaml")
    assert (data["choice"]["bound"], data["choice"]["pages"]) == ("memory", 0)
    assert data["choice"]["reason"].startswith(
        "do not grow the pool: the 100 pages that the memory allows hit nothing that L1's"
    )
    assert "pages would hit" in data["choice"]["reason"]
    assert "host_slots: 0 " in (tmp_path / "none.yaml").read_text()
    for steps in ("auto", "50,100"):
        ran = run("--trace", "chats.jsonl", "--max-bytes", "400KiB", "--steps", steps, "--force")
        assert ran.code == 0
        assert ran.json["data"]["ended"] == "not confirmed: no room above"
        (found,) = (one for one in ran.json["diagnostics"] if one["code"] == "HC-SIZE-UNCONFIRMED")
        assert "no pool of the 100 pages that the memory holds is worth having" in found["message"]
    data = size("--trace", "chats.jsonl", "--max-bytes", str(4096 * data["device_pages"]), "--force")
    assert "(they hold copies of them)" in data["choice"]["reason"]


def test_a_prediction_writes_no_configuration_unless_told(tmp_path: Path) -> None:
    data = size("--trace", "chats.jsonl", "--steps", "none")
    assert data["config"] is None
    assert not (tmp_path / "hicache.yaml").exists()
    assert size("--trace", "chats.jsonl", "--steps", "none", "--write", "own.yaml")["config"] == "own.yaml"
    assert (tmp_path / "own.yaml").exists()


def test_the_screen_says_what_its_columns_mean() -> None:
    text = " ".join(call(
        "tune", "size", "--trace", "chats.jsonl", "--geometry", "tiny-4k", "--steps", "none", "--state-dir", "state", "--progress", "none",
    ).out.split())  # fmt: skip
    assert "one standard error over sessions" in text
    assert "PAYBACK h is - because" in text
    assert "D1 counts incomplete last pages too" in text
