"""What the readers return, as values: one dataclass a thing, each field a fact or a list of things. Pure.

`Machine` is everything `topo` knows about a host; findings, placement and screens are functions of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hicachectl.tuning.host.facts import Fact, derive

__all__ = [
    "Cgroup", "ConfigSpace", "Host", "HugePool", "Link", "Machine", "Memory", "Node", "Numa", "PciDevice", "SlotKind", "Thp",
    "TmpfsMount", "Uplink",
]  # fmt: skip


_NOT_READ: Fact[Any] = Fact(None, "", reason="not read")

# -- NUMA (numa.py) -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HugePool:
    """hugetlb pages of one size on one node, or host-wide (`node` None): counts of pages."""

    node: int | None
    page_bytes: int
    total: Fact[int]
    free: Fact[int]


@dataclass(frozen=True)
class Node:
    """One NUMA node. `distances` maps the id of an online node to the kernel's distance; `cpus` are ids."""

    id: int
    online: Fact[bool]
    cpus: Fact[tuple[int, ...]]
    memory_total_bytes: Fact[int]
    memory_free_bytes: Fact[int]
    memory_available_bytes: Fact[int]
    distances: Fact[dict[int, int]]
    free_huge_blocks: Fact[int]
    """Free blocks of a huge page's order or more, in huge pages (buddyinfo)."""
    interleave_weight: Fact[int]
    kind: Fact[str]
    """memory | cpu-less | memory-less | device-memory."""
    hugetlb: tuple[HugePool, ...] = ()
    listed: dict[str, Fact[int]] = field(default_factory=dict)
    """How long `hugetlb` is; unknown with the reason where it could not be listed, and then it is empty."""


@dataclass(frozen=True)
class Numa:
    """Nodes, and what this process may use of them."""

    nodes: tuple[Node, ...]
    allowed_nodes: Fact[tuple[int, ...]]
    allowed_cpus: Fact[tuple[int, ...]]
    sockets: Fact[int]
    nodes_a_socket: Fact[int]
    """NPS or SNC mode: memory nodes with CPUs per socket."""
    numa_balancing: Fact[int]
    zone_reclaim_mode: Fact[int]
    process_policy: Fact[str]
    """Memory policy of this process (default, interleave:0-7, ...)."""
    mempolicy_calls: Fact[bool]
    """Whether set_mempolicy may be called, probed with the real call in a child; unknown in a snapshot unless recorded."""
    socket_cpus: Fact[tuple[tuple[int, ...], ...]] = _NOT_READ
    """CPU ids of each socket."""
    listed: dict[str, Fact[int]] = field(default_factory=dict)
    """How long `nodes` is; unknown with the reason where it could not be listed, and then it is empty."""


# -- memory (memory.py, cgroup.py) ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thp:
    """Transparent huge pages. Texts are the selected word of each file."""

    enabled: Fact[str]
    defrag: Fact[str]
    shmem_enabled: Fact[str]
    huge_page_bytes: Fact[int]
    sizes: dict[str, Fact[str]]
    """Per-size files, such as hugepages-2048kB/enabled -> inherit."""
    khugepaged_defrag: Fact[int]
    khugepaged_pages_to_scan: Fact[int]
    process_enabled: Fact[bool]
    """THP_enabled of this process: False when a launcher disabled it by prctl."""
    counters: dict[str, Fact[int]]
    """thp_* and compact_* of vmstat."""
    listed: dict[str, Fact[int]] = field(default_factory=dict)
    """How long `sizes` or `counters` is; unknown with the reason where it could not be listed, and then it is empty."""


@dataclass(frozen=True)
class TmpfsMount:
    """A tmpfs mount point and its huge= option (never when not given)."""

    path: str
    huge: Fact[str]
    size_bytes: Fact[int]


