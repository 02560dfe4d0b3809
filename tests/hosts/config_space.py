"""PCI config space as bytes, from the few registers a test cares about. Pure.

Offsets and bits are those of Linux `include/uapi/linux/pci_regs.h`. The PCI Express capability sits at 0x60 behind a
power management capability at 0x40; extended capabilities are AER at 0x100 and, when asked for, ACS at 0x148.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PCIE_AT", "PORT_TYPES", "Pcie", "config_bytes"]

PCIE_AT = 0x60
_ACS_AT = 0x148
PORT_TYPES = {"endpoint": 0, "legacy": 1, "root-port": 4, "upstream": 5, "downstream": 6, "bridge": 7, "rc-endpoint": 9}
_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass(frozen=True)
class Pcie:
    """The PCI Express capability of one function; sizes in bytes, speeds in GT/s, ACS as its control word."""

    version: int = 2
    port_type: str = "endpoint"
    max_payload_bytes: int = 256
    payload_supported_bytes: int = 512
    max_read_request_bytes: int = 512
    relaxed_ordering: bool = True
    no_snoop: bool = True
    extended_tag: bool = True
    ten_bit_tag_requester: bool = False
    ido_request: bool = False
    ido_completion: bool = False
    no_ro_pr_pr_passing: bool = False
    aspm: int = 0
    """Link Control bits 1:0: 0 off, 1 L0s, 2 L1, 3 both."""
    acs_control: int | None = None
    """None: no ACS capability."""
    transactions_pending: bool = False
    speed_gt_s: float = 16.0
    width: int = 16


def _size_code(n_bytes: int) -> int:
    code = (n_bytes // 128).bit_length() - 1
    if 128 << code != n_bytes or code > 5:
        raise ValueError(f"128 to 4096, a power of two: {n_bytes}")
    return code


def config_bytes(
    *,
    vendor: int,
    device: int,
    class_code: int,
    revision: int = 0,
    subsystem: tuple[int, int] = (0, 0),
    pcie: Pcie | None = None,
    length: int = 4096,
    buses: tuple[int, int, int] | None = None,
) -> bytes:
    """Return `length` bytes (64, 256 or 4096) of a function's config space; `buses` (primary, secondary, subordinate) make it a bridge."""
    space = bytearray(4096)

    def put(at: int, value: int, n_bytes: int) -> None:
        space[at : at + n_bytes] = value.to_bytes(n_bytes, "little")

    put(0x00, vendor, 2)
    put(0x02, device, 2)
    put(0x04, 0x0406 if buses is None else 0x0407, 2)
    put(0x06, 0x0010, 2)  # capability list present
    put(0x08, revision, 1)
    put(0x09, class_code, 3)
    put(0x0E, 0 if buses is None else 1, 1)
    put(0x34, 0x40, 1)
    if buses is None:
        put(0x2C, subsystem[0], 2)
        put(0x2E, subsystem[1], 2)
    else:
        for at, bus in zip((0x18, 0x19, 0x1A), buses, strict=True):
            put(at, bus, 1)
    put(0x40, 0x01, 1)
    put(0x41, PCIE_AT if pcie else 0, 1)
    put(0x42, 0x0003, 2)
    if pcie:
        _put_pcie(put, pcie)
        put(0x100, 0x0001 | 1 << 16 | (_ACS_AT if pcie.acs_control is not None else 0) << 20, 4)
        if pcie.acs_control is not None:
            put(_ACS_AT, 0x000D | 1 << 16, 4)
            put(_ACS_AT + 4, 0x001F, 2)
            put(_ACS_AT + 6, pcie.acs_control, 2)
    return bytes(space[:length])


def _put_pcie(put: object, pcie: Pcie) -> None:
    assert callable(put)
    at, speed = PCIE_AT, _SPEEDS[pcie.speed_gt_s]
    put(at, 0x10, 1)
    put(at + 1, 0, 1)
    put(at + 2, pcie.version | PORT_TYPES[pcie.port_type] << 4, 2)
    put(at + 0x04, _size_code(pcie.payload_supported_bytes) | 1 << 5 | 1 << 15, 4)
    control = (
        pcie.relaxed_ordering << 4
        | _size_code(pcie.max_payload_bytes) << 5
        | pcie.extended_tag << 8
        | pcie.no_snoop << 11
        | _size_code(pcie.max_read_request_bytes) << 12
    )
    put(at + 0x08, control, 2)
    put(at + 0x0A, pcie.transactions_pending << 5, 2)
    put(at + 0x0C, speed | pcie.width << 4 | 3 << 10, 4)
    put(at + 0x10, pcie.aspm, 2)
    put(at + 0x12, speed | pcie.width << 4, 2)
    if pcie.version >= 2:
        put(at + 0x24, pcie.no_ro_pr_pr_passing << 10 | 1 << 16 | 1 << 17, 4)
        put(at + 0x28, pcie.ido_request << 8 | pcie.ido_completion << 9 | pcie.ten_bit_tag_requester << 12, 2)
        put(at + 0x2C, ((1 << speed) - 1) << 1, 4)
        put(at + 0x30, speed, 2)
