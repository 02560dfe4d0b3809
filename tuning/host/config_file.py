"""The bytes of a config file, as few as the decoder needs: on hardware each four bytes are a bus access.

In a virtual machine an access costs about 10 us, so that all 4096 bytes of one function take 40 ms (measured: a KVM guest,
Linux 6.1); the walk over the extended capabilities needs some 20 of them. Only reads, never writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.host.facts import Fact, known
from hicachectl.tuning.host.pcie_caps import GONE, find_capability
from hicachectl.tuning.host.root import HostRoot

__all__ = [
    "CONFIG_BYTES",
    "EXTENDED_CONFIG_BYTES",
    "Extended",
    "header_revision",
    "header_subsystem",
    "read_config",
    "with_extended",
]

CONFIG_BYTES, EXTENDED_CONFIG_BYTES = 256, 4096
_PCI_EXPRESS, _ACS = 0x10, 0x0D
_MAX_STEPS = 64


def read_config(root: HostRoot, path: str) -> Fact[bytes]:
    """Read the first 256 bytes of a config file; 64 come back without CAP_SYS_ADMIN. Wakes a sleeping device."""
    return root.data(path, CONFIG_BYTES)


@dataclass(frozen=True, slots=True)
class Extended:
    """What was read of a config file, and why its extended capabilities were not walked to their end (None: they were)."""

    data: bytes
    cut: str | None = None


def with_extended(root: HostRoot, path: str, first: bytes) -> Extended:
    """Return `first` and, where the function has them, its extended capabilities: headers and the ACS registers alone.

    The data has 4096 bytes, zero where nothing was read, or is `first` where there is no extended space. Where the walk was
    cut short it ends after the last byte that was read, and nothing can be said of what may follow.
    """
    if len(first) < CONFIG_BYTES or find_capability(first, _PCI_EXPRESS)[0] is None:
        return Extended(first)
    space = bytearray(first) + bytes(EXTENDED_CONFIG_BYTES - CONFIG_BYTES)
    at, end, seen = CONFIG_BYTES, CONFIG_BYTES, set[int]()
    while at not in seen and CONFIG_BYTES <= at <= EXTENDED_CONFIG_BYTES - 8:
        if len(seen) == _MAX_STEPS:
            return Extended(bytes(space[:end]), f"extended capability list has no end within {_MAX_STEPS} steps")
        seen.add(at)
        for offset in (at, at + 4):
            found = root.piece(path, offset, 4)
            if found.value is None:
                return Extended(bytes(space[:end]), found.reason)
            space[offset : offset + len(found.value)] = found.value
            if len(found.value) < 4:
                if offset == CONFIG_BYTES:
                    return Extended(first)
                end = max(end, offset + len(found.value) if found.value else end)
                return Extended(bytes(space[:end]), f"config ends after {end} bytes, within its extended capabilities")
            end = max(end, offset + 4)
            value = int.from_bytes(found.value, "little")
            if (
                offset == at and value == 0xFFFFFFFF
            ):  # the kernel gives no extended space to a function that had them at boot
                return Extended(bytes(space[: max(CONFIG_BYTES, end - 4)]), GONE)
            if offset == at and value & 0xFFFF != _ACS:
                break
        else:
            break  # access control, with its registers
        if value == 0:
            break
        at = value >> 20 & 0xFFC
    return Extended(bytes(space))


def header_revision(data: bytes, path: str) -> Fact[str] | None:
    """Return the revision of a config header, two hex digits; None where there is no header to believe. Pure."""
    if len(data) < 64 or data.count(0xFF) == len(data):
        return None
    return known(f"{data[8]:02x}", f"{path} REVISION")


def header_subsystem(data: bytes, path: str) -> Fact[str] | None:
    """Return subsystem ids "vendor:device" of an ordinary function's header; bridges keep theirs elsewhere. Pure."""
    if len(data) < 64 or data.count(0xFF) == len(data) or data[0x0E] & 0x7F:
        return None
    vendor, device = int.from_bytes(data[0x2C:0x2E], "little"), int.from_bytes(data[0x2E:0x30], "little")
    return known(f"{vendor:04x}:{device:04x}", f"{path} SUBSYSTEM")