@dataclass(frozen=True)
class Cgroup:
    """What binds this process: the memory limit up the tree that leaves the least room, and the cpuset."""

    version: Fact[int]
    path: Fact[str]
    memory_max_bytes: Fact[int]
    """Of memory.max and memory.high; `source` says which. Unknown with reason "no limit" where there is none."""
    memory_current_bytes: Fact[int]
    """Of the group that limits, else of the process's own."""
    memory_file_cache_bytes: Fact[int]
    """File cache in it that the kernel gives back first, of the group that limits; unknown with reason "no limit" where none does."""
    memory_limited_by: Fact[str]
    cpuset_mems: Fact[tuple[int, ...]]
    cpuset_cpus: Fact[tuple[int, ...]]

    @property
    def memory_used_bytes(self) -> Fact[int]:
        """`memory_current_bytes` less the file cache that goes first; all of it where that is not known."""
        if self.memory_file_cache_bytes.value is None:
            return self.memory_current_bytes
        return derive(lambda used, cache: max(0, used - cache), self.memory_current_bytes, self.memory_file_cache_bytes)

    @property
    def memory_room_bytes(self) -> Fact[int]:
        """What is left under the limit; unknown with the reason of what is not known, "no limit" where there is none."""
        for fact in (self.memory_max_bytes, self.memory_used_bytes):
            if fact.value is None:
                return fact
        return derive(lambda limit, used: max(0, limit - used), self.memory_max_bytes, self.memory_used_bytes)

    @property
    def memory_limit_words(self) -> str:
        """Name the file of the limit behind the group's name where it is not the hard one: " (memory.high)"; else empty."""
        return " (memory.high)" if self.memory_max_bytes.source.endswith("/memory.high") else ""


@dataclass(frozen=True)
class Memory:
    """Host-wide memory facts, in bytes."""

    total_bytes: Fact[int]
    free_bytes: Fact[int]
    available_bytes: Fact[int]
    shmem_bytes: Fact[int]
    hugetlb_bytes: Fact[int]
    hugetlb_free_bytes: Fact[int]
    """Free pages of all page sizes, those promised to somebody included."""
    page_bytes: Fact[int]
    memlock_bytes: Fact[int]
    """RLIMIT_MEMLOCK of this process; unlimited is unknown with reason "unlimited"."""
    thp: Thp
    tmpfs: tuple[TmpfsMount, ...]
    hugetlb: tuple[HugePool, ...]
    cgroup: Cgroup
    listed: dict[str, Fact[int]] = field(default_factory=dict)
    """How long `tmpfs` or `hugetlb` is; unknown with the reason where it could not be listed, and then it is empty."""


# -- PCI (pci.py, pcie_caps.py, accelerators.py, uplinks.py) ------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """A PCIe link as sysfs or the link registers say it; speeds in GT/s, widths in lanes."""

    speed_now_gt_s: Fact[float]
    speed_max_gt_s: Fact[float]
    width_now: Fact[int]
    width_max: Fact[int]


@dataclass(frozen=True)
class ConfigSpace:
    """What the config space says; every field unknown with one reason when it could not be read (64 bytes = needs root)."""

    readable_bytes: Fact[int]
    port_type: Fact[str]
    """endpoint, root-port, upstream, downstream, bridge, ..."""
    capability_version: Fact[int]
    max_payload_bytes: Fact[int]
    payload_supported_bytes: Fact[int]
    max_read_request_bytes: Fact[int]
    relaxed_ordering: Fact[bool]
    no_snoop: Fact[bool]
    extended_tag: Fact[bool]
    ten_bit_tag_requester: Fact[bool]
    ido_request: Fact[bool]
    ido_completion: Fact[bool]
    no_ro_pr_pr_passing: Fact[bool]
    aspm: Fact[str]
    acs_control: Fact[int]
    acs_redirect: Fact[bool]
    """Whether peer-to-peer requests or completions are sent up to the root complex (ACS control bits 2, 3)."""
    transactions_pending: Fact[bool]
    link: Link | None = None
    """What the link registers say, for where sysfs has no link files; None where nothing was decoded."""
    device_control: Fact[int] = _NOT_READ
    device_control_2: Fact[int] = _NOT_READ
    device_capabilities_2: Fact[int] = _NOT_READ
    express_at: int | None = None
    """Where the PCI Express capability starts, in bytes; None where `port_type` is unknown, whose reason says why."""
    acs_at: int | None = None
    """Where the access control capability starts; None where `acs_control` is unknown."""


