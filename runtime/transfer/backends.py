"""What a copy backend is, and how to get one by name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from hicachectl.runtime.layout import Backend, Layout, require_compatible
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.device import device_error
from hicachectl.runtime.transfer.groups import group_planes
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.streams import wait_for_device

__all__ = [
    "CopyBackend",
    "Direction",
    "PipelinedBackend",
    "Step",
    "Submitted",
    "Work",
    "begin",
    "make_backend",
    "prepare_both",
]


class Direction(Enum):
    """Which way pages move."""

    LOAD = "load"
    """Host to device."""
    BACKUP = "backup"
    """Device to host."""

    __hash__ = object.__hash__  # that of Enum is a Python call in every look-up by direction


class Submitted(NamedTuple):
    """What one copy took: calls that started a copy or a kernel, those that bring its slots too, and contiguous pieces moved."""

    n_submissions: int
    n_segments: int


class CopyBackend(Protocol):
    """Copies pages between a device and a host pool.

    Each direction is used by one thread only, so a backend may keep one staging buffer a direction.
    """

    kind: Backend

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        """Allocate and compile what copies of `n_planes` planes need, so that nothing done once is in a bandwidth sample."""

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


class Step(NamedTuple):
    """A part of a transfer that is submitted as one: pages `[start, end)` of it, in `planes`.

    `end_layer` is set on the last step of a layer group: the layers below it are then on their way.
    """

    planes: range
    start: int
    end: int
    end_layer: int | None


class Work(Protocol):
    """One transfer of a backend. `close` is called once, also after a failed `copy`."""

    @property
    def steps(self) -> Sequence[Step]:
        """The parts in the order in which they are to be copied."""
        ...

    @property
    def arrives_on(self) -> Any | None:
        """The stream at whose end the bytes of the steps so far are there, None when that is not known before `seal`."""
        ...

    def copy(self, step: Step) -> Submitted:
        """Submit one step; returns when it is enqueued."""
        ...

    def seal(self) -> None:
        """Order the current stream of the device behind everything submitted so far."""
        ...

    def close(self) -> None:
        """End the work; the current stream is behind everything it submitted."""
        ...


@runtime_checkable
class PipelinedBackend(Protocol):
    """A backend that submits a transfer in steps, so that one step's kernel runs beside the next one's copies."""

    def begin(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        layer_groups: Sequence[int],
    ) -> Work:
        """Open a transfer. Its layer groups may be coarser than those asked for, never finer."""
        ...


class _WholeGroups:
    """The work of a backend that copies a layer group in one call."""

    def __init__(
        self,
        backend: CopyBackend,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        layer_groups: Sequence[int],
    ) -> None:
        self._copy = backend.copy
        self._ends = (direction, device_pool, host_pool, device_slots, host_slots)
        n_pages = int(device_slots.size)
        groups = group_planes(device_pool.geometry, layer_groups)
        self._steps = [Step(planes, 0, n_pages, end) for planes, end in groups]
        self.arrives_on = None

    @property
    def steps(self) -> Sequence[Step]:
        return self._steps

    def copy(self, step: Step) -> Submitted:
        return self._copy(*self._ends, step.planes)

    def seal(self) -> None:
        pass

    def close(self) -> None:
        pass


def begin(
    backend: CopyBackend,
    direction: Direction,
    device_pool: DevicePool,
    host_pool: HostPool,
    device_slots: Slots,
    host_slots: Slots,
    layer_groups: Sequence[int],
) -> Work:
    """Open a transfer of a backend, in its own steps or in one a layer group."""
    if isinstance(backend, PipelinedBackend):
        return backend.begin(direction, device_pool, host_pool, device_slots, host_slots, layer_groups)
    return _WholeGroups(backend, direction, device_pool, host_pool, device_slots, host_slots, layer_groups)


def prepare_both(backend: CopyBackend, device_pool: DevicePool, host_pool: HostPool) -> None:
    """Let a backend take now what copies of either direction need, on the pool's device: where there is no room for it, this
    says so once, and not every copy.

    Raises CapacityError, Vanished, or Unsupported with what the backend lacks.
    """
    device = device_pool.device
    module: Any = None if device.type == "cpu" else torch.get_device_module(device)
    enter = getattr(module, "device", None)
    try:
        with nullcontext() if enter is None else enter(device):  # calls act on the calling thread's device
            for direction in Direction:
                backend.prepare(direction, device_pool, host_pool, device_pool.geometry.n_planes)
            if hasattr(module, "synchronize"):
                wait_for_device(module, device)  # it is also zeroed: transfers are on other streams than this thread
    except Exception as failed:
        error = device_error(failed)
        if error is failed:
            raise
        raise error from failed


def make_backend(
    kind: Backend, layout: Layout, device: str | torch.device = "cpu", options: StagingOptions | None = None
) -> CopyBackend:
    """Build a copy backend for a layout and a device; nothing is ever replaced by something else.

    Raises UsageError when they do not go together, Unsupported when this machine's driver or libraries cannot do it.

    >>> make_backend(Backend.CPU, Layout.PAGE_FIRST).kind
    <Backend.CPU: 'cpu'>
    """
    device = torch.device(device)
    require_compatible(layout, kind, device.type)
    if kind is Backend.CPU:
        from hicachectl.runtime.transfer.cpu import CpuBackend

        return CpuBackend()
    if kind is Backend.TORCH:
        from hicachectl.runtime.transfer.torch_index import TorchIndexBackend

        return TorchIndexBackend()
    if kind is Backend.DIRECT and device.type != "cuda":
        from hicachectl.runtime.transfer.straight import DirectBackend

        return DirectBackend()
    from hicachectl.runtime.transfer.cuda_backends import make_cuda_backend

    return make_cuda_backend(kind, options or StagingOptions(), device)
