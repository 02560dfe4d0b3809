"""Write and check pages on their own device, where what a page holds follows from a number: word w is `base[w] ^ number`.

The words of a page are compared where they are: nothing crosses the link, so what is measured on it stays as it is.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.slots import Slots

__all__ = ["DevicePattern", "WrongByte"]

# What is made on the device at a time.
_BATCH_BYTES = 64 << 20


class WrongByte(NamedTuple):
    """A byte that is not what it must be: `page` is the position in the slots asked for."""

    page: int
    plane: int
    offset: int
    want: int
    got: int


class DevicePattern:
    """Pages of `pool` that follow from 64-bit numbers. Holds one page of words on the device, and a stream to check on."""

    def __init__(self, pool: DevicePool, base: NDArray[np.uint64]) -> None:
        self._pool = pool
        self._device = pool.device
        self._base = torch.from_numpy(base.view(np.int64).copy()).to(self._device)
        self._pages_a_batch = max(1, _BATCH_BYTES // max(1, base.nbytes))
        module: Any = None if self._device.type == "cpu" else torch.get_device_module(self._device)
        self._module = module if hasattr(module, "Stream") and hasattr(module, "stream") else None
        self._stream: Any = None if self._module is None else self._module.Stream(device=self._device)

    def fill(self, slots: Slots, numbers: NDArray[np.uint64]) -> None:
        """Write page i into `slots[i]`, on the current stream of the device."""
        for batch in self._batches(len(slots)):
            self._pool.tensor[:, self._index(slots[batch])] = self._expected(numbers[batch]).transpose(0, 1)

    def first_wrong(self, slots: Slots, numbers: NDArray[np.uint64]) -> WrongByte | None:
        """Return the first byte, by (page, plane, offset), that is not what `fill` writes, or None. Waits for its own stream."""
        for batch in self._batches(len(slots)):
            with nullcontext() if self._module is None else self._module.stream(self._stream):
                got = self._pool.tensor.index_select(1, self._index(slots[batch])).transpose(0, 1)
                want = self._expected(numbers[batch])
                wrong = got != want
                of_pages = wrong.flatten(1).any(1).cpu()
                if not bool(of_pages.any()):
                    continue
                page = int(of_pages.to(torch.uint8).argmax())
                plane, offset = (int(at) for at in wrong[page].nonzero()[0].cpu())
                values = (int(side[page, plane, offset]) for side in (want, got))
                return WrongByte(batch.start + page, plane, offset, *values)
        return None

    def _expected(self, numbers: NDArray[np.uint64]) -> torch.Tensor:
        geometry = self._pool.geometry
        mixed = torch.from_numpy(numbers.view(np.int64).copy()).to(self._device)
        words = (self._base[None, :] ^ mixed[:, None]).view(torch.uint8)[:, : geometry.page_bytes]
        return words.reshape(len(numbers), geometry.n_planes, geometry.chunk_bytes)

    def _index(self, slots: Slots) -> torch.Tensor:
        return torch.from_numpy(slots.astype(np.int64)).to(self._device)

    def _batches(self, n: int) -> list[slice]:
        step = self._pages_a_batch
        return [slice(at, min(at + step, n)) for at in range(0, n, step)]
