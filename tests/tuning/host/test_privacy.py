"""What a recording leaves out."""

from __future__ import annotations

import struct

import pytest

from hicachectl.tuning.host.machine import PINNING
from hicachectl.tuning.host.privacy import command_line, is_private, public, public_names


@pytest.mark.parametrize("name", PINNING)
def test_every_parameter_that_a_reader_reports_keeps_its_value(name: str) -> None:
    for spelling in (name, name.replace("_", "-")):
        assert command_line(f"{spelling}=1") == f"{spelling}=1"
        assert command_line(spelling) == spelling


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("rd.luks.key=/x iommu=pt", "rd.luks.key=left-out iommu=pt"),
        ('dyndbg="file secret +p" quiet', "dyndbg=left-out quiet"),
        ("hunter2 ro", "left-out ro"),
        ("pässwörd=x", "left-out"),
        ("iommu=pt -- init secret", "iommu=pt"),
        ("", ""),
        ('"init_on_free=1 password=abc" ro', "init_on_free=left-out ro"),
        ('init_on_free="1 password=abc"', "init_on_free=left-out"),
        ('"iommu=pt" idle="poll"', '"iommu=pt" idle="poll"'),
        ("pcie_x.password=geheim", "pcie_x.password=left-out"),
        (
            "cgroup_x=password thp_secret=tok vfio.key=a nvidia.token=b",
            "cgroup_x=left-out thp_secret=left-out vfio.key=left-out nvidia.token=left-out",
        ),
        ("pci=resource_alignment=20@0000:01:00.0 memmap=4G$8G", "pci=resource_alignment=20@0000:01:00.0 memmap=4G$8G"),
        (
            "vfio-pci.ids=1d22:3684 pcie_port_pm=off hugetlb_free_vmemmap=on",
            "vfio-pci.ids=1d22:3684 pcie_port_pm=off hugetlb_free_vmemmap=on",
        ),
    ],
)
def test_other_parameters_keep_at_most_their_name(line: str, kept: str) -> None:
    assert command_line(line) == kept
    assert command_line(command_line(line)) == kept


@pytest.mark.parametrize(
    ("path", "private"),
    [
        ("/sys/class/net/eth0/address", True),
        ("/sys/class/infiniband/mlx5_0/node_guid", True),
        ("/sys/class/infiniband/mlx5_0/ports/1/gids", True),
        ("/sys/class/dmi/id/board_serial", True),
        ("/sys/class/dmi/id/product_uuid", True),
        ("/sys/class/nvme/nvme0/serial", True),
        ("/sys/bus/pci/slots/1/address", False),
        ("/sys/class/dmi/id/sys_vendor", False),
        ("/proc/sys/kernel/random/boot_id", False),
        ("/sys/bus/pci/devices/0000:01:00.0/config", False),
    ],
)
def test_private_files_are_known_by_their_names(path: str, private: bool) -> None:
    assert is_private(path) is private


def test_mount_tables_keep_what_we_judge_and_what_hides_it() -> None:
    table = (
        b"21 1 8:2 / / rw - ext4 /dev/sda2 rw\n30 21 0:30 / /dev/shm rw - tmpfs tmpfs rw,huge=advise,uid=5\n"
        b"31 21 0:31 / /x rw - nfs4 server:/y rw\n32 21 8:3 / /dev/shm rw - ext4 /dev/sdb rw\n"
    )
    kept = b"0 0 0:0 / /dev/shm rw - tmpfs none huge=advise\n0 0 0:0 / /dev/shm rw - other none rw\n"
    assert public("/proc/self/mountinfo", table) == kept
    assert public("/proc/self/mountinfo", kept) == kept
    older = public("/proc/mounts", b"server:/y /x nfs4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n")
    assert older == b"none /run tmpfs rw 0 0\n"
    assert public("/proc/meminfo", table) == table


def test_a_table_that_cannot_be_read_stays_one_without_its_words() -> None:
    assert public("/proc/self/mountinfo", b"nonsense\n") == b"left-out\n"
    assert public("/proc/self/cgroup", b"nonsense\n") == b"left-out\n"


