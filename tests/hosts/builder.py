"""Writes a made-up host's /proc and /sys below a folder, laid out as Linux does, from a small description.

`build_root(folder, spec)` writes a `HostSpec`; `write_shape(name, folder)` one of the named shapes of `shapes.py`;
`python tests/hosts/builder.py NAME FOLDER` the same from a shell, without arguments the list of names.
What a host is made of is in `spec.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hosts.config_space import config_bytes
from hosts.spec import (
    Function,
    HostSpec,
    NodeSpec,
    cpus_of,
)

__all__ = ["build_root", "write_shape"]


class _Writer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, path: str, content: str | bytes | int) -> None:
        at = self.folder / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def files(self, folder: str, content: Mapping[str, str | int | None]) -> None:
        for name, text in content.items():
            if text is not None:
                self.file(f"{folder}/{name}", text)

    def dir(self, path: str) -> None:
        (self.folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """Make `path` a relative link to the absolute `target`."""
        at = self.folder / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(target, Path(path).parent))


def build_root(folder: Path, spec: HostSpec) -> Path:
    """Write a host's files below `folder` (made if needed, must be empty) and return it."""
    write = _Writer(folder)
    write.dir("/proc")
    write.dir("/sys")
    _nodes(write, spec)
    _cpus(write, spec)
    _memory(write, spec)
    _process(write, spec)
    _cgroups(write, spec)
    _host(write, spec)
    write.dir("/sys/bus/pci/devices")
    for bus in spec.buses:
        write.dir(f"/sys/devices/pci{bus.name}")
        for function in bus.functions:
            _function(write, spec, function, f"/sys/devices/pci{bus.name}")
    for path, content in spec.files.items():
        write.file(path, content)
    return folder


