"""Machines recorded by hwloc, read as archives: what hwloc's own test expects of each is what we read, and nothing is lost."""

from __future__ import annotations

import re
import tarfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from shared_data import shared_path

from hicachectl.tuning.findings import judge
from hicachectl.tuning.host.model import Machine, PciDevice
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.snapshot import open_root
from hicachectl.tuning.host.uplinks import link_bytes_per_s

pytestmark = pytest.mark.shared

FOLDER = "topologies/hwloc"
# archive -> functions its expected output lists (PCI devices and bridges with an address)
ARCHIVES = {
    "2pa-pcidomain32bits": 4,
    "32amd64-4s2n4c-cgroup2": 0,
    "32em64t-2n8c+dax+nvme+mic+dimms": 136,
    "32intel64-2p8co2t+8ve": 28,
    "40intel64-2g2n4c+pcilocality": 37,
    "40intel64-4n10c+pci-conflicts": 2,
    "48amd64-4pa2n6c-sparse": 0,
    "64amd64-4s2n4ca2co": 0,
    "8em64t-2s2ca2c-buggynuma": 0,
    "fakepcilocalities": 30,
    "nvidiagpunumanodes": 6,
    "offline-cpu0-node0": 0,
}
_CONSOLE = re.compile(
    r"PCI(?:Bridge)? L#\d+ \(busid=(?P<address>[0-9a-f:.]+) id=(?P<ids>[0-9a-f]{4}:[0-9a-f]{4}) class=(?P<class>[0-9a-f]{4})"
    r"\([^)]*\)(?: link=(?P<link>[\d.]+)GB/s)?"
)
_XML_TYPE = re.compile(r"(?P<class>[0-9a-f]{4}) \[(?P<ids>[0-9a-f]{4}:[0-9a-f]{4})\]")
_NOT_RECORDED = "0000:0000"
"""What hwloc prints where there is no vendor file."""


@dataclass(frozen=True)
class Listed:
    """One function of hwloc's output. `class_code` has four digits; `link_gb_s` is None where hwloc gives none."""

    address: str
    class_code: str
    ids: str
    link_gb_s: float | None


def listed_functions(name: str) -> dict[str, Listed]:
    """Return what hwloc's expected output of an archive lists, by address."""
    expected = shared_path(f"{FOLDER}/{name}.test").read_text(encoding="utf-8")
    target = re.search(r"^target:\s*(\S+)", expected, re.MULTILINE)
    assert target is not None
    path = shared_path(f"{FOLDER}/{target[1]}")
    found = from_xml(path) if path.suffix == ".xml" else from_console(path)
    return {one.address: one for one in found}


def from_console(path: Path) -> list[Listed]:
    """Read the lines of `lstopo -v` that name a function."""
    lines = [m for m in map(_CONSOLE.search, path.read_text(encoding="utf-8").splitlines()) if m is not None]
    return [Listed(m["address"], m["class"], m["ids"], float(m["link"]) if m["link"] else None) for m in lines]


def from_xml(path: Path) -> list[Listed]:
    """Read the objects with a bus id; host bridges have none. A link speed of 0 is one hwloc does not know."""
    found = []
    for thing in ElementTree.parse(path).iter("object"):
        if "pci_busid" in thing.attrib:
            kind = _XML_TYPE.match(thing.attrib["pci_type"])
            assert kind is not None
            speed = float(thing.attrib["pci_link_speed"])
            found.append(Listed(thing.attrib["pci_busid"], kind["class"], kind["ids"], speed or None))
    return found


@cache
def machine(name: str) -> Machine:
    """Return what we read of an archive, which is read once."""
    return read_machine(open_root(shared_path(f"{FOLDER}/{name}.tar.bz2")))


def names_in_archive(name: str, folder: str) -> set[str]:
    """Return the names of a recorded folder, from the archive's own list of members."""
    found = set()
    with tarfile.open(shared_path(f"{FOLDER}/{name}.tar.bz2")) as tar:
        for member in tar.getnames():
            below = PurePosixPath(*PurePosixPath(member).parts[1:])
            if below.is_relative_to(folder) and below != PurePosixPath(folder):
                found.add(below.relative_to(folder).parts[0])
    return found


