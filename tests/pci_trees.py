"""Small PCI trees on disk and config spaces from raw register values, for tests of the PCI readers."""

from __future__ import annotations

from pathlib import Path

__all__ = ["LinkSpec", "add_function", "config", "link_files"]

CAP = 0x60
LinkSpec = tuple[float, int, float, int]
"""Speed now, width now, speed max, width max."""


def config(
    *,
    size: int = 4096,
    port: int = 0,
    version: int = 2,
    devcap: int = 0x8022,
    devctl: int = 0x2810,
    devsta: int = 0,
    lnkcap: int = 0x104,
    lnkctl: int = 0,
    lnksta: int = 0x104,
    devcap2: int = 0,
    devctl2: int = 0,
    lnkcap2: int = 0x1E,
    acs: int | None = None,
    ids: tuple[int, int] = (0x1D22, 0x3684),
    class_code: int = 0x120000,
    revision: int = 2,
) -> bytes:
    """A config space with power management at 0x40, PCI Express at 0x60, AER at 0x100 and, when asked for, ACS at 0x148."""
    space = bytearray(4096)

    def put(at: int, value: int, n_bytes: int) -> None:
        space[at : at + n_bytes] = value.to_bytes(n_bytes, "little")

    put(0x00, ids[0], 2)
    put(0x02, ids[1], 2)
    put(0x06, 0x0010, 2)
    put(0x08, class_code << 8 | revision, 4)
    put(0x2C, 0x1D22, 2)
    put(0x2E, 0x0001, 2)
    put(0x34, 0x40, 1)
    put(0x40, 0x01 | CAP << 8, 2)
    put(CAP, 0x10, 2)
    put(CAP + 2, version | port << 4, 2)
    for offset, value, n_bytes in (
        (0x04, devcap, 4), (0x08, devctl, 2), (0x0A, devsta, 2), (0x0C, lnkcap, 4), (0x10, lnkctl, 2), (0x12, lnksta, 2),
        (0x24, devcap2, 4), (0x28, devctl2, 2), (0x2C, lnkcap2, 4),
    ):  # fmt: skip
        put(CAP + offset, value, n_bytes)
    put(0x100, 0x0001 | 1 << 16 | (0x148 << 20 if acs is not None else 0), 4)
    if acs is not None:
        put(0x148, 0x000D | 1 << 16, 4)
        put(0x14C, 0x001F, 2)
        put(0x14E, acs, 2)
    return bytes(space[:size])


def link_files(link: LinkSpec) -> dict[str, str]:
    """The four link files as today's kernel words them."""
    return {
        "current_link_speed": f"{link[0]:.1f} GT/s PCIe",
        "current_link_width": str(link[1]),
        "max_link_speed": f"{link[2]:.1f} GT/s PCIe",
        "max_link_width": str(link[3]),
    }


def add_function(
    root: Path,
    path: str,
    *,
    class_code: str = "0x120000",
    ids: str = "1d22:3684",
    node: int | None = 0,
    link: LinkSpec | None = None,
    data: bytes | None = None,
    files: dict[str, str | bytes] | None = None,
) -> Path:
    """Write one function at `path` below sys/devices ("pci0000:00/0000:00:01.0") and its link in the bus folder."""
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    vendor, _, device = ids.partition(":")
    content: dict[str, str | bytes] = {"class": class_code, "vendor": f"0x{vendor}", "device": f"0x{device}"}
    content["local_cpulist"] = "0-3"
    if node is not None:
        content["numa_node"] = str(node)
    if link is not None:
        content |= link_files(link)
    if data is not None:
        content["config"] = data
    for name, value in (content | (files or {})).items():
        at = folder / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode())
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    address = path.rpartition("/")[2]
    if not (bus / address).is_symlink():
        (bus / address).symlink_to(f"../../../devices/{path}")
    return folder
