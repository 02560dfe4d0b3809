"""What no recipe may do, whoever wrote it: the rules that keep a written register from doing more than was meant. Pure.

Offsets and bits are those of Linux `include/uapi/linux/pci_regs.h`. A status register beside a control register is cleared
by writing 1, so a write must never reach it; bit 15 of Device Control starts a function level reset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hicachectl.tuning.recipe import REGISTER_METHODS, Match, Precheck, Reach, Scope
from hicachectl.tuning.target import HUGE_WORDS, METHODS_THAT_REPORT, PARAMETER_VALUE, Method, Value

__all__ = [
    "ACCESS_CONTROL",
    "ACCESS_CONTROL_BYTES",
    "DEVICE_CONTROL",
    "EXPRESS",
    "EXPRESS_BYTES",
    "FUNCTION_RESET",
    "RESERVED_AREAS",
    "broken_rules",
    "never_written",
    "register_name",
    "unfit",
    "unfit_text",
]

EXPRESS, ACCESS_CONTROL = 0x10, 0x0D
"""Ids of the PCI Express capability (PCI_CAP_ID_EXP) and of access control services (PCI_EXT_CAP_ID_ACS)."""
EXPRESS_BYTES, ACCESS_CONTROL_BYTES = 0x3C, 0x28
"""Length of a version 2 PCI Express capability (PCI_CAP_EXP_ENDPOINT_SIZEOF_V2), and of access control with its longest
vector: eight bytes and 256 bits (PCI_ACS_EGRESS_CTL_V). Both of Linux include/uapi/linux/pci_regs.h."""
DEVICE_CONTROL = 0x08
"""PCI_EXP_DEVCTL."""
FUNCTION_RESET = 0x8000
"""PCI_EXP_DEVCTL_BCR_FLR: written as 1 it resets an endpoint."""
RESERVED_AREAS = frozenset(("thp", "khugepaged", "tmpfs", "numa", "limits"))
"""First parts of knobs that are no recipes."""
_RELAXED_ORDERING = 0x0010
_STATUS_BYTES = {
    0x0A: "Device Status", 0x12: "Link Status", 0x1A: "Slot Status", 0x20: "Root Status", 0x22: "Root Status",
    0x2A: "Device Status 2", 0x32: "Link Status 2", 0x3A: "Slot Status 2",
}  # fmt: skip
"""First bytes of the 16-bit registers of the PCI Express capability whose bits clear when written as 1."""
_ONLY_READ = (
    (0x08, 0x00E0 | 0x0100, "payload size and extended tags must agree along the path"),
    (0x10, 0x0030, "link disable and retrain take the link down"),
    (0x18, 0x0400, "slot power takes the device down"),
    (0x28, 0x1000, "10-bit tags must agree along the path"),
)
"""Offset in the PCI Express capability, bits that are never written there, and why."""
_SCOPES = {
    Method.PCI_CONFIG: (Scope.PER_FUNCTION, Scope.PER_ROOT_PORT),
    Method.PCI_ECAP: (Scope.PER_FUNCTION, Scope.PER_ROOT_PORT),
    Method.MSR: (Scope.PER_CPU, Scope.PER_SOCKET),
    Method.SMN_DEBUGFS: (Scope.PER_SOCKET, Scope.PER_NBIO),
    Method.HSMP: (Scope.PER_NBIO,),
    Method.SYSFS: (Scope.HOST, Scope.PER_FUNCTION, Scope.PER_ROOT_PORT, Scope.PER_CPU),
    Method.SYSCTL: (Scope.HOST,),
    Method.MOUNT: (Scope.HOST,),
    Method.MODULE_PARAM: (Scope.HOST,),
    Method.NV_FIRMWARE: (Scope.HOST, Scope.PER_FUNCTION),
    Method.BIOS: (Scope.HOST, Scope.PER_SOCKET, Scope.PER_ROOT_PORT),
}
_WIDTHS = {
    Method.PCI_CONFIG: (8, 16, 32), Method.PCI_ECAP: (8, 16, 32), Method.MSR: (64,), Method.SMN_DEBUGFS: (32,), Method.HSMP: (16,),
}  # fmt: skip
_OFFSETS = {
    Method.PCI_CONFIG: 4095, Method.PCI_ECAP: 4095, Method.MSR: 0xFFFFFFFF, Method.SMN_DEBUGFS: 0xFFFFFFFF, Method.HSMP: 0xFF,
}  # fmt: skip
_NAMES = {0x08: "Device Control", 0x10: "Link Control", 0x28: "Device Control 2"}
_HSMP_PAIRED = (0x12,)
"""HSMP messages that set something another message reads back: only these can be journalled (docs/facts.md#hsmp)."""


def register_name(reach: Reach) -> str | None:
    """Return what a register of a known capability is called, None for others. Pure.

    Source: Linux include/uapi/linux/pci_regs.h (PCI_EXP_DEVCTL, PCI_EXP_LNKCTL, PCI_EXP_DEVCTL2, PCI_ACS_CTRL).
    """
    if reach.capability == EXPRESS:
        return _NAMES.get(reach.offset or 0)
    return "ACS Control" if (reach.extended, reach.offset) == (ACCESS_CONTROL, 0x06) else None


def never_written(reach: Reach, forbidden: int) -> int:
    """Return the bits that every write of a recipe forces to 0: its own, and the reset bit at Device Control. Pure."""
    at_control = reach.capability == EXPRESS and reach.offset == DEVICE_CONTROL
    return forbidden | (FUNCTION_RESET if at_control else 0)


def unfit_text(method: Method, text: str) -> str | None:
    """Say what is wrong with a text that would be written, None when nothing is. Pure.

    A mount option ends at a comma and a line of modprobe.d at a blank: what stands behind would be another option.

    >>> unfit_text(Method.MOUNT, "advise,size=1k")
    'a mount takes never, always, within_size or advise'
    """
    if method is Method.MOUNT:
        return None if text in HUGE_WORDS else f"a mount takes {', '.join(HUGE_WORDS[:-1])} or {HUGE_WORDS[-1]}"
    if method is Method.MODULE_PARAM and not re.fullmatch(PARAMETER_VALUE, text, re.ASCII):
        return "a parameter takes one word of letters, digits and _ . , : ; = + * / @ % -"
    return None if text.isprintable() else "it must be one line without control characters"


def unfit(reach: Reach) -> Iterator[tuple[str, str]]:
    """Yield what does not fit together in `access`, each with the key it is about. Pure."""
    method = reach.method
    if reach.scope not in _SCOPES[method]:
        allowed = ", ".join(scope.value for scope in _SCOPES[method])
        yield "scope", f"scope is {reach.scope.value!r}; {method.value} has {allowed}"
    if method not in REGISTER_METHODS:
        return
    if reach.width is not None and reach.width not in _WIDTHS[method]:
        yield "width", f"width is {reach.width}; {method.value} has {', '.join(map(str, _WIDTHS[method]))} bits"
    elif reach.width is not None and reach.offset is not None:
        if reach.offset > _OFFSETS[method]:
            yield "offset", f"offset is {reach.offset:#x}, past {_OFFSETS[method]:#x}, the last of {method.value}"
        apart = reach.instances if method is Method.SMN_DEBUGFS else ()
        aligned = (Method.PCI_CONFIG, Method.PCI_ECAP, Method.SMN_DEBUGFS)
        if method in aligned and reach.offset % (reach.width // 8):
            yield "offset", f"offset {reach.offset:#x} is not aligned to its width of {reach.width} bits"
        elif any(distance % (reach.width // 8) for distance in apart):
            yield "instances", f"a distance in instances is not a multiple of {reach.width // 8} bytes"
    if method is Method.PCI_ECAP and reach.extended is None:
        yield "anchor", "pci-ecap counts from an extended capability: anchor: {ecap: 0x0d}"
    if method is Method.PCI_CONFIG and reach.extended is not None:
        yield "anchor", "an extended capability is reached with method pci-ecap"
    if method is Method.HSMP and reach.offset not in _HSMP_PAIRED:
        yield (
            "offset",
            f"no message that reads back HSMP message {reach.offset or 0:#x} is known, so it cannot be undone",
        )


def too_wide(match: Match, reach: Reach) -> Iterator[tuple[str, str]]:
    """Yield what a recipe that writes must say of where it applies, each with the part of `match` it is about. Pure.

    A number means something on the hardware it was documented for: an offset that counts from the start of config space on
    one device, an MSR or SMN address on one family and model.
    """
    if reach.method in (Method.PCI_CONFIG, Method.PCI_ECAP):
        pci = match.pci
        if pci is None or not (pci.vendors or pci.devices or pci.classes or pci.kinds):
            yield "pci", "a write must say which functions it is for: vendor, device, class or kind"
        elif reach.capability is None and reach.extended is None and not (pci.vendors and pci.devices):
            yield (
                "pci",
                "an offset from the start of config space means something on one device only: vendor and device",
            )
    elif reach.method in (Method.MSR, Method.SMN_DEBUGFS, Method.HSMP):
        cpu = match.cpu
        missing = [n for n, v in (("vendor", cpu.vendors), ("family", cpu.families), ("model", cpu.models)) if not v]
        if missing:
            yield (
                "cpu",
                f"{reach.method.value} means something on one processor only: {', '.join(missing)} must not be any",
            )


def broken_rules(
    reach: Reach, mask: int | None, value: Value | None, forbidden: int, prechecks: tuple[tuple[Precheck, int], ...]
) -> Iterator[tuple[str, str]]:
    """Yield the rules a write would break, each with the key of `write` or `access` it is about. Pure."""
    if value is None:
        return
    if reach.method in METHODS_THAT_REPORT:
        yield "write", f"{reach.method.value} settings are only reported: write: null"
        return
    if not isinstance(value, int) or mask is None:
        return
    if value & ~mask:
        yield "value", f"value {value:#06x} has bits outside the mask {mask:#06x}"
    if forbidden & mask:
        yield "forbid_mask", f"forbid_mask {forbidden:#06x} and mask {mask:#06x} share bits"
    if reach.width is not None and (mask | forbidden) >> reach.width:
        yield "mask", f"mask {mask:#06x} is wider than {reach.width} bits"
    if reach.method not in (Method.PCI_CONFIG, Method.PCI_ECAP) or reach.width is None or reach.offset is None:
        return
    first, last = reach.offset, reach.offset + reach.width // 8 - 1
    checks = dict(prechecks)
    if reach.capability == EXPRESS:
        if first <= DEVICE_CONTROL + 1 and last >= DEVICE_CONTROL:
            if (first, reach.width) != (DEVICE_CONTROL, 16):
                yield (
                    "width",
                    (
                        f"Device Control is written as 16 bits at 0x08, not {reach.width} bits at {first:#04x}: "
                        "the half above is cleared by writing 1"
                    ),
                )
            elif mask & FUNCTION_RESET:
                yield "mask", "bit 15 of Device Control starts a function level reset: it must be 0 in mask and value"
            elif mask & _RELAXED_ORDERING and Precheck.RELAXED_ORDERING_ALLOWED not in checks:
                yield "mask", "bit 4 is relaxed ordering: precheck needs {relaxed_ordering_allowed: true}"
        for at, name in _STATUS_BYTES.items():
            if first <= at + 1 and last >= at:
                yield (
                    "width",
                    f"{reach.width} bits at {first:#04x} reach {name} at {at:#04x}, which clears when written as 1",
                )
                break
        for at, bits, why in _ONLY_READ:
            if mask << 8 * first & bits << 8 * at:
                yield "mask", f"{why} ({bits:#06x} at {at:#04x}): write: null"
        if last >= EXPRESS_BYTES:
            yield (
                "offset",
                f"{first:#x} lies past the PCI Express capability, whose last byte is {EXPRESS_BYTES - 1:#x}",
            )
    elif reach.extended == ACCESS_CONTROL:
        if last >= ACCESS_CONTROL_BYTES:
            yield (
                "offset",
                f"{first:#x} lies past the access control capability, of at most {ACCESS_CONTROL_BYTES} bytes",
            )
        if first <= 0x05:
            yield "offset", f"{first:#04x} is read-only: the control register is at 0x06"
        if Precheck.ISOLATION_LOSS_ALLOWED not in checks:
            yield "mask", "access control isolates devices: precheck needs {isolation_loss_allowed: true}"
    elif reach.extended is None and first < 0x40:
        yield "offset", f"{first:#04x} lies in the header, which the kernel owns: write: null"