def ours(device: PciDevice, listed: Listed) -> Listed:
    """Return our reading in hwloc's words: its bandwidth is that of the link as it runs now."""
    ids = f"{device.vendor.value}:{device.device.value}" if device.vendor.value else _NOT_RECORDED
    speed, width = device.link.speed_now_gt_s.value, device.link.width_now.value
    link = None
    if listed.link_gb_s is not None and speed is not None and width is not None:
        link = link_bytes_per_s(speed, width) / 1e9
    return Listed(device.address, (device.class_code.value or "")[:4], ids, link)


def test_every_archive_of_the_folder_is_in_the_table() -> None:
    names = {path.name.removesuffix(".tar.bz2") for path in shared_path(FOLDER).glob("*.tar.bz2")}
    assert names == set(ARCHIVES)


@pytest.mark.parametrize("name", ARCHIVES)
def test_each_function_hwloc_lists_is_ours_with_the_same_ids_class_and_link(name: str) -> None:
    listed = listed_functions(name)
    assert len(listed) == ARCHIVES[name]
    devices = {device.address: device for device in machine(name).devices}
    assert listed.keys() <= devices.keys()
    for address, theirs in listed.items():
        mine = ours(devices[address], theirs)
        assert (mine.class_code, mine.ids) == (theirs.class_code, theirs.ids), address
        assert mine.link_gb_s == (None if theirs.link_gb_s is None else pytest.approx(theirs.link_gb_s, abs=0.005)), (
            address
        )


@pytest.mark.parametrize("name", ARCHIVES)
def test_every_recorded_function_and_node_folder_is_read(name: str) -> None:
    assert {device.address for device in machine(name).devices} == names_in_archive(name, "sys/bus/pci/devices")
    folders = {f for f in names_in_archive(name, "sys/devices/system/node") if re.fullmatch(r"node\d+", f)}
    assert {f"node{node.id}" for node in machine(name).numa.nodes} == folders
    assert folders


def test_a_cpuset_leaves_six_of_eight_nodes() -> None:
    numa = machine("32amd64-4s2n4c-cgroup2").numa
    assert len(numa.nodes) == 8
    assert len(numa.allowed_nodes.value or ()) == 6
    assert "HC-CPUSET" in {finding.code for finding in judge(machine("32amd64-4s2n4c-cgroup2"))}


def test_eight_nodes_that_list_the_same_cpus_are_eight_and_a_finding() -> None:
    buggy = machine("8em64t-2s2ca2c-buggynuma")
    assert len(buggy.numa.nodes) == 8
    found = [finding for finding in judge(buggy) if finding.code == "HC-NODE-UNKNOWN"]
    assert {finding.subject for finding in found} == {"node CPUs", "node distances"}


def test_four_accelerators_and_the_nics_of_a_switch_share_its_one_uplink() -> None:
    uplinks = machine("32intel64-2p8co2t+8ve").uplinks
    assert [(u.port, len(u.accelerators), len(u.shared_by)) for u in uplinks] == [
        ("0000:18:00.0", 4, 5),
        ("0000:3b:00.0", 4, 5),
    ]
    for uplink in uplinks:
        assert uplink.capacity_bytes_per_s.value == pytest.approx(link_bytes_per_s(8.0, 16))
        assert uplink.oversubscription.value == pytest.approx(5.0)
    kinds = [d.kind for d in machine("32intel64-2p8co2t+8ve").devices]
    assert (kinds.count("accelerator"), kinds.count("rdma-nic")) == (8, 2)


def test_functions_without_ids_are_unknown_and_no_accelerators() -> None:
    for device in machine("nvidiagpunumanodes").devices:
        assert device.vendor.value is None and device.vendor.reason == "no such file"
        assert device.kind == "other"


def test_domains_of_more_than_four_digits_are_read() -> None:
    assert "10000:00:04.0" in {device.address for device in machine("2pa-pcidomain32bits").devices}
