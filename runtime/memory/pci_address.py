"""Which PCI function a device of torch is: what its NUMA node is read from. Through ctypes; brings up no context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["pci_address_of"]

_TEXT_BYTES = 32
"""CUDA Driver API, cuDeviceGetPCIBusId: at least 13 for domain:bus:device.function and a zero."""


def pci_address_of(device_type: str, index: int, *, load: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """Return the address of CUDA device `index` as the kernel writes it, such as 0000:b8:00.0; None where nothing tells it.

    The index counts the devices this process may see (CUDA_VISIBLE_DEVICES), as torch does.
    """
    if device_type != "cuda":
        return None
    try:
        library = load("libcuda.so.1")
        text, device = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.c_int()
        answers = (
            library.cuInit(ctypes.c_uint(0)),
            library.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)),
            library.cuDeviceGetPCIBusId(text, ctypes.c_int(_TEXT_BYTES), device),
        )
    except (OSError, AttributeError):
        return None
    return None if any(answers) else text.value.decode("ascii", "replace").lower()
