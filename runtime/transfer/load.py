"""Matrix products to run beside transfers, and their time on the device's own clock."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

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
        self._module: Any = torch.get_device_module(device) if accelerated else None
        self._a = torch.randn(self.size, self.size, device=device, dtype=dtype)
        self._c = torch.empty_like(self._a)

    def seconds(self) -> float:
        """Run the products and return their time."""
        if self._module is None:
            began = perf_counter()
            self._run()
            return perf_counter() - began
        start, end = (self._module.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _run(self) -> None:
        for _ in range(self.n):
            torch.matmul(self._a, self._a, out=self._c)
