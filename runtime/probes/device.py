"""The device a probe runs on: picked, refused where the hardware is not there, and named with its driver."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hicachectl.errors import Unsupported
from hicachectl.runtime.transfer.device import pick_device, usable_accelerators
from hicachectl.runtime.transfer.usable import require_usable

__all__ = ["ProbeDevice", "find_probe_device", "no_device"]

_NVIDIA_DRIVER = Path("proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """A device by its torch name, why it is this one, and what drives it. What is not known is None; `reasons` says why."""

    name: str
    reason: str
    words: str | None
    """What the vendor calls the accelerator; None on the processor."""
    driver: str | None
    cuda: str | None
    torch: str
    kernel: str
    reasons: Mapping[str, str]

    @property
    def is_accelerator(self) -> bool:
        """Whether it has memory of its own."""
        return self.name != "cpu"


def find_probe_device(
    wanted: str,
    *,
    root: Path = Path("/"),
    accelerators: Callable[[], Sequence[str]] = usable_accelerators,
    module_of: Callable[[torch.device], Any] = torch.get_device_module,
) -> ProbeDevice:
    """Pick the device (auto: an accelerator where torch can use one) and name it. Reads one file below `root`.

    `accelerators` lists the torch types that can be used, `module_of` gives torch's module of one. Raises UsageError for what
    names no device, Unsupported where torch cannot use the one that is named.
    """
    usable = list(accelerators())
    pick = pick_device(wanted, lambda: usable)
    require_usable(pick.name, usable, where="--device")
    told = {"torch": torch.__version__, "kernel": f"{platform.system()} {platform.release()}"}
    if pick.type == "cpu":
        none = "the processor needs none"
        reasons = {"accelerator": pick.reason, "driver": none, "cuda": none}
        return ProbeDevice("cpu", pick.reason, None, None, None, reasons=reasons, **told)
    device = torch.device(pick.name)
    module = module_of(device)
    _require_index(device, module, wanted)
    words, driver, cuda, why = _words(module, device), _driver(root), torch.version.cuda, dict[str, str]()
    if words is None:
        why["accelerator"] = f"torch's module of {device.type} has no name for it"
    if driver is None:
        why["driver"] = f"no /{_NVIDIA_DRIVER}"
    if cuda is None:
        why["cuda"] = "this torch was built without CUDA"
    return ProbeDevice(pick.name, pick.reason, words, driver, cuda, reasons=why, **told)


def no_device(reason: str) -> ProbeDevice:
    """Return the processor for a probe that moves nothing to a device; `reason` says so."""
    return replace(find_probe_device("cpu"), reason=reason)


def _require_index(device: torch.device, module: Any, wanted: str) -> None:
    count = module.device_count() if hasattr(module, "device_count") else 1
    if device.index is not None and device.index >= count:
        raise Unsupported(
            f"there is no device {wanted}: torch counts {count} of {device.type}, from 0",
            where="--device",
            hint=f"name one of {', '.join(f'{device.type}:{i}' for i in range(count)) or 'cpu'}",
        )


def _words(module: Any, device: torch.device) -> str | None:
    name = getattr(module, "get_device_name", None)
    return None if name is None else str(name(device))


def _driver(root: Path) -> str | None:
    """Return the version in NVIDIA's driver file, or its first line; others have no such file."""
    try:
        line = (root / _NVIDIA_DRIVER).read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()
    except (OSError, IndexError):
        return None
    found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", line)
    return f"NVIDIA {found.group()}" if found else line
