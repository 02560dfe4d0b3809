"""Which calls of the device's runtime a transfer takes, how large each is and in which order they start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.accelerator_rig import GEOMETRIES, N_SLOTS, Rig, finish, some

from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.options import StagingOptions


def test_consecutive_host_pages_are_one_copy_a_layer_group_in_whatever_order_they_are_asked_for() -> None:
    geometry, options = GEOMETRIES[0], StagingOptions(1 << 20, least_group_bytes=0)
    for layout in Layout:
        for host_slots in (np.arange(5, 13), np.arange(5, 13)[::-1], np.array([7, 5, 6, 12, 11, 8, 9, 10])):
            rig = Rig(geometry, layout, options)
            with rig.engine([1, 2]) as engine:
                load = finish(engine.load(host_slots.astype(np.int32), some(9, 3, 1, 20, 15, 2, 8, 4)))
            assert load.n_submissions == 2 * 2  # a copy and a scatter each
            assert rig.cuda.calls.get("cudaMemcpy2DAsync", 0) == 2


def test_scattered_host_pages_are_one_batched_copy_a_part() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=16 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 30, least_group_bytes=0))
    with rig.engine([1, 2]) as engine:
        finish(engine.load(some(20, 3, 9, 1, 23, 0, 7), some(0, 1, 2, 3, 4, 5, 6)))
    assert rig.cuda.pieces == [1, 7, 7]  # the first one tries whether the driver can


def test_the_first_copy_of_a_transfer_is_a_small_call_so_that_the_link_starts_at_once() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=16 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 30, least_group_bytes=0, first_pieces=2))
    with rig.engine([1, 2]) as engine:
        finish(engine.load(some(20, 3, 9, 1, 23, 0, 7), some(0, 1, 2, 3, 4, 5, 6)))
    assert rig.cuda.pieces == [1, 2, 2, 3, 7]


def test_the_first_calls_of_a_transfer_grow_so_that_none_is_late() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=16 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 30, least_group_bytes=0, first_pieces=2))
    host_slots = np.random.default_rng(3).permutation(N_SLOTS).astype(np.int32)[:15]
    with rig.engine([1, 2]) as engine:
        finish(engine.load(host_slots, np.arange(15, dtype=np.int32)))
    assert rig.cuda.pieces == [1, 2, 2, 4, 7, 15]


def test_the_first_call_of_a_load_has_few_large_pieces() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=4, token_plane_bytes=16 << 10, page_tokens=16)  # 2 MiB a page
    rig = Rig(geometry, Layout.PAGE_FIRST, StagingOptions(1 << 30))
    with rig.engine() as engine:
        finish(engine.load(some(9, 3, 1, 7, 23, 20, 5, 11, 13, 15), some(*range(10))))
    assert rig.cuda.pieces == [1, 2, 2, 6]


def test_the_slots_of_a_load_go_up_behind_its_first_copies_and_in_no_copy_s_way() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=16 << 10, page_tokens=4)
    options = StagingOptions(1 << 30, least_group_bytes=0, first_pieces=2, few_slots=0)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, options)
    rig.prepare()
    with rig.engine([1, 2]) as engine:
        finish(engine.load(some(20, 3, 9, 1, 23, 0, 7), some(0, 1, 2, 3, 4, 5, 6)))
    started = rig.cuda.started
    assert [call for call, _ in started] == [*["batch"] * 3, "move", "move", "batch", "move"]
    copies, kernels = ({stream for call, stream in started if call == name} for name in ("batch", "move"))
    assert len(copies) == len(kernels) == 1
    assert copies != kernels


def test_a_long_backup_begins_with_a_small_step_that_waits_for_no_upload() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=4, token_plane_bytes=16 << 10, page_tokens=16)  # 2 MiB a page
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(2 * 2 * 9 * geometry.page_bytes, few_slots=8))
    rig.prepare()
    with rig.engine() as engine:
        backup = finish(engine.backup(some(*range(12)), some(9, 3, 1, 7, 23, 20, 5, 11, 13, 15, 17, 19)))
    # Its gather reads the slots in host memory; those of the other go up before its gather, behind the first copy.
    assert [call for call, _ in rig.cuda.started] == ["move", "batch", "move", "move", "batch"]
    assert rig.cuda.pieces == [8, 4]
    assert backup.n_bytes == 12 * geometry.page_bytes


def test_scattered_pages_that_lie_token_by_token_are_one_piece_each() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=64 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST, StagingOptions(1 << 30, least_group_bytes=0))
    with rig.engine([1, 2]) as engine:
        finish(engine.load(some(20, 3, 9), some(0, 1, 2)))
    assert rig.cuda.pieces == [1, 3]
    assert "cudaMemcpy2DAsync" not in rig.cuda.calls


def test_rows_too_small_for_a_batched_copy_move_with_their_neighbours() -> None:
    geometry = KVGeometry("narrow", KVKind.GQA, n_layers=4, token_plane_bytes=8 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 30, least_group_bytes=0))
    with rig.engine([1, 1, 1, 1]) as engine:
        load = finish(engine.load(some(20, 3, 9), some(0, 1, 2)))
        assert load.n_submissions == 2 * 2  # 64 KiB a page and layer: two layers at a time


def test_small_loads_do_not_pay_for_layer_groups() -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 20))
    with rig.engine([1, 2]) as engine:
        assert finish(engine.load(some(20, 3, 9), some(0, 1, 2))).n_submissions == 2


@pytest.mark.parametrize("kind", [Backend.STRIDED, Backend.UVA], ids=lambda kind: kind.value)
def test_every_call_of_a_transfer_is_a_submission_those_that_bring_its_slots_too(kind: Backend) -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=3, token_plane_bytes=16 << 10, page_tokens=4)
    options = StagingOptions(1 << 30, least_group_bytes=0, first_pieces=2, few_slots=0)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, options, kind=kind)
    rig.prepare()
    with rig.engine([1, 2]) as engine:
        for ask in (engine.load, engine.backup):
            rig.cuda.started.clear()
            moved = finish(ask(some(20, 3, 9, 1, 23, 0, 7), some(0, 2, 4, 6, 8, 10, 12)))
            assert moved.n_submissions == len(rig.cuda.started)


def steps_moved(rig: Rig, direction: Direction, groups: list[int], n_pages: int) -> list[tuple[int, int, int | None]]:
    """Move pages that lie in a row on the host; return first page, pages and programs of every kernel's step."""
    rig.prepare()
    found = []
    move = rig.mover.move

    def watched(source: Any, target: Any, **counts: Any) -> None:
        if "programs" in counts:
            found.append((counts["first_page"], counts["n_pages"], counts["programs"]))
        move(source, target, **counts)

    rig.mover.move = watched  # type: ignore[method-assign]
    run = np.arange(n_pages, dtype=np.int32)
    with rig.engine(groups) as engine:
        finish((engine.load if direction is Direction.LOAD else engine.backup)(run, run))
    return found


