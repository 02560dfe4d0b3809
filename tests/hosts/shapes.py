"""The named hosts. Each function writes one below a folder; `SHAPES` maps its name to it.

None is a recording: addresses, distances and sizes are our choice. `describe(name)` gives the description of those that
have one (`empty` and `garbage` have none), so that a test can change a part of it with `dataclasses.replace`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hosts.builder import build_root
from hosts.config_space import Pcie
from hosts.spec import CAPABILITIES, GIB, Bus, Function, HostSpec, LinkText, NodeSpec, distances, link

__all__ = ["SHAPES", "describe"]

GEN3, GEN4, GEN5 = 8.0, 16.0, 32.0


# -- parts ------------------------------------------------------------------------------------------------------------


def _nodes(
    n: int, cpus: int, gib: int, *, sockets: int = 2, free_gib: int | None = None, far: int = 32
) -> tuple[NodeSpec, ...]:
    rows, a_socket = distances(n, max(1, n // sockets), far=far), max(1, n // sockets)
    free = (free_gib if free_gib is not None else gib * 7 // 8) * GIB
    return tuple(
        NodeSpec(
            id=i,
            cpus=f"{i * cpus}-{(i + 1) * cpus - 1}",
            memory_bytes=gib * GIB,
            free_bytes=free,
            distances=rows[i],
            weight=1,
            socket=i // a_socket,
        )
        for i in range(n)
    )


def _port(
    address: str, node: int | None, kind: str, gt_s: float, width: int, *children: Function, **more: object
) -> Function:
    pcie = Pcie(port_type=kind, speed_gt_s=gt_s, width=width, relaxed_ordering=True, acs_control=more.pop("acs", 0))  # type: ignore[arg-type]
    values: dict[str, object] = {
        "driver": "pcieport",
        "link": link(gt_s, width),
        "pcie": pcie,
        "aer": (0, 0, 0),
        **more,
    }
    return Function(address, "060400", node=node, children=children, **values)  # type: ignore[arg-type]


def _switch(
    bus: int, node: int | None, ids: tuple[str, str], gt_s: float, *below: Function, domain: str = "0000"
) -> Function:
    """An upstream port at bus:00.0, and one downstream port a member on the bus after it."""
    vendor, device = ids
    downs = tuple(
        _port(f"{domain}:{bus + 1:02x}:{4 * i:02x}.0", node, "downstream", gt_s, 16, one, vendor=vendor, device=device)
        for i, one in enumerate(below)
    )
    return _port(f"{domain}:{bus:02x}:00.0", node, "upstream", gt_s, 16, *downs, vendor=vendor, device=device)


def _kunlun(
    address: str, node: int | None, *, request: bool = False, completion: bool = False, **more: object
) -> Function:
    values: dict[str, object] = {
        "class_code": "078000", "vendor": "1d22", "device": "3684", "revision": "02", "driver": "kunlun", "link": link(GEN4, 16),
        "pcie": Pcie(ido_request=request, ido_completion=completion, speed_gt_s=GEN4), "bar_bytes": 32 * GIB, "aer": (0, 0, 0),
    }  # fmt: skip
    return Function(address, node=node, **(values | more))  # type: ignore[arg-type]


def _nvidia(address: str, node: int | None, *, device: str = "2330", gt_s: float = GEN5, **more: object) -> Function:
    values: dict[str, object] = {
        "class_code": "030200", "vendor": "10de", "device": device, "revision": "a1", "driver": "nvidia", "link": link(gt_s, 16),
        "pcie": Pcie(ido_request=True, ido_completion=True, speed_gt_s=gt_s), "bar_bytes": 128 * GIB, "aer": (0, 0, 0),
    }  # fmt: skip
    return Function(address, node=node, **(values | more))  # type: ignore[arg-type]


def _nic(
    address: str, node: int | None, name: str, *, gt_s: float = GEN4, rdma: str | None = "mlx5_0", **more: object
) -> Function:
    values: dict[str, object] = {
        "class_code": "020000", "vendor": "15b3", "device": "1017", "driver": "mlx5_core", "link": link(gt_s, 16), "net": (name,),
        "pcie": Pcie(speed_gt_s=gt_s), "sriov_vfs": 0, "bar_bytes": 32 << 20, "infiniband": (rdma,) if rdma else (),
    }  # fmt: skip
    return Function(address, node=node, **(values | more))  # type: ignore[arg-type]


def _nvme(address: str, node: int | None, name: str, **more: object) -> Function:
    values: dict[str, object] = {
        "class_code": "010802", "vendor": "144d", "device": "a80a", "driver": "nvme", "link": link(GEN4, 4), "nvme": (name,),
        "pcie": Pcie(speed_gt_s=GEN4, width=4), "bar_bytes": 16 << 10,
    }  # fmt: skip
    return Function(address, node=node, **(values | more))  # type: ignore[arg-type]


# -- hosts ------------------------------------------------------------------------------------------------------------


def _8n8x_4up16() -> HostSpec:
    """Two sockets, eight nodes, 1.5 TB; cards in pairs behind four x16 uplinks on nodes 1 3 5 7; IDO on, on, off, unequal."""
    ido = ((True, True), (True, True), (False, False), (True, False))
    buses = []
    for i, (node, (first, second)) in enumerate(zip((1, 3, 5, 7), ido, strict=True)):
        bus = 0x20 * (i + 1)
        cards = (
            _kunlun(f"0000:{bus + 3:02x}:00.0", node, request=first, completion=first, iommu_group=10 + 2 * i),
            _kunlun(f"0000:{bus + 4:02x}:00.0", node, request=second, completion=second, iommu_group=11 + 2 * i),
        )
        switch = _switch(bus + 1, node, ("1000", "c010"), GEN4, *cards)
        buses.append(Bus(f"0000:{bus:02x}", (_port(f"0000:{bus:02x}:01.1", node, "root-port", GEN4, 16, switch),)))
    nic = _nic("0000:a1:00.0", 5, "ens1f0", iommu_group=20)
    buses.append(Bus("0000:a0", (_port("0000:a0:01.1", 5, "root-port", GEN4, 16, nic),)))
    disk = _nvme("0000:c1:00.0", 0, "nvme0", iommu_group=21)
    buses.append(Bus("0000:c0", (_port("0000:c0:03.1", 0, "root-port", GEN4, 4, disk),)))
    return HostSpec(nodes=_nodes(8, 8, 192, free_gib=176), buses=tuple(buses), hostname="8n8x-4up16")


def _2n8x() -> HostSpec:
    """Two nodes; eight accelerators and four RDMA NICs, two and one behind each of four switches; two NVSwitches beside them."""
    buses = []
    for i in range(4):
        bus, node = 0x20 + 0x30 * i, i // 2
        members = (
            _nvidia(f"0000:{bus + 3:02x}:00.0", node),
            _nvidia(f"0000:{bus + 4:02x}:00.0", node),
            _nic(f"0000:{bus + 5:02x}:00.0", node, f"ens{i}", gt_s=GEN5, rdma=f"mlx5_{i}", device="1021"),
        )
        switch = _switch(bus + 1, node, ("1000", "c030"), GEN5, *members)
        buses.append(Bus(f"0000:{bus:02x}", (_port(f"0000:{bus:02x}:01.0", node, "root-port", GEN5, 16, switch),)))
    fabric = tuple(
        _port(
            f"0000:e0:0{i + 1}.0", 1, "root-port", GEN4, 2,
            Function(f"0000:e{i + 1}:00.0", "068000", "10de", "22a3", "a1", node=1, driver="nvidia-nvswitch", link=link(GEN4, 2),
                     pcie=Pcie(width=2)),
        )
        for i in range(2)
    )  # fmt: skip
    buses.append(Bus("0000:e0", fabric))
    return HostSpec(
        nodes=_nodes(2, 16, 1024, far=21),
        buses=tuple(buses),
        hostname="2n8x",
        cpu_vendor="GenuineIntel",
        cpu_family=6,
        cpu_model=143,
        cpu_name="Intel(R) Xeon(R) Platinum 8480+",
    )


def _2n4x_plx() -> HostSpec:
    """Two nodes; four cards and a NIC all behind one PLX switch on node 0; redirect set in its ports; far Ethernet NIC on node 1."""
    cards = tuple(_nvidia(f"0000:{0x07 + i:02x}:00.0", 0, device="1db6", gt_s=GEN3) for i in range(4))
    nic = _nic("0000:0b:00.0", 0, "ib0", gt_s=GEN3)
    switch = _switch(0x05, 0, ("10b5", "8747"), GEN3, *cards, nic)
    redirecting = tuple(replace(p, pcie=replace(p.pcie or Pcie(), acs_control=0x1D)) for p in switch.children)
    switch = replace(switch, children=redirecting)
    other = _nic("0000:81:00.0", 1, "eth0", gt_s=GEN3, rdma=None, vendor="8086", device="1572", driver="i40e")
    return HostSpec(
        nodes=_nodes(2, 10, 192, far=21),
        buses=(
            Bus("0000:04", (_port("0000:04:02.0", 0, "root-port", GEN3, 16, switch),)),
            Bus("0000:80", (_port("0000:80:01.0", 1, "root-port", GEN3, 16, other),)),
        ),
        hostname="2n4x-plx",
        cpu_vendor="GenuineIntel",
        cpu_family=6,
        cpu_model=85,
        cpu_name="Intel(R) Xeon(R) Gold 6148",
    )


def _1n0x_vm() -> HostSpec:
    """A virtual machine: one node, no accelerator, virtio functions without link files, node -1 everywhere."""
    virtio = tuple(
        Function(f"0000:00:0{i + 1}.0", code, "1af4", ids, node=-1, driver="virtio-pci", pcie=None, config_length=256)
        for i, (code, ids) in enumerate((("020000", "1041"), ("010000", "1042")))
    )
    bridge = Function("0000:00:00.0", "060000", "8086", "0d57", node=-1, config_length=256)
    return HostSpec(
        nodes=(NodeSpec(0, "0-1", 4 * GIB, 3 * GIB, distances=(10,), weight=1),),
        buses=(Bus("0000:00", (bridge, *virtio)),),
        hostname="1n0x-vm",
        cpu_vendor="GenuineIntel",
        cpu_family=6,
        cpu_model=106,
        cpu_name="Intel(R) Xeon(R) Processor @ 2.60GHz",
        cpu_flags="fpu vme msr pae sse2 ht lm hypervisor",
        dmi=("QEMU", "Standard PC (Q35 + ICH9, 2009)"),
        lockdown=None,
        idle_states=(),
        memlock="8388608",
    )


def _sparse_ids() -> HostSpec:
    """Online nodes 1 2 33 72 of 0-73: node 33 without memory, node 72 without CPUs, node 0 offline; cards on 2 and 33."""
    rows = ((10, 16, 40, 40), (16, 10, 40, 40), (40, 40, 10, 16), (40, 40, 16, 10))
    nodes = (
        NodeSpec(0, online=False),
        NodeSpec(1, "0-3", 64 * GIB, 50 * GIB, distances=rows[0]),
        NodeSpec(2, "8-11", 64 * GIB, 40 * GIB, distances=rows[1]),
        NodeSpec(33, "16-19", 0, 0, distances=rows[2], socket=1),
        NodeSpec(72, "", 128 * GIB, 120 * GIB, distances=rows[3], socket=1),
    )
    first, second = _kunlun("0000:21:00.0", 2), _kunlun("0000:41:00.0", 33)
    return HostSpec(
        nodes=nodes,
        possible_nodes="0-73",
        buses=(
            Bus("0000:20", (_port("0000:20:01.1", 2, "root-port", GEN4, 16, first),)),
            Bus("0000:40", (_port("0000:40:01.1", 33, "root-port", GEN4, 16, second),)),
        ),
        hostname="sparse-ids",
    )


def _cpuset_container() -> HostSpec:
    """8n8x-4up16 seen from a container: nodes 0-1 and 64 GiB allowed, Docker's capabilities and seccomp, 64-byte config space."""
    host = _8n8x_4up16()
    return replace(
        host,
        buses=tuple(replace(bus, functions=tuple(_config64_below(f) for f in bus.functions)) for bus in host.buses),
        hostname="cpuset-container",
        mems_allowed="0-1",
        cpus_allowed="0-15",
        capabilities=CAPABILITIES["docker"],
        seccomp=2,
        container=True,
        cgroup_path="/",
        cgroup={"memory.max": str(64 * GIB), "memory.current": str(2 * GIB), "memory.swap.max": "0"},
        tmpfs={"/dev/shm": "rw,size=65536k", "/dev": "rw,size=65536k,mode=755"},
        memlock="65536",
        lockdown=None,
    )


