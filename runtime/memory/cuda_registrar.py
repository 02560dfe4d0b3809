"""Registration with CUDA, through ctypes: no compiled extension, and whichever library and spelling this machine has.

    libcuda      cuMemHostRegister_v2 or cuMemHostRegister, in the device's primary context, pushed for the call alone
    libcudart    cudaHostRegister, in whatever context the thread has; where libcuda cannot be used

The primary context is the one that torch uses. Portable (1): known to all contexts; device-mapped (2): kernels may read it too.
Sources: CUDA Driver API, "Memory Management" and "Primary Context Management"; CUDA Runtime API, cudaHostRegister; error numbers
are the same in both (cuda.h, driver_types.h).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hicachectl.runtime.memory.libcudart import DEVICE_LOST_CODES, MAPS, libcudart_candidates
from hicachectl.runtime.memory.register import NoRegistrar, Refusal, Registrar

__all__ = ["DriverRegistrar", "RuntimeRegistrar", "find_cuda_registrar", "registrar_for"]

_PORTABLE, _DEVICEMAP = 1, 2
_FLAGS = _PORTABLE | _DEVICEMAP
_LIBCUDA = ("libcuda.so.1", "libcuda.so")

Load = Callable[[str], Any]


def registrar_for(device_type: str, index: int = 0) -> Registrar | NoRegistrar:
    """Return what registers host memory for a device, by its torch type; the processor needs none, and others are not known here."""
    if device_type == "cpu":
        return NoRegistrar("the device is the CPU: there is no driver to register with")
    if device_type != "cuda":
        return NoRegistrar(f"how to register memory for a {device_type} device is not known here")
    return find_cuda_registrar(index)


def find_cuda_registrar(index: int = 0, *, load: Load = ctypes.CDLL, maps: Path = MAPS) -> Registrar | NoRegistrar:
    """Return a registrar of CUDA device `index`, or why there is none. Loads libraries; brings up nothing on the device.

    Of libcudart, one that the process has loaded already goes first.
    """
    reasons = []
    for name in _LIBCUDA:
        try:
            return DriverRegistrar(load(name), name, index)
        except (OSError, AttributeError) as error:
            reasons.append(f"{name}: {error}")
    for name in libcudart_candidates(maps):
        try:
            return RuntimeRegistrar(load(name), name)
        except (OSError, AttributeError) as error:
            reasons.append(f"{name}: {error}")
    return NoRegistrar(f"no CUDA library registers memory here ({reasons[0]})")


class DriverRegistrar:
    """The driver's own interface. Raises AttributeError when the library lacks a function."""

    def __init__(self, library: Any, name: str, index: int) -> None:
        self._register = _first(library, "cuMemHostRegister_v2", "cuMemHostRegister")
        self._unregister = library.cuMemHostUnregister
        self._init = library.cuInit
        self._device = library.cuDeviceGet
        self._retain = library.cuDevicePrimaryCtxRetain
        self._push = _first(library, "cuCtxPushCurrent_v2", "cuCtxPushCurrent")
        self._pop = _first(library, "cuCtxPopCurrent_v2", "cuCtxPopCurrent")
        self._errors = _Words(library.cuGetErrorName, library.cuGetErrorString)
        self._index = index
        self._context: ctypes.c_void_p | None = None
        self.name = f"{getattr(self._register, '__name__', 'cuMemHostRegister')} of {name}"

    def prepare(self) -> Refusal | None:
        """Initialise the driver and hold the device's primary context, for as long as the process lives."""
        if self._context is not None:
            return None
        device, context = ctypes.c_int(), ctypes.c_void_p()
        code = self._init(ctypes.c_uint(0))
        if code == 0:
            code = self._device(ctypes.byref(device), ctypes.c_int(self._index))
        if code == 0:
            code = self._retain(ctypes.byref(context), device)
        if code != 0:
            return self._refusal("cuDevicePrimaryCtxRetain", code)
        self._context = context
        return None

    def register(self, address: int, n_bytes: int) -> Refusal | None:
        """cuMemHostRegister with the portable and the device-mapped flag."""
        return self._call(
            "cuMemHostRegister",
            lambda: self._register(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), ctypes.c_uint(_FLAGS)),
        )

    def unregister(self, address: int) -> Refusal | None:
        """cuMemHostUnregister."""
        return self._call("cuMemHostUnregister", lambda: self._unregister(ctypes.c_void_p(address)))

    def _call(self, call: str, act: Callable[[], int]) -> Refusal | None:
        refused = self.prepare()
        if refused is not None:
            return refused
        with self._in_context() as code:
            code = code or act()
        return self._refusal(call, code) if code else None

    @contextmanager
    def _in_context(self) -> Iterator[int]:
        """Make the context this thread's for the block, and give the thread its own one back. Yields the answer of the push."""
        code = int(self._push(self._context))
        try:
            yield code
        finally:
            if code == 0:
                self._pop(ctypes.byref(ctypes.c_void_p()))

    def _refusal(self, call: str, code: int) -> Refusal:
        name, words = self._errors.of_driver(code)
        was_there = self._context is not None  # a device that never came up was not lost
        return Refusal(call, code, name, words, was_there and code in DEVICE_LOST_CODES)


