"""What a machine's lists leave open: a list that was not read, and functions that may be accelerators. Pure.

An empty list says "none" only where it was listed. `None` as an answer here means that nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Machine, PciDevice, SlotKind
from hicachectl.tuning.host.uplinks import is_unidentified

__all__ = [
    "DEVICES",
    "NODES",
    "is_gone",
    "maybe_accelerators",
    "why_no_accelerators",
    "why_no_devices",
    "why_no_nodes",
    "why_unidentified",
]

NODES, DEVICES = "/sys/devices/system/node", "/sys/bus/pci/devices"
_DISPLAY = ("0300", "0380")
"""Classes that are an accelerator's or a monitor's, by vendor (`accelerators.py` names the vendors)."""


def why_no_nodes(machine: Machine) -> str | None:
    """Say why nothing is known of any NUMA node, with the folder; None where something is. Pure.

    A running kernel with a node folder has at least one node: an empty folder is one that was hidden.
    """
    facts = (fact for n in machine.numa.nodes for fact in (n.cpus, n.memory_total_bytes, n.distances))
    if any(fact.is_known for fact in facts):
        return None
    return _why_none(machine.numa.listed.get("nodes"), NODES)


def why_no_devices(machine: Machine) -> str | None:
    """Say why nothing is known of any PCI function, with the folder; None where something is, or where there is none. Pure."""
    facts = (fact for d in machine.devices for fact in (d.class_code, d.vendor, d.device))
    listed = machine.listed.get("devices")
    if any(fact.is_known for fact in facts) or (listed is not None and listed.value == 0):
        return None
    return _why_none(listed, DEVICES)


def maybe_accelerators(machine: Machine) -> tuple[PciDevice, ...]:
    """Return the functions whose class or ids were not read and that may be accelerators, as listed. Pure."""
    return tuple(device for device in machine.devices if _may_be(device))


def why_no_accelerators(machine: Machine) -> str | None:
    """Say why an empty list of accelerators does not mean that there is none; None where it does. Pure."""
    missing = why_no_devices(machine)
    if missing is not None:
        return missing
    open_ = maybe_accelerators(machine)
    return why_unidentified(open_) if open_ else None


def is_gone(device: PciDevice) -> bool:
    """Whether a listed function left the bus: its registers read all ones. Pure."""
    reason = device.config.readable_bytes.reason or device.config.port_type.reason or ""
    return device.vendor.value == "ffff" or "all ones" in reason


def why_unidentified(devices: Sequence[PciDevice]) -> str:
    """Say what was not read of functions that may be accelerators: "vendor of 6 display devices unreadable (...)". Pure."""
    groups: dict[tuple[str, str, str], int] = {}
    for device in devices:
        missing, fact = next(_missing(device))
        display = (device.class_code.value or "")[:4] in _DISPLAY
        key = (missing, "display device" if display else "function", fact.reason or "")
        groups[key] = groups.get(key, 0) + 1
    return ", ".join(
        f"{missing} of {n} {what}{'' if n == 1 else 's'} unreadable ({reason})"
        for (missing, what, reason), n in groups.items()
    )


def _may_be(device: PciDevice) -> bool:
    if device.kind != SlotKind.OTHER:
        return False
    display = (device.class_code.value or "")[:4] in _DISPLAY and not device.vendor.is_known
    return display or is_unidentified(device)


def _missing(device: PciDevice) -> Iterator[tuple[str, Fact[str]]]:
    named = (("class", device.class_code), ("vendor", device.vendor), ("device id", device.device))
    return ((name, fact) for name, fact in named if not fact.is_known)


def _why_none(listed: Fact[int] | None, path: str) -> str:
    """Say why a list has nothing to judge: not read, empty, or of things that could not be read. Pure."""
    if listed is None or listed.value is None:
        return f"{listed.reason if listed else 'not read'} ({path})"
    return f"{'nothing' if listed.value == 0 else f'{listed.value} listed, none readable'} ({path})"
