from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from lru_model import BLOCK, Path, paths, traced
from shared_data import shared_path

from hicachectl.runtime.replay.synthetic import synthetic
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.confidence import Confidence, Grown, Jackknife, confidence_of, growth_of, jackknife_of
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.extents import runs_of
from hicachectl.tuning.sizing.window import Definition, window_of

D1 = Definition.D1


@settings(max_examples=60, deadline=None)
@given(paths())
def test_growth_from_one_pass_equals_a_pass_over_each_part(requests: list[Path]) -> None:
    window = window_of(traced(requests), BLOCK)
    for definition in (Definition.D1, Definition.D2):
        for grown in growth_of(runs_of(window), window, definition, 1.0):
            part = curve_of(window_of(traced(requests[: grown.n_requests]), BLOCK), definition)
            assert (grown.ceiling, grown.plateau_pages) == (part.rate(), part.smallest_within(1.0))


def growth(*plateaus: int) -> tuple[Grown, ...]:
    return tuple(Grown(share, share, 0.5, pages) for share, pages in zip((25, 50, 75, 100), plateaus, strict=True))


@pytest.mark.parametrize(
    ("plateaus", "moved", "short"),
    [((1, 2, 100, 110), 0.10, False), ((1, 2, 100, 111), 0.11, True), ((1, 2, 100, 60), -0.40, False),
     ((0, 0, 0, 5), None, True), ((0, 0, 0, 0), None, False)],
)  # fmt: skip
def test_a_plateau_that_grew_by_more_than_a_tenth_over_the_last_quarter_means_a_window_too_short(
    plateaus: tuple[int, ...], moved: float | None, short: bool
) -> None:
    found = Confidence(growth(*plateaus), None, None)
    assert found.moved == (None if moved is None else pytest.approx(moved))
    assert found.too_short is short


@pytest.mark.parametrize(("n_requests", "short"), [(1, True), (3, True), (4, False)])
def test_a_window_of_so_few_requests_that_quarters_cannot_be_told_apart_is_too_short(
    n_requests: int, short: bool
) -> None:
    window = window_of(traced([((n,), BLOCK) for n in range(n_requests)]), BLOCK)
    assert confidence_of(window, D1, 1.0).too_short is short


def test_sessions_that_are_all_alike_leave_no_error_and_unlike_ones_do() -> None:
    def sessions(n: int, turns: int) -> list[Path]:
        return [((10 * s, 10 * s + 1), BLOCK) for s in range(n) for _ in range(turns)]

    alike = jackknife_of(window_of(traced(sessions(40, 3)), BLOCK), D1)
    assert alike.rate_error() == pytest.approx(0, abs=1e-12)
    mixed = [*sessions(40, 3), *[((1000 + n,), BLOCK) for n in range(60)]]
    assert jackknife_of(window_of(traced(mixed), BLOCK), D1).rate_error() > 0.005


def test_fewer_sessions_than_tenths_give_no_interval_and_say_why() -> None:
    few = [replace(one, session=f"chat {one.index}") for one in traced([((s, 100 + s), BLOCK) for s in range(9)])]
    found = confidence_of(window_of(few, BLOCK), D1, 1.0)
    assert found.jackknife is None
    assert found.reason == "9 sessions, fewer than 10: no interval"


def test_the_warm_half_leaves_out_the_same_requests_in_every_tenth() -> None:
    requests = [((s, 100 + s), BLOCK) for s in range(20)] * 2
    window = window_of(traced(requests), BLOCK)
    found = jackknife_of(window, D1, first=20)
    assert [curve.rate() for curve in found.curves] == [1.0] * 10
    assert isinstance(found, Jackknife)


def in_turn(n_sessions: int) -> list[Path]:
    """Sessions of two blocks that come round three times: a cache of all their blocks hits, a smaller one nothing."""
    return [((10 * s, 10 * s + 1), BLOCK) for _ in range(3) for s in range(n_sessions)]


@pytest.mark.parametrize("n_sessions", [10, 13, 25, 99])
def test_groups_of_unlike_numbers_of_sessions_are_no_spread(n_sessions: int) -> None:
    found = jackknife_of(window_of(traced(in_turn(n_sessions)), BLOCK), D1)
    assert [found.rate_error(c) for c in (2 * n_sessions - 10, 2 * n_sessions)] == [pytest.approx(0, abs=1e-9)] * 2
    assert found.plateau_error(1.0) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("n_sessions", [10, 11, 20, 37])
def test_every_session_is_left_out_once_and_the_groups_differ_by_one_at_most(n_sessions: int) -> None:
    found = jackknife_of(window_of(traced(in_turn(n_sessions)), BLOCK), D1)
    left_out = [n_sessions - n for n in found.kept]
    assert sum(left_out) == n_sessions
    assert set(left_out) <= {n_sessions // 10, -(-n_sessions // 10)}
    assert [curve.total for curve in found.curves] == [6 * n for n in found.kept]


def test_with_ten_sessions_the_interval_is_that_of_leaving_out_each_session() -> None:
    window = window_of(synthetic("agent"), 64)
    sessions = np.unique(window.session)
    assert len(sessions) == 10
    curves = [curve_of(window.without(np.array([one])), D1) for one in sessions]
    found = jackknife_of(window, D1)
    for capacity in (2_000, 4_000, 14_790):
        rates = [curve.rate(capacity * 9 // 10) for curve in curves]
        by_hand = sqrt(0.9 * sum((rate - sum(rates) / 10) ** 2 for rate in rates))
        assert found.rate_error(capacity) == pytest.approx(by_hand)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "plateaus", "short", "errors"),
    [
        ("mooncake-fast25/conversation_trace.jsonl.gz", [32_428, 37_617, 40_944, 52_882], True, (1.23, 1.17, 1_715)),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", [15_133, 27_563, 32_400, 32_887], False, (1.02, 1.17, 1_633)),
        ("kv-cache-tester/sessions_first100.jsonl.xz", [74_342, 123_168, 121_729, 109_677], False, (0.28, 4.06, 16_936)),
    ],
)  # fmt: skip
def test_the_recorded_traces_grow_as_recorded_with_the_errors_of_docs_facts_session_error(
    trace: str, plateaus: list[int], short: bool, errors: tuple[float, float, int]
) -> None:
    opened = open_trace(shared_path(f"traces/{trace}"))
    found = confidence_of(window_of(opened, opened.block_tokens), D1, 1.0)
    assert [grown.plateau_pages for grown in found.growth] == plateaus
    assert found.too_short is short
    assert found.jackknife is not None
    at = (100 * found.jackknife.rate_error(), 100 * found.jackknife.rate_error(32_000))
    assert (*(round(error, 2) for error in at), round(found.jackknife.plateau_error(1.0))) == errors
