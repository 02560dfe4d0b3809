"""Content of the pages of a device pool, made and proven where the pool is: by numpy on the processor, else on the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.memory.device_pattern import DevicePattern
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.replay.content import Mismatch, PageContent

__all__ = ["PoolContent"]

Words = npt.NDArray[np.uint64]


class PoolContent:
    """`PageContent` for a pool on any device. `on_device` says where pages are proven; by default where the pool is."""

    def __init__(self, pool: DevicePool, *, on_device: bool | None = None) -> None:
        geometry = pool.geometry
        self._content = PageContent(geometry.n_planes, geometry.chunk_bytes)
        on_device = pool.device.type != "cpu" if on_device is None else on_device
        self._pattern = DevicePattern(pool, self._content.base_words) if on_device else None
        self._planes = None if on_device else pool.planes_numpy()

    def fill(self, slots: Slots, seeds: Words) -> None:
        """Write the content of page i into slot `slots[i]`."""
        if self._pattern is not None:
            self._pattern.fill(slots, self._content.mixed(seeds))
        elif self._planes is not None:
            self._content.fill(self._planes, slots, seeds)

    def first_mismatch(self, slots: Slots, seeds: Words) -> Mismatch | None:
        """Return the first byte that is not what `fill` writes, in order of (page, plane, offset), or None."""
        if self._pattern is None:
            return None if self._planes is None else self._content.first_mismatch(self._planes, slots, seeds)
        wrong = self._pattern.first_wrong(slots, self._content.mixed(seeds))
        if wrong is None:
            return None
        return Mismatch(wrong.page, int(slots[wrong.page]), wrong.plane, wrong.offset, wrong.want, wrong.got)

    def close(self) -> None:
        """Let go of the pool."""
        self._planes = None
        self._pattern = None
