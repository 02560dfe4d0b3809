"""Real machines recorded by others (hwloc's test archives): every reader answers, and the nodes are the recorded ones."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from shared_data import shared_path

from hicachectl.tuning.host.machine import read_host
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.numa import read_numa
from hicachectl.tuning.host.root import HostRoot

pytestmark = pytest.mark.shared

# archive -> ids of the nodes, sockets
ARCHIVES = {
    "2pa-pcidomain32bits": ((0,), 2),
    "32amd64-4s2n4c-cgroup2": (tuple(range(8)), 4),
    "32em64t-2n8c+dax+nvme+mic+dimms": ((0, 1), 2),
    "32intel64-2p8co2t+8ve": ((0, 1), 2),
    "40intel64-2g2n4c+pcilocality": ((0, 1, 2, 3), 4),
    "40intel64-4n10c+pci-conflicts": ((0, 1, 2, 3), 4),
    "48amd64-4pa2n6c-sparse": ((0, 1, 2, 33, 34, 45, 72, 73), 4),
    "64amd64-4s2n4ca2co": (tuple(range(8)), 4),
    "8em64t-2s2ca2c-buggynuma": (tuple(range(8)), 2),
    "fakepcilocalities": ((0, 1, 2, 3), 4),
    "nvidiagpunumanodes": ((0, 8, *range(250, 256)), 2),
    "offline-cpu0-node0": ((1,), None),
}


WANTED = re.compile(
    r"[^/]+/(proc/(?!driver/(?!nvidia))|cgroup/|dev/cpuset/|sys/fs/cgroup/|sys/kernel/|sys/class/dmi/|sys/hypervisor/"
    r"|sys/devices/system/(node/[^/]+$|node/node\d+/((cpulist|meminfo|distance)$|hugepages/)"
    r"|cpu/(online$|cpu\d+/topology/|cpu\d+/cpuidle/)))"
)
"""What the readers of this file's tests may look at; the archives hold thousands of files more."""


def unpack(archive: Path, to: Path) -> Path:
    """Take regular files, folders and relative links out of an untrusted archive, none of them through a link; return its top."""
    links: dict[PurePosixPath, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or WANTED.match(member.name) is None:
                continue
            where = to / path
            if member.isdir():
                where.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                where.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None
                where.write_bytes(source.read())
            elif member.issym() and not member.linkname.startswith("/"):
                links[path] = member.linkname
    for path, target in links.items():  # after every file, so that no file is written through one
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        if not (to / path).exists():
            (to / path).symlink_to(target)
    (top,) = to.iterdir()
    return top


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Return name -> root of the unpacked archive; each is unpacked once."""
    tops: dict[str, Path] = {}

    def root(name: str) -> HostRoot:
        if name not in tops:
            tops[name] = unpack(shared_path(f"topologies/hwloc/{name}.tar.bz2"), tmp_path_factory.mktemp("hwloc"))
        return HostRoot(tops[name], name=name)

    return root


@pytest.mark.parametrize("name", ARCHIVES)
def test_the_nodes_are_the_recorded_folders_and_every_reader_answers(recorded, name: str) -> None:  # type: ignore[no-untyped-def]
    root = recorded(name)
    numa = read_numa(root)
    folders = [path.name for path in (root.path / "sys/devices/system/node").iterdir()]
    assert len(numa.nodes) == sum(re.fullmatch(r"node\d+", folder) is not None for folder in folders)
    ids, sockets = ARCHIVES[name]
    assert tuple(node.id for node in numa.nodes) == ids
    if sockets is not None:
        assert numa.sockets.value == sockets, numa.sockets
    for node in numa.nodes:
        assert node.online.value is True
        assert node.memory_total_bytes.value
    assert read_memory(root).total_bytes.value
    assert read_memory(root).thp.enabled.reason == "no such file"
    assert read_host(root).iommu_mode.reason == "no such file"


def test_a_cpuset_allows_six_of_eight_nodes(recorded) -> None:  # type: ignore[no-untyped-def]
    numa = read_numa(recorded("32amd64-4s2n4c-cgroup2"))
    assert numa.allowed_nodes.value is not None
    assert (len(numa.nodes), len(numa.allowed_nodes.value)) == (8, 6)


def test_a_distance_row_with_another_count_than_the_online_nodes_is_unknown(recorded) -> None:  # type: ignore[no-untyped-def]
    (node,) = read_numa(recorded("offline-cpu0-node0")).nodes
    assert node.distances.reason == "2 distances for 1 online nodes"


def test_rows_of_sparse_nodes_belong_to_their_ids(recorded) -> None:  # type: ignore[no-untyped-def]
    nodes = {node.id: node for node in read_numa(recorded("48amd64-4pa2n6c-sparse")).nodes}
    assert nodes[33].distances.value == {0: 22, 1: 16, 2: 16, 33: 10, 34: 16, 45: 16, 72: 22, 73: 22}
    for one in nodes.values():
        for other, distance in (one.distances.value or {}).items():
            assert (nodes[other].distances.value or {})[one.id] == distance


def test_graphics_memory_nodes_are_device_memory(recorded) -> None:  # type: ignore[no-untyped-def]
    numa = read_numa(recorded("nvidiagpunumanodes"))
    kinds = {node.id: node.kind.value for node in numa.nodes}
    assert kinds == {0: "memory", 8: "memory"} | dict.fromkeys(range(250, 256), "device-memory")
    assert numa.nodes_a_socket.value == 1
    assert numa.nodes[1].distances.value == {0: 40, 8: 10} | dict.fromkeys(range(250, 256), 80)


def test_nodes_that_all_claim_all_cpus_give_no_mode(recorded) -> None:  # type: ignore[no-untyped-def]
    numa = read_numa(recorded("8em64t-2s2ca2c-buggynuma"))
    assert all(set((node.distances.value or {}).values()) == {10} for node in numa.nodes)
    assert numa.nodes_a_socket.reason == "node 0 has CPUs of 2 sockets"


def test_a_cpuset_mounted_without_prefix_is_read(recorded) -> None:  # type: ignore[no-untyped-def]
    cgroup = read_memory(recorded("40intel64-2g2n4c+pcilocality")).cgroup
    assert cgroup.cpuset_mems.value == (0, 1, 2, 3)
