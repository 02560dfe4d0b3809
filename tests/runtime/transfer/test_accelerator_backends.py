from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from fakes.cuda_runtime import LOST, FakeCuda, QueuedMover, launched_on_processor
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import CapacityError, Unsupported, Vanished
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool, slot_boundary_bytes
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction, prepare_both
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.device import AcceleratorOrder
from hicachectl.runtime.transfer.engine import Transfer, TransferEngine
from hicachectl.runtime.transfer.movers import TorchMover
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.straight import BatchBackend, DirectBackend
from hicachectl.runtime.transfer.strided import StridedBackend
from hicachectl.runtime.transfer.uva import UvaBackend

N_SLOTS = 24
ON_CUDA = [Backend.STRIDED, Backend.BATCH, Backend.DIRECT, Backend.UVA]
LONG_S = 30.0
GEOMETRIES = [
    KVGeometry("gqa", KVKind.GQA, n_layers=3, token_plane_bytes=8, page_tokens=4),
    KVGeometry("gqa-odd-bytes", KVKind.GQA, n_layers=2, token_plane_bytes=7, page_tokens=3, dtype="fp8"),
    KVGeometry("mla", KVKind.MLA, n_layers=5, token_plane_bytes=18, page_tokens=2),
    KVGeometry("mla-one-plane", KVKind.MLA, n_layers=1, token_plane_bytes=2, page_tokens=4),
    KVGeometry("one-token", KVKind.GQA, n_layers=2, token_plane_bytes=12, page_tokens=1),
    KVGeometry("int8-prime", KVKind.MLA, n_layers=3, token_plane_bytes=13, page_tokens=11, dtype="int8"),
    KVGeometry("fp8-e5m2-odd", KVKind.GQA, n_layers=1, token_plane_bytes=5, page_tokens=1, dtype="fp8_e5m2"),
    KVGeometry("fp16-odd", KVKind.GQA, n_layers=2, token_plane_bytes=6, page_tokens=7, dtype="fp16"),
    KVGeometry("fp32-odd", KVKind.GQA, n_layers=2, token_plane_bytes=20, page_tokens=5, dtype="fp32"),
]


def some(*values: int) -> Slots:
    return np.array(values, dtype=np.int32)


def finish(transfer: Transfer) -> Transfer:
    assert transfer.wait(LONG_S)
    if transfer.error is not None:
        raise transfer.error
    return transfer


class PoolInParts(HostPool):
    """A host pool whose registrations meet at `edges`."""

    def __init__(self, geometry: KVGeometry, layout: Layout, edges: tuple[int, ...], n_slots: int) -> None:
        super().__init__(geometry, n_slots, layout)
        self._parts = (0, *edges, self.n_bytes)

    @property
    def registrations(self) -> tuple[tuple[int, int], ...]:
        return tuple(pairwise(self._parts))


