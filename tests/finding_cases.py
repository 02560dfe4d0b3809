"""A case for every code, a machine that has the finding and one in which the fact it rests on is not known; and how to make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hosts.machines import (
    GIB,
    accelerator,
    change,
    config,
    device,
    four_nodes,
    link,
    lost,
    machine,
    nic,
    paired,
    port,
    unread,
    with_device,
)

from hicachectl.tuning.finding import Finding
from hicachectl.tuning.findings import judge
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import Machine

__all__ = [
    "CARD",
    "CASES",
    "NIC",
    "ROOT",
    "SAY_WHAT_IS_UNKNOWN",
    "Case",
    "card",
    "displays",
    "flagged",
    "gone",
    "group",
    "large",
    "lost_card",
    "memory",
    "nodeless",
    "nodes",
    "of",
    "old_card",
    "on_node_zero",
    "shm",
    "short",
    "thp",
    "unnamed_root",
    "weights",
    "with_nic",
    "without_devices",
]

ROOT, CARD, NIC = "0000:10:01.0", "0000:11:00.0", "0000:51:00.0"

SAY_WHAT_IS_UNKNOWN = {
    "HC-NOTHING-READ", "HC-PART-READ", "HC-KIND-UNKNOWN", "HC-NODE-UNKNOWN", "HC-NEED-ROOT", "HC-SUSPENDED", "HC-DEVICE-GONE",
}  # fmt: skip


def of(code: str, value: Machine) -> list[Finding]:
    return [finding for finding in judge(value) if finding.code == code]


def card(**new: Any) -> Machine:
    return with_device(machine(), CARD, **new)


def memory(**new: Any) -> Machine:
    return machine(memory=new)


def thp(**new: Any) -> Machine:
    return machine(memory={"thp": change(machine().memory.thp, **new)})


def shm(huge: Any, **new: Any) -> Machine:
    mount = machine().memory.tmpfs[0]
    mount = change(mount, huge=huge) if huge is not None else lost(mount, "huge")
    return machine(memory={"tmpfs": (mount,), "thp": change(machine().memory.thp, **new)})


def group(**new: Any) -> Machine:
    return machine(memory={"cgroup": change(machine().memory.cgroup, **new)})


def with_nic(on: int | None, **new: Any) -> Machine:
    """Cards on every node, and one RDMA NIC."""
    found = nic(NIC, "0000:50:01.0", node=on if on is not None else unknown("numa_node", "no such file"), **new)
    return machine(*machine().devices, port("0000:50:01.0", node=0), found)


def nodes(*changes: dict[str, Any], **numa: Any) -> Machine:
    told = (*changes, {}, {}, {}, {})[:4]
    return machine(
        numa={"nodes": tuple(change(one, **new) for one, new in zip(four_nodes(), told, strict=True)), **numa}
    )


def on_node_zero(**numa: Any) -> Machine:
    return machine(port(ROOT), accelerator(CARD, ROOT, node=0), numa=numa)


def large(each_gib: int, available_gib: int, *kinds: str, **new: Any) -> Machine:
    """An NVIDIA card and four nodes of one size; the host's MemAvailable counts them all, as the kernel does."""
    told = {"memory_total_bytes": each_gib * GIB, "memory_available_bytes": available_gib * GIB}
    value = nodes(*({**told, "kind": kind} for kind in (*kinds, *["memory"] * 4)[:4]))
    whole = {"total_bytes": 4 * each_gib * GIB, "available_bytes": 4 * available_gib * GIB, **new}
    return replace(with_device(value, CARD, vendor="10de"), memory=change(value.memory, **whole))


def nodeless(**new: Any) -> Machine:
    """A large host whose kernel lists no nodes."""
    value = large(256, 225, **new)
    return replace(value, numa=change(value.numa, nodes=()))


def gone() -> Machine:
    why = "device gone (config reads all ones)"
    return card(config=unread(config(), why))


def short(config64: bool = True) -> Machine:
    return card(config=change(unread(config(), "needs root (CAP_SYS_ADMIN)"), readable_bytes=64 if config64 else 256))


def flagged(relaxed: bool | None, vendor: str = "8086") -> Machine:
    found = config(relaxed_ordering=relaxed) if relaxed is not None else lost(config(), "relaxed_ordering")
    return machine(port(ROOT, vendor=vendor, device="6f02"), accelerator(CARD, ROOT, config=found))


@dataclass(frozen=True)
class Case:
    """A machine that has a finding, and one in which the fact it rests on is not known."""

    code: str
    severity: str
    has: Callable[[], Machine]
    unknown: Callable[[], Machine]
    both_values: tuple[str, ...] = ()


