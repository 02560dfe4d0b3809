"""What copies are measured with: pools in device and registered memory, scattered slots, plain copies as the peak, checks of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from hicachectl.errors import HicacheError, InvariantBroken, Unsupported
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.cuda_registrar import registrar_for
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool, map_pool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.transfer.backends import Direction, make_backend
from hicachectl.runtime.transfer.device import DeviceOrder, device_order, no_streams
from hicachectl.runtime.transfer.engine import Transfer, TransferEngine
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.streams import wait_for_device

__all__ = ["Case", "Rig", "SideStreams", "WrongBytes", "backends_here", "finish", "synchronize"]

WAIT_S = 120.0


class WrongBytes(InvariantBroken):
    """A page does not hold what it must."""


@dataclass(frozen=True, slots=True)
class Case:
    """What moves: `n_pages` pages of a geometry, between pools twice as large, in a layout."""

    geometry: KVGeometry
    n_pages: int
    layout: Layout

    @property
    def n_bytes(self) -> int:
        """Bytes of one transfer."""
        return self.n_pages * self.geometry.page_bytes

    @property
    def name(self) -> str:
        """What the rows are called."""
        g = self.geometry
        return f"{g.name} {self.layout.value}, {self.n_pages} pages of {g.page_tokens} tokens"


class Rig:
    """Pools of a case with random bytes on the host, and slots drawn once: scattered on both sides, none twice.

    Takes memory for 2 x pages + 8 slots on the device, and as much on the host, registered where the device is an accelerator
    whose driver is known; `host_memory` says what it is made of and where it lies. Raises what `map_pool` and `DevicePool` raise.
    """

    def __init__(
        self,
        case: Case,
        device: torch.device,
        seed: int = 5,
        *,
        host_memory: MappingSpec = MappingSpec(),  # noqa: B008 - frozen
    ) -> None:
        self.case, self.device = case, device
        n_slots = 2 * case.n_pages + 8
        self.device_pool = DevicePool(case.geometry, n_slots, device)
        # others than cuda: what registers for them is not known here
        spec = replace(host_memory, must_register=host_memory.must_register or device.type == "cuda")
        registrar = registrar_for(device.type, device.index or 0)
        memory = map_pool(case.geometry, n_slots, case.layout, spec, registrar=registrar)
        self.host_pool = HostPool(case.geometry, n_slots, case.layout, mapping=memory)
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.device_pool.tensor.random_(0, 256)
        self.host_pool.tensor.view(-1).copy_(self.device_pool.tensor.view(-1))
        self.device_pool.tensor.zero_()
        up, down = rng.permutation(n_slots).astype(np.int32), rng.permutation(n_slots).astype(np.int32)
        n = case.n_pages
        self.load_slots: tuple[Slots, Slots] = (up[:n], down[:n])
        """Host and device slots of a load."""
        self.backup_slots: tuple[Slots, Slots] = (down[n : 2 * n], up[n : 2 * n])
        """Device and host slots of a backup: no slot of a load."""

    def close(self) -> None:
        """Give everything back."""
        synchronize(self.device)
        self.host_pool.close()
        self.device_pool.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def engine(
        self,
        kind: Backend,
        groups: tuple[int, ...] | None,
        options: StagingOptions,
        *,
        orders: Callable[[torch.device], DeviceOrder] = device_order,
        watch: Callable[[Transfer, str], None] | None = None,
        backend: Any = None,
    ) -> Iterator[tuple[TransferEngine, Any]]:
        """Open an engine and its backend, warmed up by one transfer each way; bytes are checked then and at the end."""
        backend = make_backend(kind, self.case.layout, self.device, options) if backend is None else backend
        engine = TransferEngine(self.device_pool, self.host_pool, backend, groups, orders=orders, watch=watch)
        try:
            self.check(engine)
            yield engine, backend
            self.check(engine)
        finally:
            engine.close()

    def load(self, engine: TransferEngine, n_pages: int | None = None) -> Transfer:
        """Ask for a load of the first `n_pages`."""
        host, device = self.load_slots
        return engine.load(host[:n_pages], device[:n_pages])

    def backup(self, engine: TransferEngine, n_pages: int | None = None) -> Transfer:
        """Ask for a backup of the first `n_pages`."""
        device, host = self.backup_slots
        return engine.backup(device[:n_pages], host[:n_pages])

    def ask(self, engine: TransferEngine, direction: Direction, n_pages: int | None = None) -> Transfer:
        """Ask for a load or a backup of the first `n_pages`."""
        return self.load(engine, n_pages) if direction is Direction.LOAD else self.backup(engine, n_pages)

    def check(self, engine: TransferEngine) -> None:
        """Load and back up once at the same time, and compare every byte of every page. Raises WrongBytes."""
        host, device = self.load_slots
        fro, to = self.backup_slots
        for slot in fro.tolist():
            self.device_pool.tensor[:, slot].random_(0, 256)
        for slot in device.tolist():
            self.device_pool.tensor[:, slot].zero_()
        synchronize(self.device)
        transfers = (self.load(engine), self.backup(engine))
        for transfer in transfers:
            finish(transfer)
        for on_host, on_device in (*zip(host, device, strict=True), *zip(to, fro, strict=True)):
            page = torch.from_numpy(self.host_pool.read_page(int(on_host))).to(self.device)
            if not torch.equal(page, self.device_pool.tensor[:, int(on_device)]):
                raise WrongBytes(
                    f"{self.case.name}: host slot {on_host} and device slot {on_device} differ",
                    hint="report it with this line: a copy was wrong",
                )

    def plain(self, n_bytes: int, *, up: bool) -> Callable[[], None]:
        """Return one contiguous copy of `n_bytes` between the pools: start it with the call, on the current stream.

        It overwrites the end of the target's pool; `check` writes what it compares.
        """
        host, device = self.host_pool.tensor.view(-1), self.device_pool.tensor.view(-1)
        near, far = device[-n_bytes:], host[-n_bytes:]
        to, fro = (near, far) if up else (far, near)
        if self.device.type == "cpu":  # torch would share it out to threads, and wait for the last on a busy machine
            return partial(np.copyto, to.numpy(), fro.numpy())

        def start() -> None:
            to.copy_(fro, non_blocking=True)

        return start


def finish(transfer: Transfer) -> None:
    """Wait for a transfer and raise what went wrong with it. Raises Unsupported for one that takes more than WAIT_S."""
    if not transfer.wait(WAIT_S):
        raise Unsupported(
            f"a {transfer.direction.value} of {transfer.n_pages} pages took more than {WAIT_S:.0f} s",
            hint="move fewer pages",
        )
    if transfer.error is not None:
        raise transfer.error


def synchronize(device: torch.device) -> None:
    """Wait for everything on the device."""
    if device.type != "cpu":
        wait_for_device(torch.get_device_module(device), device)


class SideStreams:
    """Two streams of the device to run plain copies on; without streams (the processor) the calls run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._module = module
        self._streams: list[Any] = []
        if module is not None and no_streams(module) is None:
            self._streams = [module.Stream(device) for _ in range(2)]

    def seconds(self, *starts: Callable[[], None]) -> float:
        """Time copies that run at the same time, from the first call to the end of the last copy."""
        began = perf_counter()
        if not self._streams:
            for start in starts:
                start()
            synchronize(self._device)
            return perf_counter() - began
        for stream, start in zip(self._streams, starts, strict=False):
            with self._module.stream(stream):
                start()
        for stream in self._streams:
            stream.synchronize()
        return perf_counter() - began


def backends_here(layout: Layout, device: torch.device, options: StagingOptions) -> dict[Backend, str | None]:
    """Say of every copy backend why it cannot run here, or None when it can."""
    found: dict[Backend, str | None] = {}
    for kind in Backend:
        try:
            make_backend(kind, layout, device, options)
            found[kind] = None
        except HicacheError as error:
            found[kind] = str(error)
    return found
