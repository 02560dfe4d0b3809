"""Machine values for tests of pure code: everything known and nothing wrong, changed by keyword.

`machine()` is two sockets of two nodes with a card a node, each on its own root port; `paired()` two cards behind one
switch. A test replaces what it is about: `change(value, field=...)` wraps plain values in facts, `lost(value, "a", "b")` and
`unread(value)` make facts unknown.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import (
    Cgroup,
    ConfigSpace,
    Host,
    Link,
    Machine,
    Memory,
    Node,
    Numa,
    PciDevice,
    SlotKind,
    Thp,
    TmpfsMount,
    Uplink,
)

__all__ = [
    "GIB", "accelerator", "change", "config", "device", "lost", "machine", "nic", "node", "paired", "port", "unread", "uplink",
    "with_device",
]  # fmt: skip

GIB = 1 << 30
T = TypeVar("T")


def change(value: T, **new: Any) -> T:
    """Replace fields; a plain value for a field that holds a fact becomes a known fact with the same source."""
    done = {}
    for name, to in new.items():
        old = getattr(value, name)
        done[name] = known(to, old.source) if isinstance(old, Fact) and not isinstance(to, Fact) else to
    return replace(value, **done)  # type: ignore[type-var]


def lost(value: T, *names: str, reason: str = "no such file") -> T:
    """Make the named facts unknown."""
    return replace(value, **{name: unknown(getattr(value, name).source, reason) for name in names})  # type: ignore[type-var]


def unread(value: Any, reason: str = "no such file") -> Any:
    """Make every fact in a value unknown, at any depth; lists of things stay."""
    if isinstance(value, Fact):
        return unknown(value.source, reason)
    if isinstance(value, tuple):
        return tuple(unread(item, reason) for item in value)
    if isinstance(value, dict):
        return {key: unread(item, reason) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: unread(getattr(value, field.name), reason) for field in fields(value)})
    return value


def config(**new: Any) -> ConfigSpace:
    """Config space read by root: version 2, nothing odd."""

    def at(value: Any) -> Fact[Any]:
        return known(value, "config")

    return change(
        ConfigSpace(
            readable_bytes=at(4096), port_type=at("endpoint"), capability_version=at(2), max_payload_bytes=at(256),
            payload_supported_bytes=at(512), max_read_request_bytes=at(512), relaxed_ordering=at(True), no_snoop=at(True),
            extended_tag=at(True), ten_bit_tag_requester=at(False), ido_request=at(True), ido_completion=at(True),
            no_ro_pr_pr_passing=at(False), aspm=at("off"), acs_control=at(0), acs_redirect=at(False),
            transactions_pending=at(False),
        ),
        **new,
    )  # fmt: skip


def link(now: int = 16, most: int = 16, gt_s: float = 16.0, most_gt_s: float = 16.0) -> Link:
    """A link at full width and speed."""
    return Link(
        known(gt_s, "current_link_speed"),
        known(most_gt_s, "max_link_speed"),
        known(now, "current_link_width"),
        known(most, "max_link_width"),
    )


def device(address: str, *path: str, kind: str = SlotKind.OTHER, **new: Any) -> PciDevice:
    """A function behind the ports of `path`, with nothing unusual."""

    def at(value: Any, name: str) -> Fact[Any]:
        return known(value, f"/sys/bus/pci/devices/{address}/{name}")

    base = PciDevice(
        address=address, class_code=at("120000", "class"), vendor=at("1d22", "vendor"), device=at("3684", "device"),
        revision=at("02", "revision"), subsystem=at("0000:0000", "subsystem"), name=at("made up", "pci.ids"), kind=kind,
        kind_rule="", driver=at("made-up", "driver"), node=at(0, "numa_node"), node_fallback=at((0,), "local_cpulist"),
        local_cpus=at((0, 1), "local_cpulist"), iommu_group=at("1", "iommu_group"), iommu_domain=at("identity", "type"),
        sriov_vfs=at(0, "sriov_numvfs"), is_vf=at(False, "physfn"), bar_bytes=at(32 * GIB, "resource"),
        runtime_status=at("active", "runtime_status"),
        aer={k: at(0, f"aer_dev_{k}") for k in ("correctable", "nonfatal", "fatal")}, link=link(), config=config(),
        path=tuple(path), parent=path[-1] if path else None,
    )  # fmt: skip
    return change(base, **new)


def port(address: str, *path: str, kind: str = "root-port", **new: Any) -> PciDevice:
    """A bridge: root-port, upstream or downstream."""
    values = {"class_code": "060400", "vendor": "1d94", "device": "1453", "config": config(port_type=kind), **new}
    return device(address, *path, **{"kind": SlotKind.BRIDGE, **values})


def accelerator(address: str, *path: str, **new: Any) -> PciDevice:
    """A card of the accelerator kind."""
    return device(address, *path, **{"kind": SlotKind.ACCELERATOR, **new})


def nic(address: str, *path: str, **new: Any) -> PciDevice:
    """An RDMA NIC."""
    return device(address, *path, **{"kind": SlotKind.RDMA_NIC, "vendor": "15b3", "device": "1017", **new})


def node(ident: int, distances: dict[int, int], **new: Any) -> Node:
    """A node of 64 GiB with 56 GiB free, nearly all of it in huge blocks, and two CPUs."""

    def at(value: Any, name: str) -> Fact[Any]:
        return known(value, f"/sys/devices/system/node/node{ident}/{name}")

    base = Node(
        id=ident, online=at(True, "online"), cpus=at((2 * ident, 2 * ident + 1), "cpulist"),
        memory_total_bytes=at(64 * GIB, "meminfo"), memory_free_bytes=at(56 * GIB, "meminfo"),
        memory_available_bytes=at(56 * GIB, "meminfo"), distances=at(distances, "distance"),
        free_huge_blocks=at(56 * 512, "buddyinfo"), interleave_weight=at(1, "weight"), kind=at("memory", "kind"),
    )  # fmt: skip
    return change(base, **new)


def uplink(members: tuple[PciDevice, ...], at: str, root: str, ident: str = "U0", **new: Any) -> Uplink:
    """A shared x16 link of 16 GT/s: 31.5 GB/s."""
    cards = tuple(d.address for d in members if d.kind == SlotKind.ACCELERATOR)
    rate, source = 31.5e9, f"link math of {at}"
    base = Uplink(
        id=ident, port=at, root_port=root, link=link(), capacity_bytes_per_s=known(rate, source),
        shared_by=tuple(d.address for d in members), accelerators=cards, node=known(0, "numa_node"),
        solo_bytes_per_s={d.address: known(rate, source) for d in members},
        busy_bytes_per_s=known(rate / len(members), source), oversubscription=known(float(len(members)), source),
    )  # fmt: skip
    return change(base, **new)


def four_nodes() -> tuple[Node, ...]:
    """Two sockets of two nodes: 10 to itself, 16 within the socket, 32 across."""
    rows = [{b: 10 if a == b else 16 if a // 2 == b // 2 else 32 for b in range(4)} for a in range(4)]
    return tuple(node(i, row) for i, row in enumerate(rows))


def machine(*devices: PciDevice, uplinks: tuple[Uplink, ...] = (), **parts: Any) -> Machine:
    """Return a healthy machine; without devices one card a node. `host`, `numa`, `memory` are dicts of changed fields."""
    if not devices:
        devices = tuple(
            one
            for i in range(4)
            for one in (
                port(f"0000:{i + 1}0:01.0", node=i),
                accelerator(f"0000:{i + 1}1:00.0", f"0000:{i + 1}0:01.0", node=i),
            )
        )
    return Machine(
        host=change(_host(), **parts.get("host", {})),
        numa=change(_numa(), **parts.get("numa", {})),
        memory=change(_memory(), **parts.get("memory", {})),
        devices=devices,
        uplinks=uplinks,
    )


def paired(*changes: dict[str, Any], host: dict[str, Any] | None = None, **ports: Any) -> Machine:
    """Return a machine with two cards behind one switch on node 0; `changes` are one dict of config fields a card.

    `ports` are config fields of the two downstream ports.
    """
    root, up = "0000:20:01.0", "0000:21:00.0"
    downs = [port(f"0000:22:0{i}.0", root, up, kind="downstream") for i in range(2)]
    downs = [change(down, config=change(down.config, **ports)) for down in downs]
    told = (*changes, {}, {})[:2]
    cards = tuple(
        accelerator(f"0000:2{3 + i}:00.0", root, up, downs[i].address, config=config(**new))
        for i, new in enumerate(told)
    )
    devices = (port(root), port(up, root, kind="upstream"), downs[0], cards[0], downs[1], cards[1])
    return machine(*devices, uplinks=(uplink(cards, up, root),), host=host or {})


def with_device(value: Machine, address: str, **new: Any) -> Machine:
    """Change the fields of one function of a machine."""
    return replace(
        value, devices=tuple(change(d, **new) if d.address == address else d for d in value.devices)
    )  # fmt: skip


def _host() -> Host:
    def at(value: Any, name: str) -> Fact[Any]:
        return known(value, f"/proc/{name}")

    return Host(
        hostname=at("host", "hostname"), kernel=at("6.8.0-45-generic", "sys/kernel/osrelease"),
        architecture=at("x86_64", "arch"), command_line=at("ro quiet", "cmdline"), pinned={}, boot_id=at("b", "boot_id"),
        virtualisation=at("none", "cpuinfo"), container=at("none", "1/cgroup"), lockdown=at("none", "lockdown"),
        cpu_vendor=at("HygonGenuine", "cpuinfo"), cpu_family=at(24, "cpuinfo"), cpu_model=at(4, "cpuinfo"),
        cpu_name=at("Hygon", "cpuinfo"), capabilities=at(("CAP_SYS_ADMIN",), "self/status"),
        iommu_mode=at("identity", "iommu_groups"), deepest_idle_state=at("C2", "cpuidle"),
        deepest_idle_exit_us=at(12, "cpuidle"), pci_ids=at("/usr/share/misc/pci.ids", "pci.ids"),
    )  # fmt: skip


def _numa() -> Numa:
    def at(value: Any, name: str) -> Fact[Any]:
        return known(value, name)

    return Numa(
        nodes=four_nodes(), allowed_nodes=at((0, 1, 2, 3), "/proc/self/status"),
        allowed_cpus=at(tuple(range(8)), "/proc/self/status"), sockets=at(2, "topology"), nodes_a_socket=at(2, "topology"),
        numa_balancing=at(0, "/proc/sys/kernel/numa_balancing"), zone_reclaim_mode=at(0, "/proc/sys/vm/zone_reclaim_mode"),
        process_policy=at("default", "/proc/self/numa_maps"), mempolicy_calls=at(True, "set_mempolicy"),
    )  # fmt: skip


def _memory() -> Memory:
    def at(value: Any, name: str) -> Fact[Any]:
        return known(value, name)

    thp = Thp(
        enabled=at("madvise", "thp/enabled"), defrag=at("defer+madvise", "thp/defrag"),
        shmem_enabled=at("never", "thp/shmem_enabled"), huge_page_bytes=at(2 << 20, "thp/hpage_pmd_size"),
        sizes={"hugepages-2048kB/enabled": at("inherit", "thp/hugepages-2048kB/enabled")}, khugepaged_defrag=at(1, "thp"),
        khugepaged_pages_to_scan=at(4096, "thp"), process_enabled=at(True, "/proc/self/status"),
        counters={"compact_fail": at(0, "/proc/vmstat")},
    )  # fmt: skip
    group = Cgroup(
        version=at(2, "cgroup"), path=at("/engine", "cgroup"),
        memory_max_bytes=unknown("/sys/fs/cgroup/engine/memory.max", "no limit"),
        memory_current_bytes=at(GIB, "/sys/fs/cgroup/engine/memory.current"),
        memory_file_cache_bytes=unknown("/sys/fs/cgroup/engine/memory.max", "no limit"),
        memory_limited_by=unknown("/sys/fs/cgroup/engine/memory.max", "no limit"),
        cpuset_mems=at((0, 1, 2, 3), "cpuset"), cpuset_cpus=at(tuple(range(8)), "cpuset"),
    )  # fmt: skip
    return Memory(
        total_bytes=at(256 * GIB, "/proc/meminfo"), free_bytes=at(224 * GIB, "/proc/meminfo"),
        available_bytes=at(224 * GIB, "/proc/meminfo"), shmem_bytes=at(0, "/proc/meminfo"),
        hugetlb_bytes=at(0, "/proc/meminfo"), hugetlb_free_bytes=at(0, "/proc/meminfo"), page_bytes=at(4096, "sysconf"),
        memlock_bytes=unknown("/proc/self/limits", "unlimited"), thp=thp,
        tmpfs=(TmpfsMount("/dev/shm", at("advise", "/proc/self/mountinfo"), at(128 * GIB, "/proc/self/mountinfo")),),
        hugetlb=(), cgroup=group,
    )  # fmt: skip