class Rig:
    """A backend over a fake device whose memory is a processor's."""

    def __init__(
        self,
        geometry: KVGeometry,
        layout: Layout,
        options: StagingOptions,
        *,
        seed: int = 0,
        kernel: bool = False,
        version: int = 13000,
        driver_batch: bool = True,
        room: int | None = None,
        kind: Backend = Backend.STRIDED,
        edges: tuple[int, ...] = (),
        n_slots: int = N_SLOTS,
    ) -> None:
        self.cuda = FakeCuda(seed, version=version, driver_batch=driver_batch)
        self.device, self.host = DevicePool(geometry, n_slots), PoolInParts(geometry, layout, edges, n_slots)
        self.cuda.borders = [self.host.array.ctypes.data + edge for edge in edges]
        rng = np.random.default_rng(seed)
        self.device.planes_numpy()[:] = rng.integers(0, 256, self.device.planes_numpy().shape, dtype=np.uint8)
        self.host.array[:] = rng.integers(0, 256, self.host.array.shape, dtype=np.uint8)
        self.room = room
        self.runtime = CudaRuntime(self.cuda.library)
        self.mover = QueuedMover(self.cuda, launched_on_processor() if kernel else None)
        memory = {"allocate": self._allocate, "allocate_pinned": lambda n: torch.zeros(n, dtype=torch.uint8)}
        self.backend: Any
        if kind is Backend.STRIDED:
            self.backend = StridedBackend(self.runtime, self.mover, self.cuda, options, **memory)
        elif kind is Backend.UVA:
            self.backend = UvaBackend(self.runtime, self.mover, self.cuda, options, **memory)
        elif kind is Backend.BATCH:
            self.backend = BatchBackend(self.runtime, self.cuda)
        else:
            self.backend = DirectBackend(self.runtime, self.cuda)

    @contextmanager
    def engine(self, groups: list[int] | None = None) -> Iterator[TransferEngine]:
        engine = TransferEngine(
            self.device, self.host, self.backend, groups, orders=lambda device: AcceleratorOrder(device, self.cuda)
        )
        try:
            yield engine
        finally:
            engine.close()

    def _allocate(self, n_bytes: int, device: torch.device) -> torch.Tensor:
        if self.room is not None and n_bytes > self.room:
            raise torch.OutOfMemoryError(f"tried to allocate {n_bytes}")
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def prepare(self) -> None:
        """Prepare both directions, and forget which calls that took."""
        prepare_both(self.backend, self.device, self.host)
        self.cuda.started.clear()
        self.cuda.pieces.clear()
        self.mover.programs.clear()

    def copy(self, direction: Direction, device_slots: Slots, host_slots: Slots, planes: range) -> Any:
        with self.cuda.stream(self.cuda.Stream()):
            took = self.backend.copy(direction, self.device, self.host, device_slots, host_slots, planes)
            self.cuda.current_stream().synchronize()
        return took

    def pages(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        on_device = {slot: self.device.planes_numpy()[:, slot].tobytes() for slot in range(self.device.n_slots)}
        return on_device, {slot: self.host.read_page(slot).tobytes() for slot in range(self.host.n_slots)}


@st.composite
def slot_lists(draw: st.DrawFn) -> Slots:
    n = draw(st.integers(1, 20))
    kind = draw(st.sampled_from(["scattered", "one run", "descending", "some runs", "a shuffled run"]))
    start = draw(st.integers(0, N_SLOTS - n))
    run = np.arange(start, start + n)
    if kind == "one run":
        return run.astype(np.int32)
    if kind == "descending":
        return run[::-1].astype(np.int32)
    shuffled = np.array(draw(st.permutations(range(N_SLOTS))))
    if kind == "a shuffled run":
        return shuffled[np.isin(shuffled, run)].astype(np.int32)
    return (shuffled[:n] if kind == "scattered" else np.sort(shuffled[:n])).astype(np.int32)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pages_keep_their_bytes_up_and_down_whatever_the_layout_geometry_slots_staging_and_order_of_streams(
    data: st.DataObject,
) -> None:
    geometry = data.draw(st.sampled_from(GEOMETRIES))
    layout = data.draw(st.sampled_from(list(Layout)))
    kind = data.draw(st.sampled_from([Backend.STRIDED, Backend.STRIDED, Backend.BATCH, Backend.UVA, Backend.DIRECT]))
    n_chunks = data.draw(st.integers(1, 40))
    n_buffers = data.draw(st.integers(2, 3))
    boundary = slot_boundary_bytes(geometry, layout)
    n_boundaries = N_SLOTS * geometry.page_bytes // boundary
    edges = tuple(sorted(n * boundary for n in data.draw(st.sets(st.integers(1, n_boundaries - 1), max_size=3))))
    rig = Rig(
        geometry,
        layout,
        StagingOptions(
            2 * n_buffers * n_chunks * geometry.chunk_bytes,
            n_buffers,
            least_group_bytes=0,
            first_pieces=data.draw(st.integers(1, 4)),
            few_slots=data.draw(st.sampled_from([0, 2, 64])),
        ),
        seed=data.draw(st.integers(0, 1000)),
        kernel=data.draw(st.booleans()),
        version=data.draw(st.sampled_from([12080, 13000] if kind is Backend.BATCH else [12060, 12080, 13000])),
        driver_batch=kind is Backend.BATCH or data.draw(st.booleans()),
        kind=kind,
        edges=edges,
    )
    layers = data.draw(st.integers(1, geometry.n_layers))
    groups = [layers, geometry.n_layers - layers] if layers < geometry.n_layers else [layers]
    with rig.engine(groups) as engine:
        for _ in range(data.draw(st.integers(1, 3))):
            on_device, on_host = rig.pages()
            one, other = data.draw(slot_lists()), data.draw(slot_lists())
            n = min(one.size, other.size)
            host_slots, device_slots = one[:n], other[:n]
            down = int(data.draw(st.integers(0, n)))
            load = engine.load(host_slots[down:], device_slots[down:])
            backup = engine.backup(device_slots[:down], host_slots[:down])
            finish(load)
            finish(backup)
            for d, h in zip(device_slots[down:].tolist(), host_slots[down:].tolist(), strict=True):
                on_device[d] = on_host[h]
            for d, h in zip(device_slots[:down].tolist(), host_slots[:down].tolist(), strict=True):
                on_host[h] = on_device[d]
            assert rig.pages() == (on_device, on_host)
            assert load.n_bytes == (n - down) * geometry.page_bytes


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
@pytest.mark.parametrize("layout", Layout)
def test_a_copy_of_some_planes_leaves_the_others_alone(layout: Layout, kind: Backend, direction: Direction) -> None:
    geometry = GEOMETRIES[0]
    device_slots, host_slots = some(22, 4, 0, 13, 2), some(1, 23, 8, 0, 15)
    for planes in (range(2), range(2, 5), range(5, 6)):
        rig = Rig(geometry, layout, StagingOptions(4 * 3 * geometry.chunk_bytes), kind=kind, kernel=True)
        chunks = (geometry.n_planes, N_SLOTS, geometry.page_tokens, geometry.token_plane_bytes)
        on_device, on_host = rig.device.planes_numpy().reshape(chunks).copy(), rig.host.layer_view().copy()
        rig.copy(direction, device_slots, host_slots, planes)
        for d, h in zip(device_slots.tolist(), host_slots.tolist(), strict=True):
            if direction is Direction.LOAD:
                on_device[planes.start : planes.stop, d] = on_host[planes.start : planes.stop, h]
            else:
                on_host[planes.start : planes.stop, h] = on_device[planes.start : planes.stop, d]
        np.testing.assert_array_equal(rig.device.planes_numpy().reshape(chunks), on_device)
        np.testing.assert_array_equal(rig.host.layer_view(), on_host)


def test_staging_holds_no_more_than_its_budget_whatever_the_request() -> None:
    geometry = GEOMETRIES[0]
    budget = 2 * 2 * 5 * geometry.chunk_bytes
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(budget))
    everything = np.arange(N_SLOTS, dtype=np.int32)
    for direction in Direction:
        took = rig.copy(direction, everything, everything[::-1].copy(), range(geometry.n_planes))
        assert took.n_submissions > N_SLOTS
    assert rig.backend.staging_bytes == budget


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


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("rest", ["scattered too", "one run"])
def test_many_pages_whose_first_are_scattered_keep_their_bytes_up_and_down(layout: Layout, rest: str) -> None:
    geometry = KVGeometry("gqa", KVKind.GQA, n_layers=3, token_plane_bytes=8, page_tokens=4)
    options = StagingOptions(2 * 2 * 64 * geometry.page_bytes, least_group_bytes=0)
    rig = Rig(geometry, layout, options, n_slots=600)
    first = np.where(np.arange(16) % 2, 590, 30) - np.arange(16)  # no two in a row, and too far apart for one range
    others = np.setdiff1d(np.arange(600), first)
    if rest == "scattered too":
        np.random.default_rng(1).shuffle(others)
    host = np.concatenate((first, others[100:284])).astype(np.int32)
    device = np.random.default_rng(2).permutation(600)[: 2 * host.size].astype(np.int32)
    on_device, on_host = rig.pages()
    with rig.engine([1, 2]) as engine:
        finish(engine.load(host, device[: host.size]))
        now, _ = rig.pages()
        assert [now[int(d)] for d in device[: host.size]] == [on_host[int(h)] for h in host]
        finish(engine.backup(device[host.size :], host))
    assert [rig.pages()[1][int(h)] for h in host] == [on_device[int(d)] for d in device[host.size :]]


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


