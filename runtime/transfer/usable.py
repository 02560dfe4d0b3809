"""Whether torch can use a device in this process, and if not, what is missing: one answer for every command."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import torch

from hicachectl.errors import Unsupported
from hicachectl.runtime.transfer.device import usable_accelerators

__all__ = ["require_usable", "why_unusable"]


def require_usable(device: str, usable: Sequence[str] | None = None, *, where: str = "--device or run.device") -> None:
    """Refuse a device, by its torch name, that torch cannot use here; `usable` are the types it can. Raises Unsupported."""
    kind = device.partition(":")[0]
    found = list(usable_accelerators() if usable is None else usable)
    if kind in ("cpu", *found):
        return
    why, hint = why_unusable(kind, ["cpu", *found], torch.__version__, torch.version.cuda or torch.version.hip)
    raise Unsupported(f"torch cannot use device {device} here", where=where, why=why, hint=hint)


def why_unusable(kind: str, usable: Sequence[str], version: str, built_for: str | None) -> tuple[str, str]:
    """Return why torch cannot use a type of device, and what to do. Pure. `built_for`: the CUDA or ROCm version, None: neither.

    >>> why_unusable("cuda", ["cpu"], "2.13.0+cpu", None)[0]
    'this torch (2.13.0+cpu) was built without CUDA'
    >>> why_unusable("cud", ["cpu"], "2.13.0+cpu", None)[1][:36]
    "did you mean 'cuda'? If not, install"
    """
    if kind == "cuda" and built_for is None:
        return (
            f"this torch ({version}) was built without CUDA",
            "install a torch that was built with it into this environment (README, On an accelerator), or give --device cpu",
        )
    if kind == "cuda":
        return (
            f"this torch ({version}, built for {built_for}) sees no such accelerator: no driver, no device file that may be opened, or "
            "CUDA_VISIBLE_DEVICES hides it",
            "look at nvidia-smi or the vendor's tool in this very environment, or give --device cpu",
        )
    near = get_close_matches(kind, {"auto", "cuda", *usable}, n=1, cutoff=0.7)
    meant = f"did you mean {near[0]!r}? If not, " if near else ""
    return (
        f"torch can use {', '.join(usable)} in this process",
        f"{meant}install the torch of the vendor of {kind} into this environment (README, On an accelerator), or give --device cpu",
    )
