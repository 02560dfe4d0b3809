from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hicachectl.runtime.transfer.kernel_launch import KernelDriver, KernelLaunch, find_kernel_driver
from hicachectl.runtime.transfer.movers import Side, TritonMover

FUNCTION = 0x1234


class FakeDriver:
    """libcuda with one function, whose parameters have these sizes."""

    def __init__(self, sizes: list[int], code: int = 0) -> None:
        self.launched: list[Any] = []
        self.code = code

        def parameter(function: int, number: int, offset: int, size: int) -> int:
            assert function == FUNCTION
            if number >= len(sizes):
                return 1
            ctypes.c_size_t.from_address(size).value = sizes[number]
            return 0

        def launch(*given: Any) -> int:
            *_, at, extra = given
            assert extra is None
            places = list((ctypes.c_uint64 * len(sizes)).from_address(at))
            values = [
                (ctypes.c_uint64 if size == 8 else ctypes.c_int32).from_address(place).value
                for place, size in zip(places, sizes, strict=True)
            ]
            self.launched.append((given[:9], values))
            return self.code

        self.driver = KernelDriver(SimpleNamespace(cuLaunchKernel=launch, cuFuncGetParamInfo=parameter))


def compiled(**about: Any) -> Any:
    return SimpleNamespace(function=FUNCTION, metadata=SimpleNamespace(**{"shared": 48, "num_warps": 8, **about}))


class Launcher:
    """Triton's: notes its launches and returns what it compiled."""

    def __init__(self, found: Any) -> None:
        self.found, self.launches = found, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*values: Any, **constants: Any) -> Any:
            self.launches += 1
            return self.found

        return run


def move(mover: TritonMover, first: int = 0, stream: int | None = 9) -> list[int]:
    slots = torch.arange(8, dtype=torch.int32)
    near, pool = torch.zeros(64, dtype=torch.int64), torch.zeros(512, dtype=torch.int64)
    mover.move(
        Side(near, 0, 2, 1, 1), Side(pool, first, 1, 8, 1, slots, 8),
        row_bytes=16, first_page=3, n_pages=5, n_planes=2, n_tokens=1, stream=stream,
    )  # fmt: skip
    return [near.data_ptr(), pool.data_ptr(), slots.data_ptr(), slots.data_ptr()]


@pytest.mark.parametrize("scratch", range(3))
def test_after_the_first_launch_the_driver_is_called_with_the_same_parameters(scratch: int) -> None:
    fake = FakeDriver([8] * 4 + [4] * 12 + [8] * scratch)
    triton = Launcher(compiled())
    mover = TritonMover(triton, fake.driver)
    move(mover)
    assert (triton.launches, fake.launched) == (1, [])
    for first in (7, 2**31 - 1):
        pointers = move(mover, first)
        given, values = fake.launched.pop()
        assert given == (FUNCTION, 1, 1, 1, 256, 1, 1, 48, 9)
        assert values == [*pointers, 0, 2, 1, 1, first, 1, 8, 1, 3, 10, 2, 1, *[0] * scratch]
    assert triton.launches == 1


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([8] * 4 + [4] * 11 + [8], compiled()),
        ([8] * 4 + [4] * 12 + [4], compiled()),
        ([8] * 4 + [4] * 12, compiled(cluster_dims=(2, 1, 1))),
        ([8] * 4 + [4] * 12, compiled(launch_cooperative_grid=True)),
        ([8] * 4 + [4] * 12 + [8], compiled(global_scratch_size=128)),
        ([8] * 4 + [4] * 12, None),
        ([8] * 4 + [4] * 12, SimpleNamespace(function=None, metadata=None)),
    ],
    ids=["a count less", "a count more", "clusters", "cooperative", "scratch memory", "nothing", "no handle"],
)
def test_a_function_that_takes_something_else_is_launched_by_triton(sizes: list[int], found: Any) -> None:
    fake, triton = FakeDriver(sizes), Launcher(found)
    mover = TritonMover(triton, fake.driver)
    for _ in range(3):
        move(mover)
    assert (triton.launches, fake.launched) == (3, [])


def test_counts_beyond_32_bits_and_an_unknown_stream_are_tritons_business() -> None:
    fake, triton = FakeDriver([8] * 4 + [4] * 12), Launcher(compiled())
    mover = TritonMover(triton, fake.driver)
    move(mover)
    move(mover, first=2**31)
    move(mover, stream=None)
    assert (triton.launches, fake.launched) == (3, [])


def test_a_launch_that_fails_says_so() -> None:
    fake = FakeDriver([8] * 4 + [4] * 12, code=719)
    mover = TritonMover(Launcher(compiled()), fake.driver)
    move(mover)
    with pytest.raises(RuntimeError, match="CUDA error: cuLaunchKernel failed with 719"):
        move(mover)


def test_without_a_driver_there_is_none() -> None:
    assert find_kernel_driver("libno-such-thing.so.1") is None
    assert KernelLaunch.fits([2**31 - 1, 0])
    assert not KernelLaunch.fits([0, 2**31])
