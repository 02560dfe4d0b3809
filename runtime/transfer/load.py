"""Matrix products to run beside transfers, and their time on the device's own clock."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from hicachectl.runtime.transfer.device import no_streams
from hicachectl.runtime.transfer.streams import wait_for_device

__all__ = ["ComputeLoad"]


class ComputeLoad:
    """`n` products of `size` x `size`; by default what lasts some milliseconds on one H200, and less on a processor.

    Device events time it where the device has them, else the host's clock with everything waited for.
    """

    def __init__(self, device: torch.device, size: int | None = None, n: int = 4) -> None:
        accelerated = device.type != "cpu"
        self.size = size if size is not None else (8192 if accelerated else 128)
        self.n = n
        dtype = torch.bfloat16 if accelerated else torch.float32
        self._device = device
        self._module: Any = torch.get_device_module(device) if accelerated else None
        self._timed = accelerated and no_streams(self._module) is None
        self._a = torch.randn(self.size, self.size, device=device, dtype=dtype)
        self._c = torch.empty_like(self._a)

    def seconds(self) -> float:
        """Run the products and return their time."""
        if not self._timed:
            self._wait()
            began = perf_counter()
            self._run()
            self._wait()
            return perf_counter() - began
        stream = self._module.current_stream(self._device)  # the products' own, whichever device is the thread's
        start, end = (self._module.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        self._run()
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _wait(self) -> None:
        if self._module is not None:
            wait_for_device(self._module, self._device)

    def _run(self) -> None:
        for _ in range(self.n):
            torch.matmul(self._a, self._a, out=self._c)