def _config64_below(function: Function) -> Function:
    return replace(function, config_length=64, children=tuple(_config64_below(child) for child in function.children))


def _config64() -> HostSpec:
    """Two nodes, two cards on their own ports, read without CAP_SYS_ADMIN: config space ends after 64 bytes."""
    buses = tuple(
        Bus(f"0000:{bus:02x}", (_port(f"0000:{bus:02x}:01.1", node, "root-port", GEN4, 16, _kunlun(f"0000:{bus + 1:02x}:00.0", node)),))
        for node, bus in enumerate((0x20, 0xA0))
    )  # fmt: skip
    return HostSpec(
        nodes=_nodes(2, 8, 256),
        buses=tuple(replace(bus, functions=tuple(_config64_below(f) for f in bus.functions)) for bus in buses),
        hostname="config64",
        capabilities=CAPABILITIES["none"],
        uid=65534,
        memlock="8388608",
    )


def _odd_links() -> HostSpec:
    """Link files in every wording: old, unknown, width 0 and 255, missing, idle speed, half width, x12; one card asleep, one gone."""
    links = (
        LinkText("8 GT/s", "8 GT/s", "16", "16"),
        LinkText("Unknown", "Unknown", "0", "255"),
        LinkText("Unknown speed", "16.0 GT/s PCIe", "255", "16"),
        LinkText("2.5 GT/s PCIe", "16.0 GT/s PCIe", "16", "16"),
        LinkText("16.0 GT/s PCIe", "16.0 GT/s PCIe", "8", "16"),
        LinkText("16.0 GT/s PCIe", None, "12", None),
        None,
        LinkText("64.0 GT/s PCIe", "64.0 GT/s PCIe", "16", "16"),
    )
    buses = []
    for i, text in enumerate(links):
        bus = 0x10 * (i + 1)
        more: dict[str, object] = {"link": text}
        if i == 6:
            more["runtime_status"] = "suspended"
        if i == 7:
            more["config"] = b"\xff" * 4096
        card = _kunlun(f"0000:{bus + 1:02x}:00.0", i % 2, **more)
        port = _port(f"0000:{bus:02x}:01.1", i % 2, "root-port", GEN4, 16, card, link=text)
        buses.append(Bus(f"0000:{bus:02x}", (port,)))
    return HostSpec(nodes=_nodes(2, 8, 256), buses=tuple(buses), hostname="odd-links")


