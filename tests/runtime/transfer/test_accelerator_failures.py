"""What a backend does without a part of the runtime, without memory, and after a copy that failed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes.accelerator_rig import GEOMETRIES, LONG_S, N_SLOTS, ON_CUDA, Rig, finish, some
from fakes.cuda_runtime import LOST

from hicachectl.errors import CapacityError, Unsupported, Vanished
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.movers import TorchMover
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.straight import BatchBackend, DirectBackend
from hicachectl.runtime.transfer.uva import UvaBackend


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
