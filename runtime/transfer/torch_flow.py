"""Copies between host memory and an accelerator, back to back on a stream of their own: one direction of one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

import torch

from hicachectl.errors import Unsupported, UsageError, Vanished
from hicachectl.runtime.transfer.device import device_error, no_streams
from hicachectl.runtime.transfer.streams import StreamModule, new_event, new_stream

__all__ = ["TorchFlow"]

_STEP_BYTES = 32 << 20
"""0.6 ms at 55 GB/s: far longer than noticing its end takes, far shorter than a measurement."""
_MOST_COPIES = 256
"""Of small copies in one step: what is submitted ahead stays within the driver's queue (1,024 on the devices seen)."""
_POLL_S = 20e-6
_ANSWER_S = 30.0
"""A step that takes longer will not end: even 1 GiB at 100 MB/s takes a third."""


class TorchFlow:
    """Copies of `size_bytes`, host to device or back, in turn over all of `host` (1-D uint8), to or from the start of `on_device`.

    `host` should be larger than the processor's caches and registered with the device: else other things are measured. The end
    of a step is when its event is seen to be reached, on `clock` (seconds). Raises UsageError where the copy is larger than the
    memory, Unsupported for a device without streams.
    """

    def __init__(
        self,
        host: torch.Tensor,
        on_device: torch.Tensor,
        size_bytes: int,
        *,
        up: bool,
        module: StreamModule | None = None,
        clock: Callable[[], float] = perf_counter,
        answer_s: float = _ANSWER_S,
    ) -> None:
        if not 0 < size_bytes <= min(host.numel(), on_device.numel()):
            raise UsageError(
                f"copies of {size_bytes} bytes between {host.numel()} on the host and {on_device.numel()} on the device",
                hint="give a smaller size",
            )
        device = on_device.device
        self._module: Any = torch.get_device_module(device) if module is None else module
        missing = no_streams(self._module)
        if missing is not None:
            raise Unsupported(f"copies on {device} cannot run side by side", why=missing, hint="use another device")
        self._stream = new_stream(self._module, device, ahead=False)
        self._device_piece = on_device[:size_bytes]
        self._host_pieces = host[: host.numel() // size_bytes * size_bytes].view(-1, size_bytes).unbind()
        self._n_copies = min(_MOST_COPIES, max(1, _STEP_BYTES // size_bytes))
        self._next = 0
        self._up, self._clock, self._answer_s = up, clock, answer_s
        self._under_way: deque[Any] = deque()
        self._free: list[Any] = []
        self.lost = False
        """Set when the device failed or did not answer: its copies may still be under way, and the memory must stay."""
        self.step_bytes = self._n_copies * size_bytes

    def submit(self) -> None:
        """Start the copies of one step."""
        event = self._free.pop() if self._free else new_event(self._module)
        try:
            with self._module.stream(self._stream):
                for _ in range(self._n_copies):
                    host = self._host_pieces[self._next]
                    self._next = (self._next + 1) % len(self._host_pieces)
                    to, fro = (self._device_piece, host) if self._up else (host, self._device_piece)
                    to.copy_(fro, non_blocking=True)
            event.record(self._stream)
        except RuntimeError as error:
            self.lost = True
            raise device_error(error) from error
        self._under_way.append(event)

    def wait(self) -> float:
        """Wait for the oldest step; return when its end was seen. Raises Vanished when the device failed or does not answer."""
        event = self._under_way[0]
        deadline = self._clock() + self._answer_s
        try:
            while not event.query():
                if self._clock() > deadline:
                    self.lost = True
                    raise Vanished(
                        f"a copy of {self.step_bytes} bytes has not ended after {self._answer_s:g} s",
                        where=str(self._device_piece.device),
                        why="the device does not answer",
                        hint="look at dmesg, reset the device, and start again",
                    )
                sleep(_POLL_S)
        except RuntimeError as error:
            self.lost = True
            raise device_error(error) from error
        ended = self._clock()
        self._free.append(self._under_way.popleft())
        return ended

    def drain(self) -> None:
        """Wait for every step that was started."""
        while self._under_way:
            try:
                self.wait()
            except BaseException:
                self._under_way.clear()  # it answers nothing any more: asking once is enough
                raise
