"""Streams and events by torch's own interface, as far as the devices of torch agree on it."""

from __future__ import annotations

from typing import Any, Protocol

import torch

__all__ = ["StreamModule", "new_event", "new_stream"]


class StreamModule(Protocol):
    """The part of `torch.cuda` (or `torch.get_device_module(device)`) that transfers use."""

    Stream: Any
    Event: Any

    def current_stream(self, device: Any = None) -> Any:
        """Return the calling thread's stream."""
        ...

    def stream(self, stream: Any) -> Any:
        """Return a context manager that makes `stream` the calling thread's."""
        ...


def new_stream(module: StreamModule, device: torch.device, *, ahead: bool = True) -> Any:
    """Make a stream, where the device has priorities of a high one if `ahead`: its kernels then go ahead of compute."""
    try:
        return module.Stream(device=device, priority=-1 if ahead else 0)
    except TypeError:
        return module.Stream(device=device)


def new_event(module: StreamModule, *, sleeping: bool = False) -> Any:
    """Make an event without timing; a thread that waits for a `sleeping` one does not spin, where the device can do so."""
    try:
        return module.Event(blocking=sleeping)
    except TypeError:
        return module.Event()
