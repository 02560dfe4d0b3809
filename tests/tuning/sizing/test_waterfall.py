from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_trials import made_trial

from hicachectl.errors import CapacityError, InvariantBroken
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.replay.driver import PageMismatch, ReplayConfig
from hicachectl.tuning.sizing.size_journal import SizeJournal, read_size_journal
from hicachectl.tuning.sizing.stages import AGAIN, BACKEND, CHUNKS, Stage, measure_stages, pageable, stages_of
from hicachectl.tuning.sizing.step_rules import Ended
from hicachectl.tuning.sizing.steps import Climbed, Step
from hicachectl.tuning.sizing.trial import Trial
from hicachectl.tuning.sizing.waterfall import waterfall

BASE = ReplayConfig(
    preset("tiny-4k", 512), CacheConfig(restore="always"), Layout.LAYER_FIRST, None, None, 0, CostModel(RecomputeCost(1e-3, 1e-4, 0.0)),
)  # fmt: skip
CUDA = replace(BASE, device="cuda")


def climbed(*trials: Trial, ended: Ended = Ended.CONFIRMED) -> Climbed:
    return Climbed(tuple(Step(t.host_pages, None, 1000, t, True, 0, None, None) for t in trials), ended)


STEPS = climbed(made_trial(0), made_trial(50, ttft_mean_s=0.9), made_trial(100), made_trial(200))


def test_on_an_accelerator_a_copy_a_chunk_comes_before_the_backend_of_the_steps_both_in_pageable_small_pages() -> None:
    pools = [made_trial(50, backend="strided", device="cuda:0"), made_trial(100), made_trial(200)]
    again, chunks, backend = stages_of(CUDA, pools)
    assert (again.name, again.pages, again.config) == (AGAIN, 100, replace(CUDA, backend=Backend.STRIDED))
    assert chunks.config is not None
    assert backend.config is not None
    assert (chunks.config.layout, chunks.config.backend) == (Layout.PAGE_FIRST_DIRECT, Backend.DIRECT)
    assert (backend.config.layout, backend.config.backend) == (Layout.LAYER_FIRST, Backend.STRIDED)
    for stage in (chunks, backend):
        assert (stage.pages, stage.make_host) == (50, pageable)
        assert stage.config is not None
        assert not stage.config.host_memory.huge


def test_what_cannot_be_made_here_has_its_reason() -> None:
    again, chunks, backend = stages_of(BASE, [made_trial(50)])
    assert (again.config, again.reason) == (None, "one step alone")
    assert chunks.config is None
    assert "comes with an accelerator" in str(chunks.reason)
    assert backend.config is not None
    _, _, uva = stages_of(CUDA, [made_trial(50, backend="uva")])
    assert uva.config is None
    assert "registered memory" in str(uva.reason)
    assert stages_of(BASE, []) == ()


def test_pageable_memory_is_registered_with_nothing_even_where_there_is_a_driver() -> None:
    class Driver:
        name = "never asked"

    mapping = pageable(preset("tiny-4k", 512), 8, Layout.LAYER_FIRST, MappingSpec(huge=False), registrar=Driver())  # type: ignore[arg-type]
    assert mapping.report.registrations == ()
    assert "on purpose" in str(mapping.report.step("register"))
    mapping.close()


def measure(tmp_path: Path, steps: Climbed = STEPS, **options: object) -> dict[str, Trial | str]:
    journal = SizeJournal.begin(tmp_path, {})
    given = {"try_stage": lambda stage, config: made_trial(stage.pages), "journal": journal, **options}
    return measure_stages(CUDA, steps, **given)  # type: ignore[arg-type]


def test_stages_are_recorded_and_not_made_again_by_a_run_that_goes_on(tmp_path: Path) -> None:
    made: list[str] = []

    def try_stage(stage: Stage, _: ReplayConfig) -> Trial:
        made.append(stage.name)
        return made_trial(stage.pages)

    strided = climbed(made_trial(0), made_trial(50, backend="strided"), made_trial(100, backend="strided"))
    assert list(measure(tmp_path, strided, try_stage=try_stage)) == [AGAIN, CHUNKS, BACKEND]
    records = read_size_journal(tmp_path)
    assert (list(records.stages), records.done, records.cut) == ([AGAIN, CHUNKS, BACKEND], {}, None)
    found = measure(tmp_path, strided, try_stage=try_stage, done=json.loads(json.dumps(records.stages)))
    assert made == [AGAIN, CHUNKS, BACKEND]
    assert found[CHUNKS] == made_trial(50)