@pytest.mark.parametrize(("version", "driver_batch"), [(12060, False), (13000, False)])
def test_without_a_batched_copy_batch_says_why_and_strided_takes_a_copy_a_run(version: int, driver_batch: bool) -> None:
    rig = Rig(
        GEOMETRIES[0], Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 20), version=version, driver_batch=driver_batch
    )
    rig.copy(Direction.LOAD, some(0, 1, 2), some(20, 3, 9), range(2))
    assert rig.cuda.calls["cudaMemcpy2DAsync"] == 3
    assert rig.runtime.batch_missing is not None
    assert ("12.6" if version < 12080 else "801") in rig.runtime.batch_missing
    with pytest.raises(Unsupported, match="batch cannot work here") as caught:
        BatchBackend(rig.runtime, rig.cuda)
    assert "strided" in (caught.value.hint or "")
    assert any("batched copy" in note for note in rig.backend.notes)


def test_a_device_without_room_gets_smaller_staging_and_says_so() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=2, token_plane_bytes=64 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(16 << 20), room=1 << 20)
    rig.copy(Direction.LOAD, some(0, 1, 2), some(20, 3, 9), range(4))
    assert rig.backend.staging_bytes == 2 << 20
    assert any("instead of 4194304" in note for note in rig.backend.notes)
    with rig.engine() as engine:
        tight = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(16 << 20), room=100 << 10)
        with tight.engine() as other:
            failed = other.load(some(0), some(0))
            assert failed.wait(LONG_S)
            assert isinstance(failed.error, CapacityError)
        finish(engine.load(some(0), some(0)))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
