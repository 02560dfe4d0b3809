"""Whether torch can use a device in this process, and if not, what is missing: one answer for every command."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hicachectl.device_names import DEVICE_WANTED, nearest_device, require_device_name
from hicachectl.errors import Unsupported, UsageError
from hicachectl.runtime.transfer.device import usable_accelerators

__all__ = ["require_usable", "why_unusable"]


def require_usable(device: str, usable: Sequence[str] | None = None, *, where: str = "--device or run.device") -> None:
    """Refuse a device, by its torch name, that torch cannot use here; `usable` are the types it can.

    Raises UsageError for what names no device of any host, Unsupported for one that this host or this torch lacks.
    """
    require_device_name(device, where=where)
    kind = device.partition(":")[0]
    found = list(usable_accelerators() if usable is None else usable)
    if kind in ("cpu", *found):
        return
    _require_known(kind, found, where)
    why, hint = why_unusable(kind, ["cpu", *found], torch.__version__, torch.version.cuda or torch.version.hip)
    raise Unsupported(f"torch cannot use device {device} here", where=where, why=why, hint=hint)


def why_unusable(kind: str, usable: Sequence[str], version: str, built_for: str | None) -> tuple[str, str]:
    """Return why torch cannot use a type of device, and what to do. Pure. `built_for`: the CUDA or ROCm version, None: neither.

    >>> why_unusable("cuda", ["cpu"], "2.13.0+cpu", None)[0]
    'this torch (2.13.0+cpu) was built without CUDA'
    >>> why_unusable("xpu", ["cpu"], "2.13.0+cpu", None)[0]
    'torch can use cpu in this process'
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
    return (
        f"torch can use {', '.join(usable)} in this process",
        f"install the torch of the vendor of {kind} into this environment (README, On an accelerator), or give --device cpu",
    )


def _require_known(kind: str, usable: Sequence[str], where: str) -> None:
    """Refuse a type that this torch has no word for: a typing error, or the type of a package that is not installed. Raises UsageError."""
    try:
        torch.device(kind)
    except RuntimeError:
        near = nearest_device(kind, tuple(usable))
        meant = f"did you mean {near!r}? If not, give" if near else "give"
        raise UsageError(
            f"torch knows no device {kind!r}",
            where=where,
            why=f"torch can use {', '.join(['cpu', *usable])} in this process, and has no type of that name",
            hint=f"{meant} {DEVICE_WANTED}; a vendor's own name is known once its torch package is installed in this environment",
        ) from None
