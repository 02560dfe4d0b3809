"""What a recording leaves out."""

from __future__ import annotations

import pytest

from hicachectl.tuning.host.machine import PINNING
from hicachectl.tuning.host.privacy import command_line, is_private, public


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


def test_mount_tables_keep_the_file_systems_we_judge() -> None:
    table = (
        b"21 1 8:2 / / rw - ext4 /dev/sda2 rw\n30 21 0:30 / /dev/shm rw - tmpfs tmpfs rw,huge=advise\n"
        b"31 21 0:31 / /x rw - nfs4 server:/y rw\nnonsense\n"
    )
    assert public("/proc/self/mountinfo", table) == b"30 21 0:30 / /dev/shm rw - tmpfs tmpfs rw,huge=advise\n"
    assert (
        public("/proc/mounts", b"server:/y /x nfs4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n") == b"tmpfs /run tmpfs rw 0 0\n"
    )
    assert public("/proc/meminfo", table) == table


@pytest.mark.parametrize("config", [b"", bytes(256), b"\xff" * 4096, bytes(255) + b"\x03" * 3841])
def test_odd_config_bytes_never_raise_and_keep_their_length(config: bytes) -> None:
    assert len(public("/sys/x/config", config)) == len(config)
