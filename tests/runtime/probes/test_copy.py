"""The copy probe: every pair is a row, refusals end a row and not the probe, wrong bytes end the probe, time is kept."""

from __future__ import annotations

from typing import Any

import pytest

from hicachectl.errors import CapacityError, ExitCode, Unsupported, UsageError
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.probes import copy as probe_module
from hicachectl.runtime.probes.copy import NO_TIME, copy_pool_bytes, n_pairs_here, run_copy_probe
from hicachectl.runtime.probes.copy_rig import Rig, WrongBytes

TINY = KVGeometry("tiny", KVKind.GQA, 3, 8, 4)


def test_every_layout_with_every_backend_is_a_row_in_order_and_those_that_run_are_told() -> None:
    told: list[str] = []
    probe = run_copy_probe(TINY, 6, "cpu", rounds=2, products_size=8, told=told.append)
    pairs = [(row.layout, row.backend) for row in probe.rows]
    assert pairs == [(layout, backend) for layout in Layout for backend in Backend]
    ran = [row for row in probe.rows if row.refused is None]
    assert told == [f"{row.layout.value} {row.backend.value}" for row in ran]
    assert n_pairs_here("cpu", tuple(Layout), tuple(Backend)) == len(ran)
    assert {row.backend for row in ran} == {Backend.CPU, Backend.TORCH}
    for row in ran:
        assert row.load is not None
        assert row.beside_backup is not None
        assert (len(row.load.wall_s), len(row.beside_backup.times_alone), row.cut) == (2, 2, None)
    assert all(isinstance(row.refusal, Unsupported) for row in probe.rows if row.refused is not None)


def test_the_best_backend_of_each_layout_has_a_cost_fitted_to_several_sizes() -> None:
    probe = run_copy_probe(TINY, 20, "cpu", layouts=[Layout.PAGE_FIRST], rounds=2, products_size=8)
    (line,) = probe.lines
    assert (line.layout, line.n_samples) == (Layout.PAGE_FIRST, 2 * len((1, 4, 16, 20)))
    assert line.backend in (Backend.CPU, Backend.TORCH)
    for transfers in (line.read_transfers, line.write_transfers):
        assert sorted(n_bytes for n_bytes, _ in transfers) == sorted(2 * [n * TINY.page_bytes for n in (1, 4, 16, 20)])


def test_costs_are_those_of_transfers_in_the_layer_groups_of_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    class Watched(Rig):
        def engine(self, kind: Backend, groups: Any, *given: Any, **more: Any) -> Any:
            seen.append(groups)
            return super().engine(kind, groups, *given, **more)

    monkeypatch.setattr(probe_module, "Rig", Watched)
    monkeypatch.setattr(probe_module, "load_groups", lambda n_layers, device_type: (1, n_layers - 1))
    run_copy_probe(TINY, 4, "cpu", layouts=[Layout.PAGE_FIRST], backends=[Backend.CPU], rounds=2, products_size=8)
    assert seen[-1] == (1, TINY.n_layers - 1)


def test_where_time_is_over_the_rest_are_rows_without_samples() -> None:
    looks = iter([True, *[False] * 40])
    probe = run_copy_probe(
        TINY, 2, "cpu", rounds=1, backends=[Backend.CPU, Backend.TORCH], products_size=8, go_on=lambda: next(looks)
    )
    assert [row.refused for row in probe.rows] == [None, *[NO_TIME] * 5]
    assert probe.lines == ()


def test_memory_that_is_refused_is_the_reason_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoRoom(Rig):
        def __init__(self, *given: Any, **more: Any) -> None:
            raise CapacityError("no memory on the device", terms=(("bytes", 1),))

    monkeypatch.setattr(probe_module, "Rig", NoRoom)
    probe = run_copy_probe(TINY, 2, "cpu", rounds=1, layouts=[Layout.PAGE_FIRST], backends=[Backend.CPU])
    assert [(row.refused, row.refusal and row.refusal.exit_code) for row in probe.rows] == [
        ("no memory on the device", ExitCode.NOT_READY)
    ]


def test_a_wrong_byte_ends_the_probe_and_gives_the_pools_back(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Rig] = []

    class Wrong(Rig):
        def check(self, engine: Any) -> None:
            raise WrongBytes("host slot 1 and device slot 2 differ")

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(probe_module, "Rig", Wrong)
    with pytest.raises(WrongBytes):
        run_copy_probe(TINY, 2, "cpu", rounds=1)
    assert len(closed) == 1


def test_a_slow_pair_has_fewer_rounds_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "CELL_S", 0.0)
    probe = run_copy_probe(
        TINY, 2, "cpu", rounds=5, layouts=[Layout.PAGE_FIRST], backends=[Backend.CPU], products_size=8
    )
    (row,) = probe.rows
    assert row.load is not None
    assert len(row.load.wall_s) == 3
    assert "3 of 5 rounds" in (row.cut or "")


def test_nothing_to_move_is_refused_and_the_pools_are_two_of_twice_the_pages() -> None:
    with pytest.raises(UsageError):
        run_copy_probe(TINY, 0, "cpu", rounds=1)
    assert copy_pool_bytes(TINY, 10) == 28 * TINY.page_bytes
