"""The machine around it: kernel and its command line, CPU, privileges, IOMMU, idle states."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace

from hicachectl.tuning.host.facts import Confidence, Fact, derive, known, unknown
from hicachectl.tuning.host.iommu import DMA, DMA_FQ, dma_flushing
from hicachectl.tuning.host.isolation import read_container, read_lockdown, read_virtualisation
from hicachectl.tuning.host.kernel_text import field, id_list, number, signed, status_fields
from hicachectl.tuning.host.model import Host
from hicachectl.tuning.host.pci_ids import find_pci_ids
from hicachectl.tuning.host.root import HostRoot

__all__ = ["PINNING", "read_host", "read_iommu_mode"]

PINNING = (
    "transparent_hugepage", "transparent_hugepage_shmem", "transparent_hugepage_tmpfs", "thp_anon", "thp_shmem",
    "default_hugepagesz", "hugepagesz", "hugepages", "hugetlb_cma", "numa", "numa_balancing", "iommu", "intel_iommu", "amd_iommu",
    "iommu.passthrough", "iommu.strict", "pci", "pcie_aspm", "pcie_ports", "intel_idle.max_cstate", "processor.max_cstate", "idle",
    "cpuidle.off", "isolcpus", "nohz_full", "irqaffinity", "maxcpus", "nr_cpus", "nosmt", "mem", "memmap", "movable_node",
    "cgroup_disable", "cgroup_no_v1", "systemd.unified_cgroup_hierarchy", "lockdown", "efi", "tsx", "mitigations",
)  # fmt: skip
"""Boot parameters that decide what the readers report (kernel admin-guide/kernel-parameters.txt)."""
_CAPABILITIES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip
"""In the order of their bits (include/uapi/linux/capability.h)."""
_DOMAIN_MODES = {DMA_FQ: "lazy", "identity": "identity"}
"""Domain types of Documentation/ABI/testing/sysfs-kernel-iommu_groups; what DMA says, `iommu.dma_flushing` tells."""
_STRICTEST = ("strict", "translated", "lazy", "identity")
_CPU_HEAD_BYTES = 8192
"""Enough for the first CPU's paragraph; reading all of it makes the kernel ask every CPU for its frequency."""


def read_host(root: HostRoot) -> Host:
    """Read what the machine says of itself. Changes nothing; never raises for odd files."""
    line = root.text("/proc/cmdline")
    cpu = root.data("/proc/cpuinfo", _CPU_HEAD_BYTES).then(_first_cpu)
    idle_state, idle_exit_us = _deepest_idle(root)
    host = Host(
        hostname=root.text("/proc/sys/kernel/hostname").then(_word),
        kernel=_kernel(root),
        architecture=_architecture(root, cpu),
        command_line=line,
        pinned=_pinned(line),
        boot_id=read_boot_id(root),
        virtualisation=read_virtualisation(root),
        container=read_container(root),
        lockdown=read_lockdown(root),
        cpu_vendor=_one_of(cpu, "vendor_id", "CPU implementer"),
        cpu_family=field(cpu, "cpu family").then(number),
        cpu_model=field(cpu, "model").then(number),
        cpu_name=_one_of(cpu, "model name", "cpu"),
        capabilities=read_capabilities(root),
        iommu_mode=unknown("/sys/kernel/iommu_groups", "not looked at"),
        deepest_idle_state=idle_state,
        deepest_idle_exit_us=idle_exit_us,
        pci_ids=find_pci_ids(root),
    )
    return replace(host, iommu_mode=read_iommu_mode(root, host))


def read_iommu_mode(root: HostRoot, host: Host) -> Fact[str]:
    """Derive strict, lazy, translated or identity from the groups' domain types, `off` where there is no group.

    The command line does not tell whether there is translation: `amd_iommu=pt` is ignored and it stays on. How it is flushed the type
    tells since Linux 5.15; before, `translated` says that it is not known (`iommu.dma_flushing`, by kernel, processor and command line
    of `host`). Groups may differ: the mode is the one most of them have, of equals the stricter, and `source` counts them.
    """
    folder = "/sys/kernel/iommu_groups"
    names = root.names(folder)
    if names.value is None:
        return Fact(None, names.source, names.confidence, names.reason)
    groups = [name for name in names.value if name.isdigit()]
    if not groups:
        return Fact("off", f"{folder} (no group)", Confidence.DERIVED)
    kinds: list[str] = []
    for group in groups:
        kind = root.text(f"{folder}/{group}/type")
        if kind.value is None:
            return Fact(None, kind.source, Confidence.DERIVED, kind.reason)
        if kind.value in (DMA, *_DOMAIN_MODES):
            kinds.append(kind.value)
        elif kind.value not in (
            "blocked",
            "unmanaged",
            "auto",
        ):  # groups a user-space driver holds say nothing of the mode
            return Fact(None, kind.source, Confidence.DERIVED, f"not a domain type: {kind.value[:40]!r}")
    if not kinds:
        return Fact(None, f"{folder}/*/type", Confidence.DERIVED, "no group is in a kernel driver's domain")
    flushing = dma_flushing(kinds, host)
    modes = Counter(flushing.mode if kind == DMA else _DOMAIN_MODES[kind] for kind in kinds)
    mode = max(modes, key=lambda found: (modes[found], -_STRICTEST.index(found)))
    counts = ", ".join(f"{n} {name}" for name, n in modes.most_common())
    why = f"; {flushing.why}" if flushing.why is not None and DMA in kinds else ""
    return Fact(mode, f"{folder}/*/type ({counts}{why})", Confidence.DERIVED)


