"""What a recording leaves out: serial numbers, hardware addresses, names of others, secrets on the command line, the process. Pure.

Of files that tell more than is read of them only the lines and fields that a reader uses are kept. A reader that goes through `public` sees the text a snapshot holds, so its facts are those of the snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hicachectl.tuning.host.aliases import LEFT_OUT, Aliases, public_controllers
from hicachectl.tuning.host.machine import PINNING
from hicachectl.tuning.host.mempolicy import policy_line
from hicachectl.tuning.host.mounts import plain_path
from hicachectl.tuning.host.pages import page_size_entry

__all__ = ["IDENTIFYING", "LEFT_OUT", "RULES", "command_line", "is_private", "public", "public_names", "public_target"]

RULES: tuple[tuple[str, str], ...] = (
    ("serial numbers", "files named serial, *_serial, product_uuid, wwid, vpd, unique_id and the like are not recorded"),
    ("PCI device serial number", "the extended capability 0x0003 keeps its header; its 8 bytes are zero"),
    ("hardware addresses", "address, node_guid, gids and the like of network interfaces are not recorded; names of interfaces and RDMA devices made of one are shortened"),
    ("mounts", f"tmpfs and control groups keep place, size= and huge=; a place that is not of the system is named /{LEFT_OUT}/N; all others (server names) are left out"),
    ("control groups", f"of their paths and hierarchies only the words that systemd, container runtimes and schedulers use are kept: names of services, users and ids are {LEFT_OUT}"),
    ("this process", "of status four lines (CapEff, Cpus_allowed_list, Mems_allowed_list, THP_enabled), of numa_maps the first policy, of auxv the page size, of limits the locked memory, of its group's memory.stat the limit and the file cache that goes first"),
    ("CPU", "of cpuinfo the names, family, model and flags of the first one"),
    ("command line", f"parameters that are not about memory, NUMA, PCI, CPU or idle states keep their name, and so do values with blanks; the value is {LEFT_OUT}"),
)  # fmt: skip
"""What is left out and how, for the manifest."""

IDENTIFYING: tuple[str, ...] = (
    "the host name",
    "the boot id",
    "PCI addresses, device ids and interface names",
    "kernel and CPU",
)
"""What a snapshot does hold that tells this host from others."""

_PRIVATE_NAMES = re.compile(
    r"(^|/)(serial|serial_number|[^/]*_serial|product_uuid|wwid|vpd|unique_id|uuid|nguid|eui|eui64|[^/]*_guid|gids?|guid|"
    r"asset_tag|[^/]*_asset_tag|dsn|net/[^/]+/(address|permanent_address|perm_addr|broadcast|phys_port_id|phys_switch_id))$"
)
_ADDRESS_NAMED = re.compile(r"((?:en|wl|ww|sl|ib|iw|roce|opa|usnic)x)[0-9a-f]{12}.*", re.IGNORECASE | re.DOTALL)
"""Names that udev (systemd.net-naming-scheme) and rdma-core (rdma_rename BY MAC, GUID) make of an address."""
_GROUP_KINDS = frozenset({"cgroup", "cgroup2"})
_OPEN_OPTION = re.compile(r"(?:size|huge)=[\w%]{1,24}|memory|cpuset", re.ASCII)
_STAT_LINES = (
    "hierarchical_memory_limit ",
    "inactive_file ",
    "active_file ",
    "total_inactive_file ",
    "total_active_file ",
)
_STATUS_FIELDS = frozenset({"CapEff", "Cpus_allowed_list", "Mems_allowed_list", "THP_enabled"})
_CPU_FIELDS = frozenset({
    "processor", "vendor_id", "CPU implementer", "CPU architecture", "cpu family", "model", "model name", "cpu", "flags",
})  # fmt: skip
_INITIAL_NAMESPACES = range(0xEFFFFFF8, 0xF0000000)
"""Inode numbers that the kernel gives to the initial namespaces alone (PROC_*_INIT_INO, include/linux/proc_ns.h)."""
_OPEN_PARAMETERS = frozenset({
    "thp_anon", "thp_shmem", "hugetlb_cma", "hugetlb_cma_only", "hugetlb_free_vmemmap", "hugetlb_optimize_vmemmap",
    "movablecore", "kernelcore", "memhp_default_state", "memory_hotplug.memmap_on_memory", "memory_hotplug.online_policy",
    "memory_hotplug.auto_movable_ratio", "memory_hotplug.auto_movable_numa_aware", "cgroup_disable", "cgroup_enable",
    "cgroup_no_v1", "cgroup_favordynmods", "cgroup.memory", "swapaccount", "init_on_alloc", "init_on_free",
    "iommu.passthrough", "iommu.strict", "iommu.forcedac", "arm_smmu.disable_bypass", "arm_smmu_v3.disable_bypass",
    "iommufd.allow_unsafe_interrupts", "vfio_iommu_type1.allow_unsafe_interrupts", "vfio_iommu_type1.disable_hugepages",
    "vfio_iommu_type1.dma_entry_limit", "vfio_pci.ids", "vfio_pci.disable_idle_d3", "vfio_pci.enable_sriov",
    "vfio_pci.nointxmask", "pcie_aspm", "pcie_port_pm", "pcie_ports", "pcie_pme", "pcie_hp", "swiotlb", "rcu_nocbs",
    "possible_cpus", "processor.max_cstate", "processor.ignore_ppc", "processor.nocst", "intel_idle.max_cstate",
    "intel_idle.states_off", "intel_idle.preferred_cstates", "intel_idle.use_acpi", "intel_idle.no_acpi", "intel_pstate",
    "amd_pstate", "cpuidle.off", "cpuidle.governor", "nmi_watchdog", "tsc", "clocksource",
    "nvidia.NVreg_EnablePCIERelaxedOrderingMode", "nvidia.NVreg_EnableStreamMemOPs", "nvidia.NVreg_EnableGpuFirmware",
    "nvidia.NVreg_DynamicPowerManagement", "mem_encrypt", "amd_smn_debugfs_enable", "iomem", "ro", "rw", "quiet", "nokaslr",
    "acpi", "noapic", "nox2apic",
})  # fmt: skip
"""Parameters about memory, NUMA, PCI, CPU or idle states (kernel admin-guide/kernel-parameters.txt and the modules' own)."""
_OPEN_VALUE = re.compile(r"[\w.,:;@+/%=$!*~<>-]{0,200}", re.ASCII)
"""What numbers, sizes, lists and addresses are made of; blanks would carry other words inside quotes."""
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
    if not any(_ADDRESS_NAMED.fullmatch(name) for name in names):
        return names
    return tuple(sorted({_ADDRESS_NAMED.sub(rf"\1-{LEFT_OUT}", name) for name in names}))


def public(path: str, content: bytes, aliases: Aliases | None = None) -> bytes:
    """Return a file's bytes without what is private in them; most files come back as they are.

    `aliases` remembers what the names in a mount table and in control group paths stand for. Changes nothing else.
    """
    if path.endswith("/config") and len(content) > 0x100:
        return _without_device_serial(content)
    if path == "/proc/self/auxv":
        return page_size_entry(content)
    if not path.startswith("/proc/") and not path.endswith("/memory.stat"):
        return content
    text = content.rstrip(b"\0").decode("utf-8", "backslashreplace")
    names = aliases or Aliases()
    if path in _KEPT:
        text = _KEPT[path](text)
    elif path.endswith("/memory.stat"):
        text = _lines(line for line in text.splitlines() if line.startswith(_STAT_LINES))
    elif path == "/proc/self/cgroup":
        text = _lines(_public_group(line, names) for line in text.splitlines())
    elif path == "/proc/self/cpuset":
        text = _lines(names.group(line) for line in text.splitlines())
    elif path.endswith("/mountinfo"):
        text = _public_table(text, names, _mountinfo_words)
    elif path.endswith("/mounts"):
        text = _public_table(text, names, _mounts_words)
    else:
        return content
    return text.encode("utf-8", "backslashreplace")


def public_target(path: str, target: str) -> str:
    """Return a link's target without the number of a namespace that is not the initial one. Pure.

    >>> public_target("/proc/self/ns/pid", "pid:[4026532500]"), public_target("/proc/self/ns/pid", "pid:[4026531836]")
    ('pid:[0]', 'pid:[4026531836]')
    """
    if not path.startswith("/proc/self/ns/"):
        return target
    return re.sub(r"\d+", lambda found: found[0] if int(found[0][:20]) in _INITIAL_NAMESPACES else "0", target)


def command_line(text: str) -> str:
    """Keep the parameters we read, and only the names of the others. Pure.

    >>> command_line("root=UUID=7f3a ro iommu=pt ks.password=x user.token init=/bin/sh -- secret")
    'root=left-out ro iommu=pt ks.password=left-out left-out init=left-out'
    """
    kept = []
    for word in _WORD.findall(text):
        if word == "--":
            break  # what follows belongs to init
        name, has_value, value = word.partition("=")
        plain = name.replace('"', "")
        bare = plain.replace("-", "_")
        if bare in PINNING or bare in _OPEN_PARAMETERS:
            kept.append(word if _OPEN_VALUE.fullmatch(value.replace('"', "")) else f"{plain}={LEFT_OUT}")
        elif has_value:
            kept.append(f"{name}={LEFT_OUT}" if re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII) else LEFT_OUT)
        else:
            kept.append(LEFT_OUT)
    return " ".join(kept)


