"""The memory of the pools that `hicachectl tune size` makes: kind, placement, what a GiB costs, and steps that fail for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_runner import spawn
from size_calls import run, size

from hicachectl.runtime.memory.faults import Fault, with_fault
from hicachectl.runtime.memory.host_pool import map_pool
from hicachectl.runtime.memory.syscalls import PoolCalls

pytestmark = pytest.mark.usefixtures("chats_folder")


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
    for index, pair in enumerate(short["pool_costs"]["restores"]):
        assert pair["differs"] is None
        assert short["facts"][f"/pool_costs/restores/{index}/differs"]["reason"] == pair["reason"]


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
    assert refused.code == 5
    assert "--device" in refused.err
    assert not Path("state").exists()


@pytest.mark.parametrize("kind", ["memfd", "tmpfs"])
def test_pools_of_another_kind_hit_the_same_and_leave_nothing_on_their_mount(kind: str) -> None:
    name = f"hicache-size-test-{os.getpid()}"  # others may use the mount meanwhile
    named = ["--host-memory-path", f"/dev/shm/{name}"] if kind == "tmpfs" else []
    data = size("--trace", "chats.jsonl", "--host-memory-kind", kind, *named, "--steps", "200,400")
    assert [step["difference_pages"] for step in data["steps"]] == [0, 0]
    assert [step["trial"]["made"]["kind"] for step in data["steps"]] == [kind, kind]
    assert not any(name in path.name for path in Path("/dev/shm").iterdir())
    assert f'kind: "{kind}"' in Path("hicache.yaml").read_text()


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