def _domain8() -> HostSpec:
    """PCI domains of eight digits, as hot-plug bridges behind other bridges have them."""
    buses = tuple(
        Bus(
            f"{domain}:00",
            (
                _port(
                    f"{domain}:00:01.0", node, "root-port", GEN5, 16, _nvidia(f"{domain}:01:00.0", node),
                ),
            ),
        )
        for node, domain in enumerate(("10000000", "1a2b3c4d"))
    )  # fmt: skip
    return HostSpec(nodes=_nodes(2, 8, 128), buses=buses, hostname="domain8")


def _no_vendor() -> HostSpec:
    """Functions with `class` and `local_cpus` alone: no ids, no node, no link, no config, as in some recordings."""
    gone = ("numa_node", "local_cpulist", "enable", "power/runtime_status", "power/control", "resource", "config")
    bare = {
        "vendor": None,
        "device": None,
        "revision": None,
        "subsystem": None,
        "runtime_status": None,
        "left_out": gone,
    }
    functions = tuple(
        Function(f"0000:{0x20 * (i + 1):02x}:00.0", code, local_cpus=cpus, **bare)  # type: ignore[arg-type]
        for i, (code, cpus) in enumerate((("030200", "0-7"), ("030200", "8-15"), ("020000", "0-7")))
    )
    buses = tuple(Bus(f"0000:{0x20 * (i + 1):02x}", (function,)) for i, function in enumerate(functions))
    return HostSpec(nodes=_nodes(2, 8, 128), buses=buses, hostname="no-vendor", pci_ids=False)


