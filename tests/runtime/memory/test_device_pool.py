from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.geometry import DTYPE_BYTES, KVGeometry, KVKind, preset
from hicachectl.runtime.memory import device_pool
from hicachectl.runtime.memory.device_pool import DevicePool, element_type, require_slots

GEOMETRY = preset("tiny-4k", 4)


def test_a_pool_is_one_buffer_a_plane() -> None:
    pool = DevicePool(GEOMETRY, 8)
    assert tuple(pool.tensor.shape) == (4, 8, 8)
    assert pool.tensor.dtype == torch.uint8
    assert pool.tensor[1].is_contiguous()
    assert pool.n_bytes == 8 * GEOMETRY.page_bytes


def test_the_numpy_view_is_the_same_memory() -> None:
    pool = DevicePool(GEOMETRY, 8)
    pool.planes_numpy()[2, 3, 1] = 9
    assert int(pool.tensor[2, 3, 1]) == 9


def test_a_closed_pool_says_so_and_closes_twice() -> None:
    pool = DevicePool(GEOMETRY, 8)
    pool.close()
    pool.close()
    with pytest.raises(InvariantBroken, match="closed"):
        pool.planes_numpy()


def test_only_memory_of_the_processor_has_a_numpy_view() -> None:
    with pytest.raises(InvariantBroken, match="meta"):
        DevicePool(GEOMETRY, 8, "meta").planes_numpy()


@pytest.mark.parametrize(("n_slots", "device", "named"), [(0, "cpu", "0 slots"), (8, "gpu0", "'gpu0'")])
def test_a_pool_that_cannot_be_is_refused(n_slots: int, device: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        DevicePool(GEOMETRY, n_slots, device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cuda"):
        DevicePool(GEOMETRY, 8, "cuda")


def test_a_device_without_a_number_is_the_one_that_the_memory_lies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    second = torch.device("cuda", 1)  # the current device when the pool was made; later it may be another
    memory = SimpleNamespace(view=lambda shape: SimpleNamespace(device=second))
    monkeypatch.setattr(device_pool, "_memory", lambda n_bytes, device: memory)
    assert DevicePool(GEOMETRY, 8, "cuda").device == second


def test_slots_outside_the_pool_are_named_before_they_become_addresses() -> None:
    require_slots(np.array([0, 7], dtype=np.int32), 8, "here")
    require_slots(np.array([], dtype=np.int32), 8, "here")
    with pytest.raises(InvariantBroken, match=r"\[-1\]"):
        require_slots(np.array([0, -1], dtype=np.int32), 8, "here")
    with pytest.raises(InvariantBroken, match=r"\[8\]"):
        require_slots(np.array([8], dtype=np.int32), 8, "here")
    with pytest.raises(InvariantBroken, match="int64"):
        require_slots(np.array([1]), 8, "here")  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "width"), DTYPE_BYTES.items())
def test_the_pool_is_seen_as_its_elements_without_a_copy(dtype: str, width: int) -> None:
    pool = DevicePool(KVGeometry("g", KVKind.GQA, 2, 3 * width, 5, dtype), 4)
    seen, missing = pool.elements()
    assert missing is None
    assert seen.shape == (4, 4, 15)
    assert seen.element_size() == width
    pool.tensor[1, 2, 0] = 77
    assert seen.view(torch.uint8)[1, 2, 0] == 77


def test_a_torch_without_the_type_shows_bytes_and_says_so() -> None:
    assert element_type("fp8", object()) == (torch.uint8, "this torch has no float8_e4m3fn: elements are seen as bytes")
    assert set(DTYPE_BYTES) == {dtype for dtype in DTYPE_BYTES if element_type(dtype)[0].itemsize == DTYPE_BYTES[dtype]}