def test_a_lost_device_ends_the_transfer_with_what_happened_and_later_ones_too(
    kind: Backend, direction: Direction
) -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST_DIRECT, StagingOptions(1 << 20), kind=kind)
    many = np.random.default_rng(1).permutation(N_SLOTS).astype(np.int32)
    n = N_SLOTS if kind is Backend.UVA else 6
    with rig.engine() as engine:
        call = engine.load if direction is Direction.LOAD else engine.backup
        finish(call(many[:n], many[:n]))
        for name in ("cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemcpyBatchAsync"):
            rig.cuda.fail[name] = LOST
        if kind is Backend.UVA:
            rig.mover.fail = RuntimeError("CUDA error: unspecified launch failure")
        for _ in range(2):
            lost = call(many[:n], many[:n])
            assert lost.wait(LONG_S)
            assert isinstance(lost.error, Vanished)
            assert ("unspecified launch failure" if kind is Backend.UVA else "719") in str(lost.error)
            assert "dmesg" in (lost.error.hint or "")
            assert not lost.wait_layer(0, 0)
        rig.cuda.fail.clear()
        rig.mover.fail = None
        finish(call(many[:n], many[:n]))


def test_the_kernel_of_uva_takes_no_more_programs_than_it_is_given() -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST, StagingOptions(load_programs=3, backup_programs=2), kind=Backend.UVA)
    rig.prepare()
    for direction, programs in ((Direction.LOAD, 3), (Direction.BACKUP, 2)):
        rig.mover.programs.clear()
        rig.copy(direction, some(0, 1), some(3, 5), range(6))
        assert rig.mover.programs == {programs}


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


@pytest.mark.parametrize("kind", [Backend.STRIDED, Backend.UVA])
def test_a_kernel_that_cannot_be_compiled_is_told_when_the_backend_is_prepared(kind: Backend) -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST, StagingOptions(1 << 20), kind=kind)
    rig.mover.fail = RuntimeError("Failed to find C compiler")
    with pytest.raises(Unsupported, match="kernel of copies cannot be made here") as caught:
        rig.prepare()
    assert "RuntimeError: Failed to find C compiler" in (caught.value.why or "")
    rig.mover.fail = RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(Vanished):
        rig.prepare()


class FailFrom(dict[str, int]):
    """Error codes of a fake's calls: 0 for the first `n_good` copies of any name, then 1."""

    def __init__(self, n_good: int) -> None:
        super().__init__()
        self.left = n_good

    def get(self, name: str, default: Any = 0) -> Any:
        self.left -= 1
        return 0 if self.left >= 0 else 1


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", [Backend.STRIDED, Backend.DIRECT], ids=lambda kind: kind.value)
def test_when_a_transfer_has_failed_nothing_of_it_moves_any_more_and_no_other_slot_has_changed(
    kind: Backend, direction: Direction
) -> None:
    geometry = GEOMETRIES[0]
    host_slots, device_slots = some(*range(3, 11)), some(20, 4, 0, 13, 2, 9, 17, 6)
    for seed in range(12):
        rig = Rig(
            geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(2 * 2 * 2 * geometry.page_bytes), seed=seed, kind=kind
        )
        on_device, on_host = rig.pages()
        rig.prepare()
        rig.cuda.fail = FailFrom(1 + seed % 3)
        with rig.engine() as engine:
            ask = (host_slots, device_slots) if direction is Direction.LOAD else (device_slots, host_slots)
            failed = (engine.load if direction is Direction.LOAD else engine.backup)(*ask)
            assert failed.wait(LONG_S)
            assert failed.error is not None
            then = rig.pages()
            rig.cuda.drain()
            assert rig.pages() == then
        to_device = set(device_slots.tolist()) if direction is Direction.LOAD else set()
        to_host = set(host_slots.tolist()) if direction is Direction.BACKUP else set()
        assert {slot for slot in on_device if then[0][slot] != on_device[slot]} <= to_device
        assert {slot for slot in on_host if then[1][slot] != on_host[slot]} <= to_host


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
        (Direction.LOAD, [4], 20, [(0, 8), (8, 8), (16, 4)]),  # 8 MiB at the end, what is before it in equal parts
        (Direction.LOAD, [2, 2], 20, [(0, 10), (10, 10), (0, 12), (12, 8)]),  # of the last layers alone
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


