"""What a recording leaves out: serial numbers, hardware addresses, other hosts' names, secrets on the command line. Pure.

A reader that goes through `public` sees the text a snapshot holds, so its facts are those of the snapshot.
"""

from __future__ import annotations

import re

from hicachectl.tuning.host.machine import PINNING

__all__ = ["LEFT_OUT", "RULES", "command_line", "is_private", "public", "public_names"]

LEFT_OUT = "left-out"

RULES: tuple[tuple[str, str], ...] = (
    ("serial numbers", "files named serial, *_serial, product_uuid, wwid, vpd, unique_id and the like are not recorded"),
    ("PCI device serial number", "the extended capability 0x0003 keeps its header; its 8 bytes are zero"),
    ("hardware addresses", "address, node_guid, gids and the like of network interfaces are not recorded; names made of one are shortened"),
    ("other hosts", "mounts keep tmpfs, hugetlbfs, cgroup, proc and sysfs; all others (server names) are left out"),
    ("command line", f"parameters that are not about memory, NUMA, PCI, CPU or idle states keep their name; the value is {LEFT_OUT}"),
)  # fmt: skip
"""What is left out and how, for the manifest."""

_PRIVATE_NAMES = re.compile(
    r"(^|/)(serial|serial_number|[^/]*_serial|product_uuid|wwid|vpd|unique_id|uuid|nguid|eui|eui64|[^/]*_guid|gids?|guid|"
    r"asset_tag|[^/]*_asset_tag|dsn|net/[^/]+/(address|permanent_address|perm_addr|broadcast|phys_port_id|phys_switch_id))$"
)
_ADDRESS_NAMED = re.compile(r"^(enx|wlx|wwx)[0-9a-f]{12}$")
_MOUNT_TABLES = ("/mounts", "/mountinfo")
_OPEN_FILE_SYSTEMS = frozenset({"tmpfs", "devtmpfs", "hugetlbfs", "cgroup", "cgroup2", "proc", "sysfs", "debugfs", "ramfs"})  # fmt: skip
_OPEN_PARAMETERS = re.compile(
    r"^(thp_.*|hugetlb_.*|movablecore|kernelcore|memhp_.*|memory_hotplug.*|cgroup_.*|cgroup\.memory|swapaccount|init_on_alloc|"
    r"init_on_free|iommu\..*|arm_smmu.*|iommufd\..*|vfio.*|pcie_.*|pci_.*|swiotlb|rcu_nocbs|possible_cpus|processor\..*|"
    r"intel_idle\..*|intel_pstate|amd_pstate|cpuidle\..*|nmi_watchdog|tsc|clocksource|nvidia\..*|mem_encrypt|"
    r"amd_smn_debugfs_enable|iomem|ro|rw|quiet|nokaslr|acpi|noapic|nox2apic)$"
)
_WORD = re.compile(r'(?:[^\s"]|"[^"]*"?)+')


def is_private(path: str) -> bool:
    """Whether a file is not recorded at all, by its name. Pure.

    >>> is_private("/sys/class/net/eth0/address"), is_private("/sys/bus/pci/devices/0000:01:00.0/vendor")
    (True, False)
    """
    return _PRIVATE_NAMES.search(path) is not None


def public_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a folder's names without hardware addresses: udev names some interfaces after theirs. Pure.

    >>> public_names(("eno1", "enx00e04c680001"))
    ('eno1', 'enx-left-out')
    """
    if not any(_ADDRESS_NAMED.match(name) for name in names):
        return names
    return tuple(sorted({f"{name[:3]}-{LEFT_OUT}" if _ADDRESS_NAMED.match(name) else name for name in names}))


def public(path: str, content: bytes) -> bytes:
    """Return a file's bytes without what is private in them; most files come back as they are. Pure."""
    if path == "/proc/cmdline":
        return (command_line(content.decode("utf-8", "backslashreplace")) + "\n").encode()
    if path.startswith("/proc/") and path.endswith(_MOUNT_TABLES):
        return b"\n".join(line for line in content.split(b"\n") if _is_open_mount(path, line))
    if path.endswith("/config") and len(content) > 0x100:
        return _without_device_serial(content)
    return content


def command_line(text: str) -> str:
    """Keep the parameters we read, and only the names of the others. Pure.

    >>> command_line("root=UUID=7f3a ro iommu=pt ks.password=x user.token init=/bin/sh -- secret")
    'root=left-out ro iommu=pt ks.password=left-out left-out init=left-out'
    """
    kept = []
    for word in _WORD.findall(text):
        if word == "--":
            break  # what follows belongs to init
        name, has_value, _ = word.partition("=")
        bare = name.replace('"', "").replace("-", "_")
        if bare in PINNING or _OPEN_PARAMETERS.match(bare):
            kept.append(word)
        elif has_value:
            kept.append(f"{name}={LEFT_OUT}" if re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII) else LEFT_OUT)
        else:
            kept.append(LEFT_OUT)
    return " ".join(kept)


def _is_open_mount(path: str, line: bytes) -> bool:
    if not line:
        return True
    words = line.decode("utf-8", "backslashreplace").split(" ")
    if path.endswith("/mountinfo"):
        kind = words[words.index("-") + 1] if "-" in words and words.index("-") + 1 < len(words) else ""
    else:
        kind = words[2] if len(words) > 2 else ""
    return kind in _OPEN_FILE_SYSTEMS


def _without_device_serial(config: bytes) -> bytes:
    """Zero the body of every Device Serial Number capability (id 0x0003; offsets of pci_regs.h). Pure."""
    cleaned, offset, steps = bytearray(config), 0x100, 0
    while 0x100 <= offset <= len(config) - 4 and steps < 960:
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == 0x0003:
            end = min(offset + 12, len(config))
            cleaned[offset + 4 : end] = bytes(end - offset - 4)
        offset, steps = (header >> 20) & 0xFFC, steps + 1
    return bytes(cleaned)
