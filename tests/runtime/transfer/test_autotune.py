from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hicachectl.errors import Unsupported, Vanished
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout, compatible
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.transfer import autotune as autotune_module
from hicachectl.runtime.transfer.autotune import Candidate, Measured, _Bench, autotune, candidates, choose
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.transfer.groups import layer_groups
from hicachectl.runtime.transfer.options import StagingOptions

STRIDED, BATCH, UVA = Candidate(Backend.STRIDED, "triton"), Candidate(Backend.BATCH), Candidate(Backend.UVA)


def measured(candidate: Candidate, up: float, down: float, slowdown: float) -> Measured:
    return Measured(candidate, up * 1e9, down * 1e9, slowdown)


def test_the_fastest_in_its_slower_direction_wins_among_those_that_leave_compute_alone() -> None:
    choice = choose([measured(STRIDED, 50, 54, 1.01), measured(BATCH, 80, 40, 1.0), measured(UVA, 60, 60, 1.23)])
    assert choice.candidate == STRIDED
    assert choice.reason == (
        "strided with triton 50.0 GB/s up, 54.0 down, compute 1.01x; others: batch 80.0 GB/s up, 40.0 down, compute 1.00x, "
        "uva 60.0 GB/s up, 60.0 down, compute 1.23x"
    )


def test_a_slowdown_known_from_below_is_no_answer_unless_the_rate_is_twice_that_of_those_that_are() -> None:
    below = replace(measured(UVA, 60, 60, 1.03), outlasted=False)
    assert choose([measured(STRIDED, 50, 50, 1.0), below]).candidate == STRIDED
    assert choose([measured(STRIDED, 20, 20, 1.0), below]).candidate == UVA
    assert "compute 1.03x or more" in choose([below]).reason
    assert choose([measured(STRIDED, 50, 50, 1.06), below]).candidate == STRIDED
    loud = replace(measured(UVA, 60, 60, 1.06), outlasted=False)
    assert choose([measured(STRIDED, 50, 50, 1.07), loud]).candidate == STRIDED


def test_equal_rates_go_to_the_earlier_and_what_could_not_run_is_kept_with_its_reason() -> None:
    gone = Measured(UVA, refused="no triton")
    choice = choose([gone, measured(STRIDED, 54.0, 54.0, 1.0), measured(BATCH, 54.9, 54.9, 1.0)])
    assert choice.candidate == STRIDED
    assert gone in choice.measured


def test_when_all_slow_compute_the_one_that_does_least_wins() -> None:
    choice = choose([measured(STRIDED, 50, 50, 1.5), measured(UVA, 10, 10, 1.2)])
    assert choice.candidate == UVA
    assert "slows compute least" in choice.reason


def test_when_nothing_can_run_every_reason_is_told() -> None:
    with pytest.raises(Unsupported, match="no copy backend") as caught:
        choose([Measured(UVA, refused="no triton"), Measured(BATCH, refused="driver 12.6")])
    assert caught.value.why == "uva: no triton; batch: driver 12.6"


@pytest.mark.parametrize("device_type", ["cpu", "cuda", "xpu"])
@pytest.mark.parametrize("layout", Layout)
def test_candidates_are_what_the_table_allows(layout: Layout, device_type: str) -> None:
    found = candidates(layout, device_type)
    assert {one.backend for one in found} == {b for b in Backend if compatible(layout, b, device_type) is None}
    assert found[0].backend is (Backend.STRIDED if device_type == "cuda" else found[0].backend)


def test_on_a_processor_both_backends_are_measured_and_one_is_taken() -> None:
    geometry = preset("tiny-4k", 4)
    choice, backend = autotune(DevicePool(geometry, 8), HostPool(geometry, 6, Layout.PAGE_FIRST))
    assert {one.candidate.backend for one in choice.measured} == {Backend.CPU, Backend.TORCH}
    assert all(one.refused is None and one.bytes_per_s > 0 for one in choice.measured)
    assert backend.kind is choice.candidate.backend
    assert choice.candidate.backend.value in choice.reason


class Asked:
    """A transfer that is under way until it is waited for."""

    error = None

    def __init__(self, direction: Direction, under_way: list[Direction], *, ends: bool) -> None:
        self.direction, self._under_way, self.done = direction, under_way, ends
        under_way.append(direction)

    def wait(self, timeout: float) -> bool:
        self._under_way.remove(self.direction)
        return True