def _fields(text: str, kept: frozenset[str]) -> str:
    """Keep the lines `Name: value` of some names. Pure."""
    return _lines(line for line in text.splitlines() if ":" in line and line.partition(":")[0].strip() in kept)


def _release(text: str) -> str:
    """Keep the release of /proc/version; who built it and where follows. Pure."""
    return " ".join(text.split()[:3]) + "\n"


_KEPT: dict[str, Callable[[str], str]] = {
    "/proc/cmdline": lambda text: command_line(text) + "\n",
    "/proc/version": _release,
    "/proc/cpuinfo": lambda text: _fields(text.strip().partition("\n\n")[0], _CPU_FIELDS),
    "/proc/self/status": lambda text: _fields(text, _STATUS_FIELDS),
    "/proc/self/limits": lambda text: _lines(
        line for line in text.splitlines() if line.startswith("Max locked memory ")
    ),
    "/proc/self/numa_maps": policy_line,
}
"""What is kept of files that hold more than a reader uses."""


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _public_group(line: str, names: Aliases) -> str:
    """Return a line `id:controllers:path` without ids in its path. Pure but for `names`."""
    number, colon, rest = line.partition(":")
    controllers, second, path = rest.partition(":")
    if not colon or not second or not path.startswith("/"):
        return LEFT_OUT
    return f"{number if number.isdigit() else 0}:{public_controllers(controllers)}:{names.group(path)}"


