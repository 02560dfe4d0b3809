"""What a copy backend is, and how to get one by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hicachectl.runtime.layout import Backend, Layout, require_compatible
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots

__all__ = ["CopyBackend", "Direction", "Submitted", "make_backend"]


class Direction(Enum):
    """Which way pages move."""

    LOAD = "load"
    """Host to device."""
    BACKUP = "backup"
    """Device to host."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What one copy took: calls that started a copy, and contiguous pieces moved."""

    n_submissions: int
    n_segments: int


class CopyBackend(Protocol):
    """Copies pages between a device and a host pool.

    Each direction is used by one thread only, so a backend may keep one staging buffer a direction.
    """

    kind: Backend

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        """Allocate what copies of `n_planes` planes need, so that a one-time allocation is in no bandwidth sample."""

    def copy(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        planes: range,
    ) -> Submitted:
        """Copy page i between `device_slots[i]` and `host_slots[i]`, in `planes`, and return what it took.

        Changes only the destination's slots. Slots are in range, of equal count, and no destination comes twice: the
        engine has checked the first two. Bytes may still be moving on the current stream of the device when it returns.
        """
        ...


def make_backend(kind: Backend, layout: Layout) -> CopyBackend:
    """Build a copy backend for a layout. Raises UsageError when they do not go together.

    >>> make_backend(Backend.CPU, Layout.PAGE_FIRST).kind
    <Backend.CPU: 'cpu'>
    """
    require_compatible(layout, kind)
    if kind is Backend.CPU:
        from hicachectl.runtime.transfer.cpu import CpuBackend

        return CpuBackend()
    from hicachectl.runtime.transfer.torch_index import TorchIndexBackend

    return TorchIndexBackend()
