"""`--costs`: results of bench that run and tune size start from, each cost from one file, of these pages and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call
from small_traces import conversations, write_trace

from hicachectl.bench_data import Costs, LineCost, RecomputeLine, Setting, bench_result, measure
from hicachectl.config import OriginKind, load_config
from hicachectl.context import read_origin
from hicachectl.cost_files import costs_for, read_costs
from hicachectl.envelope import envelope
from hicachectl.errors import UsageError
from hicachectl.run_plan import plan_run
from hicachectl.runtime.cost import Path as CostPath
from hicachectl.runtime.geometry import preset

QWEN = preset("qwen3-8b", 16)
RECOMPUTE = RecomputeLine(0.01, 3e-5, 4e-10, "qwen3-8b", "my engine")
SETTING = Setting("m", 2, "cpu", "asked for", None, None, None, "2.6", "Linux", "p", "2", "1 GiB", {"driver": "none"})
PAGES = {"geometry": {"name": "qwen3-8b", "page_tokens": 16, "page_bytes": QWEN.page_bytes}}


def written(path: Path, costs: Costs, kind: str = "model", **details: Any) -> str:
    """A file as bench writes it."""
    result = bench_result(kind, SETTING, [measure("a", "x_s", [1.0])], costs, details)
    path.write_text(json.dumps(envelope(result, read_origin(None))))
    return str(path)


def test_what_each_file_measured_is_taken_with_its_source(tmp_path: Path) -> None:
    model = written(tmp_path / "m.json", Costs(host_read=LineCost(1e-4, 2e-11, 9), recompute=RECOMPUTE), **PAGES)
    pool = written(tmp_path / "p.json", Costs(make_s_per_gib=0.25), "pool")
    found = read_costs([model, pool], QWEN)
    assert {path: cost.per_byte_s for path, cost in found.priors.items()} == {CostPath.HOST_READ: 2e-11}
    assert found.costs.make_s_per_gib == 0.25
    assert found.sources == {
        "host_read": f"bench model {model}", "recompute": f"bench model {model}", "make_s_per_gib": f"bench pool {pool}",
    }  # fmt: skip
    assert [line.split(", ")[0] for line in found.words()] == [
        f"costs of bench model {model}",
        f"costs of bench pool {pool}",
    ]
    given = found.for_sizing()
    assert (given.host_read, given.storage_read, given.make_s_per_gib) == (found.priors[CostPath.HOST_READ], None, 0.25)


def test_a_file_named_on_the_line_goes_before_a_profile_and_its_place_is_shown(tmp_path: Path) -> None:
    model = written(tmp_path / "m.json", Costs(recompute=RECOMPUTE), **PAGES)
    flags = {"run.geometry": "qwen3-8b", "run.page_tokens": "16"}
    before = load_config(flags, env={}, profile="kunlun-p800-hygon")
    assert before.run.compute.hardware == "Kunlun P800"
    notes: list[str] = []
    _, after = costs_for(before, [model], notes.append)
    compute = after.run.compute
    assert (compute.a_s, compute.b_s, compute.c_s) == (0.01, 3e-5, 4e-10)
    assert (compute.model, compute.hardware) == ("qwen3-8b", "my engine")
    origin = after.origins["run.compute.a_s"]
    assert (origin.kind, origin.where) == (OriginKind.MEASURED, f"bench model {model}")
    assert len(notes) == 1
    assert after.run.geometry == before.run.geometry
    _, same = costs_for(before, [], notes.append)
    assert same == before


def test_the_cost_model_of_a_run_starts_from_them(tmp_path: Path) -> None:
    model = written(tmp_path / "m.json", Costs(storage_read=LineCost(0.5, 1e-9, 9), recompute=RECOMPUTE), **PAGES)
    flags = {
        "run.geometry": "qwen3-8b",
        "run.page_tokens": "16",
        "run.limit": "1",
        "run.host_slots": "8",
        "run.synthetic": "one-shot",
    }
    given, effective = costs_for(load_config(flags, env={}), [model], lambda text: None)
    costs = plan_run(effective.run, priors=given.priors).replay.costs
    assert costs.predict(CostPath.STORAGE_READ, 1000) == pytest.approx(0.5 + 1e-6)
    assert costs.predict(CostPath.HOST_READ, 1000) == plan_run(effective.run).replay.costs.predict(
        CostPath.HOST_READ, 1000
    )
    assert costs.recompute.seconds(0, 100) == pytest.approx(0.01 + 3e-3 + 4e-6)


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        (
            {"name": "llama-3.1-8b", "page_tokens": 16, "page_bytes": 2097152},
            "pages of llama-3.1-8b, 16 tokens, 2097152 B",
        ),
        ({"name": "qwen3-8b", "page_tokens": 64, "page_bytes": 9437184}, "pages of qwen3-8b, 64 tokens, 9437184 B"),
        ({"name": "qwen3-8b", "page_tokens": 16, "page_bytes": 1179648}, "pages of qwen3-8b, 16 tokens, 1179648 B"),
    ],
)
def test_costs_of_other_pages_are_refused_with_both(tmp_path: Path, pages: dict[str, Any], words: str) -> None:
    model = written(tmp_path / "m.json", Costs(host_read=LineCost(1e-4, 2e-11, 9)), geometry=pages)
    flat = written(
        tmp_path / "c.json", Costs(host_read=LineCost(1e-4, 2e-11, 9)), "copy", geometry=pages["name"],
        page_tokens=pages["page_tokens"], page_bytes=pages["page_bytes"],
    )  # fmt: skip
    for path in (model, flat):
        with pytest.raises(UsageError) as caught:
            read_costs([path], QWEN)
        assert words in caught.value.what
        assert "asked for are pages of qwen3-8b, 16 tokens, 2359296 B" in caught.value.what
        assert caught.value.where == path


def test_a_prefill_of_another_model_a_cost_given_twice_and_a_file_without_any_are_refused(tmp_path: Path) -> None:
    other = written(tmp_path / "o.json", Costs(recompute=RecomputeLine(0, 1e-5, 0, "llama-3.1-8b", "x")), **PAGES)
    with pytest.raises(UsageError, match=r"the prefill is that of llama-3\.1-8b, the pages are those of qwen3-8b"):
        read_costs([other], QWEN)
    one = written(tmp_path / "1.json", Costs(host_read=LineCost(1e-4, 2e-11, 9)), **PAGES)
    two = written(tmp_path / "2.json", Costs(host_read=LineCost(1e-4, 3e-11, 9)), **PAGES)
    with pytest.raises(
        UsageError, match=r"host_read is given twice: by bench model .*1\.json and by bench model .*2\.json"
    ):
        read_costs([one, two], QWEN)
    with pytest.raises(UsageError, match="no cost was measured in this file"):
        read_costs([written(tmp_path / "n.json", Costs(), "link")], QWEN)
    broken = written(tmp_path / "b.json", Costs(host_read=LineCost(1e-4, 2e-11, 9)), geometry={"name": "qwen3-8b"})
    with pytest.raises(UsageError, match="the pages are given as 'qwen3-8b', None tokens, None bytes"):
        read_costs([broken], QWEN)


def test_run_says_what_it_takes_and_refuses_a_file_of_another_version(tmp_path: Path) -> None:
    model = written(tmp_path / "m.json", Costs(recompute=RECOMPUTE, host_read=LineCost(1e-4, 2e-11, 9)), **PAGES)
    line = (
        "run",
        "--geometry",
        "qwen3-8b",
        "--page-tokens",
        "16",
        "--host-slots",
        "8",
        "--synthetic",
        "one-shot",
        "--limit",
        "1",
        "--check",
    )
    ran = call(*line, "--costs", model, "-o", "json")
    assert ran.code == 0, ran.err
    settings = {one["key"]: one for one in ran.json["data"]["settings"]}
    assert settings["run.compute.b_s"]["value"] == 3e-5
    assert settings["run.compute.b_s"]["origin"] == f"measured bench model {model}"
    assert "host_read, recompute" in ran.err
    old = json.loads(Path(model).read_text()) | {"schema": "hicachectl.bench-model/9"}
    Path(model).write_text(json.dumps(old))
    ran = call(*line, "--costs", model)
    assert ran.code == 2
    assert "version 9 of bench-model, this release reads 1" in ran.err


def test_a_size_is_chosen_by_economics_from_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "trace.jsonl", conversations(20, 4, 2))
    pages = {"geometry": {"name": "tiny-4k", "page_tokens": 512, "page_bytes": 4096}}
    line = ("tune", "size", "--trace", "trace.jsonl", "--geometry", "tiny-4k", "--steps", "none", "--state-dir", "s", "--device-slots", "8",
            "--force", "-o", "json")  # fmt: skip
    plain = call(*line)
    assert plain.json["data"]["costs"] is None
    prefill = RecomputeLine(0.01, 3e-5, 0.0, "tiny-4k", "made up")
    model = written(tmp_path / "m.json", Costs(host_read=LineCost(0.015, 1e-12, 9), recompute=prefill), **pages)
    without = call(*line, "--costs", model)
    assert without.json["data"]["costs"] is None
    assert "bench pool" in without.json["data"]["costs_reason"]
    pool = written(tmp_path / "p.json", Costs(make_s_per_gib=0.25), "pool")
    ran = call(*line, "--costs", model, "--costs", pool)
    assert ran.code == 0, ran.err
    costs = ran.json["data"]["costs"]
    assert costs["make_s_per_gib"] == 0.25
    assert costs["crossover_tokens"] == 501  # 15 ms over 30 us a token
    assert costs["storage_restore_s"] is None
    assert ran.json["data"]["choice"]["rule"] == "economics"
