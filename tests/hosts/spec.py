"""What a made-up host is: NUMA nodes, buses and their functions, settings files. `builder.py` writes it.

A field that is None means that the file is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hosts.config_space import Pcie

__all__ = [
    "ALL_CAPABILITIES", "CAPABILITIES", "GIB", "Bus", "Function", "HostSpec", "LinkText", "NodeSpec", "cpus_of", "distances",
    "functions_changed", "link",
]  # fmt: skip

GIB = 1 << 30
ALL_CAPABILITIES = 0x1FFFFFFFFFF
CAPABILITIES = {"all": ALL_CAPABILITIES, "none": 0, "docker": 0x00000000A80425FB}
"""Effective sets: every one, none, and Docker's default, which lacks CAP_SYS_ADMIN and CAP_SYS_NICE."""


@dataclass(frozen=True)
class NodeSpec:
    """One NUMA node. `cpus` is a kernel list ("0-7,16-23"), "" for none; an offline node has no folder."""

    id: int
    cpus: str = ""
    memory_bytes: int = 0
    free_bytes: int = 0
    online: bool = True
    free_huge_blocks: int | None = None
    """Order-9 and order-10 blocks in buddyinfo, in 2 MiB pages; None: three quarters of what is free."""
    huge_2m: tuple[int, int] | None = (0, 0)
    """total, free; None: no hugepages folder."""
    distances: tuple[int, ...] | None = None
    """The row, in the order of online nodes."""
    weight: int | None = None
    socket: int = 0


@dataclass(frozen=True)
class LinkText:
    """The four link files as text; None for a file that is not there."""

    speed_now: str | None
    speed_max: str | None
    width_now: str | None
    width_max: str | None


def link(gt_s: float, width: int, *, max_gt_s: float | None = None, max_width: int | None = None) -> LinkText:
    """Return link files in today's wording, "16.0 GT/s PCIe"."""
    return LinkText(f"{gt_s:.1f} GT/s PCIe", f"{max_gt_s or gt_s:.1f} GT/s PCIe", str(width), str(max_width or width))


