"""The device tier: one buffer a plane, in device memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hicachectl.errors import CapacityError, InvariantBroken, UsageError
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Layout, PoolMap
from hicachectl.runtime.memory.mapping import reserve
from hicachectl.runtime.memory.slots import Slots

__all__ = ["DevicePool", "element_type", "require_slots"]

_TORCH_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2", "int8": "int8", "uint8": "uint8",
}  # fmt: skip

# Made once: numpy makes one of a type in every call that is given the type.
_INT32, _UINT32 = np.dtype(np.int32), np.dtype(np.uint32)


class DevicePool:
    """Memory of `n_slots` pages on `device` ("cpu", "cuda:0", ...), shape [plane, slot, chunk byte], uint8.

    `tensor[p]` is the buffer of plane `p`. `device` has its number, also where none was named. Who may touch which slot is the allocator's business, not the pool's.
    Raises UsageError when the device is not there, CapacityError when the memory is not.
    """

    def __init__(self, geometry: KVGeometry, n_slots: int, device: str | torch.device = "cpu") -> None:
        if n_slots < 1:
            raise UsageError(f"device pool of {n_slots} slots", hint="give at least 1 slot")
        self.geometry = geometry
        self.n_slots = n_slots
        self.map = PoolMap(Layout.LAYER_FIRST, geometry, n_slots)
        shape = (geometry.n_planes, n_slots, geometry.chunk_bytes)
        memory = _memory(self.map.n_bytes, _device(device)).view(shape)
        self._tensor: torch.Tensor | None = memory
        self.device = memory.device

    @property
    def tensor(self) -> torch.Tensor:
        """The whole pool, [plane, slot, chunk byte]. Raises InvariantBroken after close()."""
        if self._tensor is None:
            raise InvariantBroken("the device pool is closed", where="device pool")
        return self._tensor

    @property
    def n_bytes(self) -> int:
        return self.map.n_bytes

    def planes_numpy(self) -> NDArray[np.uint8]:
        """Return the pool as a numpy view, [plane, slot, chunk byte], without a copy.

        Raises InvariantBroken when the device is not the CPU.
        """
        if self.device.type != "cpu":
            raise InvariantBroken(f"no numpy view of memory on {self.device}", where="device pool")
        view: NDArray[np.uint8] = self.tensor.numpy()
        return view

    def elements(self) -> tuple[torch.Tensor, str | None]:
        """Return the pool as elements of the geometry's type, [plane, slot, element], without a copy, and None.

        Where this torch has no such type: the bytes, and why. Raises InvariantBroken after close().
        """
        dtype, missing = element_type(self.geometry.dtype)
        return self.tensor.view(dtype), missing

    def close(self) -> None:
        """Give the memory back, as soon as nobody holds a view of it. May be called twice."""
        self._tensor = None


def element_type(dtype: str, have: object = torch) -> tuple[torch.dtype, str | None]:
    """Return torch's type of an element and None, or uint8 and why: `have` (torch) is too old for it. Pure.

    >>> element_type("fp8_e5m2", object())[1]
    'this torch has no float8_e5m2: elements are seen as bytes'
    """
    name = _TORCH_NAMES[dtype]
    found = getattr(have, name, None)
    return (torch.uint8, f"this torch has no {name}: elements are seen as bytes") if found is None else (found, None)


def require_slots(slots: Slots, n_slots: int, where: str) -> None:
    """Refuse slots that are no int32 vector or lie outside the pool, before they become addresses. Pure.

    Raises InvariantBroken with the slots: numpy would take -1 for the last slot.
    """
    if slots.ndim != 1 or slots.dtype != _INT32:
        raise InvariantBroken(
            f"slots of shape {slots.shape} and {slots.dtype}, not one dimension of int32", where=where
        )
    if slots.size and int(np.maximum.reduce(slots.view(_UINT32))) >= n_slots:  # a negative one is beyond 2^31 there
        bad = slots[(slots < 0) | (slots >= n_slots)][:16].tolist()
        raise InvariantBroken(f"slots {bad} outside [0, {n_slots})", where=where)


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise UsageError(
            f"device {device!r} is not known", why=str(error).splitlines()[0], hint="cpu, or a torch device"
        ) from error


def _memory(n_bytes: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.from_numpy(reserve(n_bytes).buffer)
    try:
        return torch.empty(n_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"no room for a device pool of {n_bytes} bytes on {device}",
            terms=(("pool bytes", n_bytes),),
            why=str(error).splitlines()[0],
            hint="fewer device slots",
        ) from error
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device {device} cannot be used",
            why=str(error).splitlines()[0],
            hint="use a device torch has here, or cpu",
        ) from error
