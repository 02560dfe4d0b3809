"""Launch a kernel that Triton has compiled by one call of the CUDA driver.

Triton's own launch takes 50-100 us of Python, as much as a transfer's step may take in all. It compiles and loads; from
then on a launch is the function's handle, its grid and its parameters. What the function takes is asked of the driver
(cuFuncGetParamInfo, CUDA 12.4 and later, NVIDIA CUDA Driver API "Execution Control"), so nothing is assumed of a version
of Triton: where the answer is another than expected, Triton launches as before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

__all__ = ["KernelDriver", "KernelLaunch", "find_kernel_driver"]

_WORD, _INT = ctypes.c_uint64, ctypes.c_int32
_WARP_THREADS = 32
# Behind its arguments Triton's compiler puts pointers to scratch memory, which are null for a kernel without any.
_MOST_SCRATCH = 4
_MOST_COUNT = 2**31 - 1  # a count beyond it makes Triton compile another function


class KernelDriver:
    """Two calls of the CUDA driver. `library` has them as attributes (a `ctypes.CDLL` of libcuda)."""

    def __init__(self, library: Any) -> None:
        address, size, unsigned = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
        self._launch, self._parameter = library.cuLaunchKernel, library.cuFuncGetParamInfo
        self._launch.argtypes = [address, *[unsigned] * 7, address, address, address]
        self._parameter.argtypes = [address, size, address, address]
        self._launch.restype = self._parameter.restype = ctypes.c_int

    def parameter_bytes(self, function: int) -> list[int]:
        """Return the sizes of the parameters of a function."""
        offset, size = ctypes.c_size_t(0), ctypes.c_size_t(0)
        found: list[int] = []
        while not self._parameter(function, len(found), ctypes.addressof(offset), ctypes.addressof(size)):
            found.append(size.value)
        return found

    def launch(self, function: int, programs: int, threads: int, shared: int, stream: int, parameters: int) -> None:
        """Enqueue a function. Raises RuntimeError with the driver's code, as torch does."""
        if code := self._launch(function, programs, 1, 1, threads, 1, 1, shared, stream, parameters, None):
            raise RuntimeError(f"CUDA error: cuLaunchKernel failed with {code}")


class KernelLaunch:
    """One compiled function with the memory of its parameters. Used by one thread."""

    def __init__(self, driver: KernelDriver, function: int, threads: int, shared: int, n_pointers: int, n_ints: int):
        self._driver = driver
        self._function, self._threads, self._shared = function, threads, shared
        self._pointers: Any = (_WORD * (n_pointers + _MOST_SCRATCH))()
        self._ints: Any = (_INT * n_ints)()
        places = [ctypes.addressof(self._pointers) + 8 * i for i in range(n_pointers)]
        places += [ctypes.addressof(self._ints) + 4 * i for i in range(n_ints)]
        places += [ctypes.addressof(self._pointers) + 8 * (n_pointers + i) for i in range(_MOST_SCRATCH)]
        self._places = (_WORD * len(places))(*places)
        self._at = ctypes.addressof(self._places)
        self._n_pointers, self._n_ints = n_pointers, n_ints

    @classmethod
    def of(cls, driver: KernelDriver, compiled: Any, n_pointers: int, n_ints: int) -> KernelLaunch | None:
        """Return the launch of what Triton compiled, None where it takes something else than pointers and then 32-bit counts."""
        function, about = getattr(compiled, "function", None), getattr(compiled, "metadata", None)
        shared, warps = getattr(about, "shared", None), getattr(about, "num_warps", None)
        if not all(isinstance(value, int) for value in (function, shared, warps)):
            return None
        plain = tuple(getattr(about, "cluster_dims", None) or (1, 1, 1)) == (1, 1, 1) and not any(
            getattr(about, name, None)
            for name in ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size")
        )
        wanted = [8] * n_pointers + [4] * n_ints
        sizes = driver.parameter_bytes(function)  # type: ignore[arg-type]
        scratch = sizes[len(wanted) :]
        if not plain or sizes[: len(wanted)] != wanted or set(scratch) - {8} or len(scratch) > _MOST_SCRATCH:
            return None
        return cls(driver, function, warps * _WARP_THREADS, shared, n_pointers, n_ints)  # type: ignore[arg-type, operator]

    def __call__(self, programs: int, pointers: list[int], counts: list[int], stream: int) -> None:
        """Enqueue it on `stream` with these addresses and counts."""
        self._pointers[: self._n_pointers] = pointers
        self._ints[: self._n_ints] = counts
        self._driver.launch(self._function, programs, self._threads, self._shared, stream, self._at)

    @staticmethod
    def fits(counts: Sequence[int]) -> bool:
        """Say whether all counts are 32-bit. Pure."""
        return max(counts) <= _MOST_COUNT


def find_kernel_driver(name: str = "libcuda.so.1") -> KernelDriver | None:
    """Return the driver of this process, None where it does not have the calls: Triton then launches by itself."""
    try:
        return KernelDriver(ctypes.CDLL(name))
    except (OSError, AttributeError):
        return None
