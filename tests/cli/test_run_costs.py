"""`run --costs`: results of bench are what the cost model starts from, and never stand in for what somebody set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_files import bench_document, write_result
from cli_runner import call

from hicachectl.bench_data import Costs, LineCost, RecomputeLine
from hicachectl.config import OriginKind, load_config
from hicachectl.data_digest import with_digest
from hicachectl.errors import UsageError
from hicachectl.run_costs import measured_priors, read_costs, with_measured_prefill

READ = Costs(host_read=LineCost(2e-5, 3e-11, 9))
PREFILL = Costs(recompute=RecomputeLine(0.5, 0.25, 0.125, "tiny-64k", "a bench"))
SHORT = ("run", "--limit", "3", "-o", "json")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def paths(document: Any) -> dict[str, Any]:
    return {one["path"]: one for one in document["data"]["cost_model"]["paths"]}


def test_a_run_starts_from_what_was_measured_and_guesses_the_rest() -> None:
    write_result("copy.json", "copy", READ)
    found = paths(call(*SHORT, "--costs", "copy.json").json)
    guessed = paths(call(*SHORT).json)
    assert found["host_read"]["prior"] == {"fixed_s": 2e-5, "per_byte_s": 3e-11}
    assert guessed["host_read"]["prior"] != found["host_read"]["prior"]
    assert found["host_write"]["prior"] == guessed["host_write"]["prior"]


def test_a_measured_prefill_is_used_with_its_origin_and_whose_it_is() -> None:
    write_result("model.json", "model", PREFILL)
    ran = call("run", "--check", "--limit", "3", "--costs", "model.json", "-o", "json")
    settings = {one["key"]: (one["value"], one["origin"]) for one in ran.json["data"]["settings"]}
    assert settings["run.compute.c_s"] == (0.125, "measured model.json")
    assert settings["run.compute.model"] == ("tiny-64k", "measured model.json")


@pytest.mark.parametrize(
    ("file_sets", "flag", "kept"),
    [
        ("  compute: {a_s: 1.0}\n", {}, True),  # the same place, or a stronger one, set a coefficient
        ("  compute: {a_s: 1.0}\n", {"run.costs": "model.json"}, False),  # the flag is stronger than the file
    ],
)
def test_what_somebody_set_in_as_strong_a_place_stays(file_sets: str, flag: dict[str, object], kept: bool) -> None:
    write_result("model.json", "model", PREFILL)
    Path("hicache.yaml").write_text("run:\n  costs: model.json\n" + file_sets)
    found = with_measured_prefill(load_config(flag, env={}))
    assert found.run.compute.a_s == (1.0 if kept else 0.5)
    assert (found.origins["run.compute.b_s"].kind is OriginKind.MEASURED) != kept


def test_without_a_file_nothing_is_measured() -> None:
    assert read_costs(None) == ()
    effective = load_config({}, env={})
    assert with_measured_prefill(effective) is effective


def test_of_two_that_measured_the_same_the_first_counts() -> None:
    write_result("copy.json", "copy", READ)
    write_result("model.json", "model", Costs(LineCost(9.0, 9e-9, 9), LineCost(1.0, 2e-9, 9)))
    found = measured_priors(read_costs("copy.json, model.json"), "cpu")
    assert {path.value: cost.fixed_s for path, cost in found.items()} == {"host_read": 2e-5, "host_write": 1.0}
    found = measured_priors(read_costs("model.json,copy.json"), "cpu")
    assert {cost.fixed_s for cost in found.values()} == {9.0, 1.0}


def test_transfers_to_another_kind_of_device_are_refused_and_storage_is_the_same_for_all() -> None:
    write_result("copy.json", "copy", READ)
    with pytest.raises(UsageError, match="measured on cpu, this run is on cuda"):
        measured_priors(read_costs("copy.json"), "cuda")
    write_result("store.json", "store", Costs(storage_read=LineCost(1e-3, 1e-9, 4)))
    assert [path.value for path in measured_priors(read_costs("store.json"), "cuda")] == ["storage_read"]


@pytest.mark.parametrize("command", ["run", "tune size"])
def test_a_file_that_cannot_be_used_ends_the_command_before_it_begins(command: str) -> None:
    Path("broken.json").write_text("{")
    for name in ("broken.json", "missing.json"):
        ran = call(*command.split(), "--costs", name)
        assert ran.code == 2
        assert name in ran.err


@pytest.mark.parametrize(
    ("why", "next_step"),
    [
        ("a, load_s: 50 % is the most that counts as an answer", "measure again with more --rounds on a quiet machine"),
        ("transfers of one size only: no line through them", "see to what the reasons name, then measure again"),
    ],
)
def test_a_file_without_a_cost_says_how_to_measure_again_and_one_of_no_costs_to_name_another(
    why: str, next_step: str
) -> None:
    document = bench_document("copy")
    document["data"]["facts"]["/costs/host_read"] = {"reason": why}
    Path("copy.json").write_text(json.dumps(document | {"data": with_digest(document["data"])}))
    err = call("run", "--costs", "copy.json").err
    assert f"why: {why}" in err
    assert f"next: {next_step}: hicachectl bench copy " in " ".join(err.split())
    write_result("link.json", "link", Costs())
    assert "next: name a file of bench model, store, copy or pool" in call("run", "--costs", "link.json").err


def test_a_prefill_of_an_unknown_model_is_refused() -> None:
    write_result("model.json", "model", Costs(recompute=RecomputeLine(0.5, 0.25, 0.125, "tiny-63k", "a bench")))
    ran = call("run", "--costs", "model.json")
    assert ran.code == 2
    assert "tiny-64k" in ran.err


def test_the_report_says_that_a_cost_was_measured() -> None:
    write_result("copy.json", "copy", Costs(host_read=LineCost(2e-5, 3e-11, 9), host_write=LineCost(2e-5, 3e-11, 9)))
    assert "measured by bench" in call("run", "--limit", "3", "--costs", "copy.json").out
    assert json.loads(Path("copy.json").read_text())["data"]["costs"]["host_read"] is not None