@dataclass(frozen=True)
class PciDevice:
    """One PCI function. `address` is DDDD:BB:DD.F with a domain of 4 to 8 digits; ids are hex without 0x."""

    address: str
    class_code: Fact[str]
    """Six hex digits, e.g. 030200."""
    vendor: Fact[str]
    device: Fact[str]
    revision: Fact[str]
    subsystem: Fact[str]
    name: Fact[str]
    """From an installed pci.ids."""
    kind: str
    """accelerator | nic | rdma-nic | nvme | bridge | other."""
    kind_rule: str
    """The rule that gave `kind`."""
    driver: Fact[str]
    node: Fact[int]
    node_fallback: Fact[tuple[int, ...]]
    """Nodes of local_cpulist, when the firmware gives no node."""
    local_cpus: Fact[tuple[int, ...]]
    iommu_group: Fact[str]
    iommu_domain: Fact[str]
    sriov_vfs: Fact[int]
    is_vf: Fact[bool]
    bar_bytes: Fact[int]
    """The largest memory BAR."""
    runtime_status: Fact[str]
    aer: dict[str, Fact[int]]
    """Totals of aer_dev_correctable, _nonfatal, _fatal."""
    link: Link
    config: ConfigSpace
    path: tuple[str, ...]
    """Addresses from the root port down to this function, without it."""
    parent: str | None
    host_bridge: Fact[str] = _NOT_READ
    """DDDD:BB of the root bus above `path`; devices of one host bridge meet there (PHB)."""
    physical_function: Fact[str] = _NOT_READ
    """Of a virtual function: the address its registers are set through."""
    interfaces: tuple[str, ...] = ()
    """Names of the RDMA devices and network interfaces of a NIC, and of a virtio function's disks: mlx5_0, eth0, vda, ..."""
    listed: dict[str, Fact[int]] = field(default_factory=dict)
    """How long `interfaces` is where there are folders of them; unknown with the reason where one could not be listed."""


class SlotKind:
    """Words of `PciDevice.kind`."""

    ACCELERATOR = "accelerator"
    NIC = "nic"
    RDMA_NIC = "rdma-nic"
    NVME = "nvme"
    BRIDGE = "bridge"
    OTHER = "other"


@dataclass(frozen=True)
class Uplink:
    """The narrowest link that everything in `shared_by` must cross to reach memory.

    `capacity_bytes_per_s` is link math, one direction, at the present width and the highest speed both ends have (an idle
    link shows a lower one and raises it under load; `present_bytes_per_s` is the math at the speed shown now); unknown where
    one end's speed was not read and the other's is above what runs now;
    `solo_bytes_per_s` what one member gets alone (its own link counts), `busy_bytes_per_s` what an accelerator gets when
    all are busy; `oversubscription` the members' own links, each counted once, over the capacity.
    """

    id: str
    """Display name, U0, U1, ..."""
    port: str
    """Address of the port whose link it is."""
    root_port: str
    link: Link
    capacity_bytes_per_s: Fact[float]
    shared_by: tuple[str, ...]
    """Addresses: accelerators first, then NICs, NVMe, others that move data."""
    accelerators: tuple[str, ...]
    """Those for which this link is the narrowest; each accelerator is in one uplink."""
    node: Fact[int]
    solo_bytes_per_s: dict[str, Fact[float]]
    busy_bytes_per_s: Fact[float]
    oversubscription: Fact[float]
    present_bytes_per_s: Fact[float] = _NOT_READ


# -- host (machine.py) --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """The machine around it."""

    hostname: Fact[str]
    kernel: Fact[str]
    architecture: Fact[str]
    command_line: Fact[str]
    pinned: dict[str, Fact[str]]
    """Settings the kernel command line pins, by knob (transparent_hugepage, iommu, numa_balancing, ...)."""
    boot_id: Fact[str]
    virtualisation: Fact[str]
    """none | kvm | ... ; `none` only when something said so."""
    container: Fact[str]
    lockdown: Fact[str]
    cpu_vendor: Fact[str]
    cpu_family: Fact[int]
    cpu_model: Fact[int]
    cpu_name: Fact[str]
    capabilities: Fact[tuple[str, ...]]
    """Effective capabilities of this process, by name."""
    iommu_mode: Fact[str]
    """strict | lazy | translated (how it is flushed is not known) | identity | off, from the domain types of the groups."""
    deepest_idle_state: Fact[str]
    deepest_idle_exit_us: Fact[int]
    pci_ids: Fact[str]
    """Path of the pci.ids in use."""


@dataclass(frozen=True)
class Machine:
    """Everything read in one look at a host."""

    host: Host
    numa: Numa
    memory: Memory
    devices: tuple[PciDevice, ...]
    uplinks: tuple[Uplink, ...]
    listed: dict[str, Fact[int]] = field(default_factory=dict)
    """How long `devices` is; unknown with the reason where it could not be listed, and then it is empty."""
