"""Streams and events of a device, by its torch type: the one place that knows what "after" means there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

__all__ = ["AcceleratorOrder", "CpuOrder", "DeviceOrder", "device_order"]


class DeviceOrder(Protocol):
    """Orders the copies of a submission thread after the caller's work, and tells when they are done."""

    def mark(self) -> object:
        """Note, on the caller's thread, what the caller has submitted so far. Returns at once."""
        ...

    def after(self, mark: object) -> AbstractContextManager[None]:
        """Run a block on this thread's own stream after the caller's mark; when it ends, its copies are done."""
        ...


class CpuOrder:
    """The processor: what the caller did is done, and a copy is done when its call returns."""

    def mark(self) -> object:
        return None

    @contextmanager
    def after(self, mark: object) -> Iterator[None]:
        yield


class AcceleratorOrder:
    """A device with streams and events in torch's own interface (cuda, xpu, or a vendor's module)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._stream: Any = self._module.Stream(device=device)

    def mark(self) -> object:
        return self._module.current_stream(self._device).record_event()

    @contextmanager
    def after(self, mark: object) -> Iterator[None]:
        self._stream.wait_event(mark)
        try:
            with self._module.stream(self._stream):
                yield
        finally:  # a failed copy may have left others moving: the slots are given back only when nothing moves
            self._stream.synchronize()


def device_order(device: torch.device) -> DeviceOrder:
    """Return a new order for one submission thread on `device`; on an accelerator it owns a stream."""
    return CpuOrder() if device.type == "cpu" else AcceleratorOrder(device)
