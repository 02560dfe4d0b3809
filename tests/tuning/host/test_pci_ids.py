from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.tuning.host.machine import read_host
from hicachectl.tuning.host.pci_ids import PATHS, PciNames, find_pci_ids
from hicachectl.tuning.host.root import HostRoot

TEXT = """10de  NVIDIA Corporation
# a comment in between
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c1  a board
1d22  Baidu Technology
\t3684  Kunlun AI Accelerator
15b3  Mellanox Technologies
\t1021  MT2910 Family [ConnectX-7]
C 12  Processing accelerators
\t00  Processing accelerators"""


@pytest.fixture
def names(tmp_path: Path) -> PciNames:
    (tmp_path / "usr/share/hwdata").mkdir(parents=True)
    (tmp_path / "usr/share/hwdata/pci.ids").write_text(TEXT)
    return PciNames(HostRoot(tmp_path, name="t"))


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [
        ("10de", "2330", "NVIDIA Corporation GH100 [H100 SXM5 80GB]"),
        ("1d22", "3684", "Baidu Technology Kunlun AI Accelerator"),
        ("15b3", "1021", "Mellanox Technologies MT2910 Family [ConnectX-7]"),
        ("1d22", "2330", "Baidu Technology Device 2330"),  # another vendor's device
        ("10de", "16c1", "NVIDIA Corporation Device 16c1"),  # a subsystem is no device
        ("15b3", None, "Mellanox Technologies"),
    ],
)
def test_names_come_from_the_vendors_own_lines(names: PciNames, vendor: str, device: str | None, name: str) -> None:
    assert names.name(vendor, device).value == name


def test_an_unlisted_vendor_is_unknown_with_the_reason(names: PciNames) -> None:
    assert names.name("1234", "2330").reason == "vendor 1234 is not listed"


def test_a_recording_without_the_file_never_gets_this_hosts_names(tmp_path: Path) -> None:
    root = HostRoot(tmp_path, name="t")
    assert find_pci_ids(root).reason == "no pci.ids installed"
    assert PciNames(root).name("10de", "2330").reason == "no pci.ids installed"


@pytest.mark.parametrize("path", PATHS)
def test_the_host_tells_of_the_list_that_names_are_looked_up_in(path: str, tmp_path: Path) -> None:
    for at in {path, "/usr/share/hwdata/pci.ids"}:
        (tmp_path / at.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / at.lstrip("/")).write_text(TEXT)
    root = HostRoot(tmp_path, name="t")
    told = read_host(root).pci_ids
    assert told == find_pci_ids(root)
    assert told.value == PciNames(root).name("10de", None).source


def test_a_packed_list_is_not_read_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "usr/share/misc").mkdir(parents=True)
    (tmp_path / "usr/share/misc/pci.ids.gz").write_bytes(b"\x1f\x8b")
    root = HostRoot(tmp_path, name="t")
    assert (
        read_host(root).pci_ids.reason
        == PciNames(root).name("10de", None).reason
        == "only a packed pci.ids.gz is installed"
    )


def test_the_file_is_read_once(names: PciNames, tmp_path: Path) -> None:
    names.name("10de", "2330")
    (tmp_path / "usr/share/hwdata/pci.ids").unlink()
    assert names.name("1d22", "3684").is_known


def test_a_list_that_cannot_be_read_does_not_hide_the_next_one(tmp_path: Path) -> None:
    first, second = (tmp_path / path.lstrip("/") for path in PATHS[:2])
    first.parent.mkdir(parents=True)
    second.parent.mkdir(parents=True)
    second.write_text(TEXT)

    def told() -> tuple[str | None, str | None]:
        root = HostRoot(tmp_path, name="t")
        return find_pci_ids(root).value, PciNames(root).name("10de", "2330").value

    good = (PATHS[1], "NVIDIA Corporation GH100 [H100 SXM5 80GB]")
    first.symlink_to("/nowhere/pci.ids")
    assert told() == good
    first.unlink()
    first.mkdir()
    assert told() == good
    first.rmdir()
    first.write_text("")
    assert told() == good
    first.write_text(TEXT)
    assert told() == (PATHS[0], good[1])


def test_a_list_that_cannot_be_read_is_the_reason_where_there_is_no_other(tmp_path: Path) -> None:
    at = tmp_path / PATHS[0].lstrip("/")
    at.mkdir(parents=True)
    (tmp_path / f"{PATHS[1]}.gz".lstrip("/")).parent.mkdir(parents=True)
    (tmp_path / f"{PATHS[1]}.gz".lstrip("/")).write_bytes(b"")
    root = HostRoot(tmp_path, name="t")
    for fact in (find_pci_ids(root), PciNames(root).name("10de", None), read_host(root).pci_ids):
        assert (fact.reason, fact.source) == ("Is a directory", PATHS[0])
