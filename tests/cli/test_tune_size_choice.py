"""The size that `tune size` ends with: what was not tried is not confirmed, and what did not hold is not written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_files import bench_document
from made_trials import made_trial
from size_calls import run, size
from small_traces import conversations, write_trace

from hicachectl.bench_data import Costs as BenchCosts
from hicachectl.bench_data import LineCost, RecomputeLine
from hicachectl.data_digest import with_digest
from hicachectl.errors import HostError
from hicachectl.render.size_tiers import economics_words
from hicachectl.runtime.memory.host_pool import map_pool
from hicachectl.size_choice import last_good, origin_words, settle
from hicachectl.tuning.sizing.economics import Costs, worth_of
from hicachectl.tuning.sizing.prediction import Prediction
from hicachectl.tuning.sizing.step_rules import Ended
from hicachectl.tuning.sizing.steps import Climbed, Step
from hicachectl.units import format_seconds

HOT = [*conversations(40, 6, 1), *conversations(25, 6, 4)]
"""Chats of which some come back often: 150 pages hit those, 240 all."""

pytestmark = pytest.mark.usefixtures("chats_folder")


def refuse(monkeypatch: pytest.MonkeyPatch, above: int) -> list[int]:
    """Let pools of more pages than this fail. Returns the sizes that were asked for, as they are."""
    asked: list[int] = []

    def refusing(geometry: Any, n_slots: int, layout: Any, spec: Any, *, registrar: Any) -> Any:
        asked.append(n_slots)
        if n_slots > above:
            raise HostError("the driver refused it")
        return map_pool(geometry, n_slots, layout, spec, registrar=registrar)

    monkeypatch.setattr("hicachectl.tuning.sizing.pool_trials.map_pool", refusing)
    return asked


def step(pages: int, *, holds: bool = True) -> Step:
    return Step(pages, None, 1000, made_trial(pages) if holds else None, True, 0, None, None if holds else "no memory")


def test_a_chosen_size_that_was_never_made_is_not_written_after_a_smaller_one_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse(monkeypatch, 100)
    ran = run("--trace", "chats.jsonl")
    data = ran.json["data"]
    assert (ran.code, data["ended"]) == (9, "a step failed")
    assert [(one["pages"], one["state"]) for one in data["steps"]] == [(120, "failed")]
    assert (data["choice"]["pages"], data["config_host_pages"], data["flags"]) == (240, 0, [])
    assert "host_slots: 0  #" in Path("hicache.yaml").read_text()


@pytest.mark.parametrize(
    ("steps", "ended", "written"),
    [
        ((step(0), step(120, holds=False)), Ended.FAILED, 0),
        ((step(0), step(120), step(240, holds=False)), Ended.FAILED, 120),
        ((step(0), step(120), step(240), step(480, holds=False)), Ended.FAILED, 240),
        ((step(0), step(120)), Ended.TIME, 120),
        ((step(0), step(300)), Ended.TIME, 240),
        ((), Ended.TIME, 0),
        ((step(0), step(120), step(240, holds=False), step(480)), Ended.UNSTABLE, 120),
        ((), Ended.NO_STEPS, 240),
        ((step(0), step(100), step(200)), Ended.NOT_CONFIRMED, 240),
    ],
)
def test_the_largest_size_that_held_is_written_where_the_steps_ended_early(
    steps: tuple[Step, ...], ended: Ended, written: int
) -> None:
    assert last_good(predicted(240), Climbed(steps, ended)) == written


def test_l1_alone_is_no_size_that_was_measured_where_no_pool_held() -> None:
    words = origin_words(predicted(240), Climbed((step(0), step(120, holds=False)), Ended.FAILED), "s-1")
    assert words == "tune size s-1: no step held, a step failed"
    assert origin_words(predicted(0), Climbed((step(0),), Ended.CONFIRMED), "s-1").startswith("measured, ")


def predicted(chosen: int) -> Prediction:
    """The prediction of the chats, with a choice of so many pages."""
    found = sizing(None).predict()
    return replace(found, choice=replace(found.choice, host_pages=chosen))


def sizing(costs: Costs | None, **changed: Any) -> Any:
    """A sizing of the chats whose steps cost nothing and whose costs are given."""
    from hicachectl.size_run import Sizing
    from hicachectl.tuning.sizing.pool_costs import pool_costs

    class Given(Sizing):
        climbed: list[tuple[tuple[int, ...], tuple[int, ...], float | None]]
        seen: list[tuple[int, ...]]

        def costs(self, prediction: Any, climbed: Any, again: Any) -> Any:
            self.seen.append(tuple(one.pages for one in climbed.steps))
            return pool_costs([], 1.0), costs, None if costs else "not known"

        def climb(self, prediction: Any, journal: Any, done: Any, *, time_budget_s: float | None = None) -> Climbed:
            self.climbed.append((prediction.sizes, tuple(done), time_budget_s))
            return changed.get("climb", lambda sizes: made(*sizes))((0, *prediction.sizes))

    return given(Given, changed.get("steps", "auto"))


def given(kind: Any, steps: str) -> Any:
    """Make a sizing as the command does."""
    write_trace(Path("hot.jsonl"), HOT)
    from hicachectl.context import Context, GlobalFlags
    from hicachectl.run_plan import effective_config

    flags_ = GlobalFlags(progress="none")
    cli = Context(flags_, {}, io.StringIO(), io.StringIO(), io.StringIO(), parsed_flags=flags_)
    flags: dict[str, Any] = {"run.trace": "hot.jsonl", "run.geometry": "tiny-4k", "run.device": "cpu"}
    one = kind(cli, effective_config(flags, {}, None, None), None, steps, 1.0, 0, 1, False)
    one.climbed, one.seen = [], []
    return one


def made(*sizes: int) -> Climbed:
    return Climbed(tuple(step(pages) for pages in sizes), Ended.CONFIRMED)


class Journal:
    def __init__(self) -> None:
        self.ended: list[str] = []

    def append(self, kind: str, **more: Any) -> None:
        self.ended.append(more["ended"])


DEAR = Costs(1e-3, 1e-6, make_s_per_gib=0.0, tokens_per_h=1e6, lives_h=24, carry_s_per_gib_h=655_360)
"""The last 90 pages cost more than they save."""


def settled(run_: Any, climbed: Climbed, **options: Any) -> Any:
    prediction = run_.predict()
    return settle(run_, prediction, climbed, "not made", Journal(), **options)  # type: ignore[arg-type]


def test_named_steps_do_not_confirm_a_choice_of_economics_that_was_not_tried() -> None:
    run_ = sizing(DEAR, steps="120,240,480")
    found = settled(run_, made(0, 120, 240, 480))
    assert found.prediction.choice.host_pages == 150
    assert (found.climbed.ended, run_.climbed) == (Ended.NOT_CONFIRMED, [])


def test_a_choice_of_economics_is_tried_with_what_it_is_compared_with_and_confirmed_by_its_net_gain() -> None:
    run_ = sizing(DEAR)
    found = settled(run_, made(0, 120, 240, 480), time_budget_s=3600.0)
    ((sizes, done, budget_s),) = run_.climbed
    assert sizes == (120, 150, 240, 480)
    assert done == (0, 120, 240, 480)
    assert budget_s == 3600.0
    assert found.climbed.ended is Ended.NET_CONFIRMED
    assert run_.seen == [(0, 120, 240, 480), (0, *sizes)]


def reporting(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Let each pool's step report other than it measured."""
    from hicachectl.tuning.sizing import pool_trials

    real = pool_trials.try_pool

    def tried(*given_: Any, **options: Any) -> Any:
        found = real(*given_, **options)
        return replace(found, **changed) if found.host_pages else found

    monkeypatch.setattr(pool_trials, "try_pool", tried)