@dataclass(frozen=True)
class Function:
    """One PCI function and what hangs below it. Ids are hex without 0x; `class_code` has six digits."""

    address: str
    class_code: str | None = "060400"
    vendor: str | None = "1d94"
    device: str | None = "1453"
    revision: str | None = "00"
    subsystem: str | None = "0000:0000"
    node: int | None = None
    """Text of numa_node; None: no file; -1 is what Linux writes when the firmware says nothing."""
    local_cpus: str | None = None
    """Kernel list; None: taken from the node, or every CPU when the node is -1."""
    link: LinkText | None = None
    pcie: Pcie | None = None
    config: bytes | None = None
    """The config file as it is; None: made from `pcie` and `config_length`."""
    config_length: int = 4096
    """64, 256 or 4096; 0: no file."""
    driver: str | None = None
    iommu_group: int | None = None
    bar_bytes: int = 0
    runtime_status: str | None = "active"
    aer: tuple[int, int, int] | None = None
    """Totals of correctable, nonfatal, fatal."""
    sriov_vfs: int | None = None
    physfn: str | None = None
    """Address of the physical function, for a virtual one."""
    net: tuple[str, ...] = ()
    infiniband: tuple[str, ...] = ()
    nvme: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Names of files not to write."""
    extra: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Function, ...] = ()


@dataclass(frozen=True)
class Bus:
    """A host bridge, sys/devices/pciDDDD:BB."""

    name: str
    functions: tuple[Function, ...] = ()


@dataclass(frozen=True)
class HostSpec:
    """A host. The defaults are a bare-metal server with nothing set wrongly, read by root."""

    nodes: tuple[NodeSpec, ...]
    buses: tuple[Bus, ...] = ()
    possible_nodes: str | None = None
    hostname: str = "host"
    kernel: str = "6.8.0-45-generic"
    boot_id: str = "5d1e0a52-2b1f-4c6e-9d8a-0123456789ab"
    cmdline: str = "BOOT_IMAGE=/vmlinuz root=/dev/sda2 ro quiet"
    cpu_vendor: str = "HygonGenuine"
    cpu_family: int = 24
    cpu_model: int = 4
    cpu_name: str = "Hygon C86 7490 64-core Processor"
    cpu_flags: str = "fpu vme msr pae sse2 ht lm"
    capabilities: int = ALL_CAPABILITIES
    uid: int = 0
    seccomp: int = 0
    mems_allowed: str | None = None
    """None: every online node."""
    cpus_allowed: str | None = None
    thp_enabled_here: int | None = 1
    memlock: str = "unlimited"
    """Soft limit in bytes, as in /proc/self/limits."""
    thp: Mapping[str, str] = field(
        default_factory=lambda: {
            "enabled": "always [madvise] never",
            "defrag": "always defer [defer+madvise] madvise never",
            "shmem_enabled": "always within_size advise [never] deny force",
            "hpage_pmd_size": "2097152",
            "khugepaged/defrag": "1",
            "khugepaged/pages_to_scan": "4096",
            "hugepages-2048kB/enabled": "always [inherit] madvise never",
            "hugepages-2048kB/shmem_enabled": "always [inherit] within_size advise never",
            "hugepages-64kB/enabled": "always inherit madvise [never]",
        }
    )
    tmpfs: Mapping[str, str] = field(
        default_factory=lambda: {"/dev/shm": "rw,size=264241152k,huge=advise", "/run": "rw,size=52848232k,mode=755"}
    )
    vmstat: Mapping[str, int] = field(
        default_factory=lambda: {
            "nr_free_pages": 1000, "thp_fault_alloc": 5000, "thp_fault_fallback": 0, "thp_fault_fallback_charge": 0,
            "thp_collapse_alloc": 12, "thp_file_fallback": 0, "thp_split_page": 3, "compact_stall": 2, "compact_fail": 1,
            "compact_success": 1, "numa_pte_updates": 0,
        }
    )  # fmt: skip
    meminfo: Mapping[str, int] = field(default_factory=dict)
    """Extra or replaced lines of /proc/meminfo, in kB (HugePages_* in pages)."""
    sysctl: Mapping[str, str] = field(
        default_factory=lambda: {"kernel/numa_balancing": "0", "vm/zone_reclaim_mode": "0", "vm/nr_hugepages": "0"}
    )
    cgroup_path: str = "/system.slice/engine.service"
    cgroup: Mapping[str, str] = field(
        default_factory=lambda: {"memory.max": "max", "memory.current": "1048576", "memory.swap.max": "max"}
    )
    """Files of the process's own cgroup (v2)."""
    cgroup_above: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Files of other groups, by path below the mount."""
    container: bool = False
    iommu_types: Mapping[int, str] = field(default_factory=dict)
    """Group number -> domain type; groups of devices that are not listed say identity."""
    lockdown: str | None = "[none] integrity confidentiality"
    idle_states: tuple[tuple[str, int], ...] = (("POLL", 0), ("C1", 1), ("C2", 12))
    """Name and exit latency in us."""
    dmi: tuple[str, str] = ("Made Up", "Server")
    pci_ids: bool = True
    numa_maps: str = "55d0c0a00000 default file=/usr/bin/python3 mapped=4 N0=4 kernelpagesize_kB=4"
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Anything else, written last, by absolute path of the host."""


def cpus_of(text: str) -> list[int]:
    """Return the ids of a kernel list.

    >>> cpus_of("0-2,8")
    [0, 1, 2, 8]
    """
    found: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def distances(n_nodes: int, nodes_a_socket: int, *, near: int = 16, far: int = 32) -> list[tuple[int, ...]]:
    """Return the rows of `n_nodes`: 10 to itself, `near` within the socket, `far` to the other."""

    def one(a: int, b: int) -> int:
        return 10 if a == b else near if a // nodes_a_socket == b // nodes_a_socket else far

    return [tuple(one(a, b) for b in range(n_nodes)) for a in range(n_nodes)]


def functions_changed(spec: HostSpec, change: Callable[[Function], Function]) -> HostSpec:
    """Return the host with every PCI function changed, those below others first."""

    def changed(function: Function) -> Function:
        return change(replace(function, children=tuple(map(changed, function.children))))

    return replace(spec, buses=tuple(replace(bus, functions=tuple(map(changed, bus.functions))) for bus in spec.buses))