_Words = tuple[str, str, str, str, str]
"""Of a mount: kind, root, place, options, ro or rw."""
_SETTINGS = {"sysfs": "/sys", "proc": "/proc"}
"""Where settings lie: mounted read-only they cannot be changed, and a plan says so."""


def _public_table(text: str, names: Aliases, split: Callable[[str], tuple[_Words, str] | None]) -> str:
    """Keep the mounts that a reader uses, and of others only that they hide one of those. Pure but for `names`."""
    kept, places = [], set()
    for line in text.splitlines():
        found = split(line)
        if found is None:
            kept.append(LEFT_OUT)  # a table that cannot be read stays one
            continue
        (kind, root, place, options, access), form = found
        if kind == "tmpfs" or kind in _GROUP_KINDS or _SETTINGS.get(kind) == place:
            places.add(place)
        elif place in places:
            kind = "other"
        else:
            continue
        told = [option for option in options.split(",") if _OPEN_OPTION.fullmatch(option)]
        shown = _escaped(names.group(plain_path(root))) if kind in _GROUP_KINDS else "/"
        at = place if _SETTINGS.get(kind) == place else _escaped(names.mount(plain_path(place)))
        kept.append(form.format(kind=kind, root=shown, place=at, options=",".join(told) or access, access=access))
    return _lines(kept)


def _mountinfo_words(line: str) -> tuple[_Words, str] | None:
    before, dash, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not dash or len(left) < 6 or len(right) < 3:
        return None
    access = "ro" if "ro" in left[5].split(",") else "rw"
    return (right[0], left[3], left[4], right[2], access), "0 0 0:0 {root} {place} {access} - {kind} none {options}"


def _mounts_words(line: str) -> tuple[_Words, str] | None:
    words = line.split(" ")
    if len(words) < 4:
        return None
    access = "ro" if "ro" in words[3].split(",") else "rw"
    return (words[2], "/", words[1], words[3], access), "none {place} {kind} {options} 0 0"


def _escaped(path: str) -> str:
    """Return a path as a mount table spells it. Pure."""
    return re.sub(r"[\\ \t\n#]", lambda found: f"\\{ord(found[0]):03o}", path)


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