class RuntimeRegistrar:
    """The runtime library. Raises AttributeError when the library lacks a function."""

    def __init__(self, library: Any, name: str) -> None:
        self._register = library.cudaHostRegister
        self._unregister = library.cudaHostUnregister
        self._free = library.cudaFree
        self._forget = library.cudaGetLastError
        self._errors = _Words(library.cudaGetErrorName, library.cudaGetErrorString)
        self.name = f"cudaHostRegister of {name}"

    def prepare(self) -> Refusal | None:
        """Bring up the thread's current device (cudaFree of nothing does only that)."""
        refused = self._answer("cudaFree", self._free(ctypes.c_void_p(None)))
        return None if refused is None else replace(refused, device_lost=False)

    def register(self, address: int, n_bytes: int) -> Refusal | None:
        """cudaHostRegister with the portable and the mapped flag."""
        code = self._register(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), ctypes.c_uint(_FLAGS))
        return self._answer("cudaHostRegister", code)

    def unregister(self, address: int) -> Refusal | None:
        """cudaHostUnregister."""
        return self._answer("cudaHostUnregister", self._unregister(ctypes.c_void_p(address)))

    def _answer(self, call: str, code: int) -> Refusal | None:
        if code == 0:
            return None
        self._forget()  # else the next call of anybody in this thread, torch's too, would report this error as its own
        name, words = self._errors.of_runtime(code)
        return Refusal(call, code, name, words, code in DEVICE_LOST_CODES)


class _Words:
    """A library's own names of its errors."""

    def __init__(self, name: Any, words: Any) -> None:
        self._name, self._text = name, words

    def of_driver(self, code: int) -> tuple[str, str]:
        """cuGetErrorName and cuGetErrorString write a pointer."""
        found = []
        for function in (self._name, self._text):
            text = ctypes.c_char_p()
            answer = function(ctypes.c_int(code), ctypes.byref(text))
            found.append("unknown error" if answer or text.value is None else text.value.decode(errors="replace"))
        return found[0], found[1]

    def of_runtime(self, code: int) -> tuple[str, str]:
        """cudaGetErrorName and cudaGetErrorString return a pointer."""
        found = []
        for function in (self._name, self._text):
            function.restype = ctypes.c_char_p
            text = function(ctypes.c_int(code))
            found.append("unknown error" if text is None else text.decode(errors="replace"))
        return found[0], found[1]


def _first(library: Any, *names: str) -> Any:
    for name in names:
        function = getattr(library, name, None)
        if function is not None:
            return function
    raise AttributeError(f"has none of {', '.join(names)}")