# -- kernel -------------------------------------------------------------------------------------------------------------


def _kernel(root: HostRoot) -> Fact[str]:
    release = root.text("/proc/sys/kernel/osrelease").then(_word)
    if release.reason != "no such file":
        return release
    version = root.text("/proc/version").then(_release_of)
    return version if version.is_known else release


def _release_of(text: str) -> str | None:
    match = re.match(r"Linux version (\S+)", text)
    return match[1] if match else None


def _architecture(root: HostRoot, cpu: Fact[dict[str, str]]) -> Fact[str]:
    arch = root.text("/proc/sys/kernel/arch").then(_word)  # since Linux 6.1
    if arch.reason != "no such file":
        return arch
    if root.is_live:
        return known(os.uname().machine, "uname")
    return derive(_architecture_of, cpu)


def _architecture_of(cpu: dict[str, str]) -> str | None:
    if "vendor_id" in cpu and "flags" in cpu:
        return "x86_64" if "lm" in cpu["flags"].split() else "i686"
    return "aarch64" if cpu.get("CPU architecture") == "8" else None


def _word(text: str) -> str | None:
    return text if re.fullmatch(r"[\w.+:~-]{1,255}", text) else None


def _boot_id(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text) else None


def _pinned(line: Fact[str]) -> dict[str, Fact[str]]:
    """Pick the boot parameters that decide something. A repeated one keeps all of its values, in order, joined by commas.

    Blanks inside double quotes do not separate, `--` ends the kernel's part, dashes and underscores are the same in a name
    (kernel/params.c).
    """
    found: dict[str, list[str]] = {}
    for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', line.value or ""):
        if word == "--":
            break
        name, equals, value = word.replace('"', "").partition("=")
        name = name.replace("-", "_")
        if name in PINNING:
            found.setdefault(name, []).append(value if equals else name)
    return {name: known(",".join(values), line.source) for name, values in found.items()}


# -- CPU and process ----------------------------------------------------------------------------------------------------


def _first_cpu(head: bytes) -> dict[str, str] | None:
    found = status_fields(head.decode("utf-8", "backslashreplace").strip().partition("\n\n")[0])
    return found if "processor" in found else None


def _one_of(cpu: Fact[dict[str, str]], *names: str) -> Fact[str]:
    """Pick the first name the CPU's paragraph has: architectures differ. An empty value says nothing."""
    for name in names:
        if cpu.value is not None and cpu.value.get(name):
            return known(cpu.value[name], cpu.source)
    return Fact(None, cpu.source, cpu.confidence, cpu.reason or f"has no {' or '.join(names)}")


def read_boot_id(root: HostRoot) -> Fact[str]:
    """Read the id of the running boot."""
    return root.text("/proc/sys/kernel/random/boot_id").then(_boot_id)


def read_capabilities(root: HostRoot) -> Fact[tuple[str, ...]]:
    """Read the effective capabilities of this process, by name."""
    return field(root.text("/proc/self/status").then(status_fields), "CapEff").then(_capabilities)


def _capabilities(text: str) -> tuple[str, ...]:
    if not re.fullmatch(r"[0-9a-f]{1,16}", text):
        raise ValueError("not a capability mask")
    mask = int(text, 16)
    bits = [bit for bit in range(64) if mask >> bit & 1]
    return tuple(f"cap_{_CAPABILITIES[bit]}" if bit < len(_CAPABILITIES) else f"cap_{bit}" for bit in bits)


# -- idle states --------------------------------------------------------------------------------------------------------


def _deepest_idle(root: HostRoot) -> tuple[Fact[str], Fact[int]]:
    """Read the enabled idle state with the longest exit latency, in microseconds, of the first online CPU."""
    cpus = root.text("/sys/devices/system/cpu/online").then(lambda text: id_list(text) or None)
    if cpus.value is None:
        return _both_unknown(cpus.source, cpus.reason)
    folder = f"/sys/devices/system/cpu/cpu{cpus.value[0]}/cpuidle"
    names = root.names(folder)
    if names.value is None:
        return _both_unknown(names.source, names.reason)
    deepest: tuple[int, str, str] | None = None
    for state in (name for name in names.value if re.fullmatch(r"state\d{1,3}", name, re.ASCII)):
        disabled = root.text(f"{folder}/{state}/disable").then(number)
        latency = root.text(f"{folder}/{state}/latency").then(signed)
        if not disabled.is_known and disabled.reason != "no such file":  # kernels before 3.4 cannot disable a state
            return _both_unknown(disabled.source, disabled.reason)
        if latency.value is None:
            return _both_unknown(latency.source, latency.reason)
        if not disabled.value and (deepest is None or latency.value >= deepest[0]):
            deepest = (latency.value, f"{folder}/{state}/latency", f"{folder}/{state}/name")
    if deepest is None:
        return _both_unknown(folder, "no idle state is enabled")
    name = root.text(deepest[2]).then(lambda text: text if re.fullmatch(r"[ -~]{1,64}", text) else None)
    return name, known(deepest[0], deepest[1])


def _both_unknown(source: str, reason: str | None) -> tuple[Fact[str], Fact[int]]:
    why = reason or "cannot be read as expected"
    return unknown(source, why), unknown(source, why)
