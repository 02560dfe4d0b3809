"""The host tier: one range of host memory, in one of three layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Layout, PoolMap
from hicachectl.runtime.memory.attaching import Source
from hicachectl.runtime.memory.mapping import NOBODY_REGISTERS, Mapping, Step, attach_memory, map_memory, reserve
from hicachectl.runtime.memory.numa import Placement, sample_placement
from hicachectl.runtime.memory.pool_label import pool_label
from hicachectl.runtime.memory.register import NoRegistrar, Refusal, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import MappingReport
from hicachectl.runtime.memory.syscalls import MemoryCalls

__all__ = ["HostPool", "MakeHost", "map_pool", "slot_boundary_bytes"]


class MakeHost(Protocol):
    """What makes the memory of a host pool: `map_pool`, or it with a fault in one of its seams."""

    def __call__(
        self,
        geometry: KVGeometry,
        n_slots: int,
        layout: Layout,
        spec: MappingSpec,
        *,
        registrar: Registrar | NoRegistrar,
    ) -> Mapping: ...


class HostPool:
    """Memory of `n_slots` pages on the host, uint8, in the shape of `layout`.

    `mapping` is the range (`map_pool` makes one that is populated and registered); the pool owns it and closes it. Without one,
    `reserve_memory` makes it. What it got is in `report`. Who may touch which slot is the allocator's business, not the
    pool's. Raises UsageError without slots, CapacityError when there is no memory.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        n_slots: int,
        layout: Layout,
        *,
        mapping: Mapping | None = None,
        reserve_memory: Callable[[int], Mapping] = reserve,
    ) -> None:
        if n_slots < 1:
            raise UsageError(f"host pool of {n_slots} slots", hint="give at least 1 slot")
        self.geometry = geometry
        self.n_slots = n_slots
        self.layout = layout
        self.map = PoolMap(layout, geometry, n_slots)
        self._mapping = reserve_memory(self.map.n_bytes) if mapping is None else mapping
        if self._mapping.buffer.size < self.map.n_bytes:
            raise InvariantBroken(
                f"a mapping of {self._mapping.buffer.size} bytes for a host pool of {self.map.n_bytes}",
                where="host pool",
            )
        self._array: NDArray[np.uint8] | None = self._mapping.buffer[: self.map.n_bytes].reshape(self.map.shape)

    @classmethod
    def attach(
        cls,
        geometry: KVGeometry,
        n_slots: int,
        layout: Layout,
        source: Source,
        *,
        spec: MappingSpec = MappingSpec(),  # noqa: B008 - frozen
        registrar: Registrar | NoRegistrar = NOBODY_REGISTERS,
    ) -> HostPool:
        """Map the pool that another process made (`map_pool`, kind memfd or tmpfs), and register it for this process.

        `source` is the path of its file, or the descriptor of its memfd (`shared_fd`) as it was handed over. The pool must be of
        the same geometry, layout and slots: its label is compared. Closing gives this process's part back alone. Who may
        touch which slot is for the processes to agree on. Raises what `mapping.attach_memory` raises.
        """
        label = pool_label(geometry, n_slots, layout)
        spec = replace(spec, slot_bytes=slot_boundary_bytes(geometry, layout), label=label)
        n_bytes = PoolMap(layout, geometry, n_slots).n_bytes
        return cls(geometry, n_slots, layout, mapping=attach_memory(source, n_bytes, spec, registrar=registrar))

    @property
    def shared_fd(self) -> int | None:
        """The descriptor of shared memory, to hand over to a process that attaches; None for private memory and after close()."""
        return self._mapping.fd

    @property
    def array(self) -> NDArray[np.uint8]:
        """The whole pool in the layout's own shape. Raises InvariantBroken after close()."""
        if self._array is None:
            raise InvariantBroken("the host pool is closed", where="host pool")
        return self._array

    @property
    def tensor(self) -> torch.Tensor:
        """The same memory as a torch tensor."""
        return torch.from_numpy(self.array)

    @property
    def report(self) -> MappingReport:
        """What the pool's memory got, step by step."""
        return self._mapping.report

    @property
    def steps(self) -> tuple[Step, ...]:
        return self._mapping.steps

    @property
    def registrations(self) -> tuple[tuple[int, int], ...]:
        """Ranges known to the device's driver, [start, end) in bytes from the start: no single copy may span two of them."""
        return self._mapping.report.registrations

    def placement(self) -> Placement:
        """Say on which NUMA nodes the pool's pages lie, from a sample, as the kernel reports it."""
        return sample_placement(self.array.ctypes.data, self.n_bytes, alone=True)

    @property
    def n_bytes(self) -> int:
        return self.map.n_bytes

    @property
    def page_is_contiguous(self) -> bool:
        """Whether a page's bytes lie together, so that storage can read and write them in place."""
        return self.layout.page_is_contiguous

    def layer_view(self) -> NDArray[np.uint8]:
        """Return the pool layer by layer, [plane, slot, token, byte], without a copy."""
        return self.array.transpose(self.map.layer_order)

    def page_bytes_view(self, slot: int) -> NDArray[np.uint8]:
        """Return a page's bytes in place, 1-D, in the order of the layout (`layout.object_layout`).

        Writing to it writes to the pool. Raises InvariantBroken when the layout scatters a page, or outside the pool.
        """
        if not self.page_is_contiguous:
            raise InvariantBroken(f"a page is not contiguous in layout {self.layout.value}", where=f"host slot {slot}")
        self._require(slot)
        page: NDArray[np.uint8] = self.array[slot].reshape(-1)
        return page

    def read_page(self, slot: int) -> NDArray[np.uint8]:
        """Copy a page out, [plane, chunk byte], whatever the layout. Raises InvariantBroken outside the pool."""
        self._require(slot)
        page = np.ascontiguousarray(self.layer_view()[:, slot])
        if np.shares_memory(page, self.array):
            page = page.copy()
        return page.reshape(self.geometry.n_planes, self.geometry.chunk_bytes)

    def write_page(self, slot: int, data: NDArray[np.uint8] | bytes | memoryview) -> None:
        """Copy a page in, given plane by plane ([plane, chunk byte] or its bytes), whatever the layout.

        Raises InvariantBroken when `data` is not a page's worth of bytes, or outside the pool.
        """
        self._require(slot)
        page = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        if page.dtype != np.uint8 or page.size != self.geometry.page_bytes:
            raise InvariantBroken(
                f"write of {page.nbytes} bytes of {page.dtype}, a page has {self.geometry.page_bytes} of uint8",
                where=f"host slot {slot}",
            )
        shape = (self.geometry.n_planes, self.geometry.page_tokens, self.geometry.token_plane_bytes)
        self.layer_view()[:, slot] = page.reshape(shape)

    def close(self) -> tuple[Refusal, ...]:
        """Unregister the memory and give it back, as soon as nobody holds a view of it. No copy may be under way. May be called twice.

        Returns what the driver refused to take back: that memory stays mapped (`Mapping.close`).
        """
        self._array = None
        return self._mapping.close()

    def _require(self, slot: int) -> None:
        if not 0 <= slot < self.n_slots:
            raise InvariantBroken(f"slot {slot} outside [0, {self.n_slots})", where="host pool")


def slot_boundary_bytes(geometry: KVGeometry, layout: Layout) -> int:
    """Return the distance of slot boundaries in a pool: a page where the layout keeps it together, else a chunk. Pure.

    >>> from hicachectl.runtime.geometry import preset
    >>> slot_boundary_bytes(preset("mla-78", 64), Layout.LAYER_FIRST)
    73728
    """
    return geometry.page_bytes if layout.page_is_contiguous else geometry.chunk_bytes


def map_pool(
    geometry: KVGeometry,
    n_slots: int,
    layout: Layout,
    spec: MappingSpec,
    *,
    registrar: Registrar | NoRegistrar,
    calls: MemoryCalls | None = None,
) -> Mapping:
    """Make the memory of a host pool in the order of `mapping.map_memory`, registrations ending where its slots end.

    `registrar` and `calls` are the seams of `map_memory`. Raises what it raises.
    """
    label = pool_label(geometry, n_slots, layout)
    spec = replace(spec, slot_bytes=slot_boundary_bytes(geometry, layout), label=label)
    return map_memory(PoolMap(layout, geometry, n_slots).n_bytes, spec, registrar=registrar, calls=calls)
