from __future__ import annotations

import pytest
from hypothesis import given, settings
from lru_model import BLOCK, Path, paths, traced
from shared_data import shared_path

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
    few = [((s, 100 + s), BLOCK) for s in range(9)]
    found = confidence_of(window_of(traced(few), BLOCK), D1, 1.0)
    assert found.jackknife is None
    assert found.reason == "9 sessions, fewer than 10: no interval"


def test_the_warm_half_leaves_out_the_same_requests_in_every_tenth() -> None:
    requests = [((s, 100 + s), BLOCK) for s in range(20)] * 2
    window = window_of(traced(requests), BLOCK)
    found = jackknife_of(window, D1, first=20)
    assert [curve.rate() for curve in found.curves] == [1.0] * 10
    assert isinstance(found, Jackknife)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "plateaus", "short"),
    [
        ("mooncake-fast25/conversation_trace.jsonl.gz", [32_428, 37_617, 40_944, 52_882], True),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", [15_133, 27_563, 32_400, 32_887], False),
        ("kv-cache-tester/sessions_first100.jsonl.xz", [74_342, 123_168, 121_729, 109_677], False),
    ],
)
def test_the_recorded_traces_grow_as_recorded(trace: str, plateaus: list[int], short: bool) -> None:
    opened = open_trace(shared_path(f"traces/{trace}"))
    found = confidence_of(window_of(opened, opened.block_tokens), D1, 1.0)
    assert [grown.plateau_pages for grown in found.growth] == plateaus
    assert found.too_short is short
    assert found.jackknife is not None
    if "conversation" in trace:  # another way of dealing sessions gave 1.18 points and 4,872 blocks
        assert 0.9 < 100 * found.jackknife.rate_error() < 1.5
        assert 1_500 < found.jackknife.plateau_error(1.0) < 6_500
