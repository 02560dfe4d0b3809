"""The bytes of a config file, as few as the decoder needs: on hardware each four bytes are a bus access.

In a virtual machine an access costs about 10 us, so that all 4096 bytes of one function take 40 ms (measured: a KVM guest,
Linux 6.1); the walk over the extended capabilities needs some 20 of them. Only reads, never writes.
"""

from __future__ import annotations

from hicachectl.tuning.host.facts import Fact, known
from hicachectl.tuning.host.pcie_caps import find_capability
from hicachectl.tuning.host.root import HostRoot

__all__ = [
    "CONFIG_BYTES",
    "EXTENDED_CONFIG_BYTES",
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


def with_extended(root: HostRoot, path: str, first: bytes) -> bytes:
    """Return `first` and, where the function has them, its extended capabilities: headers and the ACS registers alone.

    The result has 4096 bytes, zero where nothing was read, or is `first` where there is no extended space.
    """
    if len(first) < CONFIG_BYTES or find_capability(first, _PCI_EXPRESS)[0] is None:
        return first
    space = _walk(root, path, first)
    return first if space is None else space  # it was there a moment ago: what was read then stays true


def _walk(root: HostRoot, path: str, first: bytes) -> bytes | None:
    space = bytearray(first) + bytes(EXTENDED_CONFIG_BYTES - CONFIG_BYTES)
    at, seen = CONFIG_BYTES, set()
    for _ in range(_MAX_STEPS):
        if at in seen or not CONFIG_BYTES <= at <= EXTENDED_CONFIG_BYTES - 8:
            break
        seen.add(at)
        header = root.piece(path, at, 4).value
        if header is None or len(header) < 4:
            return None if header is None or at == CONFIG_BYTES else bytes(space)
        space[at : at + 4] = header
        value = int.from_bytes(header, "little")
        if value in (0, 0xFFFFFFFF):
            break
        if value & 0xFFFF == _ACS:
            registers = root.piece(path, at + 4, 4).value
            if registers is None:
                return None
            space[at + 4 : at + 4 + len(registers)] = registers
            break
        at = value >> 20 & 0xFFC
    return bytes(space)


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