@pytest.mark.parametrize(("slow", "ends"), [(Direction.LOAD, False), (Direction.BACKUP, False), (Direction.LOAD, True)])
def test_what_compute_loses_is_that_beside_the_direction_which_costs_it_more(slow: Direction, ends: bool) -> None:
    under_way: list[Direction] = []
    most: list[int] = []

    class Compute:
        def seconds(self) -> float:
            most.append(len(under_way))
            return 1.5 if slow in under_way else 1.0

    class Engine:
        def load(self, *slots: object) -> Asked:
            return Asked(Direction.LOAD, under_way, ends=ends)

        def backup(self, *slots: object) -> Asked:
            return Asked(Direction.BACKUP, under_way, ends=ends)

    geometry = preset("tiny-4k", 4)
    bench = _Bench(DevicePool(geometry, 8), HostPool(geometry, 6, Layout.PAGE_FIRST), StagingOptions())
    bench._compute = Compute()  # type: ignore[assignment]
    found = bench._measure(BATCH, Engine())  # type: ignore[arg-type]
    assert (found.slowdown, found.outlasted) == (1.5, not ends)
    assert max(most) == 64, "transfers of microseconds follow each other while a second of compute runs"
    assert under_way == []
    assert choose([found]).reason.endswith("compute 1.50x" if not ends else "compute 1.50x or more")


def test_transfers_are_measured_in_the_layer_groups_of_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, seen = [], []

    def groups(n_layers: int, device_type: str) -> tuple[int, ...]:
        asked.append((n_layers, device_type))
        return layer_groups(n_layers)

    def measure(self: object, candidate: Candidate, engine: TransferEngine) -> Measured:
        transfer = engine.load(np.arange(2, dtype=np.int32), np.arange(2, dtype=np.int32))
        assert transfer.wait(30)
        seen.append(engine.layer_groups)
        return measured(candidate, 1, 1, 1.0)

    monkeypatch.setattr(autotune_module, "load_groups", groups)
    monkeypatch.setattr(_Bench, "_measure", measure)
    geometry = preset("tiny-4k", 4)
    autotune(DevicePool(geometry, 8), HostPool(geometry, 6, Layout.PAGE_FIRST))
    assert asked == [(geometry.n_layers, "cpu")] * 2
    assert seen == [layer_groups(geometry.n_layers)] * 2


def test_a_candidate_that_fails_is_refused_with_its_reason_and_the_next_is_taken() -> None:
    geometry = preset("tiny-4k", 4)
    pools = DevicePool(geometry, 8), HostPool(geometry, 6, Layout.PAGE_FIRST)

    def measure(candidate: Candidate) -> Measured:
        if candidate.backend is Backend.CPU:
            return Measured(candidate, refused="broken")
        return measured(candidate, 1, 1, 1.0)

    choice, backend = autotune(*pools, measure=measure)
    assert backend.kind is Backend.TORCH
    assert np.array([one.refused for one in choice.measured]).tolist() == ["broken", None]


@pytest.mark.parametrize(
    "lost", [Vanished("the device failed", why="719"), RuntimeError("CUDA error: unspecified launch failure")]
)
def test_a_device_that_is_gone_ends_it_before_another_candidate_is_tried(
    monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    tried: list[Candidate] = []

    def gone(self: object, candidate: Candidate, engine: object) -> Measured:
        tried.append(candidate)
        raise lost

    monkeypatch.setattr(_Bench, "_measure", gone)
    geometry = preset("tiny-4k", 4)
    with pytest.raises(Vanished):
        autotune(DevicePool(geometry, 8), HostPool(geometry, 6, Layout.PAGE_FIRST))
    assert len(tried) == 1


def test_an_error_without_words_is_told_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, candidate: Candidate, engine: object) -> Measured:
        raise RuntimeError

    monkeypatch.setattr(_Bench, "_measure", broken)
    geometry = preset("tiny-4k", 4)
    with pytest.raises(Unsupported, match="no copy backend") as caught:
        autotune(DevicePool(geometry, 8), HostPool(geometry, 6, Layout.PAGE_FIRST))
    assert caught.value.why == "cpu: RuntimeError; torch: RuntimeError"