def write_costs() -> None:
    """Write a file of costs by which the last 90 pages of the hot chats cost more than they save."""
    line = RecomputeLine(1e-9, 3e-8, 0.0, "tiny-4k", "made up")
    document = bench_document("model", BenchCosts(LineCost(1e-12, 1e-16, 9), recompute=line, make_s_per_gib=3600.0))
    pages = {"name": "tiny-4k", "page_tokens": 512, "page_bytes": 4096, "dtype": "bf16", "layout": "page_first_direct"}
    document["data"] = with_digest(document["data"] | {"geometry": pages})
    Path("costs.json").write_text(json.dumps(document))


def test_costs_from_files_choose_a_size_that_is_tried_beside_the_steps_made_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_trace(Path("hot.jsonl"), HOT)
    write_costs()
    reporting(monkeypatch, net_gain_s=0.25)
    data = size("--trace", "hot.jsonl", "--costs", "costs.json", "--no-waterfall")
    assert (data["choice"]["pages"], data["ended"]) == (150, "net gain confirmed")
    assert [one["pages"] for one in data["steps"]] == [120, 150, 240, 480]
    assert "150  # measured" in Path("hicache.yaml").read_text()
    again = size("--trace", "hot.jsonl", "--costs", "costs.json", "--no-waterfall", "--resume", "--force")
    assert [(one["pages"], one["resumed"]) for one in again["steps"]] == [(n, True) for n in (120, 150, 240, 480)]
    named = size("--trace", "hot.jsonl", "--costs", "costs.json", "--no-waterfall", "--steps", "84,168,336", "--force")
    assert (named["choice"]["pages"], named["ended"]) == (150, "steps done, plateau not confirmed")


