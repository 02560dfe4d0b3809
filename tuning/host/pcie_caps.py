"""Config space decoded: a bounded walk over bytes that may be short, odd or all ones. Pure.

Offsets and bits are those of Linux `include/uapi/linux/pci_regs.h` (PCI_EXP_*, PCI_EXT_CAP_ID_ACS, PCI_ACS_*), which agrees
with pciutils `lib/header.h` on every bit both define. Nothing here reads or writes a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import ConfigSpace, Link

__all__ = [
    "ASLEEP",
    "GONE",
    "NEEDS_ROOT",
    "NO_ACCESS_CONTROL",
    "SPEEDS_GT_S",
    "WIDTHS",
    "decode_config",
    "find_capability",
    "of_virtual",
    "unread_config",
]

T = TypeVar("T")

NEEDS_ROOT = "needs root (CAP_SYS_ADMIN)"
NO_ACCESS_CONTROL = "no ACS capability"
"""Reason when 64 bytes came back: the kernel cuts the read short without an error (pci-sysfs.c, pci_read_config)."""
GONE = "device gone (config reads all ones)"
ASLEEP = "asleep"
"""Reason when runtime_status says suspended: reading would wake the device."""

SPEEDS_GT_S = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Speed of code 1, 2, ... of the link registers (PCI_EXP_LNKCAP_SLS_*, PCI_EXP_LNKCAP2_SLS_*)."""
WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
"""Link widths there are; 0 and 255 in sysfs mean that the kernel does not know."""

_PORT_TYPES = {
    0: "endpoint", 1: "legacy", 4: "root-port", 5: "upstream", 6: "downstream", 7: "bridge", 8: "pci-to-pcie-bridge",
    9: "rc-endpoint", 10: "event-collector",
}  # fmt: skip
_NO_LINK = frozenset((9, 10))
_RESERVED_IN_VIRTUAL = (
    "ido_request", "ido_completion", "relaxed_ordering", "max_payload_bytes", "max_read_request_bytes",
)  # fmt: skip
_ASPM = ("off", "L0s", "L1", "L0s L1")
_STATUS, _HEADER_TYPE, _FIRST_POINTER = 0x06, 0x0E, 0x34
_CAPABILITY_LIST = 1 << 4
_PCI_EXPRESS, _ACS = 0x10, 0x0D
_MAX_STEPS = 48
_MAX_EXTENDED_STEPS = (4096 - 256) // 8
_ACS_REDIRECT = 0x0C
"""P2P request redirect and completion redirect (PCI_ACS_RR, PCI_ACS_CR). Upstream forwarding, 0x10, alone redirects nothing:
it passes on what another port's redirect sends up."""


def decode_config(
    data: bytes,
    source: str = "config",
    *,
    cut: str | None = None,
    short: str = "no extended space, the file ends there",
) -> ConfigSpace:
    """Decode the bytes a config file gave, any number of them with any content. Pure; never raises, never looks outside.

    `source` is the file's path; each fact's source is that plus the register. What the bytes do not hold is unknown
    with the reason: 64 bytes need root, `short` says why no more than 256 were read, all ones are a device that is gone,
    a version 1 capability has no Device Control 2. `cut` says why the extended capabilities were not read to their end:
    what may be there is unknown for that reason.
    """
    if data and data.count(0xFF) == len(data):
        return unread_config(source, GONE)
    if len(data) <= 64:
        readable = known(len(data), source) if data else unknown(source, "empty")
        reason = NEEDS_ROOT if len(data) == 64 else f"config has {len(data)} of 64 bytes"
        return unread_config(source, reason, readable)
    at, why = find_capability(data, _PCI_EXPRESS)
    if at is None or at + 4 > len(data):
        return unread_config(
            source, why or "capability lies outside what was read", known(len(data), source), data, short
        )
    return _decode(data, at, source, cut, short)


def unread_config(
    source: str, reason: str, readable: Fact[int] | None = None, data: bytes = b"", short: str = ""
) -> ConfigSpace:
    """Return a config space in which everything is unknown for one reason. Pure. `data` is looked at for ACS alone."""
    nothing: Fact[Any] = Fact(None, source, reason=reason)
    acs = _acs(data, source, short) if data else nothing
    return ConfigSpace(
        readable_bytes=readable or nothing, port_type=nothing, capability_version=nothing, max_payload_bytes=nothing,
        payload_supported_bytes=nothing, max_read_request_bytes=nothing, relaxed_ordering=nothing, no_snoop=nothing,
        extended_tag=nothing, ten_bit_tag_requester=nothing, ido_request=nothing, ido_completion=nothing,
        no_ro_pr_pr_passing=nothing, aspm=nothing, acs_control=acs, acs_redirect=acs.then(_redirects),
        transactions_pending=nothing, link=Link(nothing, nothing, nothing, nothing), device_control=nothing,
        device_control_2=nothing, device_capabilities_2=nothing, acs_at=_acs_at(data) if acs.is_known else None,
    )  # fmt: skip