@pytest.mark.parametrize("ended", [Ended.FAILED, Ended.TIME])
def test_after_steps_that_failed_nothing_more_is_taken(tmp_path: Path, ended: Ended) -> None:
    found = measure(tmp_path, climbed(made_trial(0), made_trial(50, backend="strided"), made_trial(100), ended=ended))
    assert set(found.values()) == {f"the steps ended before: {ended.value}"}


def test_no_stage_begins_after_the_time_budget(tmp_path: Path) -> None:
    ticks = iter([0.0, 1.0, 9.0, 99.0])
    strided = climbed(made_trial(50, backend="strided"), made_trial(100))
    found = measure(tmp_path, strided, time_budget_s=5.0, clock=lambda: next(ticks))
    assert isinstance(found[AGAIN], Trial)
    assert (found[CHUNKS], found[BACKEND]) == ("time budget", "time budget")


def test_a_stage_that_fails_is_left_out_with_its_reason(tmp_path: Path) -> None:
    def short(stage: Stage, _: ReplayConfig) -> Trial:
        if stage.name == CHUNKS:
            raise CapacityError("no memory left", terms=())
        return made_trial(stage.pages, failures={"transfer_error": 3})

    found = measure(tmp_path, climbed(made_trial(50, backend="strided"), made_trial(100)), try_stage=short)
    assert found[CHUNKS] == "no memory left"
    assert found[BACKEND] == "copies failed: 3 transfer_error"
    rows = waterfall(STEPS, found)
    assert [left.stage for left in rows.left_out] == [CHUNKS, BACKEND]


@pytest.mark.parametrize("broken", [PageMismatch("page 3 differs"), InvariantBroken("a slot freed twice")])
def test_a_wrong_byte_in_a_stage_is_no_note(tmp_path: Path, broken: Exception) -> None:
    def wrong(stage: Stage, _: ReplayConfig) -> Trial:
        raise broken

    with pytest.raises(type(broken)):
        measure(tmp_path, climbed(made_trial(50, backend="strided"), made_trial(100)), try_stage=wrong)


def test_the_chain_begins_with_l1_alone_and_every_row_is_relative_to_it() -> None:
    found = waterfall(STEPS, {
        AGAIN: made_trial(100), CHUNKS: made_trial(50, ttft_mean_s=0.98, backend="direct"),
        BACKEND: made_trial(50, ttft_mean_s=0.95, backend="strided"),
    })  # fmt: skip
    assert [row.stage for row in found.rows] == [
        "L1 only", "+ host pool, a copy a chunk, small pages", "+ copy backend strided", "+ 100 % huge pages", "+ capacity",
        "+ capacity",
    ]  # fmt: skip
    assert [round(row.relative, 3) for row in found.rows] == [0.0, -0.02, -0.05, -0.1, -0.2, -0.2]
    assert [row.host_pages for row in found.rows] == [0, 50, 50, 50, 100, 200]
    assert found.left_out == ()


def test_without_replays_beside_the_steps_the_chain_has_the_steps() -> None:
    found = waterfall(STEPS, {AGAIN: "not made", CHUNKS: "direct comes with an accelerator"})
    assert [row.stage for row in found.rows] == ["L1 only", "+ host pool, 100 % huge pages", "+ capacity", "+ capacity"]
    assert [left.stage for left in found.left_out] == [CHUNKS]
    assert waterfall(Climbed((), Ended.NO_STEPS), {}).rows == ()


def test_memory_that_is_placed_shared_and_registered_says_so() -> None:
    trial = made_trial(50)
    assert trial.made is not None
    made = replace(trial.made, kind="memfd", placement="local on node 1", registered_bytes=1, huge_share=0.996)
    found = waterfall(climbed(made_trial(0), replace(trial, made=made)), {})
    assert found.rows[1].stage == "+ host pool, memfd, 99 % huge pages, local on node 1, registered"
