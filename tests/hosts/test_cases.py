"""Outputs from public issues: a host built from each text shows, through our readers, the facts its heading tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from shared_data import shared_path

from hicachectl.tuning.host.matrix import vendor_word
from hicachectl.tuning.host.model import Machine, PciDevice, SlotKind
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.host.uplinks import link_bytes_per_s
from hosts.builder import build_root
from hosts.case_texts import (
    TopoTable,
    body,
    card,
    host_of_table,
    numactl_nodes,
    port,
    read_lspci_tree,
    read_numactl,
    read_topo_table,
)
from hosts.spec import GIB, Bus, Function, HostSpec, NodeSpec, distances

pytestmark = pytest.mark.shared

CASES = tuple(range(1, 15))


def text_of(number: int) -> str:
    """Return the recorded text of a case."""
    folder = shared_path("topologies/cases")
    (path,) = folder.glob(f"{number:02}-*.txt")
    return path.read_text(encoding="utf-8")


def read(spec: HostSpec, folder: Path) -> Machine:
    """Build the host and read it."""
    return read_machine(HostRoot(build_root(folder / "host", spec), name="case"))


def accelerators(machine: Machine) -> list[PciDevice]:
    """Return the accelerators in the order of their addresses."""
    return [device for device in machine.devices if device.kind == SlotKind.ACCELERATOR]


class Host:
    """A machine built from a topo table, asked by the names of the table."""

    def __init__(self, table: TopoTable, machine: Machine, addresses: dict[str, str]) -> None:
        self.table, self.machine, self.addresses = table, machine, addresses
        self.devices = {device.address: device for device in machine.devices}

    def node(self, name: str) -> int | None:
        return self.devices[self.addresses[name]].node.value

    def nodes(self, names: Iterable[str]) -> list[int | None]:
        return [self.node(name) for name in names]

    def word(self, a: str, b: str) -> str | None:
        found = vendor_word(self.devices[self.addresses[a]], self.devices[self.addresses[b]]).value
        return None if found is None else found.value

    def differing(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        """Return the cells where our word is not the recorded one; NVLink (NV12) is no path of PCIe and left out."""
        cells = {pair: (word, self.word(*pair)) for pair, word in self.table.words.items() if not word.startswith("NV")}
        return {pair: both for pair, both in cells.items() if both[0] != both[1]}

    def pairs(self) -> list[list[str]]:
        """Return the names of the accelerators of each uplink."""
        name_of = {address: name for name, address in self.addresses.items()}
        return sorted(sorted(name_of[a] for a in uplink.accelerators) for uplink in self.machine.uplinks)


def host(
    table: TopoTable,
    n_nodes: int,
    folder: Path,
    nic_nodes: Mapping[str, int | None] | None = None,
    first_buses: tuple[int, ...] = (),
) -> Host:
    """Build and read the host of a table."""
    spec, addresses = host_of_table(table, n_nodes, nic_nodes=nic_nodes or {}, first_buses=first_buses)
    return Host(table, read(spec, folder), addresses)


GPUS = [f"GPU{i}" for i in range(8)]
PAIRS = [["GPU0", "GPU1"], ["GPU2", "GPU3"], ["GPU4", "GPU5"], ["GPU6", "GPU7"]]


def test_every_case_of_the_folder_has_a_test() -> None:
    numbers = sorted(int(path.name[:2]) for path in shared_path("topologies/cases").glob("*.txt"))
    assert tuple(numbers) == CASES
    names = "".join(globals())
    assert all(f"case_{number:02}_" in names for number in CASES)


def test_case_01_eight_gpus_lie_unevenly_on_four_nodes(tmp_path: Path) -> None:
    found = host(read_topo_table(text_of(1)), 4, tmp_path)
    assert found.nodes(GPUS) == [0, 0, 0, 1, 2, 2, 2, 3]
    assert len(found.machine.numa.nodes) == 4
    assert found.word("NIC0", "NIC1") == "PIX"
    # The vendor's tool says SYS for every pair, also on one node; PCIe and NUMA alone say NODE there, and nothing of a NIC without a node.
    for (a, b), (recorded, ours) in found.differing().items():
        assert recorded == "SYS"
        assert ours == (None if "NIC" in a + b else "NODE") and (ours is None or found.node(a) == found.node(b))


def test_case_02_one_gpu_shares_its_host_bridge_with_both_functions_of_the_nic(tmp_path: Path) -> None:
    found = host(read_topo_table(text_of(2)), 2, tmp_path, {"NIC0": 1, "NIC1": 1})
    assert found.nodes(GPUS) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [name for name in GPUS if found.word(name, "NIC0") == found.word(name, "NIC1") == "PHB"] == ["GPU6"]
    assert found.word("NIC0", "NIC1") == "PIX"
    for (a, b), both in found.differing().items():  # as in case 01
        assert both == ("SYS", "NODE") and found.node(a) == found.node(b)
    assert all(len(pair) == 1 for pair in found.pairs())


def test_case_03_gpus_in_pairs_below_one_bridge_share_an_uplink(tmp_path: Path) -> None:
    table = read_topo_table(text_of(3))
    cut_off = dict.fromkeys((("GPU4", "GPU5"), ("GPU6", "GPU7")), "PIX")
    table = replace(table, words={**table.words, **cut_off}, nodes={**table.nodes, **dict.fromkeys(GPUS[4:], 1)},
                    cpus={**table.cpus, **dict.fromkeys(GPUS[4:], "48-95,144-191")})  # fmt: skip
    found = host(table, 2, tmp_path, first_buses=(0x10, 0x30, 0x8E, 0xC1))
    assert found.pairs() == PAIRS
    assert not found.differing()
    assert [found.addresses[name][5:7] for name in GPUS[4:]] == ["91", "92", "c4", "c5"]
    for uplink in found.machine.uplinks:
        assert uplink.oversubscription.value == pytest.approx(2.0)


def test_case_04_pairs_lie_on_nodes_3_1_7_5_each_with_its_nic(tmp_path: Path) -> None:
    table = read_topo_table(text_of(4))
    assert ("GPU7", "NIC0") not in table.words  # cut off there; the heading says where it belongs
    table = replace(table, words={**table.words, ("GPU7", "NIC2"): "PXB"}, nodes={**table.nodes, "GPU7": 5},
                    cpus={**table.cpus, "GPU7": table.cpus["GPU6"]})  # fmt: skip
    found = host(table, 8, tmp_path, {"NIC3": 0, "NIC4": 0})
    assert found.nodes(GPUS) == [3, 3, 1, 1, 7, 7, 5, 5]
    assert len(found.machine.numa.nodes) == 8
    assert found.pairs() == PAIRS
    assert not found.differing()
    for uplink in found.machine.uplinks:
        kinds = [found.devices[address].kind for address in uplink.shared_by]
        assert kinds == ["accelerator", "accelerator", "rdma-nic"]


def test_case_05_a_pair_has_two_nics_on_the_switch_above(tmp_path: Path) -> None:
    table = read_topo_table(text_of(5))
    rows = GPUS[:4]
    kept = [*rows, *(name for name in table.columns if name.startswith("NIC"))]
    table = replace(
        table, columns=tuple(kept), words={pair: word for pair, word in table.words.items() if set(pair) <= set(kept)}
    )
    alone: dict[str, int | None] = {f"NIC{i}": 0 for i in range(4, 12)}
    found = host(table, 8, tmp_path, alone)
    assert found.nodes(rows) == [3, 3, 1, 1]
    assert found.pairs() == PAIRS[:2]
    assert not found.differing()
    assert [nic for nic in kept if found.word("GPU0", nic) == "PXB"] == ["NIC0", "NIC1"]
    assert [nic for nic in kept if found.word("GPU3", nic) == "PXB"] == ["NIC2", "NIC3"]


def test_case_06_two_gpus_lie_on_nodes_0_and_2(tmp_path: Path) -> None:
    found = host(read_topo_table(text_of(6)), 4, tmp_path)
    assert found.nodes(["GPU0", "GPU1"]) == [0, 2]
    assert not found.differing()
    assert found.word("GPU0", "GPU1") == "SYS"


def test_case_07_eight_nodes_have_cpus_and_two_of_them_memory(tmp_path: Path) -> None:
    text = read_numactl(text_of(7))
    assert sorted(text.rows) == [0, 1, 2, 3, 4]  # cut off there; the heading says 10, 16 in a socket, 32 across
    rows = {**text.rows, **{i: distances(8, 4)[i] for i in (5, 6, 7)}}
    assert all(rows[a][b] == rows[b][a] for a in rows for b in rows)
    nodes = read(HostSpec(nodes=numactl_nodes(replace(text, rows=rows))), tmp_path).numa.nodes
    assert len(nodes) == 8 and all(len(node.cpus.value or ()) == 16 for node in nodes)
    assert [node.id for node in nodes if node.memory_total_bytes.value] == [1, 5]
    assert {node.kind.value for node in nodes if node.id not in (1, 5)} == {"memory-less"}
    assert nodes[1].memory_total_bytes.value == 15960 << 20
    assert [sorted(set((node.distances.value or {}).values())) for node in nodes] == [[10, 16, 32]] * 8


@pytest.mark.parametrize(
    ("number", "far", "first_free_mb"), [(8, 32, 314825), (9, 21, 44981)], ids=["case_08", "case_09"]
)
def test_case_08_and_case_09_two_nodes_with_ranges_or_interleaved_cpus(
    number: int, far: int, first_free_mb: int, tmp_path: Path
) -> None:
    text = read_numactl(text_of(number))
    nodes = read(HostSpec(nodes=numactl_nodes(text)), tmp_path).numa.nodes
    assert [node.id for node in nodes] == [0, 1]
    assert [node.distances.value for node in nodes] == [{0: 10, 1: far}, {0: far, 1: 10}]
    assert nodes[0].memory_free_bytes.value == first_free_mb << 20
    assert [node.cpus.value for node in nodes] == list(text.cpus.values())
    assert nodes[0].cpus.value == (tuple(range(16)) if number == 8 else (*range(18), *range(36, 54)))


def test_case_10_one_of_nine_nodes_has_cpus_and_the_rest_is_device_memory(tmp_path: Path) -> None:
    lists = {}
    for line in body(text_of(10)).splitlines():
        name, _, cpus = line.strip().partition(":")
        if name.startswith("NUMA node") and name.endswith("CPU(s)"):
            lists[int(name.removeprefix("NUMA node").removesuffix(" CPU(s)"))] = cpus.strip()
    specs = tuple(NodeSpec(i, cpus, 12 * GIB, 11 * GIB, huge_2m=None) for i, cpus in lists.items())
    evidence = {"/sys/devices/system/node/has_generic_initiator": b"1-8\n"}
    nodes = read(HostSpec(nodes=specs, files=evidence), tmp_path).numa.nodes
    assert len(nodes) == 9
    assert [node.id for node in nodes if node.cpus.value] == [0]
    assert [node.kind.value for node in nodes] == ["memory", *["device-memory"] * 8]


def test_case_11_eight_gpus_of_another_vendor_four_a_node(tmp_path: Path) -> None:
    lines = [line for line in body(text_of(11)).splitlines() if "Numa Node:" in line]
    on = [int(line.rpartition(":")[2]) for line in lines]
    buses = tuple(
        Bus(f"0000:{0x10 * (i + 1):02x}", (
            port(f"0000:{0x10 * (i + 1):02x}:01.0", "root-port", node, card(f"0000:{0x10 * (i + 1) + 1:02x}:00.0", node, "120000", "1002:74a1")),
        ))
        for i, node in enumerate(on)
    )  # fmt: skip
    nodes = tuple(NodeSpec(i, f"{8 * i}-{8 * i + 7}", 64 * GIB, 60 * GIB, distances=distances(2, 1)[i]) for i in (0, 1))
    found = accelerators(read(HostSpec(nodes=nodes, buses=buses), tmp_path))
    assert [device.node.value for device in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    words = {(a.node.value, b.node.value, vendor_word(a, b).value) for a in found for b in found if a is not b}
    assert {word.value for a, b, word in words if a == b and word} == {"NODE"}
    assert {word.value for a, b, word in words if a != b and word} == {"SYS"}


def test_case_12_gpus_on_two_root_ports_share_nothing(tmp_path: Path) -> None:
    above = read_lspci_tree(text_of(12))
    gpus = ("0000:0a:00.0", "0000:0b:00.0")

    def function(address: str) -> Function:
        below = tuple(function(one) for one, parent in above.items() if parent == address)
        if address in gpus:
            return card(address, 0, "030000", "10de:2204", width=8)
        if not below:
            return card(address, 0, "0c0330", "1022:1485")
        parent = above[address]
        kind = "root-port" if parent is None else "upstream" if above[parent] is None else "downstream"
        return port(address, kind, 0, *below, width=8)

    tree = tuple(function(address) for address, parent in above.items() if parent is None)
    nodes = (NodeSpec(0, "0-15", 64 * GIB, 60 * GIB, distances=(10,)),)
    machine = read(HostSpec(nodes=nodes, buses=(Bus("0000:00", tree),)), tmp_path)
    devices = {device.address: device for device in machine.devices}
    assert set(devices) == set(above)
    assert [devices[gpu].path for gpu in gpus] == [("0000:00:03.1",), ("0000:00:03.2",)]
    assert [u.shared_by for u in machine.uplinks] == [(gpus[0],), (gpus[1],)]
    assert [u.capacity_bytes_per_s.value for u in machine.uplinks] == [pytest.approx(link_bytes_per_s(16.0, 8))] * 2
    word = vendor_word(devices[gpus[0]], devices[gpus[1]]).value
    assert word is not None and word.value == "PHB"
    downstream = [d.address for d in machine.devices if d.config.port_type.value == "downstream"]
    assert len(downstream) == 6 and {devices[d].parent for d in downstream} == {"0000:01:00.0"}
    assert devices["0000:03:00.0"].path == ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0")


def test_case_13_two_gpus_behind_each_plx_switch_share_its_uplink(tmp_path: Path) -> None:
    listed = [line.split()[0] for line in body(text_of(13)).splitlines()]
    assert all("8747" in line for line in body(text_of(13)).splitlines())
    ups = [address for address in listed if address.endswith(":00.0")]
    downs = {*listed, "87:10.0"} - set(ups)  # the excerpt ends before the last one; the heading says two a switch
    buses = []
    for index, up in enumerate(ups):
        first, root = int(up[:2], 16), 0x02 if index == 0 else 0x80
        own = sorted(down for down in downs if int(down[:2], 16) == first + 1)
        ports = [
            port(f"0000:{down}", "downstream", index, card(f"0000:{first + 2 + i:02x}:00.0", 0 if index == 0 else 1, "030000", "10de:17c2", gt_s=8.0), gt_s=8.0)
            for i, down in enumerate(own)
        ]  # fmt: skip
        switch = port(f"0000:{up}", "upstream", 0 if index == 0 else 1, *ports, gt_s=8.0)
        buses.append(
            (root, port(f"0000:{root:02x}:0{index + 1}.0", "root-port", 0 if index == 0 else 1, switch, gt_s=8.0))
        )
    roots = tuple(Bus(f"0000:{root:02x}", tuple(p for r, p in buses if r == root)) for root in (0x02, 0x80))
    nodes = tuple(NodeSpec(i, f"{8 * i}-{8 * i + 7}", 64 * GIB, 60 * GIB, distances=distances(2, 1)[i]) for i in (0, 1))
    machine = read(HostSpec(nodes=nodes, buses=roots), tmp_path)
    assert [(u.port, len(u.accelerators)) for u in machine.uplinks] == [(f"0000:{up}", 2) for up in ups]
    assert {u.capacity_bytes_per_s.value for u in machine.uplinks} == {link_bytes_per_s(8.0, 16)}
    assert {u.oversubscription.value for u in machine.uplinks} == {2.0}


def test_case_14_eight_communication_controllers_are_accelerators_by_their_ids(tmp_path: Path) -> None:
    lines = [line.split() for line in body(text_of(14)).splitlines()]
    assert all(words[1:3] == ["Communication", "controller:"] for words in lines)
    buses = []
    for words in lines:
        bus = int(words[0][:2], 16)
        below = replace(card(f"0000:{words[0]}", 0, "078000", words[-1]), revision="02")
        buses.append(Bus(f"0000:{bus - 1:02x}", (port(f"0000:{bus - 1:02x}:01.0", "root-port", 0, below),)))
    nodes = (NodeSpec(0, "0-15", 64 * GIB, 60 * GIB, distances=(10,)),)
    machine = read(HostSpec(nodes=nodes, buses=tuple(buses)), tmp_path)
    found = accelerators(machine)
    assert [device.address[5:7] for device in found] == ["53", "56", "6d", "70", "b9", "bc", "d2", "d5"]
    assert {(d.class_code.value, d.kind_rule) for d in found} == {("078000", "id 1d22:3684 (Kunlun 2)")}
    assert all(len(uplink.shared_by) == 1 for uplink in machine.uplinks)
