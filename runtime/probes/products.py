"""Matrix products beside a transfer: what copies take from compute, on the device's own clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from hicachectl.runtime.transfer.device import no_streams
from hicachectl.runtime.transfer.streams import new_stream, wait_for_device

__all__ = ["Products"]


class Products:
    """Matrix products of `size` x `size`, in rows that the device runs without a pause.

    Device events time them where the device has them, else the host's clock.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.size = size
        module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._device = device
        self._module = module if module is not None and no_streams(module) is None else None
        self._beside: Any = None if self._module is None else new_stream(self._module, device, ahead=False)
        self._finish: Callable[[], object] = (
            (lambda: None) if module is None else partial(wait_for_device, module, device)
        )
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._a = torch.randn(size, size, device=device, dtype=dtype)
        self._c = torch.empty_like(self._a)

    def seconds_each(self, n: int = 3) -> float:
        """Time one product, after an unmeasured one."""
        _, found = self.in_a_row((1, n), {})
        return found / n

    def in_a_row(self, counts: Sequence[int], begin: Mapping[int, Callable[[], object]]) -> list[float]:
        """Run so many products one part after the other and return each part's seconds, on the device's own clock.

        `begin[i]` is called when the device begins part i, on a stream of its own: what it starts there waits for no product.
        """
        if self._module is None:
            found = []
            for i, n in enumerate(counts):
                begin.get(i, lambda: None)()
                began = perf_counter()
                self._run(n)
                self._finish()
                found.append(perf_counter() - began)
            return found
        events = [self._module.Event(enable_timing=True) for _ in range(len(counts) + 1)]
        stream = self._module.current_stream(self._device)  # the products' own, whichever device is the thread's
        events[0].record(stream)
        for n, event in zip(counts, events[1:], strict=True):
            self._run(n)
            event.record(stream)
        for i in sorted(begin):
            events[i].synchronize()
            # All parts are queued on the products' stream: a transfer asked for on it would stand behind them.
            with self._module.stream(self._beside):
                begin[i]()
        events[-1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]

    def _run(self, n: int) -> None:
        for _ in range(n):
            torch.matmul(self._a, self._a, out=self._c)
