"""Streams and events by torch's own interface, as far as the devices of torch agree on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["CurrentStream", "StreamModule", "new_event", "new_stream", "wait_for_device"]


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


class CurrentStream:
    """Returns the calling thread's stream of a device when called. torch's object of a stream is made once, not in every call.

    `handle_of` returns the handle of a device's current stream; without it, torch is asked each time. Handles of streams
    that torch made stay theirs: it takes its streams from a pool and never gives one back.
    """

    def __init__(
        self, module: StreamModule, device: torch.device, handle_of: Callable[[int], int] | None = None
    ) -> None:
        if handle_of is None and module is torch.cuda:
            handle_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._module, self._device, self._handle_of = module, device, handle_of
        self._index: int | None = device.index
        self._known: dict[tuple[int, int], Any] = {}

    def __call__(self) -> Any:
        if self._handle_of is None:
            return self._module.current_stream(self._device)
        index = self._index if self._index is not None else torch.cuda.current_device()
        key = (index, self._handle_of(index))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._module.current_stream(self._device)
        return found


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


def wait_for_device(module: Any, device: torch.device) -> None:
    """Return when nothing on `device` moves any more; without it, a module waits for the thread's current device."""
    try:
        module.synchronize(device)
    except TypeError:  # a module of a single device, such as torch.mps
        module.synchronize()
