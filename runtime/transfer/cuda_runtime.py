"""The CUDA runtime's copy calls, through ctypes on the library torch has already loaded. Nothing is compiled.

Three calls move bytes: cudaMemcpyAsync, cudaMemcpy2DAsync and cudaMemcpyBatchAsync. Each enqueues on a stream and returns;
ctypes gives up the interpreter lock meanwhile. Registering host memory is `memory/cuda_registrar.py`'s business.

cudaMemcpyBatchAsync has two signatures: the runtimes 12.8 and 12.9 take a `failIdx` before the stream, from 13.0 on it is
gone (NVIDIA CUDA Runtime API, "Memory Management", editions 12.8 and 13.0; NVIDIA/cuda-python `cyruntime.pyx.in` of both
majors). A shared library does not tell its signatures, so this one follows the library's own version; whether driver and
library can do the call at all is tried with a copy of 4 bytes, because the driver may be older than the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hicachectl.errors import CapacityError, HicacheError, HostError, Unsupported, Vanished
from hicachectl.runtime.memory.libcudart import DEVICE_LOST_CODES, LIBCUDART, MAPS, libcudart_candidates

__all__ = ["CudaRuntime", "find_cuda_runtime"]

_DEFAULT_KIND = 4  # cudaMemcpyDefault: the direction follows from the addresses
_STREAM_ORDER = 1  # cudaMemcpySrcAccessOrderStream
_BATCH_SINCE, _NO_FAIL_INDEX_SINCE = 12080, 13000

# Values of cudaError (driver_types.h): memory is short, the call is unknown.
_NO_MEMORY = 2
_UNKNOWN_CALL = {35, 36, 801}

_SIZE, _ADDRESS, _INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
_ARGUMENTS: dict[str, list[Any]] = {
    "cudaMemcpyAsync": [_ADDRESS, _ADDRESS, _SIZE, _INT, _ADDRESS],
    "cudaMemcpy2DAsync": [_ADDRESS, _SIZE, _ADDRESS, _SIZE, _SIZE, _SIZE, _INT, _ADDRESS],
    "cudaRuntimeGetVersion": [ctypes.POINTER(_INT)],
    "cudaDriverGetVersion": [ctypes.POINTER(_INT)],
    "cudaGetErrorString": [_INT],
    "cudaGetLastError": [],
}


class CudaRuntime:
    """Calls of one loaded CUDA runtime library. Addresses and streams are plain integers.

    `library` has the runtime's functions as attributes (a `ctypes.CDLL`). The calls act on the calling thread's device.
    Every call raises on an error code: Vanished when the device is lost, CapacityError when memory is short, Unsupported
    for a call that library or driver do not know, HostError otherwise.
    """

    def __init__(self, library: Any, name: str = "libcudart") -> None:
        self.name = name
        self._library = library
        for function, arguments in _ARGUMENTS.items():
            declared = getattr(library, function)
            declared.argtypes, declared.restype = arguments, _INT
        library.cudaGetErrorString.restype = ctypes.c_char_p
        self.version = self._version("cudaRuntimeGetVersion")
        self.driver_version = self._version("cudaDriverGetVersion")
        self._copy, self._copy_2d = library.cudaMemcpyAsync, library.cudaMemcpy2DAsync
        # One attribute for the whole batch: access in stream order at offset 0, no location hints, no flags. Zeros beyond
        # the struct of any version, so that a field added at its end reads as absent.
        self._attributes = (ctypes.c_uint64 * 16)(_STREAM_ORDER)
        self._first = (_SIZE * 1)(0)
        self._failed = (_SIZE * 1)(0)
        self._batch, self.batch_missing = self._find_batch()
        """Why there is no batched copy, None when there may be one (`try_batch` knows)."""

    def copy(self, to: int, fro: int, n_bytes: int, stream: int) -> None:
        """Copy `n_bytes` from address `fro` to address `to`, in the order of `stream`."""
        if code := self._copy(to, fro, n_bytes, _DEFAULT_KIND, stream):
            self._raise(code, "cudaMemcpyAsync")

    def copy_rows(
        self, to: int, to_pitch: int, fro: int, fro_pitch: int, row_bytes: int, n_rows: int, stream: int
    ) -> None:
        """Copy `n_rows` rows of `row_bytes`, whose starts are a pitch apart on either side, in the order of `stream`."""
        if code := self._copy_2d(to, to_pitch, fro, fro_pitch, row_bytes, n_rows, _DEFAULT_KIND, stream):
            self._raise(code, "cudaMemcpy2DAsync")

    def copy_batch(self, to: int, fro: int, sizes: int, count: int, stream: int) -> None:
        """Copy `count` pieces in one call, in the order of `stream`.

        `to`, `fro` and `sizes` are the addresses of arrays of `count` 64-bit numbers, read before the call returns.
        """
        if self._batch is None:
            raise Unsupported("there is no batched copy", where=self.name, why=self.batch_missing)
        if self.version >= _NO_FAIL_INDEX_SINCE:
            code = self._batch(to, fro, sizes, count, self._attributes, self._first, 1, stream)
        else:
            code = self._batch(to, fro, sizes, count, self._attributes, self._first, 1, self._failed, stream)
        if code:
            self._raise(code, f"cudaMemcpyBatchAsync of {count} pieces")

    def try_batch(self, to: int, fro: int, stream: int) -> str | None:
        """Copy 4 bytes as a batch and return why that does not work, or None. Later calls know the answer."""
        if self.batch_missing is None:
            pieces = (ctypes.c_uint64 * 3)(to, fro, 4)
            start = ctypes.addressof(pieces)
            try:
                self.copy_batch(start, start + 8, start + 16, 1, stream)
            except Unsupported as error:
                self.batch_missing = f"{error.what} (driver {_dotted(self.driver_version)})"
                self._batch = None
        return self.batch_missing

    def _find_batch(self) -> tuple[Any, str | None]:
        if self.version < _BATCH_SINCE:
            return None, f"the CUDA runtime is {_dotted(self.version)}, cudaMemcpyBatchAsync came with 12.8"
        try:
            call = self._library.cudaMemcpyBatchAsync
        except AttributeError:
            return None, f"{self.name} has no cudaMemcpyBatchAsync"
        failed = [] if self.version >= _NO_FAIL_INDEX_SINCE else [_ADDRESS]
        call.argtypes = [_ADDRESS, _ADDRESS, _ADDRESS, _SIZE, _ADDRESS, _ADDRESS, _SIZE, *failed, _ADDRESS]
        call.restype = _INT
        return call, None

    def _version(self, function: str) -> int:
        found = _INT(0)
        if code := getattr(self._library, function)(ctypes.byref(found)):
            self._raise(code, function)
        return found.value

    def _raise(self, code: int, call: str) -> None:
        self._library.cudaGetLastError()  # what is not sticky must not meet the next caller
        text: bytes = self._library.cudaGetErrorString(code)
        kinds: tuple[tuple[bool, type[HicacheError], str], ...] = (
            (
                code in DEVICE_LOST_CODES,
                Vanished,
                "the device is of no more use to this process: look at dmesg, then start it again",
            ),
            (code == _NO_MEMORY, CapacityError, "make the staging or the pools smaller"),
            (code in _UNKNOWN_CALL, Unsupported, "use another copy backend, or a newer driver"),
        )
        for applies, kind, hint in kinds:
            if applies:
                raise kind(f"{call} failed with {code}", where=self.name, why=text.decode(), hint=hint)
        raise HostError(
            f"{call} failed with {code}", where=self.name, why=text.decode(), hint="see the CUDA documentation"
        )


def find_cuda_runtime(maps: Path = MAPS, names: Iterable[str] = LIBCUDART) -> CudaRuntime:
    """Return the CUDA runtime this process has loaded, else the first of `names` that can be loaded and used. Raises Unsupported."""
    tried = []
    for name in libcudart_candidates(maps, names):
        try:
            return CudaRuntime(ctypes.CDLL(name), name)
        except OSError as error:
            tried.append(str(error))
        except AttributeError as error:  # a library without one of the calls
            tried.append(f"{name}: {error}")
    raise Unsupported("no CUDA runtime is loaded", why="; ".join(tried), hint="use copy backend torch")


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
