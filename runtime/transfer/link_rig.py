"""Registered host memory on chosen nodes and device memory, and flows between them: what `probes.link` loads the links with."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from hicachectl.errors import CapacityError
from hicachectl.runtime.memory.cuda_registrar import registrar_for
from hicachectl.runtime.memory.mapping import Mapping, map_memory
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import MappingReport
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.runtime.transfer.device import device_error
from hicachectl.runtime.transfer.torch_flow import TorchFlow
from hicachectl.units import format_bytes

__all__ = ["TorchRig"]

_KEPT: list[object] = []
"""Memory of devices that were lost in the middle of a copy: one that still writes must not write into what is somebody else's."""


class TorchRig:
    """Memory for copies of at most `most_bytes`, made when a flow first needs it. `close` gives it all back.

    Two regions of host memory a (device, node), one a direction, bound to the node; two buffers on each device. A flow walks over
    `region_bytes` of the host's memory at least, so that caches hold little of it. `calls`,
    `register_with`, `module_of` and `clock` are the seams of tests.
    """

    def __init__(
        self,
        most_bytes: int,
        *,
        region_bytes: int,
        calls: MemoryCalls | None = None,
        register_with: Callable[[str, int], Registrar | NoRegistrar] = registrar_for,
        module_of: Callable[[torch.device], Any] = torch.get_device_module,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._most_bytes = most_bytes
        self._region_bytes = max(most_bytes, region_bytes)
        self._calls, self._register_with, self._module_of, self._clock = calls, register_with, module_of, clock
        self._memory: dict[tuple[str, int | None], Mapping] = {}
        self._buffers: dict[str, torch.Tensor] = {}
        self._flows: list[TorchFlow] = []

    def flow(self, device: str, node: int | None, size_bytes: int, *, up: bool) -> TorchFlow:
        """Return a flow of copies between a device (torch name) and memory on a node, None for wherever it comes from.

        Raises CapacityError when host or device lack the memory, Vanished when the device is gone, UsageError or Unsupported
        as `TorchFlow` does.
        """
        host = torch.from_numpy(self._mapping(device, node).buffer)
        half = self._region_bytes
        torch_device = torch.device(device)
        made = TorchFlow(
            host[:half] if up else host[half:],
            self._buffer(device)[0 if up else 1],
            size_bytes,
            up=up,
            module=self._module_of(torch_device),
            clock=self._clock,
        )
        self._flows.append(made)
        return made

    def memory(self, device: str, node: int | None) -> MappingReport:
        """Say what the host memory of a device and node is: bound, where its pages lie, registered. Makes it when it is not there."""
        return self._mapping(device, node).report

    def release(self) -> None:
        """Unregister and give back all host memory. No flow may be under way, and none made before may be used again.

        Where a device was lost everything stays as it is until the process ends.
        """
        if any(flow.lost for flow in self._flows):
            _KEPT.append((dict(self._memory), dict(self._buffers), tuple(self._flows)))
            self._memory.clear()
            self._buffers.clear()
        self._flows.clear()
        while self._memory:
            self._memory.popitem()[1].close()

    def close(self) -> None:
        """Give back the memory of both sides."""
        self.release()
        self._buffers.clear()

    def _mapping(self, device: str, node: int | None) -> Mapping:
        key = (device, node)
        if key not in self._memory:
            placed = None if node is None else Placed(PlacementMode.LOCAL, (node,))
            kind, _, index = device.partition(":")
            registrar = self._register_with(kind, int(index or 0))
            spec = MappingSpec(placed=placed)
            self._memory[key] = map_memory(2 * self._region_bytes, spec, registrar=registrar, calls=self._calls)
        return self._memory[key]

    def _buffer(self, device: str) -> torch.Tensor:
        if device not in self._buffers:
            try:
                self._buffers[device] = torch.zeros(2, self._most_bytes, dtype=torch.uint8, device=device)
            except torch.OutOfMemoryError as error:
                raise CapacityError(
                    f"{format_bytes(2 * self._most_bytes)} of device memory cannot be had",
                    terms=(("two buffers of", self._most_bytes),),
                    where=device,
                    why=(str(error).splitlines() or [""])[0],
                    hint="stop what uses the device, or give a smaller --size",
                ) from error
            except RuntimeError as error:
                raise device_error(error) from error
        return self._buffers[device]
