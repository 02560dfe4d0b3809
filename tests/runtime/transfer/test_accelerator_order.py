"""What waits for what: the caller's streams, the layers of a load, and a load beside a backup."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from fakes.accelerator_rig import GEOMETRIES, LONG_S, ON_CUDA, Rig, finish, some

from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.options import StagingOptions


@pytest.mark.parametrize("direction", Direction)
def test_a_layer_is_ready_only_when_its_bytes_are_there(direction: Direction) -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=64 << 10, page_tokens=1)
    for seed in range(20):
        rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 20, least_group_bytes=0), seed=seed)
        layer = seed % 3
        with rig.engine([1, 1, 1]) as engine:
            if direction is Direction.LOAD:
                wanted, transfer = rig.host.read_page(3), engine.load(some(3, 9), some(7, 1))
            else:
                wanted, transfer = rig.device.planes_numpy()[:, 7].copy(), engine.backup(some(7, 1), some(3, 9))
            assert transfer.wait_layer(layer, LONG_S)
            got = rig.device.planes_numpy()[:, 7] if direction is Direction.LOAD else rig.host.read_page(3)
            np.testing.assert_array_equal(got[2 * layer : 2 * layer + 2], wanted[2 * layer : 2 * layer + 2])
            finish(transfer)


def test_a_layer_can_be_ordered_before_the_callers_own_stream_goes_on() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=64 << 10, page_tokens=1)
    for seed in range(20):
        rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 20, least_group_bytes=0), seed=seed)
        with rig.engine([1, 1, 1]) as engine:
            wanted, got = rig.host.read_page(3), np.zeros(0, dtype=np.uint8)
            load = engine.load(some(3, 9), some(7, 1))

            def read(layer: int, rig: Rig = rig) -> None:
                nonlocal got
                got = rig.device.planes_numpy()[2 * layer : 2 * layer + 2, 7].copy()

            layer = seed % 3
            assert load.order_layer(layer, LONG_S)
            stream = rig.cuda.current_stream()
            rig.cuda.enqueue(stream, partial(read, layer))
            stream.synchronize()
            np.testing.assert_array_equal(got, wanted[2 * layer : 2 * layer + 2])
            finish(load)
            assert load.order_layer(2, 0)


def test_a_load_that_was_asked_for_is_submitted_before_a_backups_next_step() -> None:
    geometry = GEOMETRIES[0]
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(2 * 2 * geometry.page_bytes))
    gate, copying, order = threading.Event(), threading.Event(), []
    real = rig.backend.begin

    class Watched:
        def __init__(self, direction: Direction, work: Any) -> None:
            self.direction, self.work = direction, work
            self.steps, self.seal, self.close = work.steps, work.seal, work.close
            self.arrives_on = work.arrives_on

        def copy(self, step: Any) -> Any:
            order.append(self.direction)
            if self.direction is Direction.BACKUP and not copying.is_set():
                copying.set()
                assert gate.wait(LONG_S)
            return self.work.copy(step)

    class Wrapped:
        kind, prepare, copy = rig.backend.kind, rig.backend.prepare, rig.backend.copy

        def begin(self, direction: Direction, *rest: Any) -> Watched:
            return Watched(direction, real(direction, *rest))

    rig.backend = Wrapped()
    with rig.engine() as engine:
        backup = engine.backup(some(0, 1, 2, 3), some(9, 3, 1, 7))
        assert copying.wait(LONG_S)
        load = engine.load(some(20, 22), some(10, 12))
        gate.set()
        finish(load)
        finish(backup)
    assert order == [Direction.BACKUP, *[Direction.LOAD] * 2, *[Direction.BACKUP] * 3]


def test_a_transfer_waits_for_what_the_caller_submitted_before_it() -> None:
    geometry = GEOMETRIES[0]
    for seed in range(20):
        for kind in ON_CUDA:
            rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 20), seed=seed, kind=kind)
            page = np.full((geometry.n_planes, geometry.chunk_bytes), 77, dtype=np.uint8)

            def write(rig: Rig = rig, page: Any = page) -> None:
                rig.device.planes_numpy()[:, 5] = page

            with rig.engine() as engine:
                rig.cuda.enqueue(rig.cuda.current_stream(), write)
                finish(engine.backup(some(5), some(9)))
            np.testing.assert_array_equal(rig.host.read_page(9), page)
