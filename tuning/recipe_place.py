"""The register or file of one place of a recipe, or why it cannot be named. Pure.

A register of config space is named by its offset from the start, so the capability must have been read; nothing here
guesses one. Rules are those of docs/facts.md#config-rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.host.model import PciDevice
from hicachectl.tuning.host.pcie_caps import NEEDS_ROOT, NO_ACCESS_CONTROL
from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.recipe import Precheck, Recipe
from hicachectl.tuning.recipe_gates import Verdict, because, no_value
from hicachectl.tuning.recipe_match import Place
from hicachectl.tuning.recipe_rules import ACCESS_CONTROL_BYTES, EXPRESS_BYTES
from hicachectl.tuning.target import Method, Register, Target, unit_offset

__all__ = ["Spot", "locate"]

_EXTENDED, _WHOLE = 0x100, 4096
"""Where extended config space begins, and its end."""
_DEBUGFS_SMN = "/sys/kernel/debug/x86/amd_smn/value"
"""The kernel's door to SMN (docs/facts.md#smn)."""
_HSMP_DEVICE = "/dev/hsmp"
_MODPROBE = "/etc/modprobe.d/hicachectl-{name}.conf"


@dataclass(frozen=True, slots=True)
class Spot:
    """The target of a place, or the verdict that says why there is none."""

    target: Target | None
    verdict: Verdict | None = None

    @property
    def why_not(self) -> str:
        """Why there is no target. Pure."""
        return (self.verdict.reason if self.verdict is not None else None) or "nothing to read"


def locate(recipe: Recipe, place: Place) -> Spot:
    """Return where the setting of a place is read and written. Pure."""
    reach, register = recipe.reach, None
    if place.device is not None and reach.method in (Method.PCI_CONFIG, Method.PCI_ECAP):
        return _in_config(recipe, place.device)
    if reach.offset is not None and reach.width is not None and recipe.mask is not None:
        register = Register(reach.offset, reach.width, recipe.mask, recipe.forbidden)
    unit = place.socket or 0
    if reach.method is Method.MSR and register is not None:
        return Spot(Target(reach.method, f"/dev/cpu/{place.cpu}/msr", register))
    if reach.method is Method.SMN_DEBUGFS and register is not None:
        at = unit_offset(unit, register.offset + place.instance & 0xFFFFFFFF)
        return Spot(Target(reach.method, _DEBUGFS_SMN, Register(at, 32, register.mask, register.never)))
    if reach.method is Method.HSMP and register is not None:
        at = unit_offset(unit, place.instance << 16 | register.offset)
        return Spot(Target(reach.method, _HSMP_DEVICE, Register(at, register.width, register.mask, register.never)))
    if reach.method is Method.MODULE_PARAM:
        return Spot(Target(reach.method, _MODPROBE.format(name=recipe.id)))
    if reach.path is not None:
        path = reach.path.replace("{address}", place.subject or "").replace("{cpu}", str(place.cpu))
        return Spot(Target(reach.method, path))
    return Spot(None)


def _in_config(recipe: Recipe, device: PciDevice) -> Spot:
    reach, config = recipe.reach, device.config
    assert reach.offset is not None
    assert reach.width is not None
    assert recipe.mask is not None
    if device.is_vf.value and not recipe.reports_only:
        where = (
            f"set it on {device.physical_function.value}"
            if device.physical_function.value
            else "set it on its physical function"
        )
        return _not(because(ItemKind.SKIP, "a virtual function: the bit is reserved in it", where, "HC-VF"))
    readable = config.readable_bytes
    if readable.value is None:
        return _not(no_value(readable.reason or "not read"))
    if readable.value <= 64:
        return _not(no_value(NEEDS_ROOT if readable.value == 64 else config.port_type.reason or "not read"))
    start = 0
    if reach.capability is not None:
        if config.express_at is None:
            return _not(no_value(config.port_type.reason or "no PCI Express capability"))
        version = config.capability_version.value
        if version is None or version < reach.min_version:
            return _not(
                because(
                    ItemKind.SKIP,
                    f"its PCI Express capability is version {version}; the register is there from version {reach.min_version} on",
                    "none: the function does not have it",
                )
            )
        start = config.express_at
    elif reach.extended is not None:
        if config.acs_at is None:
            return _not(no_value(config.acs_control.reason or "no such capability"))
        start = config.acs_at
    first, n_bytes = start + reach.offset, reach.width // 8
    end = min(readable.value, 256) if reach.capability is not None else readable.value
    needed = recipe.wants(Precheck.CONFIG_READABLE) or 0
    if first + n_bytes > end or readable.value < needed:
        return _not(
            because(
                ItemKind.SKIP,
                f"register {first:#x} lies outside the {readable.value} bytes of config space that can be read"
                if first + n_bytes > end
                else f"{readable.value} bytes of config space can be read, the recipe asks for {needed}",
                "none: the kernel offers no more of it",
            )
        )
    if not recipe.reports_only and _meets_express(recipe, device, first, n_bytes):
        return _not(
            because(
                ItemKind.SKIP,
                f"register {first:#x} lies inside the function's PCI Express capability at {config.express_at:#x}",
                "the recipe must count from it: anchor: {cap: 0x10}",
            )
        )
    isolating = None if recipe.reports_only else _meets_access_control(recipe, device, first, n_bytes)
    if isolating is not None:
        return _not(
            because(ItemKind.SKIP, isolating, "the recipe must count from it: method: pci-ecap, anchor: {ecap: 0x0d}")
        )
    path = f"/sys/bus/pci/devices/{device.address}/config"
    return Spot(Target(reach.method, path, Register(first, reach.width, recipe.mask, recipe.forbidden)))


def _meets_express(recipe: Recipe, device: PciDevice, first: int, n_bytes: int) -> bool:
    """Whether a register counted from the start would be one of the PCI Express capability, whose rules it then evades."""
    at = device.config.express_at
    return _is_bare(recipe) and at is not None and first < at + EXPRESS_BYTES and first + n_bytes > at


def _meets_access_control(recipe: Recipe, device: PciDevice, first: int, n_bytes: int) -> str | None:
    """Say why a register counted from the start may be one that isolates devices, None when it is not: its flag would be evaded."""
    config = device.config
    at, end = config.acs_at, first + n_bytes
    if not _is_bare(recipe) or end <= _EXTENDED:
        return None
    if at is None:
        read = config.acs_control.reason == NO_ACCESS_CONTROL and (config.readable_bytes.value or 0) >= _WHOLE
        return (
            None if read else f"register {first:#x}: where access control is was not read ({config.acs_control.reason})"
        )
    if first < at + ACCESS_CONTROL_BYTES and end > at:
        return f"register {first:#x} lies in or right behind the function's access control capability at {at:#x}"
    return None


def _is_bare(recipe: Recipe) -> bool:
    return recipe.reach.capability is None and recipe.reach.extended is None


def _not(verdict: Verdict) -> Spot:
    return Spot(None, verdict)
