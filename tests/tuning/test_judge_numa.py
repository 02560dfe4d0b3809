"""Findings of NUMA nodes: where devices and memory lie, and what is not concluded from half a reading."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from finding_cases import (
    nodes,
    of,
    on_node_zero,
    weights,
    with_nic,
)
from hosts.machines import (
    GIB,
    accelerator,
    change,
    device,
    lost,
    machine,
    nic,
    node,
    port,
)

from hicachectl.tuning.host.facts import unknown
from hicachectl.tuning.host.model import SlotKind


def test_a_board_with_all_slots_on_one_socket_is_a_note_and_counts_the_root_buses_of_all_that_it_names() -> None:
    ways = [(port(f"0000:{n}0:01.0"), accelerator(f"0000:{n}1:00.0", f"0000:{n}0:01.0", node=0)) for n in (1, 2)]
    cards = [one for way in ways for one in way]
    (found,) = of("HC-NODE-UNKNOWN", machine(*cards))
    assert found.severity == "note"
    assert "below 2 root buses" in found.message
    assert "or the board has all slots on one socket" in found.message
    (more,) = of("HC-NODE-UNKNOWN", machine(*cards, device("0000:90:00.0", kind=SlotKind.NVME)))
    assert "below 3 root buses" in more.message


@pytest.mark.parametrize("names", [("memory_total_bytes", "kind"), ("cpus", "kind")])
def test_half_the_memory_is_not_counted_while_a_node_was_not_read(names: tuple[str, ...]) -> None:
    value = on_node_zero()
    assert of("HC-BIND-HALF", value)
    first, *rest, last = value.numa.nodes
    for nodes_read in ((lost(first, *names), *rest, last), (first, *rest, lost(last, *names))):
        half = replace(value, numa=replace(value.numa, nodes=nodes_read))
        assert of("HC-BIND-HALF", half) == []
    outside = replace(
        value, numa=change(replace(value.numa, nodes=(first, *rest, lost(last, *names))), allowed_nodes=(0, 1, 2))
    )
    assert "1 of 3 memory nodes" in of("HC-BIND-HALF", outside)[0].message


def test_no_node_is_the_low_one_while_another_was_not_read() -> None:
    low = {"memory_available_bytes": 20 * GIB}
    assert of("HC-NODE-LOW", nodes(low))
    first, *rest, last = nodes(low).numa.nodes
    value = nodes(low)
    assert (
        of(
            "HC-NODE-LOW",
            replace(value, numa=replace(value.numa, nodes=(first, *rest, lost(last, "memory_total_bytes", "kind")))),
        )
        == []
    )


def test_a_cpuset_says_of_how_many_nodes_the_memory_was_not_read() -> None:
    value = machine(numa={"allowed_nodes": (0, 1)})
    first, *rest = value.numa.nodes
    half = replace(value, numa=replace(value.numa, nodes=(lost(first, "memory_total_bytes"), *rest)))
    assert "1 of the host's 3 memory nodes (1 more not read)" in of("HC-CPUSET", half)[0].message
    assert "not read" not in of("HC-CPUSET", value)[0].message


@pytest.mark.parametrize(
    "near",
    [
        {"kind": SlotKind.NIC, "listed": {"interfaces": unknown("/infiniband", "permission denied")}},
        {"kind": SlotKind.NIC, "vendor": unknown("vendor", "permission denied")},
        {"kind": SlotKind.OTHER, "class_code": unknown("class", "permission denied")},
    ],
)
def test_no_nic_is_far_while_a_nearer_one_may_be_an_rdma_nic_and_was_not_read(near: dict[str, Any]) -> None:
    far = with_nic(0)
    assert of("HC-NIC-FAR", far)
    second = nic("0000:61:00.0", "0000:60:01.0", node=3)
    read = machine(*far.devices, port("0000:60:01.0", node=3), change(second, kind=SlotKind.NIC))
    assert of("HC-NIC-FAR", read)
    assert of("HC-NIC-FAR", machine(*far.devices, port("0000:60:01.0", node=3), change(second, **near))) == []


def test_a_missing_node_matters_less_for_a_disk_and_not_where_there_is_one_node() -> None:
    lost_disk = lost(device("0000:60:00.0", kind=SlotKind.NVME), "node")
    assert weights("HC-NODE-UNKNOWN", machine(*machine().devices, lost_disk)) == ["note"]
    one = {"nodes": (node(0, {0: 10}),), "nodes_a_socket": 1, "sockets": 1}
    assert of("HC-NODE-UNKNOWN", machine(lost_disk, numa=one)) == []


def test_tables_nobody_can_believe_are_told() -> None:
    flat = nodes(*[{"distances": dict.fromkeys(range(4), 10)}] * 4)
    assert [f.subject for f in of("HC-NODE-UNKNOWN", flat)] == ["node distances"]
    twice = nodes(*[{"cpus": tuple(range(8))}] * 4)
    assert [f.subject for f in of("HC-NODE-UNKNOWN", twice)] == ["node CPUs"]
    zero = machine(*(change(d, node=0) for d in machine().devices))
    assert [f.subject for f in of("HC-NODE-UNKNOWN", zero)] == ["host"]


def test_a_nic_on_the_same_socket_is_near() -> None:
    assert [f.subject for f in of("HC-NIC-FAR", with_nic(1))] == ["node 2", "node 3"]
