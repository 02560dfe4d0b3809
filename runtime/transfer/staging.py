"""Staging of one direction in device memory: a ring of buffers, each with the events of its filling and emptying.

    buffer k   [filled by copies or gather] -> event filled -> [emptied by scatter or copies] -> event emptied -> again

Who fills a buffer waits on the device for `emptied`, who empties it for `filled`; no thread waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hicachectl.errors import CapacityError
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.device import first_line
from hicachectl.runtime.transfer.movers import Mover, Side

__all__ = ["SlotTable", "Staging", "StagingBuffer"]


class StagingBuffer:
    """One buffer: its words, its address, and its two events. `used` says whether `emptied` was ever recorded."""

    __slots__ = ("address", "emptied", "filled", "used", "words")

    def __init__(self, memory: torch.Tensor, word: torch.dtype, filled: Any, emptied: Any) -> None:
        self.words = memory.view(word)
        self.address = memory.data_ptr()
        self.filled, self.emptied = filled, emptied
        self.used = False


class Staging:
    """The buffers of a direction. `allocate` makes device memory of so many bytes and raises torch.OutOfMemoryError.

    `buffer_bytes` and `least_bytes` are whole words. When the device has no room for the first, they are halved, to whole
    words, down to the second; `reason` then says so. Raises CapacityError below that.
    """

    def __init__(
        self,
        n_buffers: int,
        buffer_bytes: int,
        least_bytes: int,
        word: torch.dtype,
        allocate: Callable[[int], torch.Tensor],
        event: Callable[[], Any],
    ) -> None:
        self.reason: str | None = None
        asked = buffer_bytes
        while True:
            try:
                memory = [allocate(buffer_bytes) for _ in range(n_buffers)]
                break
            except torch.OutOfMemoryError as error:
                why = first_line(error)
                if buffer_bytes <= least_bytes:
                    raise CapacityError(
                        f"no room on the device for {n_buffers} staging buffers of {buffer_bytes} bytes",
                        terms=(("staging buffers", n_buffers), ("buffer bytes", buffer_bytes)),
                        why=why,
                        hint="give fewer device slots, or free device memory",
                    ) from error
                buffer_bytes = max(least_bytes, buffer_bytes // 2 // word.itemsize * word.itemsize)
                self.reason = f"staging buffers of {buffer_bytes} bytes instead of {asked}: {why}"
        self.buffer_bytes = buffer_bytes
        self.n_bytes = n_buffers * buffer_bytes
        self._buffers = [StagingBuffer(part, word, event(), event()) for part in memory]
        self._next = 0

    def take(self) -> StagingBuffer:
        """Return the buffer that was used longest ago."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        return buffer


class SlotTable:
    """Device slots of one transfer where a kernel can read them. Written by the host, so one transfer at a time.

    `pinned` and `on_device` are int32 tensors of equal size; `read` is the event after the last kernel that reads them.
    """

    def __init__(self, pinned: torch.Tensor, on_device: torch.Tensor, read: Any) -> None:
        self._pinned, self._on_device = pinned, on_device
        self._numpy = pinned.numpy()
        self._to, self._fro = on_device.data_ptr(), pinned.data_ptr()
        self._read = read
        self._reading = False

    @classmethod
    def of(
        cls,
        n_slots: int,
        device: torch.device,
        *,
        allocate: Callable[[int, torch.device], torch.Tensor],
        allocate_pinned: Callable[[int], torch.Tensor],
        read: Any,
    ) -> SlotTable:
        """Return a table for a pool of `n_slots`: 4 bytes a slot on each side."""
        n_bytes = n_slots * 4
        return cls(allocate_pinned(n_bytes).view(torch.int32), allocate(n_bytes, device).view(torch.int32), read)

    def put(self, slots: Slots, copy: Callable[[int, int, int, int], None], stream: int, *, few: int) -> torch.Tensor:
        """Write `slots` and return the tensor to look them up in: up to `few` of them stay in registered host memory.

        May wait for a kernel of the transfer before.
        """
        pinned = self.write(slots)
        return pinned if slots.size <= few else self.upload(int(slots.size), copy, stream)

    def write(self, slots: Slots) -> torch.Tensor:
        """Write `slots` and return them in registered host memory. May wait for a kernel of the transfer before."""
        if self._reading:
            if not self._read.query():
                self._read.synchronize()
            self._reading = False
        self._numpy[: slots.size] = slots
        return self._pinned

    def upload(self, n: int, copy: Callable[[int, int, int, int], None], stream: int) -> torch.Tensor:
        """Copy the first `n` slots written to the device, in the order of `stream`, and return them there."""
        copy(self._to, self._fro, n * np.dtype(np.int32).itemsize, stream)
        return self._on_device

    def bring(self, n: int, mover: Mover, copy: Callable[[int, int, int, int], None], stream: int) -> torch.Tensor:
        """Bring the first `n` slots written to the device in the order of `stream`, and return them there.

        By a kernel where `mover` reads host memory: that does not stand in line for a copy engine.
        """
        if not mover.reads_host:
            return self.upload(n, copy, stream)
        near, far = (Side(words, 0, 1, 0, 0) for words in (self._on_device, self._pinned))
        mover.move(far, near, row_bytes=4, first_page=0, n_pages=n, n_planes=1, n_tokens=1, stream=stream)
        return self._on_device

    def first(self, mover: Mover, copy: Callable[[int, int, int, int], None], stream: int) -> torch.Tensor:
        """Bring slot 0 to the device as the slots of transfers will be brought there, and return it: before there is one."""
        self.write(np.zeros(1, dtype=np.int32))
        return self.bring(1, mover, copy, stream)

    def release(self, stream: Any) -> None:
        """Note that everything that reads the slots is on `stream`."""
        self._read.record(stream)
        self._reading = True