def losing(*sizes: int, **changed: Any) -> Climbed:
    """Steps as predicted whose pools cost more time than they saved."""
    steps = [
        replace(one, trial=replace(one.trial, net_gain_s=-0.05, **changed)) for one in made(*sizes).steps if one.trial
    ]
    return Climbed((step(0), *steps[1:]), Ended.CONFIRMED)


def test_a_size_whose_own_step_lost_time_is_not_confirmed_and_both_net_gains_are_named() -> None:
    from hicachectl.size_findings import size_exit_code, size_findings

    run_ = sizing(DEAR, climb=lambda sizes: losing(*sizes))
    found = settled(run_, losing(0, 120, 240, 480))
    assert (found.prediction.choice.host_pages, found.climbed.ended) == (150, Ended.NO_GAIN)
    assert size_exit_code(found.climbed, predict_only=False) == 0
    assert last_good(found.prediction, found.climbed) == 150
    (told,) = size_findings(found.prediction, found.climbed, costs=DEAR, page_bytes=4096)
    assert (told.code, told.severity.value) == ("HC-SIZE-UNCONFIRMED", "warn")
    net_s_per_h = worth_of(found.prediction.levels_for(DEAR), DEAR, 4096, 150).net_s_per_h
    over_window = format_seconds(net_s_per_h * found.prediction.span_s / 3600)
    assert f"predicts a net gain of {over_window} over the window, its step measured -50.0 ms" in told.message
    assert "a token restored" not in told.message  # both took 1 us


@pytest.mark.parametrize("net_gain_s", [0.0, 1e-9])
def test_a_step_that_gained_nothing_at_all_confirms_no_size(net_gain_s: float) -> None:
    def steps(*sizes: int) -> Climbed:
        return Climbed(
            tuple(replace(one, trial=replace(one.trial, net_gain_s=net_gain_s)) for one in made(*sizes).steps if one.trial),
            Ended.CONFIRMED,
        )  # fmt: skip

    found = settled(sizing(DEAR, climb=lambda sizes: steps(*sizes)), steps(0, 120, 240, 480))
    assert found.climbed.ended is (Ended.NET_CONFIRMED if net_gain_s else Ended.NO_GAIN)


def test_why_a_step_lost_what_was_predicted_is_said_where_the_steps_show_it() -> None:
    from hicachectl.size_findings import size_findings

    costs = replace(DEAR, restore_s=9.6e-6, source="a benchmark")
    dear = losing(0, 120, 150, 240, restore_s_per_token=27.3e-6)
    climbed = replace(dear, ended=Ended.NO_GAIN)
    (told,) = size_findings(predicted(150), climbed, costs=costs, page_bytes=4096)
    assert "a token restored took 27.3 us in it, 9.6 us by a benchmark, and 1.0 ms to compute" in told.message
    assert "no page" not in told.message
    idle = replace(dear.steps[1], trial=made_trial(120, restored_pages=0, net_gain_s=-0.04))
    climbed = replace(climbed, steps=(dear.steps[0], idle, *dear.steps[2:]))
    (told,) = size_findings(predicted(150), climbed, costs=costs, page_bytes=4096)
    assert (
        "the pool of 120 pages restored no page and measured -40.0 ms, which is waiting for room in L1" in told.message
    )


def test_restores_that_the_steps_found_dearer_than_computing_are_not_taken_from_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_trace(Path("hot.jsonl"), HOT)
    write_costs()
    reporting(monkeypatch, restore_s_per_token=0.5, net_gain_s=-0.25)
    data = size("--trace", "hot.jsonl", "--costs", "costs.json", "--no-waterfall")
    assert (data["choice"]["pages"], data["config_host_pages"], data["ended"]) == (0, 0, "net gain confirmed")
    assert data["choice"]["reason"].startswith("do not grow the pool: ")
    assert data["costs"]["restore_s"] == 0.5
    assert data["costs"]["source"] == "the step of 480 pages, where every pool lost time, not by --costs"
    assert data["costs"]["make_s_per_gib"] == 3600.0