def of_virtual(config: ConfigSpace, physical: str | None) -> ConfigSpace:
    """Return a virtual function's config space without the bits that are reserved in it: there 0 is no answer. Pure.

    Payload, read request and relaxed ordering: Linux drivers/pci/probe.c, pci_configure_mps, pci_configure_relaxed_ordering;
    ID-based ordering is taken to be like relaxed ordering (docs/facts.md#ordering). The physical function's bits count for all of its functions.
    """
    reason = f"nothing there: reserved in a virtual function, see {physical or 'its physical function'}"
    facts = ((name, getattr(config, name)) for name in _RESERVED_IN_VIRTUAL)
    unknowns: dict[str, Any] = {name: Fact(None, fact.source, reason=reason) for name, fact in facts if fact.is_known}
    return replace(config, **unknowns)


def find_capability(data: bytes, wanted: int) -> tuple[int | None, str | None]:
    """Return the offset of the first capability with id `wanted`, or None and why not. Pure; at most 48 steps.

    >>> find_capability(bytes(6) + b"\\x10" + bytes(45) + b"\\x40" + bytes(11) + b"\\x10\\x00" + bytes(62), 0x10)
    (64, None)
    """
    if len(data) <= _FIRST_POINTER:
        return None, f"config has {len(data)} bytes: no capability pointer"
    if not data[_STATUS] & _CAPABILITY_LIST:
        return None, "no capability list"
    at = data[_FIRST_POINTER] & 0xFC
    for _ in range(_MAX_STEPS):
        if at == 0:
            return None, "no PCI Express capability" if wanted == _PCI_EXPRESS else f"no capability {wanted:#04x}"
        if at < 0x40 or at + 2 > len(data) or data[at] == 0xFF:
            return None, f"capability list broken at {at:#04x}"
        if data[at] == wanted:
            return at, None
        at = data[at + 1] & 0xFC
    return None, f"capability list has no end within {_MAX_STEPS} steps"


def _decode(data: bytes, at: int, source: str, cut: str | None, short: str) -> ConfigSpace:
    flags = _word(data, at + 2) or 0
    version, port = flags & 0xF, flags >> 4 & 0xF
    reader = _Registers(data, at, source)
    capabilities, control, status = reader.read(0x04, 4), reader.read(0x08, 2), reader.read(0x0A, 2)
    if version >= 2:
        capabilities_2, control_2 = reader.read(0x24, 4), reader.read(0x28, 2)
    else:
        none: Fact[int] = reader.none(0x28, f"capability version {version} has no Device Control 2")
        capabilities_2 = control_2 = none
    has_link = port not in _NO_LINK
    link_control = reader.read(0x10, 2) if has_link else reader.none(0x10, "no link: integrated in the root complex")
    acs: Fact[int] = _acs(data, source, short) if cut is None else unknown(source, cut)
    return ConfigSpace(
        readable_bytes=known(len(data), source),
        port_type=known(_PORT_TYPES.get(port, f"type-{port}"), reader.name(2)),
        capability_version=known(version, reader.name(2)),
        max_payload_bytes=_convert(control, lambda v: _size(v >> 5 & 7)),
        payload_supported_bytes=_convert(capabilities, lambda v: _size(v & 7)),
        max_read_request_bytes=_convert(control, lambda v: _size(v >> 12 & 7)),
        relaxed_ordering=_bit(control, 4),
        no_snoop=_bit(control, 11),
        extended_tag=_bit(control, 8),
        ten_bit_tag_requester=_bit(control_2, 12),
        ido_request=_bit(control_2, 8),
        ido_completion=_bit(control_2, 9),
        no_ro_pr_pr_passing=_bit(capabilities_2, 10),
        aspm=_convert(link_control, lambda v: _ASPM[v & 3]),
        acs_control=acs,
        acs_redirect=_convert(acs, _redirects),
        transactions_pending=_bit(status, 5),
        link=_link(reader, version, has_link),
        device_control=control,
        device_control_2=control_2,
        device_capabilities_2=capabilities_2,
        express_at=at,
        acs_at=_acs_at(data) if acs.is_known else None,
    )


