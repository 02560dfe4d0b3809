"""The backends of a CUDA device, put together from what this process has: runtime library, Triton, torch's allocator."""

from __future__ import annotations

import torch

from hicachectl.runtime.layout import Backend
from hicachectl.runtime.transfer.backends import CopyBackend
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime, find_cuda_runtime
from hicachectl.runtime.transfer.movers import make_mover
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.straight import BatchBackend, DirectBackend
from hicachectl.runtime.transfer.streams import new_stream
from hicachectl.runtime.transfer.strided import StridedBackend
from hicachectl.runtime.transfer.uva import UvaBackend

__all__ = ["make_cuda_backend"]


def make_cuda_backend(kind: Backend, options: StagingOptions, device: torch.device) -> CopyBackend:
    """Build `strided`, `batch`, `direct` or `uva` for a CUDA device of this process. Raises Unsupported or UsageError with the reason."""
    runtime = find_cuda_runtime()
    if kind is Backend.BATCH:
        _try_batch(runtime, device)
        return BatchBackend(runtime, torch.cuda)
    if kind is Backend.DIRECT:
        return DirectBackend(runtime, torch.cuda)
    mover, _ = make_mover(options.kernel)
    make = StridedBackend if kind is Backend.STRIDED else UvaBackend
    return make(runtime, mover, torch.cuda, options, allocate=_on_device, allocate_pinned=_pinned)


def _try_batch(runtime: CudaRuntime, device: torch.device) -> None:
    """Find out, with 4 bytes on `device`, whether the driver can do what the library offers."""
    stream = new_stream(torch.cuda, device)
    with torch.cuda.stream(stream):
        to, fro = _on_device(4, device), _pinned(4)  # held until the copy is over
        runtime.try_batch(to.data_ptr(), fro.data_ptr(), stream.cuda_stream)
        stream.synchronize()


def _on_device(n_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(n_bytes, dtype=torch.uint8, device=device)


def _pinned(n_bytes: int) -> torch.Tensor:
    return torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=True)