def test_a_file_stays_what_a_restore_costs_where_a_pool_gained_time(monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(Path("hot.jsonl"), HOT)
    write_costs()
    reporting(monkeypatch, restore_s_per_token=0.5, net_gain_s=0.25)
    data = size("--trace", "hot.jsonl", "--costs", "costs.json", "--no-waterfall")
    assert (data["choice"]["pages"], data["ended"]) == (150, "net gain confirmed")
    assert "benchmark" in data["costs"]["source"]


@pytest.mark.parametrize("ended", [Ended.TIME, Ended.FAILED, Ended.UNSTABLE])
def test_nothing_is_tried_again_after_steps_that_ended_early(ended: Ended) -> None:
    run_ = sizing(DEAR)
    found = settled(run_, replace(made(0, 120), ended=ended))
    assert (found.climbed.ended, run_.climbed) == (ended, [])


def test_a_choice_that_no_time_is_left_for_is_not_tried() -> None:
    run_ = sizing(DEAR)
    found = settled(run_, made(0, 120, 240, 480), time_budget_s=0.0)
    assert (found.climbed.ended, run_.climbed) == (Ended.TIME, [])


def test_steps_that_an_end_left_out_are_still_those_that_were_made() -> None:
    run_ = sizing(DEAR, climb=lambda sizes: Climbed((step(0),), Ended.TIME))
    found = settled(run_, made(0, 120, 240, 480))
    assert [one.pages for one in found.climbed.steps] == [0, 120, 240, 480]
    assert found.climbed.ended is Ended.TIME


@pytest.fixture
def never_restoring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each step report what it would where computing was always cheaper."""
    from hicachectl.tuning.sizing import pool_trials

    real = pool_trials.try_pool

    def tried(*given_: Any, **options: Any) -> Any:
        found = real(*given_, **options)
        return replace(found, restored_pages=0, restore_s_per_token=None, net_gain_s=-0.5 if found.host_pages else 0.0)

    monkeypatch.setattr(pool_trials, "try_pool", tried)


@pytest.mark.usefixtures("never_restoring")
def test_a_pool_is_not_grown_for_hits_that_are_never_restored() -> None:
    Path("compute.yaml").write_text(
        "run:\n  compute:\n    a_s: 0.001\n    b_s: 0.001\n    c_s: 0.0\n    model: tiny-4k\n    hardware: made up\n"
    )
    ran = run("--trace", "chats.jsonl", "--config", "compute.yaml")
    data = ran.json["data"]
    assert (data["choice"]["pages"], data["choice"]["bound"]) == (0, "no restore pays")
    assert "none was restored" in data["choice"]["reason"]
    assert (ran.code, data["ended"], data["config_host_pages"]) == (0, "net gain confirmed", 0)
    assert [found["code"] for found in ran.json["diagnostics"]] == ["HC-SIZE-NO-RESTORE"]


@pytest.mark.usefixtures("never_restoring")
def test_restores_that_another_models_prefill_makes_dear_are_a_warning_alone() -> None:
    ran = run("--trace", "chats.jsonl")
    assert ran.json["data"]["choice"]["pages"] == 240
    assert [found["code"] for found in ran.json["diagnostics"]] == ["HC-SIZE-NO-RESTORE"]


def test_a_carry_that_was_not_measured_is_null_with_its_reason_and_said_to_count_as_none() -> None:
    Path("compute.yaml").write_text(
        "run:\n  compute:\n    a_s: 0.001\n    b_s: 0.001\n    c_s: 0.0\n    model: tiny-4k\n    hardware: made up\n"
    )
    data = size("--trace", "chats.jsonl", "--config", "compute.yaml", "--no-waterfall")
    assert data["costs"]["carry_s_per_gib_h"] is data["pool_costs"]["carry_s_per_gib_h"] is None
    reasons = [data["facts"][f"/{name}/carry_s_per_gib_h"]["reason"] for name in ("costs", "pool_costs")]
    assert reasons[0] == reasons[1] == data["pool_costs"]["carry_reason"]
    words = economics_words(data["costs"], data["page_tokens"])
    assert "carry not measured, counted as 0" in words
    assert "0 s/h to carry" in economics_words(data["costs"] | {"carry_s_per_gib_h": 0.0}, data["page_tokens"])


def test_a_size_that_is_not_confirmed_is_a_warning_that_says_what_is_missing() -> None:
    for asked, missing in (
        (("--steps", "100,200"), "no pool of that size was made"),
        (("--steps", "120,240"), "no pool of 241 pages or more was made"),
        (("--steps", "240,480"), "no smaller pool was made"),
        (("--max-bytes", "600KiB"), "the memory holds 150"),
    ):
        ran = run("--trace", "chats.jsonl", "--force", *asked)
        assert (ran.code, ran.json["status"]) == (0, "findings")
        (found,) = ran.json["diagnostics"]
        assert (found["code"], found["severity"]) == ("HC-SIZE-UNCONFIRMED", "warn")
        assert missing in found["message"]
        assert found["hint"].startswith("free memory" if "--max-bytes" in asked else "the same line with --steps auto")
    assert run("--trace", "chats.jsonl", "--force").json["diagnostics"] == []


def test_a_larger_pool_that_gains_asks_for_more_traffic_and_not_for_the_same_steps() -> None:
    from hicachectl.size_findings import size_findings

    (found,) = size_findings(predicted(240), Climbed((step(0), step(120), step(240), step(480)), Ended.NOT_CONFIRMED))
    assert "a larger pool gains more than the slack" in found.message
    assert str(found.hint).startswith("size again for a longer trace or --window")


def test_a_size_that_no_trial_pool_finds_memory_for_is_not_to_be_tried_again() -> None:
    from hicachectl.size_findings import size_findings
    from hicachectl.tuning.sizing.step_rules import Reach

    near = replace(predicted(240), reach=Reach(6, 200))
    (found,) = size_findings(near, Climbed((step(0), step(120), step(200)), Ended.NOT_CONFIRMED))
    assert "a trial pool finds memory for 200 pages" in found.message
    assert "--steps auto" not in str(found.hint)


def test_the_configuration_calls_a_size_measured_only_where_a_pool_of_it_was_made() -> None:
    def written(*asked: str) -> str:
        run("--trace", "chats.jsonl", "--force", "--write", "own.yaml", "--no-waterfall", *asked)
        return next(line for line in Path("own.yaml").read_text().splitlines() if "host_slots" in line)

    assert "240  # measured, tune size s-0001: bound by plateau" in written()
    for asked in (("--steps", "none"), ("--steps", "100,200")):
        assert "240  # predicted, tune size" in written(*asked)
    assert "0  # tune size s-0004: no step held, time budget" in written("--time-budget", "0")


def test_hits_that_a_named_assumption_explains_ask_for_what_the_curve_assumes_and_not_for_failures() -> None:
    from hicachectl.size_findings import size_findings

    def found(assumption: str | None) -> Any:
        off = replace(step(240), predicted_hits=0, exact=assumption is None, assumption=assumption)
        return size_findings(predicted(240), Climbed((step(0), off), Ended.UNSTABLE))[0]

    policy = "write policy write_through_selective, the curve is write_through"
    for named in (policy, f"the replay differs from the exact curve: {policy}"):
        assert named in found(named).message
        assert found(named).hint.startswith("size with --write-policy write_through")
        assert "--policies" in found(named).hint
    for other in (None, "the traffic drifted: new requests hit 1.00 %"):
        assert "failures and dropped pages" in found(other).hint


def test_failed_copies_and_dropped_pages_make_a_step_differ_and_are_named() -> None:
    from hicachectl.size_findings import size_findings

    for changed, named, hint in (
        ({"failures": {"io": 3}}, "failed: 3 io", "look at"),
        ({"failures": {"storage_full": 1}}, "failed: 1 storage_full", "free room on the disk of --l3-path"),
        ({"dropped_pages": 7}, "dropped 7 pages", "look at"),
    ):
        broken = replace(step(240), trial=made_trial(240, **changed))
        assert not broken.holds
        found = size_findings(predicted(240), Climbed((step(0), step(120), broken), Ended.UNSTABLE))
        assert named in found[0].message
        assert (found[0].code, hint in str(found[0].hint)) == ("HC-SIZE-STEP", True)
    small = replace(step(240), trial=made_trial(240, dropped_pages=7), exact=False, assumption="they overlap in part")
    assert small.holds
