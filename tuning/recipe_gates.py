"""What stands between a recipe and a write: guests, privileges, root ports that reorder wrongly, isolation. Pure.

Each gate returns a verdict: skip or report-only with its reason and remedy, or None where it is open.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.model import Machine, PciDevice
from hicachectl.tuning.host.pcie_caps import ASLEEP, GONE, NEEDS_ROOT
from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.judge_ordering import RO_FLAGGED_PORTS
from hicachectl.tuning.recipe import REGISTER_METHODS, Precheck, Recipe
from hicachectl.tuning.recipe_match import Place
from hicachectl.tuning.sight import Door
from hicachectl.tuning.target import Method, Target, Value

__all__ = ["Verdict", "because", "hidden", "may_write", "no_value", "read_only", "relaxed_ordering"]

_RELAXED_ORDERING = 0x0010
_STUBS = ("pci-stub", "pciback", "xen-pciback")
"""Drivers that only keep a function for a guest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of a place; `code` names a page where the reason has one."""

    kind: ItemKind
    reason: str | None = None
    remedy: str | None = None
    code: str | None = None
    notes: tuple[str, ...] = ()


def because(kind: ItemKind, reason: str, remedy: str, code: str | None = None) -> Verdict:
    """Return a verdict with its reason and remedy. Pure."""
    return Verdict(kind, reason, remedy, code)


def hidden(recipe: Recipe, machine: Machine, place: Place | None = None, *, in_guest: bool = False) -> Verdict | None:
    """Say what keeps the hardware from this process: a hypervisor, a container, a guest that owns the device. Pure.

    What a guest sees of a register may be made up, and a write may not reach the hardware: such a place is only reported, unless
    the operator says with `in_guest` that the devices are passed through.
    """
    host = machine.host
    machine_word, container = host.virtualisation.value, host.container.value
    if (
        not in_guest
        and machine_word not in (None, "none")
        and recipe.reach.method
        in REGISTER_METHODS
        | {
            Method.BIOS,
            Method.NV_FIRMWARE,
        }
    ):
        return because(
            ItemKind.REPORT,
            f"this is a virtual machine ({machine_word}): what it shows of a register need not be the hardware's",
            "run it on the host of this machine, or plan with --in-guest when its devices are passed through",
            "HC-CONTAINER",
        )
    if container not in (None, "none"):
        return because(
            ItemKind.REPORT,
            f"this is a container ({container}): the host's hardware is not its own to change",
            "run it on the host, outside the container",
            "HC-CONTAINER",
        )
    device = place.device if place is not None else None
    if device is not None and _given_to_guest(device):
        return because(
            ItemKind.REPORT,
            f"{device.address} is bound to {device.driver.value}: it belongs to a guest",
            "set it inside the guest, or give the device back to the host",
        )
    return None


def no_value(reason: str) -> Verdict:
    """Return the skip of a place that could not be read, with the remedy that fits the reason. Pure."""
    if reason == NEEDS_ROOT:
        return because(
            ItemKind.SKIP,
            "config space not readable without root: 64 bytes came back",
            "sudo hicachectl tune plan",
            "HC-NEED-ROOT",
        )
    if reason == ASLEEP:
        return because(
            ItemKind.SKIP,
            "the device is asleep, and a look would wake it",
            "use the device, then plan again",
            "HC-SUSPENDED",
        )
    if reason == GONE:
        return because(ItemKind.SKIP, reason, "sudo lspci -vv; dmesg tells why it went", "HC-DEVICE-GONE")
    if reason in ("permission denied", "Permission denied"):
        return because(ItemKind.SKIP, f"it could not be read: {reason}", "sudo hicachectl tune plan", "HC-NEED-ROOT")
    return because(ItemKind.SKIP, f"it could not be read: {reason}", "none is known here")


def relaxed_ordering(machine: Machine, place: Place, wanted: Value, seen: Value) -> Verdict | None:
    """Refuse to set relaxed ordering below a root port that mishandles it; Linux clears the bit there. Pure.

    The list is `quirk_relaxedordering_disable` of Linux drivers/pci/quirks.c (docs/facts.md#relaxed-ordering).
    """
    device = place.device
    root = _root_port(machine, device)
    if root is None or not isinstance(wanted, int) or not isinstance(seen, int) or not wanted & _RELAXED_ORDERING:
        return None
    if root.device.value not in RO_FLAGGED_PORTS.get(root.vendor.value or "", ()):
        return None
    name = f"root port {root.address} [{root.vendor.value}:{root.device.value}]"
    if seen & _RELAXED_ORDERING:
        note = f"it is on here, although Linux clears it below {name}: somebody set it since"
    else:
        note = f"it is off here: Linux clears it below {name}"
    return Verdict(
        ItemKind.SKIP,
        f"{name} mishandles relaxed ordering and is on the kernel's list of such ports",
        "leave it off; another slot or machine has another root port",
        "HC-RO-FORBIDDEN",
        (note,),
    )


def read_only(target: Target, door: Door) -> Verdict | None:
    """Skip what lies on a read-only mount, as a hardened host or an outer container makes it. Pure."""
    if not door.read_only.value:
        return None
    return because(
        ItemKind.SKIP,
        f"{target.path} is on a read-only mount ({door.read_only.source})",
        f"run it where the mount can be written: findmnt -T {target.path}",
        "HC-DENIED",
    )


def may_write(recipe: Recipe, machine: Machine, choices: Choices, place: Place, no_write: str | None) -> Verdict:
    """Return the change of a place whose value differs, or what forbids it: lockdown, isolation, a permission not given. Pure."""
    if no_write is not None:
        return because(
            ItemKind.SKIP,
            no_write,
            "boot without lockdown (Secure Boot sets it), or set it in the firmware",
            "HC-UNSUPPORTED",
        )
    if recipe.wants(Precheck.ISOLATION_LOSS_ALLOWED) is not None:
        if not choices.allow_isolation_loss:
            return because(
                ItemKind.SKIP,
                "it ends the isolation between the devices below this port",
                "--allow-isolation-loss, where no guest and no untrusted device is there",
                "HC-ACS-REDIRECT",
            )
        held = _held_by_guest(machine, place)
        if held is not None:
            return because(ItemKind.SKIP, held, "give the device back to the host first", "HC-ACS-REDIRECT")
    if recipe.reach.method is Method.MODULE_PARAM and not choices.persist_files:
        return because(
            ItemKind.REPORT,
            "it is read when the module loads, and its file is written on request only",
            "--persist-files writes it",
        )
    return Verdict(ItemKind.CHANGE)


# -- helpers --------------------------------------------------------------------------------------------------------------


def _root_port(machine: Machine, device: PciDevice | None) -> PciDevice | None:
    if device is None or not device.path:
        return None
    return next((other for other in machine.devices if other.address == device.path[0]), None)


def _given_to_guest(device: PciDevice) -> bool:
    """Whether a guest has the function: by one of the many vfio drivers (vfio-pci, mlx5_vfio_pci, ...) or a stub."""
    driver = device.driver.value or ""
    return "vfio" in driver or driver in _STUBS


def _held_by_guest(machine: Machine, place: Place) -> str | None:
    """Name a device that a guest holds and whose isolation depends on this port: in a group with what is below it, or beside it.

    Groups are made at boot from the redirection that was on then, so a device under a sibling port counts as well.
    """
    port = place.device
    if port is None:
        return None
    below = [d for d in machine.devices if port.address in d.path]
    groups = {d.iommu_group.value for d in (port, *below)} - {None}
    for device in machine.devices:
        if not _given_to_guest(device):
            continue
        if device.iommu_group.value in groups:
            return (
                f"{device.address} is bound to {device.driver.value} and shares IOMMU group {device.iommu_group.value}"
            )
        if port.path and port.path[0] in device.path:
            return f"{device.address} is bound to {device.driver.value} below the same root port {port.path[0]}"
    return None
