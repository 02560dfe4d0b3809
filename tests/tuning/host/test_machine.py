"""The machine around it, by evidence that can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_host import CPUS, LINKS, small_host, write_host

from hicachectl.tuning.host.machine import read_host
from hicachectl.tuning.host.model import Host
from hicachectl.tuning.host.root import HostRoot


def read(
    tmp_path: Path,
    changes: dict[str, str | bytes] | None = None,
    without: tuple[str, ...] = (),
    links: dict[str, str] | None = None,
) -> Host:
    files = {path: text for path, text in (small_host() | (changes or {})).items() if path not in without}
    return read_host(write_host(tmp_path, files, LINKS if links is None else links))


def test_kernel_cpu_and_privileges_are_read(tmp_path: Path) -> None:
    host = read(tmp_path)
    assert (host.hostname.value, host.kernel.value, host.architecture.value) == ("c12-07", "6.8.0-31-generic", "x86_64")
    assert (host.cpu_vendor.value, host.cpu_family.value, host.cpu_model.value) == ("HygonGenuine", 24, 4)
    assert host.cpu_name.value == "Hygon C86-4G"
    assert host.capabilities.value == ("cap_chown", "cap_ipc_lock", "cap_sys_admin", "cap_sys_nice")
    assert host.boot_id.value == "8b92cde8-c031-4692-8275-55145794378a"
    assert host.lockdown.value == "none"
    assert host.pci_ids.value == "/usr/share/misc/pci.ids"


def test_no_capability_is_a_known_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, {"/proc/self/status": "CapEff:\t0000000000000000\n"}).capabilities.value == ()


def test_the_command_line_pins_what_it_names_and_ends_at_two_dashes(tmp_path: Path) -> None:
    pinned = {name: fact.value for name, fact in read(tmp_path).pinned.items()}
    assert pinned == {"transparent_hugepage": "never", "hugepagesz": "1G,2M", "hugepages": "2,4", "amd_iommu": "pt"}


def test_an_older_kernels_version_file_serves(tmp_path: Path) -> None:
    gone = ("/proc/sys/kernel/osrelease", "/proc/sys/kernel/arch")
    host = read(
        tmp_path, {"/proc/version": "Linux version 4.14.0-49.el7a (root@host) (gcc 4.8.5) #1 SMP\n"}, without=gone
    )
    assert host.kernel.value == "4.14.0-49.el7a"
    assert host.architecture.value == "x86_64"


def test_other_architectures_say_less(tmp_path: Path) -> None:
    cpu = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x48\nCPU architecture: 8\nCPU part\t: 0xd01\n"
    host = read(tmp_path, {"/proc/cpuinfo": cpu}, without=("/proc/sys/kernel/arch",))
    assert (host.cpu_vendor.value, host.architecture.value) == ("0x48", "aarch64")
    assert host.cpu_family.reason == "has no cpu family"
    assert host.virtualisation.value is None


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "kvm"),
        ({"/sys/class/dmi/id/sys_vendor": "VMware, Inc."}, "vmware"),
        ({"/sys/class/dmi/id/sys_vendor": "Microsoft Corporation"}, "hyper-v"),
        ({"/sys/class/dmi/id/sys_vendor": "Unheard Of"}, "vm"),
        ({"/sys/hypervisor/type": "xen\n"}, "xen"),
    ],
)
def test_a_hypervisor_is_named_by_what_it_leaves(tmp_path: Path, changes: dict[str, str | bytes], kind: str) -> None:
    assert read(tmp_path, changes).virtualisation.value == kind


def test_bare_metal_needs_flags_without_a_hypervisor_whatever_the_vendor(tmp_path: Path) -> None:
    cpu = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu lm\n"
    changes: dict[str, str | bytes] = {"/proc/cpuinfo": cpu, "/sys/class/dmi/id/sys_vendor": "Amazon EC2"}
    assert read(tmp_path / "metal", changes).virtualisation.value == "none"
    assert read(tmp_path / "blind", changes, without=("/proc/cpuinfo",)).virtualisation.reason == "no such file"


OTHER_PID = LINKS | {"/proc/self/ns/pid": "pid:[4026532500]"}


@pytest.mark.parametrize(
    ("changes", "links", "kind"),
    [
        ({}, LINKS, "none"),
        ({"/.dockerenv": ""}, LINKS, "none"),  # an image that boots as a virtual machine
        ({"/.dockerenv": ""}, OTHER_PID, "docker"),
        ({"/run/.containerenv": ""}, OTHER_PID, "podman"),
        ({"/run/systemd/container": "systemd-nspawn\n"}, OTHER_PID, "systemd-nspawn"),
        ({"/proc/self/cgroup": "0::/kubepods.slice/pod1\n"}, LINKS, "kubepods"),
        ({}, OTHER_PID, "namespace"),
    ],
)
def test_a_container_is_named_by_what_it_leaves(
    tmp_path: Path, changes: dict[str, str | bytes], links: dict[str, str], kind: str
) -> None:
    assert read(tmp_path, changes, links=links).container.value == kind


def test_a_marker_file_counts_unless_every_namespace_is_the_initial_one_and_the_source_says_so(tmp_path: Path) -> None:
    overruled = read(tmp_path / "1", {"/.dockerenv": ""}).container
    assert (overruled.value, "every namespace is the initial one: /.dockerenv" in overruled.source) == ("none", True)
    assert read(tmp_path / "2").container.source == "/proc/self/ns, /proc/self/cgroup"
    unread = read(tmp_path / "3", {"/.dockerenv": ""}, links={}).container
    assert (unread.value, unread.source) == ("docker", "/.dockerenv (no such file (/proc/self/ns/pid))")


def test_without_namespaces_to_look_at_nothing_is_said_of_containers(tmp_path: Path) -> None:
    assert read(tmp_path, links={}).container.reason == "no such file (/proc/self/ns/pid)"


def test_the_iommu_mode_is_what_most_groups_have(tmp_path: Path) -> None:
    mode = read(tmp_path).iommu_mode
    assert mode.value == "lazy"
    assert mode.source == "/sys/kernel/iommu_groups/*/type (2 lazy, 1 strict)"


@pytest.mark.parametrize(
    ("kinds", "mode"),
    [
        (("identity", "identity", "blocked"), "identity"),
        (("DMA", "identity", "DMA-FQ"), "strict"),
        (("DMA", "DMA", "DMA"), "strict"),
        (("blocked", "blocked", "blocked"), None),
        (("DMA", "DMA", "SVA"), None),
    ],
)
def test_domain_types_become_modes(tmp_path: Path, kinds: tuple[str, ...], mode: str | None) -> None:
    types: dict[str, str | bytes] = {
        f"/sys/kernel/iommu_groups/{group}/type": kind for group, kind in zip((0, 1, 12), kinds, strict=True)
    }
    assert read(tmp_path, types).iommu_mode.value == mode


OLD, LINE = "5.10.0-136.el9.x86_64", "/proc/cmdline"
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu lm\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x48\nCPU architecture: 8\n"


@pytest.mark.parametrize(
    ("kernel", "cpu", "line", "kinds", "mode"),
    [
        (OLD, INTEL, "intel_iommu=on", ("DMA",) * 3, "translated"),
        (OLD, INTEL, "intel_iommu=on", ("DMA", "identity", "DMA"), "translated"),
        (OLD, INTEL, "", ("identity",) * 3, "identity"),
        (OLD, INTEL, "intel_iommu=on,strict", ("DMA",) * 3, "strict"),
        (OLD, INTEL, "amd_iommu=fullflush", ("DMA",) * 3, "translated"),
        (OLD, None, "amd_iommu=fullflush", ("DMA",) * 3, "strict"),
        (OLD, None, "intel_iommu=strict", ("DMA",) * 3, "translated"),
        (OLD, INTEL, "iommu.strict=1", ("DMA",) * 3, "translated"),  # of ARM64 alone before 5.13
        ("5.13.0", INTEL, "iommu.strict=1", ("DMA",) * 3, "strict"),
        ("5.13.0", INTEL, "iommu.strict=1 iommu.strict=0", ("DMA",) * 3, "lazy"),
        ("5.13.0", INTEL, "iommu.strict=0 intel_iommu=strict", ("DMA",) * 3, "strict"),
        (OLD, ARM, "iommu.strict=0", ("DMA",) * 3, "lazy"),
        (OLD, ARM, "iommu.strict=1", ("DMA",) * 3, "strict"),
        (OLD, ARM, "iommu.strict=maybe", ("DMA",) * 3, "strict"),
        (OLD, ARM, "", ("DMA",) * 3, "strict"),  # the only default there was
        ("5.14.0", ARM, "", ("DMA",) * 3, "translated"),
        ("5.14.0-427.el9.x86_64", INTEL, "", ("DMA",) * 3, "translated"),
        (
            "5.14.0-427.el9.x86_64",
            INTEL,
            "",
            ("DMA", "DMA", "DMA-FQ"),
            "strict",
        ),  # a vendor's kernel that tells them apart
        ("5.15.0", INTEL, "", ("DMA",) * 3, "strict"),
        ("6.1.0", INTEL, "iommu.strict=0", ("DMA",) * 3, "strict"),
        ("odd", INTEL, "", ("DMA",) * 3, "translated"),
    ],
)
def test_before_linux_5_15_the_type_dma_does_not_say_strict(
    tmp_path: Path, kernel: str, cpu: str | None, line: str, kinds: tuple[str, ...], mode: str
) -> None:
    changes: dict[str, str | bytes] = {"/proc/sys/kernel/osrelease": kernel, LINE: line}
    changes |= {f"/sys/kernel/iommu_groups/{group}/type": kind for group, kind in zip((0, 1, 12), kinds, strict=True)}
    changes |= {} if cpu is None else {"/proc/cpuinfo": cpu}
    changes |= {"/proc/sys/kernel/arch": "aarch64"} if cpu == ARM else {}
    assert read(tmp_path, changes).iommu_mode.value == mode


def test_the_source_of_the_mode_says_what_the_type_did_not(tmp_path: Path) -> None:
    old: dict[str, str | bytes] = {f"/sys/kernel/iommu_groups/{group}/type": "DMA" for group in (0, 1, 12)}
    old |= {"/proc/sys/kernel/osrelease": OLD, LINE: "", "/proc/cpuinfo": INTEL}
    source = read(tmp_path / "unknown", old).iommu_mode.source
    assert f"3 translated; Linux {OLD} may print DMA for strict and lazy flushing alike" in source
    source = read(tmp_path / "told", old | {LINE: "intel_iommu=strict"}).iommu_mode.source
    assert "3 strict; intel_iommu=strict on the kernel command line" in source


def test_no_group_is_off_and_no_folder_is_unknown(tmp_path: Path) -> None:
    gone = tuple(f"/sys/kernel/iommu_groups/{group}/type" for group in (0, 1, 12))
    assert read(tmp_path / "unknown", without=gone).iommu_mode.reason == "no such file"
    (tmp_path / "off/sys/kernel/iommu_groups").mkdir(parents=True)
    assert read(tmp_path / "off", without=gone).iommu_mode.value == "off"


def test_the_deepest_idle_state_is_the_slowest_enabled_one(tmp_path: Path) -> None:
    host = read(tmp_path / "on")
    assert (host.deepest_idle_state.value, host.deepest_idle_exit_us.value) == ("C2", 400)
    off = read(tmp_path / "off", {f"{CPUS}/cpu0/cpuidle/state1/disable": "1\n"})
    assert (off.deepest_idle_state.value, off.deepest_idle_exit_us.value) == ("POLL", 0)


def test_this_host_agrees_with_the_kernel() -> None:
    host = read_host(HostRoot())
    assert host.kernel.value == os.uname().release
    assert host.architecture.value == os.uname().machine