def _link(reader: _Registers, version: int, has_link: bool) -> Link:
    """Now from Link Status, max from Link Capabilities; the supported-speeds vector of version 2 goes before the code."""
    if not has_link:
        none: Fact[Any] = reader.none(0x0C, "no link: integrated in the root complex")
        return Link(none, none, none, none)
    capabilities, status = reader.read(0x0C, 4), reader.read(0x12, 2)
    speed_max = _convert(capabilities, lambda v: _speed(v & 0xF))
    supported = reader.read(0x2C, 4) if version >= 2 else None
    if supported is not None and supported.value is not None and supported.value & 0xFE:
        speed_max = _convert(supported, lambda v: _speed((v >> 1 & 0x7F).bit_length()))
    return Link(
        speed_now_gt_s=_convert(status, lambda v: _speed(v & 0xF)),
        speed_max_gt_s=speed_max,
        width_now=_convert(status, lambda v: _width(v >> 4 & 0x3F)),
        width_max=_convert(capabilities, lambda v: _width(v >> 4 & 0x3F)),
    )


class _Registers:
    """Registers of the PCI Express capability at `at`, each a fact that names itself."""

    def __init__(self, data: bytes, at: int, source: str) -> None:
        self.data, self.at, self.source = data, at, source

    def name(self, offset: int) -> str:
        return f"{self.source} CAP_EXP+{offset:x}"

    def none(self, offset: int, reason: str) -> Fact[Any]:
        return Fact(None, self.name(offset), reason=reason)

    def read(self, offset: int, n_bytes: int) -> Fact[int]:
        start = self.at + offset
        if start + n_bytes > min(len(self.data), 256):
            return self.none(offset, "register lies outside what was read")
        value = int.from_bytes(self.data[start : start + n_bytes], "little")
        if value == (1 << 8 * n_bytes) - 1:
            return self.none(offset, GONE)
        return Fact(value, self.name(offset))


def _acs(data: bytes, source: str, short: str) -> Fact[int]:
    if len(data) <= 256:
        if len(data) == 256 and find_capability(data, _PCI_EXPRESS)[0] is None:
            return unknown(source, "no PCI Express capability, so no extended space was looked for")
        return unknown(source, f"{len(data)} bytes of config were read: {short}")
    at = _acs_at(data)
    if at is None:
        return unknown(source, NO_ACCESS_CONTROL)
    if at + 4 > len(data) or data[at : at + 4] == b"\xff" * 4:
        return unknown(source, GONE if at + 4 <= len(data) else "register lies outside what was read")
    control = _word(data, at + 6)
    if control is None:
        return unknown(source, "register lies outside what was read")
    return known(control, f"{source} ECAP_ACS+6") if control != 0xFFFF else unknown(source, GONE)


def _acs_at(data: bytes) -> int | None:
    """Walk the extended capabilities to the one of access control, or to where it may be and cannot be read."""
    at, walked = 0x100, set()
    for _ in range(_MAX_EXTENDED_STEPS):
        if at in walked or at < 0x100:
            return None
        walked.add(at)
        if at + 4 > len(data):
            return at
        header = int.from_bytes(data[at : at + 4], "little")
        if header == 0xFFFFFFFF or header & 0xFFFF == _ACS:
            return at
        if header == 0:
            return None
        at = header >> 20 & 0xFFC
    return None


def _word(data: bytes, at: int) -> int | None:
    return int.from_bytes(data[at : at + 2], "little") if at + 2 <= len(data) else None


def _convert(register: Fact[int], convert: Callable[[int], T | None]) -> Fact[T]:
    if register.value is None:
        return Fact(None, register.source, reason=register.reason)
    value = convert(register.value)
    if value is None:
        return Fact(None, register.source, reason=f"reserved code in {register.value:#x}")
    return Fact(value, register.source)


def _bit(register: Fact[int], bit: int) -> Fact[bool]:
    if register.value is None:
        return Fact(None, register.source, reason=register.reason)
    return Fact(bool(register.value >> bit & 1), register.source)


def _redirects(control: int) -> bool:
    return bool(control & _ACS_REDIRECT)


def _size(code: int) -> int | None:
    return 128 << code if code <= 5 else None


def _speed(code: int) -> float | None:
    return SPEEDS_GT_S[code - 1] if 1 <= code <= len(SPEEDS_GT_S) else None


def _width(width: int) -> int | None:
    return width if width in WIDTHS else None
