"""The backends of a CUDA device, put together from what this process has: runtime library, Triton, torch's allocator."""

from __future__ import annotations

import torch

from hicachectl.errors import UsageError
from hicachectl.runtime.layout import Backend
from hicachectl.runtime.transfer.backends import CopyBackend
from hicachectl.runtime.transfer.cuda_runtime import find_cuda_runtime
from hicachectl.runtime.transfer.movers import make_mover
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.strided import StridedBackend

__all__ = ["make_cuda_backend"]


def make_cuda_backend(kind: Backend, options: StagingOptions) -> CopyBackend:
    """Build `strided`, `batch`, `direct` or `uva` for this process's CUDA. Raises Unsupported or UsageError with the reason."""
    if kind is not Backend.STRIDED:
        raise UsageError(f"copy backend {kind.value} is not there yet", hint="use strided or torch")
    runtime = find_cuda_runtime()
    mover, _ = make_mover(options.kernel)
    return StridedBackend(runtime, mover, torch.cuda, options, allocate=_on_device, allocate_pinned=_pinned)


def _on_device(n_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(n_bytes, dtype=torch.uint8, device=device)


def _pinned(n_bytes: int) -> torch.Tensor:
    return torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=True)
