"""The rig of the copy probes: every byte is compared, every time has its peak from the same round."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.accelerator_rig import Rig as FakeRig

from hicachectl.errors import ExitCode
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.probes.copy_rig import Case, Rig, WrongBytes, backends_here
from hicachectl.runtime.probes.copy_times import against_copy, against_peak, beside_products, both_ways
from hicachectl.runtime.probes.products import Products
from hicachectl.runtime.transfer.backends import Direction, make_backend
from hicachectl.runtime.transfer.device import AcceleratorOrder
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.transfer.options import StagingOptions

CPU = torch.device("cpu")
CASE = Case(KVGeometry("tiny", KVKind.GQA, 3, 8, 4), 5, Layout.PAGE_FIRST)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(CASE, CPU)
    yield made
    made.close()


def test_no_slot_is_used_twice_and_a_backup_reads_no_slot_of_a_load(rig: Rig) -> None:
    host_up, device_up = (slots.tolist() for slots in rig.load_slots)
    device_down, host_down = (slots.tolist() for slots in rig.backup_slots)
    assert len({*host_up, *host_down}) == len({*device_up, *device_down}) == 2 * CASE.n_pages


@pytest.mark.parametrize("direction", Direction)
def test_every_round_has_its_peak_and_the_first_layer_is_there_before_the_whole(rig: Rig, direction: Direction) -> None:
    with rig.engine(Backend.TORCH, (1, 2), StagingOptions()) as (engine, _):
        found = against_peak(rig, engine, direction, rounds=3)
    assert [len(part) for part in (found.wall_s, found.peak_s, found.held_s, found.submit_s, found.first_layer_s)] == [
        3
    ] * 5
    assert found.n_bytes == CASE.n_bytes
    assert found.n_submissions > 0
    assert all(first <= wall for first, wall in zip(found.first_layer_s, found.wall_s, strict=True))
    assert len(found.shares) == 3


def test_both_ways_products_and_small_loads_have_a_sample_a_round(rig: Rig) -> None:
    with rig.engine(Backend.CPU, None, StagingOptions()) as (engine, _):
        both = both_ways(rig, engine, rounds=2)
        compute = Products(CPU, 8)
        beside = beside_products(rig, engine, Direction.BACKUP, compute, n=2, rounds=2)
        small = against_copy(rig, engine, n_pages=1, rounds=2)
    assert (both.n_bytes, len(both.wall_s), len(both.peak_s)) == (2 * CASE.n_bytes, 2, 2)
    assert (len(beside.alone_s), len(beside.times_alone), len(beside.outlasted)) == (4, 2, 2)
    assert (len(small.wall_s), len(small.copy_s)) == (2, 2)
    assert compute.seconds_each() > 0


@pytest.mark.parametrize("direction", Direction)
def test_a_transfer_moves_beside_the_products_and_not_behind_all_that_are_queued(
    monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    fake = FakeRig(CASE.geometry, CASE.layout, StagingOptions())
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake.cuda)
    held: list[Any] = []

    class Queued(Products):
        parts = 0

        def _run(self, n: int) -> None:
            self.parts += 1
            if self.parts == 5:  # those after the transfer end when it has ended, not before
                held.append(fake.cuda.hold(fake.cuda.current_stream()))

    def over(transfer: object, what: str) -> None:
        if what == "arrived":
            held.pop()()

    slots = np.arange(5, dtype=np.int32)
    engine = TransferEngine(
        fake.device, fake.host, fake.backend, orders=lambda device: AcceleratorOrder(device, fake.cuda), watch=over
    )
    ask = {Direction.LOAD: engine.load, Direction.BACKUP: engine.backup}
    queued: Any = SimpleNamespace(ask=lambda engine, way: ask[way](slots, slots))
    try:
        beside_products(queued, engine, direction, Queued(torch.device("meta"), 8), n=2, rounds=1)
    finally:
        engine.close()
    assert not held


def test_a_backend_that_loses_a_byte_is_found_before_anything_is_measured(rig: Rig) -> None:
    class Loses:
        kind = Backend.CPU

        def __init__(self) -> None:
            self._inner: Any = make_backend(Backend.CPU, CASE.layout, CPU)

        def prepare(self, *given: Any) -> None:
            self._inner.prepare(*given)

        def copy(self, direction: Direction, *given: Any) -> Any:
            took = self._inner.copy(direction, *given)
            if direction is Direction.LOAD:
                rig.device_pool.tensor[0, int(rig.load_slots[1][-1]), 0] ^= 1
            return took

    with (
        pytest.raises(WrongBytes, match="differ") as caught,
        rig.engine(Backend.CPU, None, StagingOptions(), backend=Loses()),
    ):
        raise AssertionError("it was measured")
    assert caught.value.exit_code is ExitCode.BUG


def test_what_cannot_run_on_a_processor_says_why() -> None:
    found = backends_here(Layout.PAGE_FIRST, CPU, StagingOptions())
    assert found[Backend.CPU] is found[Backend.TORCH] is None
    assert all(
        "comes with" in str(found[kind]) for kind in (Backend.DIRECT, Backend.BATCH, Backend.STRIDED, Backend.UVA)
    )
