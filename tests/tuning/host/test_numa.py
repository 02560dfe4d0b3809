"""NUMA nodes as the kernel shows them, and the odd ones among them."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest
from small_host import CPUS, GIB, KIB, NODES, small_host, write_host

from hicachectl.tuning.host.facts import Confidence, known
from hicachectl.tuning.host.mempolicy import _verdict, probe_mempolicy_calls
from hicachectl.tuning.host.numa import read_numa
from hicachectl.tuning.host.root import HostRoot


def test_a_node_has_its_cpus_memory_distances_and_pools(tmp_path: Path) -> None:
    numa = read_numa(write_host(tmp_path, small_host()))
    first, second = numa.nodes
    assert (first.id, first.online.value, first.cpus.value) == (0, True, (0, 1))
    assert first.memory_total_bytes.value == 4 * GIB
    assert second.memory_free_bytes.value == GIB
    assert first.distances.value == {0: 10, 1: 32}
    assert second.interleave_weight.value == 2
    assert [(pool.node, pool.page_bytes, pool.total.value, pool.free.value) for pool in second.hugetlb] == [
        (1, 2 << 20, 4, 3)
    ]
    assert {node.kind.value for node in numa.nodes} == {"memory"}
    assert numa.listed["nodes"].value == 2


def test_free_huge_blocks_count_larger_blocks_by_what_they_hold(tmp_path: Path) -> None:
    """Node 0: 2 of order 9 and 3 of order 10 in one zone, 1 of order 9 in the other: 2 + 6 + 1; smaller blocks do not count."""
    numa = read_numa(write_host(tmp_path, small_host()))
    assert [node.free_huge_blocks.value for node in numa.nodes] == [9, 0]


def test_available_memory_follows_the_kernels_sum(tmp_path: Path) -> None:
    numa = read_numa(write_host(tmp_path, small_host()))
    reserve = (50 + 50) * 4  # KiB: a zone's largest protection plus high, 30 + 20 and 0 + 50 pages
    low = (10 + 40) * 4
    expected = 2 * 1024 * 1024 - reserve + (8192 - min(4096, low)) + (2048 - min(1024, low))
    available = numa.nodes[0].memory_available_bytes
    assert available.value == expected * KIB
    assert available.confidence is Confidence.DERIVED


def test_distances_follow_the_order_of_online_nodes_not_their_ids(tmp_path: Path) -> None:
    files = small_host() | {f"{NODES}/online": "0,1,72\n", f"{NODES}/node72/distance": "16 22 10\n"}
    numa = read_numa(write_host(tmp_path, files | {f"{NODES}/node0/distance": "10 32 16"}))
    assert numa.nodes[2].distances.value == {0: 16, 1: 22, 72: 10}
    assert numa.nodes[0].distances.value == {0: 10, 1: 32, 72: 16}
    assert numa.nodes[1].distances.reason == "2 distances for 3 online nodes"


def test_an_offline_node_with_a_folder_is_listed_as_offline(tmp_path: Path) -> None:
    numa = read_numa(write_host(tmp_path, small_host() | {f"{NODES}/online": "1\n", f"{NODES}/node1/distance": "10\n"}))
    assert [node.online.value for node in numa.nodes] == [False, True]
    assert numa.nodes[1].distances.value == {1: 10}


def test_nodes_without_memory_or_without_cpus_are_named_so(tmp_path: Path) -> None:
    files = small_host() | {
        f"{NODES}/node0/meminfo": "Node 0 MemTotal: 0 kB\nNode 0 MemFree: 0 kB\n",
        f"{NODES}/node1/cpulist": "\n",
    }
    numa = read_numa(write_host(tmp_path, files))
    assert [node.kind.value for node in numa.nodes] == ["memory-less", "cpu-less"]
    assert numa.nodes[1].cpus.value == ()


@pytest.mark.parametrize(
    "evidence",
    [
        {"/proc/driver/nvidia/gpus/0035:05:00.0/numa_status": "Node:      1\nStatus:    online\nSize:  3f0000000\n"},
        {f"{NODES}/has_generic_initiator": "1\n"},
    ],
)
def test_a_node_of_an_accelerators_memory_needs_evidence(tmp_path: Path, evidence: dict[str, str]) -> None:
    numa = read_numa(write_host(tmp_path, small_host() | {f"{NODES}/node1/cpulist": "\n"} | evidence))
    assert [node.kind.value for node in numa.nodes] == ["memory", "device-memory"]
    assert numa.nodes[1].kind.confidence is Confidence.DERIVED


def test_sockets_and_the_mode_come_from_the_cpus(tmp_path: Path) -> None:
    numa = read_numa(write_host(tmp_path, small_host()))
    assert (numa.sockets.value, numa.nodes_a_socket.value) == (2, 1)


def test_two_nodes_on_one_socket_are_a_mode_of_two(tmp_path: Path) -> None:
    files = small_host() | {f"{CPUS}/cpu0/topology/package_cpus_list": "0-3"}
    numa = read_numa(write_host(tmp_path, files))
    assert (numa.sockets.value, numa.nodes_a_socket.value) == (1, 2)


def test_a_node_across_sockets_gives_no_mode(tmp_path: Path) -> None:
    numa = read_numa(write_host(tmp_path, small_host() | {f"{NODES}/node0/cpulist": "0-3\n"}))
    assert numa.nodes_a_socket.reason == "node 0 has CPUs of 2 sockets"


def test_sockets_that_differ_give_no_mode(tmp_path: Path) -> None:
    files = small_host() | {f"{NODES}/node1/meminfo": "Node 1 MemTotal: 0 kB\n"}
    numa = read_numa(write_host(tmp_path, files))
    assert numa.nodes_a_socket.reason == "sockets have 1, 0 nodes with CPUs and memory"


def test_what_the_process_may_use_is_its_own_status_not_sysfs(tmp_path: Path) -> None:
    numa = read_numa(write_host(tmp_path, small_host()))
    assert len(numa.nodes) == 2
    assert numa.allowed_nodes.value == (1,)
    assert numa.allowed_cpus.value == (2, 3)


def test_a_recording_without_status_takes_the_cpuset_of_its_group(tmp_path: Path) -> None:
    files = small_host()
    del files["/proc/self/status"]
    numa = read_numa(write_host(tmp_path, files))
    assert numa.allowed_nodes.value == (1,)
    assert numa.allowed_nodes.confidence is Confidence.DERIVED


@pytest.mark.parametrize(
    ("line", "policy"),
    [
        ("55d0c0de0000 default file=/usr/bin/python3 mapped=2 N0=2", "default"),
        ("55d0c0de0000 interleave:0-7 anon=1 N0=1", "interleave:0-7"),
        ("55d0c0de0000 interleave=static:0,2 heap anon=1", "interleave=static:0,2"),
        ("55d0c0de0000 weighted interleave:0-1 stack", "weighted interleave:0-1"),
        ("55d0c0de0000 prefer (many):1 huge", "prefer (many):1"),
        ("55d0c0de0000 bind:3", "bind:3"),
    ],
)
def test_the_process_policy_is_read_in_all_its_forms(tmp_path: Path, line: str, policy: str) -> None:
    numa = read_numa(write_host(tmp_path, small_host() | {"/proc/self/numa_maps": f"{line}\n7f00 default stack\n"}))
    assert numa.process_policy.value == policy


# -- the probe ----------------------------------------------------------------------------------------------------------


def test_a_recording_is_not_probed(tmp_path: Path) -> None:
    numa = read_numa(write_host(tmp_path, small_host()))
    assert numa.mempolicy_calls.reason == "asked of a live host only"


def test_the_probe_calls_the_kernel_in_a_child_and_leaves_this_process_alone() -> None:
    root = HostRoot()
    before = read_numa(root)
    if not before.mempolicy_calls.is_known:
        pytest.skip(f"no NUMA calls here: {before.mempolicy_calls.reason}")
    assert "in a child process" in before.mempolicy_calls.source
    assert read_numa(root).process_policy == before.process_policy


def test_a_node_that_is_not_there_is_no_verdict_on_the_calls() -> None:
    if read_numa(HostRoot()).mempolicy_calls.value is not True:
        pytest.skip("set_mempolicy is not allowed here")
    probed = probe_mempolicy_calls(HostRoot(), known((1000,), "made up"))
    assert probed.reason == "set_mempolicy answered EINVAL"


def test_an_unknown_architecture_or_no_node_is_a_reason() -> None:
    assert (
        probe_mempolicy_calls(HostRoot(), known((0,), "x"), "vax").reason
        == "the call numbers of vax are not known here"
    )
    assert probe_mempolicy_calls(HostRoot(), known((), "x")).reason == "no node to ask for: none is allowed"


@pytest.mark.parametrize(
    ("returncode", "said", "value", "words"),
    [
        (0, "ok\n", True, "in a child process"),
        (0, f"set_mempolicy {errno.EPERM}\n", False, "set_mempolicy answered EPERM"),
        (0, f"get_mempolicy {errno.ENOSYS}\n", False, "get_mempolicy answered ENOSYS"),
        (0, f"mbind {errno.EINVAL}\n", None, "mbind answered EINVAL"),
        (-signal.SIGSYS, "", False, "system call filter"),
        (-signal.SIGKILL, "", None, "ended with -9"),
        (1, "ok", None, "ended with 1"),
        (0, "garbage", None, "said 'garbage'"),
    ],
)
def test_the_childs_last_words_are_judged(returncode: int, said: str, value: bool | None, words: str) -> None:
    fact = _verdict(returncode, said)
    assert fact.value is value
    assert words in (fact.reason or fact.source)


def test_of_the_process_maps_no_more_than_the_first_policy_is_read(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    line = "7f0000000000 interleave=static:0-7 file=/home/somebody/" + "x" * 300 + "\n"
    (tmp_path / "proc/self/numa_maps").write_text(line * 40)
    root = HostRoot(tmp_path, name="h")
    assert read_numa(root).process_policy.value == "interleave=static:0-7"
    assert root.touched.files["/proc/self/numa_maps"] < 100
