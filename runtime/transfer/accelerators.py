"""The accelerators torch can use in this process, by torch name and PCI address: torch counts devices as it likes.

`CUDA_VISIBLE_DEVICES` and the driver's order of devices both change the numbers; the address is what the host's own tree has too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hicachectl.errors import HicacheError
from hicachectl.runtime.transfer.cuda_runtime import find_cuda_runtime
from hicachectl.runtime.transfer.device import usable_accelerators

__all__ = ["TorchAccelerator", "find_accelerators", "normal_address", "pci_address"]


@dataclass(frozen=True, slots=True)
class TorchAccelerator:
    """One device: its torch name (`cuda:0`), PCI address and model; `reason` says why the address is not known."""

    name: str
    address: str | None
    model: str | None = None
    reason: str | None = None


def find_accelerators(
    kinds: Callable[[], Sequence[str]] = usable_accelerators,
    module_of: Callable[[str], Any] = lambda kind: torch.get_device_module(kind),
    bus_id: Callable[[int], str] | None = None,
) -> tuple[TorchAccelerator, ...]:
    """List the accelerators torch can use here, in torch's order; none where it sees none. Brings up the device's driver.

    `bus_id` returns the PCI address of a CUDA device by its number and may raise HicacheError: the CUDA runtime is asked where
    torch's properties of a device do not have it.
    """
    ask = bus_id or (lambda index: find_cuda_runtime().pci_bus_id(index))
    found = []
    for kind in kinds():
        module = module_of(kind)
        for index in range(module.device_count()):
            properties = module.get_device_properties(index) if hasattr(module, "get_device_properties") else None
            address, reason = pci_address(properties), None
            if address is None:
                address, reason = _asked(ask, index) if kind == "cuda" else (None, f"torch tells no address of {kind}")
            found.append(TorchAccelerator(f"{kind}:{index}", address, getattr(properties, "name", None), reason))
    return tuple(found)


def pci_address(properties: Any) -> str | None:
    """Return the address in torch's properties of a device, None where they have none. Pure."""
    numbers = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if not all(isinstance(number, int) for number in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def normal_address(text: str) -> str:
    """Write an address as the kernel does: NVIDIA's tools write eight digits of domain, and capitals. Pure.

    >>> normal_address("00000000:B7:00.0"), normal_address("10000:01:00.0")
    ('0000:b7:00.0', '10000:01:00.0')
    """
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def _asked(ask: Callable[[int], str], index: int) -> tuple[str | None, str | None]:
    try:
        return normal_address(ask(index)), None
    except (HicacheError, AttributeError) as error:
        return None, f"neither torch nor the CUDA runtime tells the address: {error}"
