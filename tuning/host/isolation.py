"""What stands between this process and the hardware: hypervisor, container, lockdown. By evidence that can be read, only."""

from __future__ import annotations

import re

from hicachectl.tuning.host.facts import Confidence, Fact, unknown
from hicachectl.tuning.host.kernel_text import choice
from hicachectl.tuning.host.root import HostRoot

__all__ = ["read_container", "read_lockdown", "read_virtualisation"]

_DMI = "/sys/class/dmi/id"
_HYPERVISORS = (
    ("vmware", "vmware"),
    ("innotek", "virtualbox"),
    ("virtualbox", "virtualbox"),
    ("xen", "xen"),
    ("parallels", "parallels"),
    ("bhyve", "bhyve"),
    ("qemu", "kvm"),
    ("kvm", "kvm"),
    ("google compute engine", "kvm"),
    ("amazon ec2", "kvm"),
    ("openstack", "kvm"),
    ("alibaba cloud", "kvm"),
)
"""Words of the DMI vendor and product names. A cloud's bare metal carries them too: they count behind the CPU's flag only."""
_CLOCKS = (("kvm-clock", "kvm"), ("hyperv_clocksource", "hyper-v"), ("xen", "xen"))
_RUNTIMES = ("docker", "kubepods", "containerd", "libpod", "lxc", "crio", "garden")
_MARKERS = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
_INITIAL = {"pid": 4026531836, "uts": 4026531838, "ipc": 4026531839, "user": 4026531837, "cgroup": 4026531835}
"""Inode numbers of the initial namespaces (PROC_*_INIT_INO, include/linux/proc_ns.h)."""


def read_virtualisation(root: HostRoot) -> Fact[str]:
    """Say which hypervisor there is; `none` only where the CPU's flags can be read and lack `hypervisor`.

    `vm` stands for a hypervisor that does not say its name.
    """
    xen = root.text("/sys/hypervisor/type")
    if xen.value:
        return xen.then(lambda text: text if re.fullmatch(r"[\w-]{1,32}", text, re.ASCII) else None)
    flags = root.data("/proc/cpuinfo", 8192).then(_flags, why_not="says nothing of a hypervisor")
    if flags.value is None:
        return Fact(None, flags.source, flags.confidence, flags.reason)
    if "hypervisor" not in flags.value:
        return Fact("none", f"{flags.source} (no hypervisor flag)", Confidence.DERIVED)
    for name in ("sys_vendor", "product_name"):
        text = root.text(f"{_DMI}/{name}")
        for word, kind in _HYPERVISORS:
            if word in (text.value or "").lower():
                return Fact(kind, text.source, Confidence.DERIVED)
        if (text.value or "").startswith("Microsoft"):
            return Fact("hyper-v", text.source, Confidence.DERIVED)
    clocks = root.text("/sys/devices/system/clocksource/clocksource0/available_clocksource")
    for word, kind in _CLOCKS:
        if word in (clocks.value or "").split():
            return Fact(kind, clocks.source, Confidence.DERIVED)
    return Fact("vm", f"{flags.source} (hypervisor flag)", Confidence.DERIVED)


def read_container(root: HostRoot) -> Fact[str]:
    """Name the container runtime; `none` only where every namespace that can tell is the initial one and no group names a runtime.

    A marker file alone is weak: an image that boots as a virtual machine keeps it. It counts unless every namespace is the
    initial one, which no runtime leaves; `source` says so then.
    """
    stated = root.text("/run/systemd/container")
    if stated.value and re.fullmatch(r"[\w.-]{1,32}", stated.value, re.ASCII):
        return stated
    groups = root.text("/proc/self/cgroup")
    for word in _RUNTIMES:
        if word in (groups.value or ""):
            return Fact(word, groups.source, Confidence.DERIVED)
    outside, all_initial, why = _namespaces(root)
    if all_initial and groups.is_known:
        kept = [path for path, _ in _MARKERS if root.there(path).value]
        why = f" (every namespace is the initial one: {kept[0]} alone makes no container)" if kept else ""
        return Fact("none", f"/proc/self/ns, /proc/self/cgroup{why}", Confidence.DERIVED)
    for path, kind in _MARKERS:
        there = root.there(path)
        if there.value:
            return Fact(kind, path if outside else f"{path} ({why})", Confidence.DERIVED)
        if there.value is None and not outside:
            return unknown(path, there.reason or "not known")
    if outside:
        return Fact("namespace", f"/proc/self/ns/{outside}", Confidence.DERIVED)
    return unknown("/proc/self/ns, /proc/self/cgroup", why or groups.reason or "no evidence either way")


def read_lockdown(root: HostRoot) -> Fact[str]:
    """Read the kernel's lockdown: none, integrity, confidentiality."""
    return root.text("/sys/kernel/security/lockdown").then(choice)


def _flags(head: bytes) -> frozenset[str] | None:
    match = re.search(r"^flags\s*:(.*)$", head.decode("utf-8", "backslashreplace"), re.MULTILINE)
    return frozenset(match[1].split()) if match else None


def _namespaces(root: HostRoot) -> tuple[str | None, bool, str | None]:
    """Return (a namespace that is not the initial one, whether all are, why one could not be told)."""
    outside, why = None, None
    for name, initial in _INITIAL.items():
        link = root.link(f"/proc/self/ns/{name}")
        match = re.fullmatch(r"\w+:\[(\d{1,20})\]", link.value or "", re.ASCII)
        if match is None:
            why = why or f"{link.reason or 'not a namespace'} ({link.source})"
        elif int(match[1]) != initial and name in ("pid", "cgroup"):
            outside = outside or name  # a shell may have a user or ipc namespace of its own without being a container
        elif int(match[1]) != initial:
            why = why or f"{name} namespace of its own, no sign of a container"
    return outside, outside is None and why is None, why