def _device_memory() -> HostSpec:
    """Two CPU nodes, and six without CPUs that hold accelerator memory; two cards, one a socket."""
    rows = []
    for a in range(8):
        socket = [0, 1, 0, 0, 0, 1, 1, 1]
        rows.append(
            tuple(
                10 if a == b else (40 if a < 2 and b < 2 else 80 if socket[a] == socket[b] else 120) for b in range(8)
            )
        )
    nodes = tuple(
        NodeSpec(i, f"{8 * i}-{8 * i + 7}", 480 * GIB, 400 * GIB, distances=rows[i], weight=1, socket=i)
        if i < 2
        else NodeSpec(i, "", 96 * GIB, 95 * GIB, distances=rows[i], huge_2m=None, socket=0 if i < 5 else 1)
        for i in range(8)
    )
    buses = tuple(
        Bus(
            f"{domain}:00",
            (
                _port(
                    f"{domain}:00:00.0", node, "root-port", GEN5, 16, _nvidia(f"{domain}:01:00.0", node, device="2342"),
                ),
            ),
        )
        for node, domain in enumerate(("0009", "0019"))
    )  # fmt: skip
    initiators = {"/sys/devices/system/node/has_generic_initiator": b"2-7\n"}
    return HostSpec(
        nodes=nodes,
        buses=buses,
        hostname="device-memory",
        cpu_vendor="ARM",
        cpu_name="Neoverse-V2",
        files=initiators,
    )