@pytest.mark.parametrize(
    ("path", "text", "kept"),
    [
        ("/proc/self/status", "Name:\tx\nPid:\t7\nCapEff:\t01\nUid:\t1\nMems_allowed_list:\t0\n", "CapEff:\t01\nMems_allowed_list:\t0\n"),
        ("/proc/self/numa_maps", "7f00 bind:0-1 file=/home/x heap\n7f01 default\n", "0 bind:0-1\n"),
        ("/proc/self/numa_maps", "nonsense\n", ""),
        ("/proc/self/limits", "Max processes 7 7\nMax locked memory  8 8 bytes\n", "Max locked memory  8 8 bytes\n"),
        ("/proc/version", "Linux version 6.1 (me@builder) (gcc)\n", "Linux version 6.1\n"),
        ("/proc/cpuinfo", "processor\t: 0\nphysical id\t: 7\nflags\t: lm\n\nprocessor\t: 1\n", "processor\t: 0\nflags\t: lm\n"),
        ("/sys/fs/cgroup/memory/x/memory.stat", "cache 7\nhierarchical_memory_limit 9\nrss 7\n", "hierarchical_memory_limit 9\n"),
        ("/sys/fs/cgroup/x/memory.stat", "anon 7\ninactive_file 9\nactive_file 7\n", "inactive_file 9\nactive_file 7\n"),
        ("/sys/fs/cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 9\ntotal_rss 7\n", "inactive_file 1\ntotal_inactive_file 9\n"),
        ("/proc/self/cgroup", "3:cpuset:/docker/0123456789ab\n", "3:cpuset:/docker/left-out\n"),
        ("/proc/self/cgroup", "3:name=acmebank:/\n", "3:name=left-out:/\n"),
        ("/proc/self/cgroup", "4:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n2:acme,memory:/\n", "4:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n2:left-out,memory:/\n"),
    ],
)  # fmt: skip
def test_of_files_that_tell_more_only_what_is_read_is_kept(path: str, text: str, kept: str) -> None:
    assert public(path, text.encode()) == kept.encode()
    assert public(path, kept.encode()) == kept.encode()


def test_of_the_auxiliary_vector_the_page_size_is_kept_in_either_byte_order() -> None:
    for order in "<>":
        vector = struct.pack(f"{order}8Q", 33, 0x7FFC00000000, 6, 65536, 11, 1000, 0, 0)
        assert public("/proc/self/auxv", vector) == struct.pack(f"{order}2Q", 6, 65536)
    assert public("/proc/self/auxv", struct.pack("<4Q", 11, 6, 0, 0)) == b""
    assert public("/proc/self/auxv", b"short") == b""


@pytest.mark.parametrize("config", [b"", bytes(256), b"\xff" * 4096, bytes(255) + b"\x03" * 3841])
def test_odd_config_bytes_never_raise_and_keep_their_length(config: bytes) -> None:
    assert len(public("/sys/x/config", config)) == len(config)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("enx00e04c680001", "enx-left-out"),
        ("wlx00E04C680001", "wlx-left-out"),
        ("slx00e04c680001", "slx-left-out"),
        ("ibx525400c0fe123455", "ibx-left-out"),
        ("rocex525400c0fe123455", "rocex-left-out"),
        ("iwx525400c0fe123455", "iwx-left-out"),
        ("opax525400c0fe123455", "opax-left-out"),
        ("usnicx525400c0fe123455", "usnicx-left-out"),
        ("enx00e04c680001.100", "enx-left-out"),
        ("ibx525400c0fe123455f1", "ibx-left-out"),
        ("mlx5_0", "mlx5_0"),
        ("enp1s0f0", "enp1s0f0"),
        ("rocep1s0", "rocep1s0"),
        ("index", "index"),
    ],
)
def test_a_name_made_of_an_address_is_shortened(name: str, kept: str) -> None:
    assert public_names((name,)) == (kept,)
