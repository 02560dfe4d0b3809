"""Verdicts on live steps, from numbers alone."""

from __future__ import annotations

from dataclasses import replace
from math import isclose, sqrt

from hicachectl.tuning.sizing.live_judge import LiveStep, Replayed, Told, Verdict, judge

STEP = LiveStep(100, Replayed.NEW, 50, 0, 1000, 700, 700, None, None, Verdict.NOT_COMPARED, "")


def test_hits_within_two_errors_and_a_point_hold_and_few_new_requests_widen_it() -> None:
    judged = judge(STEP, Told(0.73, 0.01, 1000), None)
    assert judged.verdict is Verdict.HOLDS
    assert judged.slack is not None
    assert isclose(judged.slack, 0.01 + 0.02 * sqrt(2))
    few = judge(replace(STEP, total_pages=10, hit_pages=6, exact_hit_pages=6), Told(0.73, 0.01, 1000), None)
    assert few.verdict is Verdict.HOLDS
    assert few.slack is not None
    assert few.slack > 0.2


def test_requests_whose_own_curve_says_something_else_drifted() -> None:
    judged = judge(STEP, Told(0.80, 0.01, 1000), None)
    assert judged.verdict is Verdict.DRIFT
    assert "70.00 %" in judged.reason and "80.00" in judged.reason


def test_a_replay_off_its_own_curve_is_no_drift_by_a_single_page() -> None:
    judged = judge(replace(STEP, hit_pages=699), Told(0.80, 0.01, 1000), None)
    assert judged.verdict is Verdict.REPLAY
    assert "1 pages fewer" in judged.reason


def test_a_policy_that_may_differ_is_named_only_where_it_is_what_differs() -> None:
    told = Told(0.70, 0.001, 1000)
    assert judge(replace(STEP, hit_pages=699), told, "write policy x").verdict is Verdict.HOLDS
    off = judge(replace(STEP, hit_pages=500), told, "write policy x")
    assert off.verdict is Verdict.REPLAY
    assert "write policy x" in off.reason
    assert judge(replace(STEP, hit_pages=500, exact_hit_pages=505), told, "write policy x").verdict is Verdict.DRIFT


def test_without_an_interval_nothing_is_compared_and_the_reason_is_told() -> None:
    judged = judge(STEP, Told(0.10, None, 1000, "7 sessions, fewer than 10: no interval"), None)
    assert (judged.verdict, judged.slack, judged.predicted_rate) == (Verdict.NOT_COMPARED, None, 0.10)
    assert "7 sessions" in judged.reason


def test_saved_requests_are_held_to_their_own_curve() -> None:
    saved = replace(STEP, replayed=Replayed.SAVED)
    assert judge(saved, None, None).verdict is Verdict.HOLDS
    assert judge(replace(saved, hit_pages=701), None, None).verdict is Verdict.REPLAY
