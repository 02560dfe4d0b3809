"""The verdict belongs to one model: what the report says when bytes and prefill are of two."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from run_reports import all_tiers, costly, demo

from hicachectl.render.html_report import html_page
from hicachectl.render.run_advice import advice
from hicachectl.render.run_report import render_report
from hicachectl.render.run_words import verdict
from hicachectl.render.screen import Screen
from hicachectl.runtime.replay.report import Compute, Gain, ReplayReport, gain_at_model_size


def drawn(report: object) -> str:
    stream = io.StringIO()
    render_report(Screen(stream, width=120, ascii=True), report)  # type: ignore[arg-type]
    return " ".join(stream.getvalue().split())


def test_bytes_of_one_model_and_prefill_of_another_are_a_demonstration_and_no_verdict() -> None:
    found = verdict(demo())
    assert found.answer.word == "DEMO"
    assert "tiny-64k (128 B a token)" in found.answer.text
    assert "qwen3-8b (147 456 B a token)" in found.answer.text
    assert not [remark for remark in found.remarks if "would end the gain" in remark]


def test_a_demonstration_estimates_the_sum_at_the_size_of_the_model() -> None:
    estimates = {name: (amount, how, what) for name, amount, how, what in verdict(demo()).terms if how == "estimate"}
    amount, _, what = estimates["at model size"]
    assert amount == "-17 min 39 s"  # 61.25 - (2.75 + 0.97 * 1152)
    assert "1 152 times as long" in what
    for text in (drawn(demo()), html_page(demo()).replace("\u00a0", " ")):
        assert "-17 min 39 s" in text
        assert "DEMO" in text


def test_the_saved_line_names_model_and_card() -> None:
    saved = {name: what for name, _, _, what in verdict(demo()).terms}["saved"]
    assert "qwen3-8b on NVIDIA H200" in saved


def test_one_model_for_both_terms_gets_a_verdict_and_no_estimate() -> None:
    found = verdict(all_tiers())
    assert found.answer.word == "YES"
    assert "estimate" not in [how for _, _, how, _ in found.terms]


def test_a_prefill_of_no_named_model_gets_no_verdict() -> None:
    full = all_tiers()
    report = replace(full, compute=Compute(None, None, None, False), gain=replace(full.gain, at_model_size=None))
    assert verdict(report).answer.word == "DEMO"
    assert "run.compute.model" in verdict(report).answer.text


def test_computing_again_being_cheaper_is_no_verdict_of_two_models() -> None:
    full = demo()
    dear = {**full.missed_tokens_by_reason, "restore_dearer": 1_000}
    assert verdict(replace(full, pages_restored=0, missed_tokens_by_reason=dear)).answer.word == "DEMO"


@pytest.mark.parametrize(("net_s", "told"), [(5.0, False), (4.0, True), (-2.59, True)])
def test_copying_down_longer_than_the_gain_is_told_with_yes_and_with_no(net_s: float, told: bool) -> None:
    report = replace(costly(), gain=Gain(net_s + 1, 1.0, net_s, 4.3))
    assert verdict(report).answer.word == ("YES" if net_s > 0 else "NO")
    assert any("more than the gain" in remark for remark in verdict(report).remarks) is told


def test_the_estimate_equals_the_measurement_for_the_same_bytes() -> None:
    found = gain_at_model_size(61.25, 3.72, 0.97, 1.0)
    assert (found.moved_s, found.net_s) == (3.72, 61.25 - 3.72)
    assert gain_at_model_size(61.25, 3.72, 0.97, 2.0).moved_s == pytest.approx(3.72 + 0.97)
    assert gain_at_model_size(61.25, 0.5, 0.97, 2.0).moved_s == pytest.approx(2 * 0.97)


def test_a_demonstration_says_how_to_get_a_verdict_and_what_memory_it_takes() -> None:
    why = " ".join(item.why for item in advice(demo()))
    assert "--geometry qwen3-8b" in why
    assert "a page is 72.0 MiB and these pools are 45.0 GiB" in why
    assert not [item for item in advice(all_tiers()) if "For a verdict" in item.why]


def small_pool() -> ReplayReport:
    """A host pool no larger than the device's, which therefore restored nothing."""
    full = all_tiers()
    return replace(
        full, pools=replace(full.pools, host_slots=full.pools.device_slots, storage_capacity_bytes=0), pages_restored=0,
        pages_hit_by_tier=replace(full.pages_hit_by_tier, host=0, storage=0),
    )  # fmt: skip


def test_a_host_pool_no_larger_than_the_device_is_too_small_to_tell() -> None:
    found = verdict(small_pool())
    assert found.answer.word == "OPEN"
    assert "too small to tell" in found.answer.text
    (grow,) = [item for item in advice(small_pool()) if "it cannot pay" in item.why]
    assert int(grow.flags.split()[-1]) >= 2 * small_pool().pools.device_slots
    assert not any("Leave" in item.why for item in advice(small_pool()))


def test_under_write_back_a_small_host_pool_holds_other_pages_so_there_is_a_verdict() -> None:
    small = small_pool()
    found = verdict(replace(small, policies={**small.policies, "write_policy": "write_back"}))
    assert found.answer.word == "NO"


def test_a_limited_run_says_first_that_it_was_and_gives_no_advice_to_shrink() -> None:
    full = replace(all_tiers(), failures_by_reason={})
    shrinks = [
        item for item in advice(replace(full, pools=replace(full.pools, host_slots=10**9))) if "larger than" in item.why
    ]
    assert shrinks  # what a whole trace is told
    limited = replace(full, pools=replace(full.pools, host_slots=10**9), stop="limit")
    assert "stopped at its limit" in advice(limited)[0].why
    assert not [item for item in advice(limited) if "larger than" in item.why]


def test_a_demonstration_has_a_command_that_leads_out_of_it() -> None:
    (way,) = [item for item in advice(demo()) if item.why.startswith("This run shows")]
    assert way.flags == "--geometry qwen3-8b --limit 50 --check"