CASES = (
    Case("HC-DEVICE-GONE", "error", gone, lambda: card(config=unread(config())), ("all ones",)),
    Case(
        "HC-LINK-WIDTH", "error", lambda: card(link=link(now=8)), lambda: card(link=lost(link(8), "width_now")), ("x8", "x16")
    ),
    Case(
        "HC-LINK-SPEED", "note", lambda: card(link=link(gt_s=2.5)), lambda: card(link=lost(link(gt_s=2.5), "speed_now_gt_s")),
        ("2.5", "16", "idle?"),
    ),
    Case("HC-UPLINK-SHARED", "note", paired, lambda: replace(paired(), uplinks=()), ("29.3 GiB/s", "14.7 GiB/s")),
    Case(
        "HC-MPS-MISMATCH", "warn", lambda: paired({"max_payload_bytes": 512}),
        lambda: paired(*[{"max_payload_bytes": unknown("config", "needs root")}] * 2), ("512", "256"),
    ),
    Case(
        "HC-ASPM-ON", "warn", lambda: card(config=config(aspm="L1")), lambda: card(config=lost(config(), "aspm")), ("L1",)
    ),
    Case(
        "HC-AER-RISING", "warn", lambda: card(aer={"fatal": Fact(2, "aer_dev_fatal")}),
        lambda: card(aer={"fatal": unknown("aer_dev_fatal", "no such file")}), ("2 fatal",),
    ),
    Case(
        "HC-BAR-SMALL", "note", lambda: card(bar_bytes=GIB // 4), lambda: lost_card("bar_bytes"), ("256.0 MiB",),
    ),
    Case(
        "HC-IDO-OFF", "warn", lambda: paired(*[{"ido_request": False}] * 2),
        lambda: paired(*[{"ido_request": unknown("config", "needs root")}] * 2), ("off (0; 1 is on)",),
    ),
    Case(
        "HC-IDO-UNEQUAL", "warn", lambda: paired({"ido_request": False}),
        lambda: paired({"ido_request": unknown("config", "needs root")}), ("on (1)", "off (0)"),
    ),
    Case("HC-RC-ORDER-UNKNOWN", "note", paired, lambda: replace(paired(), uplinks=()), ("Hygon",)),
    Case(
        "HC-RO-OFF", "note", lambda: card(config=config(relaxed_ordering=False)),
        lambda: card(config=lost(config(), "relaxed_ordering")), ("off (0",),
    ),
    Case("HC-RO-FORBIDDEN", "warn", lambda: flagged(True), lambda: unnamed_root(), ("8086:6f02", "on (1)")),
    Case(
        "HC-ACS-REDIRECT", "warn", lambda: paired(acs_control=0x1D, acs_redirect=True),
        lambda: paired(acs_control=unknown("config", "needs root"), acs_redirect=unknown("config", "needs root")), ("0x001d", "0x000c"),
    ),
    Case(
        "HC-NODE-UNKNOWN", "warn", lambda: lost_card("node", reason="firmware gives no node: '-1'"), machine, ("-1", "node 0")
    ),
    Case("HC-NIC-FAR", "warn", lambda: with_nic(0), lambda: with_nic(None), ("32", "16")),
    Case(
        "HC-INTERLEAVE-ALL", "warn", lambda: machine(numa={"process_policy": "interleave:0-3"}),
        lambda: machine(numa={"process_policy": unknown("numa_maps", "permission denied")}), ("interleave:0-3", "default"),
    ),
    Case(
        "HC-NUMA-BALANCING", "warn", lambda: machine(numa={"numa_balancing": 1}),
        lambda: machine(numa={"numa_balancing": unknown("numa_balancing", "no such file")}), ("is 1", "0"),
    ),
    Case(
        "HC-NODE-LOW", "note", lambda: nodes({}, {"memory_available_bytes": 20 * GIB}),
        lambda: nodes(
            {}, {"memory_available_bytes": unknown("meminfo", "none"), "memory_free_bytes": unknown("meminfo", "none")}
        ),
        ("20.0 GiB", "56.0 GiB"),
    ),
    Case(
        "HC-BIND-HALF", "note", on_node_zero, lambda: with_device(on_node_zero(), CARD, node=unknown("numa_node", "none")),
        ("64.0 GiB of 256.0 GiB", "1 of 4"),
    ),
    Case(
        "HC-CPUSET", "warn", lambda: machine(numa={"allowed_nodes": (0, 1)}),
        lambda: machine(numa={"allowed_nodes": unknown("status", "permission denied")}), ("2 of the host's 4",),
    ),
    Case("HC-NPS-MODE", "note", machine, lambda: machine(numa={"nodes_a_socket": unknown("cpu", "none")}), ("2 ", "1 ")),
    Case(
        "HC-MEMPOLICY-DENIED", "warn", lambda: machine(numa={"mempolicy_calls": False}),
        lambda: machine(numa={"mempolicy_calls": unknown("set_mempolicy", "asked of a live host only")}), ("EPERM",),
    ),
    Case(
        "HC-THP-OFF", "warn", lambda: thp(enabled="never"), lambda: thp(enabled=unknown("enabled", "no such file")),
        ("never", "madvise"),
    ),
    Case(
        "HC-THP-STALL", "warn", lambda: nodes({"free_huge_blocks": 512}),
        lambda: nodes(*[{"free_huge_blocks": unknown("buddyinfo", "permission denied")}] * 4), ("2% of node 0", "50%"),
    ),
    Case("HC-SHM-4K", "warn", lambda: shm("never"), lambda: shm(None), ("huge=never", "huge=advise")),
    Case(
        "HC-CGROUP-LIMIT", "warn", lambda: group(memory_max_bytes=64 * GIB, memory_limited_by="/engine"),
        lambda: group(memory_max_bytes=unknown("memory.max", "permission denied")), ("64.0 GiB", "256.0 GiB", "1.0 GiB"),
    ),
    Case(
        "HC-MEMLOCK-LOW", "warn", lambda: replace(with_nic(0), memory=change(machine().memory, memlock_bytes=8 << 20)),
        lambda: with_nic(0), ("8.0 MiB", "256.0 GiB"),
    ),
    Case(
        "HC-HUGETLB-HELD", "warn", lambda: memory(hugetlb_bytes=16 * GIB, hugetlb_free_bytes=8 * GIB),
        lambda: memory(hugetlb_bytes=16 * GIB, hugetlb_free_bytes=unknown("meminfo", "none")), ("8.0 GiB of 16.0 GiB",),
    ),
    Case(
        "HC-PIN-LARGE", "warn", lambda: large(256, 225), lambda: nodeless(total_bytes=unknown("meminfo", "none")),
        ("512.0 GiB", "900.0 GiB available", "1.0 TiB"),
    ),
    Case(
        "HC-KERNEL-GUP", "warn", lambda: machine(host={"kernel": "6.11.0-8-generic"}),
        lambda: machine(host={"kernel": unknown("osrelease", "none")}), ("6.11.0-8-generic", "6.13"),
    ),
    Case(
        "HC-IOMMU-STRICT", "warn", lambda: card(iommu_domain="DMA"), lambda: lost_card("iommu_domain"), ("DMA", "identity")
    ),
    Case(
        "HC-IOMMU-TRANSLATED", "note", lambda: card(iommu_domain="DMA-FQ"), lambda: lost_card("iommu_domain"),
        ("DMA-FQ", "identity"),
    ),
    Case(
        "HC-CSTATE-DEEP", "note", lambda: machine(host={"deepest_idle_state": "C6", "deepest_idle_exit_us": 190}),
        lambda: machine(host={"deepest_idle_exit_us": unknown("cpuidle", "none")}), ("190 us", "100 us"),
    ),
    Case(
        "HC-CONTAINER", "note", lambda: machine(host={"container": "docker"}),
        lambda: machine(host={"container": unknown("cgroup", "none")}), ("docker",),
    ),
    Case("HC-NEED-ROOT", "note", short, lambda: short(config64=False), ("64 bytes", "256 or 4096")),
    Case(
        "HC-SUSPENDED", "note", lambda: card(runtime_status="suspended", config=unread(config(), "asleep")),
        lambda: lost_card("runtime_status"), ("suspended", "active"),
    ),
    Case(
        "HC-NOTHING-READ", "error", lambda: unread(machine()), lambda: lost_card("vendor"),
        ("no NUMA node", "no PCI device"),
    ),
    Case(
        "HC-PART-READ", "error", lambda: without_devices("no such file"), lambda: without_devices(None),
        ("no PCI device could be read: no such file (/sys/bus/pci/devices)",),
    ),
    Case(
        "HC-KIND-UNKNOWN", "error", lambda: displays("vendor"), lambda: displays("revision"),
        ("vendor of 2 display devices unreadable (no such file)", "no accelerator is known"),
    ),
    Case("HC-VF", "note", lambda: card(is_vf=True), lambda: lost_card("is_vf"), ("virtual",)),
)  # fmt: skip


def without_devices(reason: str | None) -> Machine:
    """A machine whose nodes were read and whose list of devices was not, or is really empty."""
    listed: Fact[int] = known(0, "/sys/bus/pci/devices") if reason is None else unknown("/sys/bus/pci/devices", reason)
    return replace(machine(), devices=(), listed={"devices": listed})


def displays(*names: str, **new: Any) -> Machine:
    """Two VGA controllers that are no accelerators by what is known, with these facts missing."""
    values = {"class_code": "030000", "vendor": "1a03", "device": "2000", **new}
    return machine(*(lost(device(f"0000:0{i}:00.0", **values), *names) for i in (1, 2)))


def old_card(**host: Any) -> Machine:
    """A card in a domain of type DMA, on a kernel that prints it for lazily flushed ones too."""
    return with_device(machine(host={"kernel": "5.10.0-136.el9", **host}), CARD, iommu_domain="DMA")


def lost_card(name: str, reason: str = "no such file") -> Machine:
    before = machine()
    old = next(d for d in before.devices if d.address == CARD)
    return with_device(before, CARD, **{name: unknown(getattr(old, name).source, reason)})


def unnamed_root() -> Machine:
    return machine(lost(port(ROOT, vendor="8086", device="6f02"), "device"), accelerator(CARD, ROOT))


def weights(code: str, value: Machine) -> list[str]:
    return [finding.severity for finding in of(code, value)]
