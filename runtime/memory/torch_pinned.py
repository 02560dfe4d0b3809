"""Pinned memory as torch makes it: what a pool of ours is compared with."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from hicachectl.errors import CapacityError

__all__ = ["PinnedSample", "can_repeat", "pin_with_torch", "torch_cannot_pin"]

PinnedSample = tuple[float, float | None]
"""Seconds to allocate, and to give back (None where torch keeps what it has)."""


def torch_cannot_pin() -> str | None:
    """Say why torch pins nothing here; None when it does. Brings up the device, so that it counts in no sample."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device: it pins no memory"
    try:
        torch.zeros(1, device="cuda")
        torch.empty(4096, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return f"torch pins no memory: {str(error).splitlines()[0]}"
    return None


def can_repeat() -> bool:
    """Whether torch gives pinned memory back, so that a second sample is not served from what the first one left."""
    return _give_back() is not None


def pin_with_torch(n_bytes: int, *, clock: Callable[[], float] = perf_counter) -> PinnedSample:
    """Time `torch.empty(n_bytes, pin_memory=True)`, and giving it back. Raises CapacityError when torch cannot."""
    empty_cache = _give_back()
    began = clock()
    try:
        tensor = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise CapacityError(
            f"torch cannot pin {n_bytes} bytes", terms=(("bytes", n_bytes),), why=str(error).splitlines()[0],
            hint="make the pool smaller",
        ) from error  # fmt: skip
    made_s = clock() - began
    del tensor
    if empty_cache is None:
        return made_s, None
    began = clock()
    empty_cache()
    return made_s, clock() - began


def _give_back() -> Callable[[], object] | None:
    """Find torch's call that empties its cache of pinned memory; its name is private and has moved, so it is looked for."""
    for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):
        found: Callable[[], object] | None = getattr(torch._C, name, None)
        if found is not None:
            return found
    return None
