"""What a backend makes before the first transfer: staging of the size asked for, and every kernel."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fakes.accelerator_rig import GEOMETRIES, N_SLOTS, Rig, finish, some

from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.first_move import making_kernels
from hicachectl.runtime.transfer.options import StagingOptions


def test_staging_holds_no_more_than_its_budget_whatever_the_request() -> None:
    geometry = GEOMETRIES[0]
    budget = 2 * 2 * 5 * geometry.chunk_bytes
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(budget))
    everything = np.arange(N_SLOTS, dtype=np.int32)
    for direction in Direction:
        took = rig.copy(direction, everything, everything[::-1].copy(), range(geometry.n_planes))
        assert took.n_submissions > N_SLOTS
    assert rig.backend.staging_bytes == budget


def test_smaller_staging_is_made_of_whole_words() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=2, token_plane_bytes=64 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(100_000_000), room=1_600_000)  # 25 MB / 16 is odd
    with rig.engine() as engine:
        finish(engine.load(some(1, 2), some(3, 4)))
    assert rig.backend.staging_bytes == 2 * 1_562_496


def test_staging_of_buffers_smaller_than_a_chunk_says_what_it_takes_instead() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=16 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(64 << 10))
    rig.prepare()
    assert rig.backend.staging_bytes == 2 * 2 * (64 << 10)
    assert any("staging of 2 x 2 x 65536 bytes instead of 65536" in note for note in rig.backend.notes)
    fits = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions((256 << 10) + 13))
    fits.prepare()
    assert fits.backend.staging_bytes == 256 << 10
    assert not any("instead of" in note for note in fits.backend.notes)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("few_slots", [0, 64])
@pytest.mark.parametrize("kind", [Backend.STRIDED, Backend.UVA])
def test_every_kernel_of_a_transfer_is_made_before_the_first_one_and_no_page_is_touched_by_that(
    kind: Backend, few_slots: int, layout: Layout
) -> None:
    rig = Rig(GEOMETRIES[2], layout, StagingOptions(1 << 20, few_slots=few_slots), kind=kind, kernel=True)
    made: list[tuple[object, ...]] = []
    move = rig.mover.move

    def watched(source: Any, target: Any, **counts: Any) -> None:
        sides = [(side.slots is not None, side.words.dtype) for side in (source, target)]
        made.append((*sides, counts["row_bytes"]))
        move(source, target, **counts)

    rig.mover.move = watched  # type: ignore[method-assign]
    before = rig.pages()
    rig.prepare()
    prepared = set(made)
    made.clear()
    assert rig.pages() == before
    slots = np.random.default_rng(0).permutation(N_SLOTS).astype(np.int32)
    with rig.engine() as engine:
        finish(engine.load(slots, slots))
        finish(engine.backup(slots, slots))
    assert made
    assert set(made) <= prepared


def test_two_threads_do_not_make_kernels_at_the_same_time() -> None:
    mover = Rig(GEOMETRIES[0], Layout.PAGE_FIRST, StagingOptions(1 << 20)).mover
    making, go_on, second = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with making_kernels(mover):
            making.set()
            assert go_on.wait(30)
            assert not second.is_set()

    def other() -> None:
        assert making.wait(30)
        threading.Timer(0.05, go_on.set).start()
        with making_kernels(mover):
            second.set()

    with ThreadPoolExecutor(2) as threads:
        for act in [threads.submit(first), threads.submit(other)]:
            act.result(60)
    assert second.is_set()


def test_the_kernel_of_uva_takes_no_more_programs_than_it_is_given() -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST, StagingOptions(load_programs=3, backup_programs=2), kind=Backend.UVA)
    rig.prepare()
    for direction, programs in ((Direction.LOAD, 3), (Direction.BACKUP, 2)):
        rig.mover.programs.clear()
        rig.copy(direction, some(0, 1), some(3, 5), range(6))
        assert rig.mover.programs == {programs}


@pytest.mark.parametrize("kernel", [False, True])
def test_a_kernel_that_takes_memory_in_every_step_is_told(kernel: bool) -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST, StagingOptions(1 << 20), kernel=kernel)
    rig.prepare()
    assert any("takes device memory in every step" in note for note in rig.backend.notes) is not kernel