def test_steps_that_something_waits_for_have_the_more_programs() -> None:
    geometry, most, few = GEOMETRIES[0], 7, 3
    options = StagingOptions(
        2 * 2 * 4 * geometry.chunk_bytes, least_group_bytes=0, scatter_programs=most, beside_programs=few
    )
    by_layer = [(0, 2), (2, 2), (4, 2)] * 3
    by_planes = [(page, 1) for page in range(6)] * 2  # backups have no layer groups: three planes, then three
    for direction, shapes, wanted in (
        (Direction.LOAD, by_layer, [most] * 3 + [few] * 4 + [most] * 2),  # the first layer, and the end
        (Direction.BACKUP, by_planes, [most] * 2 + [few] * 10),  # the link waits for the first gathers
    ):
        rig = Rig(geometry, Layout.LAYER_FIRST, options)
        found = steps_moved(rig, direction, [1, 1, 1], 6)
        assert [step[:2] for step in found] == shapes
        assert [step[2] for step in found] == wanted


@pytest.mark.parametrize(
    ("direction", "groups", "n_pages", "wanted"),
    [
        (Direction.LOAD, [4], 9, [(0, 9)]),
        (Direction.LOAD, [4], 20, [(0, 6), (6, 6), (12, 8)]),  # 16 MiB at the end, what is before it in equal parts
        (Direction.LOAD, [2, 2], 20, [(0, 10), (10, 10), (0, 4), (4, 16)]),  # of the last layers alone
        (Direction.BACKUP, [4], 9, [(0, 9)]),
        (Direction.BACKUP, [4], 20, [(0, 8), (8, 6), (14, 6)]),  # 16 MiB at the beginning
    ],
)
def test_a_long_load_ends_and_a_long_backup_begins_with_a_small_step(
    direction: Direction, groups: list[int], n_pages: int, wanted: list[tuple[int, int]]
) -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=4, token_plane_bytes=16 << 10, page_tokens=16)  # 2 MiB a page
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(2 * 2 * 9 * geometry.page_bytes, least_group_bytes=0))
    assert [step[:2] for step in steps_moved(rig, direction, groups, n_pages)] == wanted
