"""Costs that `hicachectl bench` takes from measured transfers: lines through medians, and none where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runner import call

from hicachectl.bench_costs import line_cost, transfer_measures, transfers_of, why_no_line


def test_copies_of_one_size_have_no_line_and_say_so(tmp_path: Path) -> None:
    file = tmp_path / "copy.json"
    words = (
        "--geometry",
        "tiny-4k",
        "--page-tokens",
        "16",
        "--pages",
        "1",
        "--layout",
        "page_first",
        "--backend",
        "cpu",
    )
    call("bench", "copy", "--device", "cpu", *words, "--rounds", "3", "-o", "json", "--output-file", str(file))
    data = json.loads(file.read_text())["data"]
    assert data["costs"]["host_read"] is data["costs"]["host_write"] is None
    (line,) = data["lines"]
    assert line["read"] is line["write"] is None
    for place in ("/costs/host_read", "/costs/host_write", "/lines/0/read", "/lines/0/write"):
        assert "one size only: no line through them" in data["facts"][place]["reason"]


def test_a_line_says_which_sizes_it_goes_through() -> None:
    cost, _ = line_cost([(4096, 1e-4), (65536, 2e-4), (8192, 1.1e-4)])
    assert cost is not None
    assert (cost.from_bytes, cost.to_bytes, cost.n_samples) == (4096, 65536, 3)
    slope, fixed = np.polyfit([4096, 65536, 8192], [1e-4, 2e-4, 1.1e-4], 1, w=[1e4, 5e3, 1 / 1.1e-4])
    assert (cost.fixed_s, cost.per_byte_s) == (pytest.approx(fixed), pytest.approx(slope))


def heavy_tailed(n_bytes: int, median_s: float) -> list[tuple[int, float]]:
    """Calls of one size: half of them near the median or above it by far, as a disk that stalls has them."""
    times = (0.2, 0.25, 0.3, 0.9, 1.0, 1.1, 8.0, 20.0, 40.0)
    return [(n_bytes, median_s * one) for one in times]


def test_a_line_goes_through_the_medians_of_sizes_however_far_single_calls_lie_off() -> None:
    cost, why = line_cost([*heavy_tailed(65536, 5e-4), *heavy_tailed(1 << 20, 8.3e-3)])
    assert cost is not None
    assert why is None
    assert cost.n_samples == 18
    # One line goes through both medians but for its fixed part, which is not below 0: within 3 % of both.
    assert cost.per_byte_s * 65536 + cost.fixed_s == pytest.approx(5e-4, rel=0.03)
    assert cost.per_byte_s * (1 << 20) + cost.fixed_s == pytest.approx(8.3e-3, rel=0.03)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_outliers_of_a_size_move_its_line_neither_up_nor_down(factor: float) -> None:
    calm = [(n, 1e-4 + 1e-9 * n) for n in (65536, 1 << 20) for _ in range(5)]
    outliers = [(n, seconds * factor) for n, seconds in calm[:2] + calm[-2:]]
    cost, _ = line_cost(calm + outliers)
    assert cost is not None
    assert (cost.fixed_s, cost.per_byte_s) == (pytest.approx(1e-4), pytest.approx(1e-9))


def test_a_size_with_few_calls_counts_as_much_as_one_with_many() -> None:
    cost, _ = line_cost([*((65536, 2e-4) for _ in range(500)), *((1 << 20, 5e-3) for _ in range(3)), (1 << 21, 6e-3)])
    few, _ = line_cost([(65536, 2e-4), (1 << 20, 5e-3), (1 << 21, 6e-3)])
    assert cost is not None
    assert few is not None
    assert (cost.fixed_s, cost.per_byte_s) == (pytest.approx(few.fixed_s), pytest.approx(few.per_byte_s))


@pytest.mark.parametrize("times_dearer", [1.5, 2.0, 3.0, 4.0, 10.0])
def test_where_large_transfers_are_dearer_a_byte_the_line_is_near_both_medians_or_there_is_none(
    times_dearer: float,
) -> None:
    medians = {65536: 1e-4, 1 << 20: 16e-4 * times_dearer}
    cost, why = line_cost([(n, seconds * noise) for n, seconds in medians.items() for noise in (0.95, 1.0, 1.05)])
    if cost is not None:
        assert times_dearer <= 2
        for n, seconds in medians.items():
            assert abs(cost.fixed_s + cost.per_byte_s * n - seconds) <= 0.5 * seconds
    else:
        assert times_dearer > 2
        assert why is not None
        assert "50 % is the most that a line may miss" in why


def test_a_line_that_misses_the_median_of_a_size_is_refused_with_both_numbers() -> None:
    cost, why = line_cost([(65536, 1e-4), (1 << 20, 6.4e-3)])
    assert cost is None
    # 0 + b n: b minimises the errors relative to the medians, (1 + 1/4) / (1 + 1/16) of the small one's seconds a byte.
    assert why == (
        "the line through the medians of 2 sizes says 1.9 ms for 1048576 B, the median of which is 6.4 ms: 71 % off, "
        "50 % is the most that a line may miss: measure sizes nearer to each other"
    )


def test_a_line_through_a_length_that_is_noise_is_no_cost() -> None:
    seen = [(4096, 1.0), (4096, 1.1), (4096, 1.2), (8192, 1.0), (8192, 5.0), (8192, 30.0)]
    measures = transfer_measures("host read", seen)
    assert [one.subject for one in transfers_of("host_read", measures)] == ["host read, 4096 B", "host read, 8192 B"]
    why = why_no_line(measures)
    assert why is not None
    assert why.startswith("host read, 8192 B, transfer_s: the middle half of 3 samples spreads over")
    assert why_no_line(measures[:1]) is None