def _ranges(ids: list[int]) -> str:
    parts: list[list[int]] = []
    for one in sorted(ids):
        if parts and parts[-1][1] == one - 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _mask(ids: list[int]) -> str:
    value = sum(1 << one for one in ids)
    words = max(1, (value.bit_length() + 31) // 32)
    return ",".join(f"{value >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range(words)))


def _online(spec: HostSpec) -> list[NodeSpec]:
    return [node for node in spec.nodes if node.online]


def _all_cpus(spec: HostSpec) -> list[int]:
    return sorted(cpu for node in spec.nodes for cpu in cpus_of(node.cpus))


def _nodes(write: _Writer, spec: HostSpec) -> None:
    online, base = _online(spec), "/sys/devices/system/node"
    lists = {
        "online": [n.id for n in online],
        "possible": [n.id for n in spec.nodes],
        "has_cpu": [n.id for n in online if n.cpus],
        "has_memory": [n.id for n in online if n.memory_bytes],
        "has_normal_memory": [n.id for n in online if n.memory_bytes],
    }
    write.files(base, {name: _ranges(ids) for name, ids in lists.items()})
    if spec.possible_nodes is not None:
        write.file(f"{base}/possible", spec.possible_nodes)
    for node in online:
        at = f"{base}/node{node.id}"
        write.link(f"/sys/bus/node/devices/node{node.id}", at)
        total, free = node.huge_2m or (0, 0)
        used = node.memory_bytes - node.free_bytes
        lines = {
            "MemTotal": node.memory_bytes, "MemFree": node.free_bytes, "MemUsed": used, "Active(file)": used // 8,
            "Inactive(file)": used // 8, "FilePages": used // 4, "Shmem": 0, "KReclaimable": used // 16, "SReclaimable": used // 16,
            "AnonHugePages": 0, "ShmemHugePages": 0,
        }  # fmt: skip
        text = "".join(f"Node {node.id} {name + ':':<15} {n // 1024:8} kB\n" for name, n in lines.items())
        text += "".join(
            f"Node {node.id} HugePages_{k}: {v:5}\n" for k, v in (("Total", total), ("Free", free), ("Surp", 0))
        )
        write.file(f"{at}/meminfo", text.encode())
        cpus = cpus_of(node.cpus)
        write.files(at, {"cpulist": node.cpus, "cpumap": _mask(cpus)})
        write.file(
            f"{at}/numastat",
            b"numa_hit 10\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\nlocal_node 10\nother_node 0\n",
        )
        if node.distances is not None:
            write.file(f"{at}/distance", " ".join(map(str, node.distances)))
        if node.huge_2m is not None:
            for size, counts in (("2048kB", node.huge_2m), ("1048576kB", (0, 0))):
                write.files(
                    f"{at}/hugepages/hugepages-{size}",
                    {"nr_hugepages": counts[0], "free_hugepages": counts[1], "surplus_hugepages": 0},
                )
        for cpu in cpus:
            write.link(f"{at}/cpu{cpu}", f"/sys/devices/system/cpu/cpu{cpu}")
        if node.weight is not None:
            write.file(f"/sys/kernel/mm/mempolicy/weighted_interleave/node{node.id}", node.weight)


def _cpus(write: _Writer, spec: HostSpec) -> None:
    base, every = "/sys/devices/system/cpu", _all_cpus(spec)
    write.files(base, {name: _ranges(every) for name in ("online", "possible", "present")})
    write.file(f"{base}/offline", "")
    packages: dict[int, list[int]] = {}
    for node in spec.nodes:
        packages.setdefault(node.socket, []).extend(cpus_of(node.cpus))
    for node in _online(spec):
        for cpu in cpus_of(node.cpus):
            topology = {
                "physical_package_id": node.socket, "die_id": 0, "core_id": cpu, "core_cpus_list": cpu,
                "thread_siblings_list": cpu, "package_cpus_list": _ranges(packages[node.socket]),
                "core_siblings_list": _ranges(packages[node.socket]),
            }  # fmt: skip
            write.files(f"{base}/cpu{cpu}/topology", topology)
            write.link(f"{base}/cpu{cpu}/node{node.id}", f"/sys/devices/system/node/node{node.id}")
    if every:
        for index, (name, exit_us) in enumerate(spec.idle_states):
            write.files(
                f"{base}/cpu{every[0]}/cpuidle/state{index}",
                {"name": name, "desc": name, "latency": exit_us, "disable": 0},
            )
        write.files(f"{base}/cpuidle", {"current_driver": "acpi_idle", "current_governor": "menu"})
    text = "".join(
        f"processor\t: {cpu}\nvendor_id\t: {spec.cpu_vendor}\ncpu family\t: {spec.cpu_family}\nmodel\t\t: {spec.cpu_model}\n"
        f"model name\t: {spec.cpu_name}\nstepping\t: 1\nflags\t\t: {spec.cpu_flags}\n\n"
        for cpu in every
    )
    write.file("/proc/cpuinfo", text.encode())


def _memory(write: _Writer, spec: HostSpec) -> None:
    online = _online(spec)
    total, free = sum(n.memory_bytes for n in online), sum(n.free_bytes for n in online)
    held = [n.huge_2m or (0, 0) for n in online]
    n_held, n_held_free = sum(a for a, _ in held), sum(b for _, b in held)
    lines = {
        "MemTotal": total // 1024, "MemFree": free // 1024, "MemAvailable": (free + (total - free) // 4) // 1024,
        "Buffers": 1024, "Cached": (total - free) // 4096, "SwapTotal": 0, "SwapFree": 0, "Shmem": 4096,
        "KReclaimable": 1024, "AnonHugePages": 0, "ShmemHugePages": 0, "HugePages_Total": n_held,
        "HugePages_Free": n_held_free, "HugePages_Rsvd": 0, "HugePages_Surp": 0, "Hugepagesize": 2048, "Hugetlb": n_held * 2048,
    } | dict(spec.meminfo)  # fmt: skip
    text = "".join(
        f"{k + ':':<16}{v:8}" + ("" if k.startswith("HugePages_") else " kB") + "\n" for k, v in lines.items()
    )
    write.file("/proc/meminfo", text.encode())
    for size, counts in (("2048kB", (n_held, n_held_free)), ("1048576kB", (0, 0))):
        write.files(
            f"/sys/kernel/mm/hugepages/hugepages-{size}",
            {"nr_hugepages": counts[0], "free_hugepages": counts[1], "resv_hugepages": 0, "surplus_hugepages": 0},
        )
    write.files("/sys/kernel/mm/transparent_hugepage", dict(spec.thp))
    write.file("/proc/vmstat", "\n".join(f"{k} {v}" for k, v in spec.vmstat.items()))
    zones = [
        f"Node {n.id}, zone {'Normal':>8} "
        + " ".join(f"{c:6}" for c in (9, 8, 7, 6, 5, 4, 3, 2, 1, blocks % 2, blocks // 2))
        for n in online
        if n.memory_bytes
        for blocks in (n.free_huge_blocks if n.free_huge_blocks is not None else n.free_bytes * 3 // 4 >> 21,)
    ]
    write.file("/proc/buddyinfo", "\n".join(zones))
    information = "".join(
        f"Node {n.id}, zone   Normal\n  pages free     {n.free_bytes >> 12}\n        boost    0\n        min      1000\n"
        f"        low      1250\n        high     1500\n        spanned  {n.memory_bytes >> 12}\n"
        f"        present  {n.memory_bytes >> 12}\n        managed  {n.memory_bytes >> 12}\n        cma      0\n"
        "        protection: (0, 0, 0, 0, 0)\n"
        for n in online
        if n.memory_bytes
    )
    write.file("/proc/zoneinfo", information.encode())
    write.files("/proc/sys", dict(spec.sysctl))


def _process(write: _Writer, spec: HostSpec) -> None:
    nodes = spec.mems_allowed if spec.mems_allowed is not None else _ranges([n.id for n in _online(spec)])
    cpus = spec.cpus_allowed if spec.cpus_allowed is not None else _ranges(_all_cpus(spec))
    lines = {
        "Name": "python3", "Pid": 4242, "Uid": "\t".join([str(spec.uid)] * 4), "THP_enabled": spec.thp_enabled_here,
        **dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), f"{spec.capabilities:016x}"), "NoNewPrivs": 0,
        "Seccomp": spec.seccomp, "Cpus_allowed": _mask(cpus_of(cpus)), "Cpus_allowed_list": cpus,
        "Mems_allowed": _mask(cpus_of(nodes)), "Mems_allowed_list": nodes,
    }  # fmt: skip
    write.file("/proc/self/status", "\n".join(f"{k}:\t{v}" for k, v in lines.items() if v is not None))
    write.file(
        "/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max locked memory         {spec.memlock:<20} {spec.memlock:<20} bytes     ",
    )
    write.file("/proc/self/numa_maps", spec.numa_maps)
    write.file("/proc/self/cgroup", f"0::{spec.cgroup_path}")
    root_type = "overlay overlay" if spec.container else "ext4 /dev/sda2"
    mounts = [f"21 1 8:2 / / rw,relatime shared:1 - {root_type} rw"]
    mounts += ["22 21 0:20 / /proc rw,nosuid - proc proc rw", "23 21 0:21 / /sys rw,nosuid - sysfs sysfs rw"]
    mounts += ["24 23 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"]
    mounts += [
        f"{30 + i} 21 0:{30 + i} / {at} rw,nosuid - tmpfs tmpfs {o}" for i, (at, o) in enumerate(spec.tmpfs.items())
    ]
    write.file("/proc/self/mountinfo", "\n".join(mounts))
    short = [
        f"{'overlay' if spec.container else '/dev/sda2'} / {root_type.split()[0]} rw,relatime 0 0",
        "proc /proc proc rw 0 0",
    ]
    short += ["sysfs /sys sysfs rw 0 0", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0"]
    short += [f"tmpfs {at} tmpfs {options} 0 0" for at, options in spec.tmpfs.items()]
    write.file("/proc/self/mounts", "\n".join(short))
    write.link("/proc/mounts", "/proc/self/mounts")


def _cgroups(write: _Writer, spec: HostSpec) -> None:
    base = "/sys/fs/cgroup"
    write.file(f"{base}/cgroup.controllers", "cpuset cpu io memory hugetlb pids")
    nodes = spec.mems_allowed if spec.mems_allowed is not None else _ranges([n.id for n in _online(spec)])
    cpus = spec.cpus_allowed if spec.cpus_allowed is not None else _ranges(_all_cpus(spec))
    effective = {"cpuset.mems.effective": nodes, "cpuset.cpus.effective": cpus}
    write.files(f"{base}{spec.cgroup_path.rstrip('/')}", effective | dict(spec.cgroup))
    for above in list(Path(spec.cgroup_path).parents)[:-1]:
        write.files(
            f"{base}{above}", {"cgroup.type": "domain", "cgroup.controllers": "cpuset memory", "memory.max": "max"}
        )
    for path, files in spec.cgroup_above.items():
        write.files(f"{base}{path.rstrip('/')}", dict(files))


def _host(write: _Writer, spec: HostSpec) -> None:
    write.files(
        "/proc/sys/kernel",
        {
            "osrelease": spec.kernel,
            "hostname": spec.hostname,
            "random/boot_id": spec.boot_id,
            "arch": "x86_64",
            "ostype": "Linux",
        },
    )
    write.file("/proc/version", f"Linux version {spec.kernel} (build@host) (gcc 13.2.0) #45 SMP")
    write.file("/proc/cmdline", spec.cmdline)
    write.file("/proc/1/cgroup", f"0::{spec.cgroup_path if not spec.container else '/'}")
    if spec.lockdown is not None:
        write.file("/sys/kernel/security/lockdown", spec.lockdown)
    write.files("/sys/devices/virtual/dmi/id", {"sys_vendor": spec.dmi[0], "product_name": spec.dmi[1]})
    write.link("/sys/class/dmi/id", "/sys/devices/virtual/dmi/id")
    if spec.container:
        write.file("/.dockerenv", b"")
    if spec.pci_ids:
        ids = {
            "10b5": ("PLX Technology, Inc.", {"8747": "PEX 8747 48-Lane, 5-Port PCI Express Gen 3 Switch"}),
            "10de": ("NVIDIA Corporation", {"2330": "GH100 [H100 SXM5 80GB]", "22a3": "GH100 [H100 NVSwitch]"}),
            "15b3": (
                "Mellanox Technologies",
                {"1017": "MT27800 Family [ConnectX-5]", "1021": "MT2910 Family [ConnectX-7]"},
            ),
            "1d22": ("Baidu Technology", {"3684": "Kunlun AI Accelerator"}),
            "1d94": ("Chengdu Haiguang IC Design Co., Ltd.", {"1453": "PCIe GPP Bridge"}),
        }
        text = "".join(
            f"{v}  {name}\n" + "".join(f"\t{d}  {n}\n" for d, n in devices.items())
            for v, (name, devices) in ids.items()
        )
        write.file("/usr/share/misc/pci.ids", text.encode())


def _buses_below(function: Function) -> Iterator[int]:
    for child in function.children:
        yield int(child.address.split(":")[1], 16)
        yield from _buses_below(child)


def _function(write: _Writer, spec: HostSpec, this: Function, parent: str) -> None:
    at = f"{parent}/{this.address}"
    write.dir(at)
    write.link(f"/sys/bus/pci/devices/{this.address}", at)
    write.link(f"{at}/subsystem", "/sys/bus/pci")
    local = this.local_cpus
    if local is None:
        node = next((n for n in _online(spec) if n.id == this.node), None)
        local = node.cpus if node else _ranges(_all_cpus(spec))
    sub = this.subsystem.split(":") if this.subsystem else (None, None)
    texts: dict[str, str | int | None] = {
        "class": f"0x{this.class_code}" if this.class_code else None,
        "vendor": f"0x{this.vendor}" if this.vendor else None,
        "device": f"0x{this.device}" if this.device else None,
        "revision": f"0x{this.revision}" if this.revision else None,
        "subsystem_vendor": f"0x{sub[0]}" if sub[0] else None,
        "subsystem_device": f"0x{sub[1]}" if sub[1] else None,
        "numa_node": this.node,
        "local_cpulist": local,
        "local_cpus": _mask(cpus_of(local)),
        "enable": 1,
        "power/runtime_status": this.runtime_status,
        "power/control": "auto",
    }
    if this.link:
        texts |= {"current_link_speed": this.link.speed_now, "max_link_speed": this.link.speed_max}
        texts |= {"current_link_width": this.link.width_now, "max_link_width": this.link.width_max}
    if this.sriov_vfs is not None:
        texts |= {"sriov_numvfs": this.sriov_vfs, "sriov_totalvfs": max(16, this.sriov_vfs)}
    if this.aer is not None:
        for name, rows, total in zip(
            ("correctable", "nonfatal", "fatal"), ("RxErr", "Undefined", "Undefined"), this.aer, strict=True
        ):
            key = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}[name]
            texts[f"aer_dev_{name}"] = f"{rows} {total}\n{key} {total}"
    texts |= dict(this.extra)
    write.files(at, {k: v for k, v in texts.items() if k not in this.left_out})
    if "resource" not in this.left_out:
        first = 0x38000000000
        bar = f"0x{first:016x} 0x{first + this.bar_bytes - 1:016x} 0x000000000014220c\n" if this.bar_bytes else ""
        empty = f"0x{0:016x} 0x{0:016x} 0x{0:016x}\n"
        write.file(f"{at}/resource", (bar + empty * (13 - bool(bar))).encode())
    if this.config is not None:
        write.file(f"{at}/config", this.config)
    elif this.config_length and "config" not in this.left_out:
        write.file(f"{at}/config", _config_of(this))
    if this.driver:
        write.link(f"{at}/driver", f"/sys/bus/pci/drivers/{this.driver}")
        write.dir(f"/sys/bus/pci/drivers/{this.driver}")
        write.link(f"/sys/bus/pci/drivers/{this.driver}/{this.address}", at)
    if this.iommu_group is not None:
        group = f"/sys/kernel/iommu_groups/{this.iommu_group}"
        write.link(f"{at}/iommu_group", group)
        write.file(f"{group}/type", spec.iommu_types.get(this.iommu_group, "identity"))
        write.link(f"{group}/devices/{this.address}", at)
    if this.physfn:
        write.link(f"{at}/physfn", f"{parent}/{this.physfn}")
    for kind, names in (("net", this.net), ("infiniband", this.infiniband), ("nvme", this.nvme)):
        for name in names:
            write.dir(f"{at}/{kind}/{name}")
            write.link(f"{at}/{kind}/{name}/device", at)
            write.link(f"/sys/class/{kind}/{name}", f"{at}/{kind}/{name}")
    for child in this.children:
        _function(write, spec, child, at)


def _config_of(this: Function) -> bytes:
    sub = tuple(int(part, 16) for part in (this.subsystem or "0:0").split(":"))
    buses = None
    if (this.class_code or "").startswith("0604"):
        own, below = int(this.address.split(":")[1], 16), list(_buses_below(this))
        buses = (own, min(below, default=own), max(below, default=own))
    return config_bytes(
        vendor=int(this.vendor or "ffff", 16),
        device=int(this.device or "ffff", 16),
        class_code=int(this.class_code or "0", 16),
        revision=int(this.revision or "0", 16),
        subsystem=(sub[0], sub[1]),
        pcie=this.pcie,
        length=this.config_length,
        buses=buses,
    )


def write_shape(name: str, folder: Path) -> Path:
    """Write the named shape below `folder` and return it; KeyError lists the names there are."""
    from hosts.shapes import SHAPES

    if name not in SHAPES:
        raise KeyError(f"{name!r}; there are {', '.join(SHAPES)}")
    folder.mkdir(parents=True, exist_ok=True)
    SHAPES[name](folder)
    return folder


def main(arguments: list[str]) -> int:
    """Write one shape, or list them."""
    from hosts.shapes import SHAPES

    if len(arguments) != 2 or arguments[0] not in SHAPES:
        print("usage: builder.py NAME FOLDER\nshapes: " + " ".join(SHAPES), file=sys.stderr)
        return 2
    print(write_shape(arguments[0], Path(arguments[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