def test_smaller_staging_is_made_of_whole_words() -> None:
    geometry = KVGeometry("wide", KVKind.GQA, n_layers=2, token_plane_bytes=64 << 10, page_tokens=4)
    rig = Rig(geometry, Layout.PAGE_FIRST_DIRECT, StagingOptions(100_000_000), room=1_600_000)  # 25 MB / 16 is odd
    with rig.engine() as engine:
        finish(engine.load(some(1, 2), some(3, 4)))
    assert rig.backend.staging_bytes == 2 * 1_562_496


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


@pytest.mark.parametrize("kernel", [False, True])
def test_a_kernel_that_takes_memory_in_every_step_is_told(kernel: bool) -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST, StagingOptions(1 << 20), kernel=kernel)
    rig.prepare()
    assert any("takes device memory in every step" in note for note in rig.backend.notes) is not kernel


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


def test_without_a_cuda_runtime_direct_copies_by_torch() -> None:
    for layout in Layout:
        rig = Rig(GEOMETRIES[0], layout, StagingOptions())
        rig.backend = DirectBackend()
        on_device, on_host = rig.pages()
        took = rig.copy(Direction.LOAD, some(0, 7), some(5, 2), range(6))
        assert took.n_submissions == took.n_segments == 2 * 6 * (4 if layout is Layout.PAGE_FIRST else 1)
        rig.copy(Direction.BACKUP, some(3, 4), some(8, 9), range(6))
        on_device |= {0: on_host[5], 7: on_host[2]}
        on_host |= {8: on_device[3], 9: on_device[4]}
        assert rig.pages() == (on_device, on_host)


def test_uva_needs_a_kernel_that_reaches_host_memory() -> None:
    rig = Rig(GEOMETRIES[0], Layout.PAGE_FIRST, StagingOptions())
    with pytest.raises(Unsupported, match="uva cannot work here"):
        UvaBackend(
            rig.runtime, TorchMover(), rig.cuda, StagingOptions(), allocate=rig._allocate, allocate_pinned=torch.zeros
        )


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


@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
def test_a_copy_may_follow_another_before_that_one_is_over(kind: Backend) -> None:
    geometry = GEOMETRIES[0]
    for seed in range(10):
        rig = Rig(geometry, Layout.PAGE_FIRST, StagingOptions(1 << 20), seed=seed, kind=kind, kernel=True)
        on_device, on_host = rig.pages()
        planes = range(geometry.n_planes)
        with rig.cuda.stream(rig.cuda.Stream()):
            for host, device in ((some(1, 2), some(5, 9)), (some(20, 4), some(8, 2)), (some(11, 12), some(20, 21))):
                rig.backend.copy(Direction.LOAD, rig.device, rig.host, device, host, planes)
                on_device |= {d: on_host[h] for d, h in zip(device.tolist(), host.tolist(), strict=True)}
            rig.cuda.current_stream().synchronize()
        assert rig.pages() == (on_device, on_host)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("kind", ON_CUDA, ids=lambda kind: kind.value)
@pytest.mark.parametrize("layout", Layout)
def test_no_copy_spans_two_registrations_however_long_the_run(
    layout: Layout, kind: Backend, direction: Direction
) -> None:
    geometry = GEOMETRIES[0]
    edge = 9 * slot_boundary_bytes(geometry, layout)
    run = np.arange(4, 20, dtype=np.int32)
    for planes in (range(geometry.n_planes), range(2)):
        rig = Rig(geometry, layout, StagingOptions(1 << 20), kind=kind, edges=(edge,))
        on_device, on_host = rig.device.planes_numpy().copy(), rig.host.layer_view().copy()
        rig.copy(direction, run, run, planes)
        part, chunks = slice(planes.start, planes.stop), on_host.shape
        if direction is Direction.LOAD:
            on_device.reshape(chunks)[part, 4:20] = on_host[part, 4:20]
        else:
            on_host[part, 4:20] = on_device.reshape(chunks)[part, 4:20]
        np.testing.assert_array_equal(rig.device.planes_numpy(), on_device)
        np.testing.assert_array_equal(rig.host.layer_view(), on_host)
