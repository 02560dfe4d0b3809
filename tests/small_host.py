"""A small host as files: two sockets, a node each, four CPUs, a control group tree; written below a folder for the readers."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.root import HostRoot

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
THP = "/sys/kernel/mm/transparent_hugepage"
GROUPS = "/sys/fs/cgroup"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _cpuinfo(flags: str) -> str:
    return (
        "processor\t: 0\nvendor_id\t: HygonGenuine\ncpu family\t: 24\nmodel\t\t: 4\n"
        f"model name\t: Hygon C86-4G\nflags\t\t: {flags}\n\nprocessor\t: 1\nvendor_id\t: other\n"
    )


def _node(node: int, cpus: str, distance: str, total_kib: int) -> dict[str, str]:
    folder = f"{NODES}/node{node}"
    return {
        f"{folder}/cpulist": f"{cpus}\n",
        f"{folder}/distance": f"{distance}\n",
        f"{folder}/meminfo": "".join(
            f"Node {node} {name}: {kib:>12} kB\n"
            for name, kib in {
                "MemTotal": total_kib, "MemFree": total_kib // 2, "Active(file)": 4096, "Inactive(file)": 4096,
                "KReclaimable": 2048, "SReclaimable": 1024,
            }.items()
        ),
        f"{folder}/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
        f"{folder}/hugepages/hugepages-2048kB/free_hugepages": "3\n",
        f"/sys/kernel/mm/mempolicy/weighted_interleave/node{node}": f"{node + 1}\n",
    }  # fmt: skip


def _zone(node: int, name: str, low: int, high: int, managed: int, protection: str) -> str:
    return (
        f"Node {node}, zone {name:>8}\n  per-node stats\n      nr_inactive_anon 1\n  pages free     99\n        boost    0\n"
        f"        min      1\n        low      {low}\n        high     {high}\n        spanned  {managed}\n        managed  {managed}\n"
        f"        protection: ({protection})\n      nr_free_pages 99\n  pagesets\n    cpu: 0\n              high:  7\n"
    )


V2_GROUP = f"{GROUPS}/serving.slice/engine.service"
V2 = {
    "/proc/self/cgroup": "0::/serving.slice/engine.service\n",
    f"{GROUPS}/cgroup.controllers": "cpuset cpu memory\n",
    f"{GROUPS}/serving.slice/cgroup.controllers": "cpuset memory\n",
    f"{GROUPS}/serving.slice/cgroup.type": "domain\n",
    f"{GROUPS}/serving.slice/cpuset.mems.effective": "0-1\n",
    f"{GROUPS}/serving.slice/memory.max": f"{2 * GIB}\n",
    f"{GROUPS}/serving.slice/memory.high": "max\n",
    f"{GROUPS}/serving.slice/memory.current": f"{GIB}\n",
    f"{GROUPS}/serving.slice/memory.stat": f"anon 1\ninactive_file {MIB}\n",
    f"{V2_GROUP}/cgroup.controllers": "cpuset memory\n",
    f"{V2_GROUP}/cgroup.type": "domain\n",
    f"{V2_GROUP}/memory.max": "max\n",
    f"{V2_GROUP}/memory.current": f"{GIB // 2}\n",
    f"{V2_GROUP}/cpuset.mems.effective": "1\n",
    f"{V2_GROUP}/cpuset.cpus.effective": "2-3\n",
}
V2_MOUNT = "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

V1_GROUP = f"{GROUPS}/memory/serving/engine"
V1 = {
    "/proc/self/cgroup": "4:memory:/serving/engine\n3:cpuset:/serving\n1:name=systemd:/\n0::/\n",
    f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n",
    f"{GROUPS}/memory/serving/memory.limit_in_bytes": f"{2 * GIB}\n",
    f"{GROUPS}/memory/serving/memory.usage_in_bytes": f"{GIB}\n",
    f"{GROUPS}/memory/serving/memory.stat": f"inactive_file 1\ntotal_inactive_file {MIB}\n",
    f"{V1_GROUP}/memory.limit_in_bytes": f"{3 * GIB}\n",
    f"{V1_GROUP}/memory.usage_in_bytes": f"{GIB // 2}\n",
    f"{V1_GROUP}/memory.stat": f"cache 0\nhierarchical_memory_limit {2 * GIB}\n",
    f"{GROUPS}/cpuset/serving/cpuset.mems": "1\n",
    f"{GROUPS}/cpuset/serving/cpuset.cpus": "2-3\n",
}
V1_MOUNTS = (
    "32 31 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
_OTHER_MOUNTS = (
    "24 1 0:23 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1048576k\n"
    "25 1 0:24 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=2097152k,huge=advise\n"
    "26 1 0:25 / /mnt/a\\040pool rw - tmpfs none rw\n"
    "27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n"
)


def small_host(version: int = 2) -> dict[str, str | bytes]:
    """Return path -> content of the small host with control groups of this version. Change it before it is written."""
    files: dict[str, str | bytes] = {
        f"{NODES}/online": "0-1\n",
        f"{NODES}/has_generic_initiator": "\n",
        **_node(0, "0-1", "10 32", 4 * MIB),
        **_node(1, "2-3", "32 10", 2 * MIB),
        f"{CPUS}/online": "0-3\n",
        f"{CPUS}/cpu0/topology/package_cpus_list": "0-1\n",
        f"{CPUS}/cpu2/topology/package_cpus_list": "2-3\n",
        f"{CPUS}/cpu0/cpuidle/state0/name": "POLL\n",
        f"{CPUS}/cpu0/cpuidle/state0/latency": "0\n",
        f"{CPUS}/cpu0/cpuidle/state0/disable": "0\n",
        f"{CPUS}/cpu0/cpuidle/state1/name": "C2\n",
        f"{CPUS}/cpu0/cpuidle/state1/latency": "400\n",
        f"{CPUS}/cpu0/cpuidle/state1/disable": "0\n",
        "/proc/buddyinfo": (
            "Node 0, zone    DMA32      1      0      0      0      0      0      0      0      0      2      3\n"
            "Node 0, zone   Normal      5      0      0      0      0      0      0      0      7      1      0\n"
            "Node 1, zone   Normal      9      9      9      9      9      9      9      9      9      0      0\n"
        ),
        "/proc/zoneinfo": (
            _zone(0, "DMA32", 10, 20, 1000, "0, 30, 30")
            + _zone(0, "Normal", 40, 50, 9000, "0, 0, 0")
            + _zone(1, "Normal", 40, 50, 9000, "0, 0, 0")
        ),
        "/proc/meminfo": (
            "MemTotal:        6291456 kB\nMemFree:         3145728 kB\nMemAvailable:    4194304 kB\nShmem:              1024 kB\n"
            "HugePages_Total:       8\nHugepagesize:       2048 kB\nHugetlb:           16384 kB\n"
        ),
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "8\n",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "6\n",
        f"{THP}/enabled": "always [madvise] never\n",
        f"{THP}/defrag": "always defer [defer+madvise] madvise never\n",
        f"{THP}/shmem_enabled": "always within_size advise [never] deny force\n",
        f"{THP}/hpage_pmd_size": "2097152\n",
        f"{THP}/khugepaged/defrag": "1\n",
        f"{THP}/khugepaged/pages_to_scan": "4096\n",
        f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never\n",
        f"{THP}/hugepages-2048kB/shmem_enabled": "always [inherit] within_size advise never\n",
        f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]\n",
        "/proc/vmstat": (
            "nr_free_pages 7\nthp_fault_alloc 11\nthp_fault_fallback 2\nthp_split_pmd 5\n"
            "compact_stall 3\ncompact_fail 1\ncompact_success 2\n"
        ),
        "/proc/sys/kernel/numa_balancing": "1\n",
        "/proc/sys/vm/zone_reclaim_mode": "0\n",
        "/proc/sys/kernel/hostname": "c12-07\n",
        "/proc/sys/kernel/osrelease": "6.8.0-31-generic\n",
        "/proc/sys/kernel/arch": "x86_64\n",
        "/proc/sys/kernel/random/boot_id": "8b92cde8-c031-4692-8275-55145794378a\n",
        "/proc/cmdline": 'root=/dev/sda transparent-hugepage=never hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=4 amd_iommu=pt x="a iommu=pt" -- iommu=off\n',
        "/proc/cpuinfo": _cpuinfo("fpu lm hypervisor"),
        "/proc/self/auxv": struct.pack("<8Q", 33, 0x7FFF0000, 6, 4096, 17, 100, 0, 0),
        "/proc/self/numa_maps": "55d0c0de0000 weighted interleave:0-1 file=/usr/bin/python3 mapped=2 N0=2 kernelpagesize_kB=4\n",
        "/proc/self/status": (
            "Name:\tengine\nTHP_enabled:\t1\nCapInh:\t0000000000000000\nCapEff:\t0000000000a04001\n"
            "Cpus_allowed_list:\t2-3\nMems_allowed_list:\t1\n"
        ),
        "/proc/self/limits": (
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max locked memory         8388608              unlimited            bytes     \n"
        ),
        "/proc/self/mountinfo": _OTHER_MOUNTS + (V2_MOUNT if version == 2 else V1_MOUNTS),
        "/sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
        "/sys/class/dmi/id/sys_vendor": "QEMU\n",
        "/sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
        "/sys/kernel/iommu_groups/1/type": "DMA-FQ\n",
        "/sys/kernel/iommu_groups/12/type": "DMA\n",
        "/usr/share/misc/pci.ids": "10de  NVIDIA Corporation\n",
    }  # fmt: skip
    return files | (V2 if version == 2 else V1)


LINKS = {f"/proc/self/ns/{name}": f"{name}:[{inode}]" for name, inode in (
    ("pid", 4026531836), ("uts", 4026531838), ("ipc", 4026531839), ("user", 4026531837), ("cgroup", 4026531835),
)}  # fmt: skip
"""The initial namespaces."""


def write_host(top: Path, files: Mapping[str, str | bytes], links: Mapping[str, str] = LINKS) -> HostRoot:
    """Write the host below `top` and return its root: a recording, so that nothing is asked of the kernel."""
    for path, content in files.items():
        where = top / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(content if isinstance(content, bytes) else content.encode())
    for path, target in links.items():
        where = top / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.symlink_to(target)
    return HostRoot(top, name="small")


def facts_of(value: object, where: str = "") -> Iterator[tuple[str, Fact[object]]]:
    """Yield every fact of a model value with where it is, such as `numa.nodes[1].cpus`; nodes and pools by their own names."""
    if isinstance(value, Fact):
        yield where, value
    elif dataclasses.is_dataclass(value):
        for entry in dataclasses.fields(value):
            yield from facts_of(getattr(value, entry.name), f"{where}.{entry.name}" if where else entry.name)
    elif isinstance(value, dict):
        for name, found in value.items():
            yield from facts_of(found, f"{where}.{name}")
    elif isinstance(value, tuple):
        for at, found in enumerate(value):
            name = getattr(found, "id", None) if hasattr(found, "id") else getattr(found, "page_bytes", None)
            name = name if name is not None else getattr(found, "path", at)
            yield from facts_of(found, f"{where}[{name}]")