_DESCRIBED: dict[str, Callable[[], HostSpec]] = {
    "8n8x-4up16": _8n8x_4up16,
    "2n8x": _2n8x,
    "2n4x-plx": _2n4x_plx,
    "1n0x-vm": _1n0x_vm,
    "sparse-ids": _sparse_ids,
    "cpuset-container": _cpuset_container,
    "config64": _config64,
    "odd-links": _odd_links,
    "domain8": _domain8,
    "no-vendor": _no_vendor,
    "device-memory": _device_memory,
}


def describe(name: str) -> HostSpec:
    """Return the description of a named host; KeyError for `empty`, `garbage` and names that are not there."""
    return _DESCRIBED[name]()


# -- hosts without a description --------------------------------------------------------------------------------------


def _write_empty(folder: Path) -> None:
    """Nothing at all: neither /proc nor /sys."""
    folder.mkdir(parents=True, exist_ok=True)


def _write_garbage(folder: Path) -> None:
    """The files of 2n4x-plx with nonsense in each (the same on every call): bytes, huge numbers, empty, very long lines."""
    build_root(folder, describe("2n4x-plx"))
    rng = random.Random(7)
    nonsense = (
        b"", b"\n", b"\xff\xfe\x00\x01", b"-1\n", b"99999999999999999999999\n", b"NaN GT/s\n", b"0-\n", b"5-2,,7--9\n",
        b"[ ]\n", b"0x\n", b"0xzzzz\n", b"Node node node\n", b"10 " * 4000, b"\x00" * 300, "\u4e0d\u660e\n".encode(), b"= = =\n",
    )  # fmt: skip
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(
                rng.choice(nonsense) if path.name != "config" else rng.randbytes(rng.choice((0, 3, 64, 255, 256, 4096)))
            )


SHAPES: dict[str, Callable[[Path], object]] = {
    **{name: (lambda folder, make=make: build_root(folder, make())) for name, make in _DESCRIBED.items()},
    "empty": _write_empty,
    "garbage": _write_garbage,
}
"""Name -> function that writes the host below a folder."""
