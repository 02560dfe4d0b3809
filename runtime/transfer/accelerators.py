"""The accelerators torch can use in this process, by torch name and PCI address: torch counts devices as it likes.

`CUDA_VISIBLE_DEVICES` and the driver's order of devices both change the numbers; the address is what the host's own tree has too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hicachectl.runtime.memory.pci_address import pci_address_of
from hicachectl.runtime.transfer.device import usable_accelerators

__all__ = ["TorchAccelerator", "address_in", "find_accelerators"]


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
    ask_driver: Callable[[str, int], str | None] = pci_address_of,
) -> tuple[TorchAccelerator, ...]:
    """List the accelerators torch can use here, in torch's order; none where it sees none. Brings up the device's driver.

    `ask_driver` returns the PCI address of a device by its kind and number, where torch's properties of it do not have one.
    """
    found = []
    for kind in kinds():
        module = module_of(kind)
        for index in range(module.device_count()):
            properties = module.get_device_properties(index) if hasattr(module, "get_device_properties") else None
            address = address_in(properties) or ask_driver(kind, index)
            reason = (
                None if address else f"neither torch nor a driver known here tells the PCI address of {kind}:{index}"
            )
            found.append(TorchAccelerator(f"{kind}:{index}", address, getattr(properties, "name", None), reason))
    return tuple(found)


def address_in(properties: Any) -> str | None:
    """Return the PCI address in torch's properties of a device, None where they have none. Pure."""
    numbers = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if not all(isinstance(number, int) for number in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
