"""NUMA calls are guarded: a wrong node never reaches libnuma, and what the kernel does not say is not guessed."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.memory import numa


def host(root: Path, online: str, allowed: str | None, distances: dict[int, str] | None = None) -> Path:
    folder = root / "sys/devices/system/node"
    folder.mkdir(parents=True)
    (folder / "online").write_text(online + "\n")
    for node, row in (distances or {}).items():
        (folder / f"node{node}").mkdir()
        (folder / f"node{node}/distance").write_text(row + "\n")
    (root / "proc/self").mkdir(parents=True)
    line = f"Mems_allowed_list:\t{allowed}\n" if allowed is not None else ""
    (root / "proc/self/status").write_text("Name:\tx\n" + line)
    return root


def test_nodes_are_those_online_and_allowed(tmp_path: Path) -> None:
    assert numa.allowed_nodes(host(tmp_path, "0-7", "0-1")) == (0, 1)


def test_a_kernel_that_says_nothing_allows_no_node(tmp_path: Path) -> None:
    assert numa.allowed_nodes(tmp_path) == ()
    assert numa.allowed_nodes(host(tmp_path / "a", "0-3", None)) == ()


def test_distances_follow_the_order_of_online_nodes_when_ids_are_sparse(tmp_path: Path) -> None:
    root = host(tmp_path, "0,4,9", "0,4,9", {4: "20 10 32"})
    assert numa.distance(4, 9, root) == 32
    assert numa.distance(4, 5, root) is None
    assert numa.distance(9, 4, root) is None


@pytest.mark.parametrize("text", ["a", "1-b", "-3"])
def test_what_is_no_id_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        numa.parse_ids(text)


def test_a_node_outside_the_allowed_ones_never_reaches_libnuma(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    fake = types.ModuleType("numa")
    fake.info = types.SimpleNamespace(numa_available=lambda: True)  # type: ignore[attr-defined]
    fake.schedule = types.SimpleNamespace(run_on_nodes=called.append)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numa", fake)
    with pytest.raises(UsageError, match="node 7"):
        numa.bind_thread(7, nodes=(0, 1))
    assert called == []


@pytest.mark.parametrize("lies", [False, True])
def test_the_affinity_proves_a_binding_not_the_return_of_libnuma(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    fake = types.ModuleType("numa")
    fake.info = types.SimpleNamespace(numa_available=lambda: True)  # type: ignore[attr-defined]
    fake.schedule = types.SimpleNamespace(run_on_nodes=lambda node: None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numa", fake)
    root = host(tmp_path, "0-1", "0-1", {1: "20 10"})
    here = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
    (root / "sys/devices/system/node/node1/cpulist").write_text("9998-9999" if lies else here)
    answer = numa.bind_thread(1, root=root)
    assert (answer is not None and "outside node 1" in answer) if lies else answer is None


def test_without_libnuma_binding_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numa", None)
    assert numa.bind_thread(0, nodes=(0,)) == "libnuma is not available here"


def test_touched_pages_have_a_node_and_untouched_ones_do_not() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    area = mmap.mmap(-1, 8 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(area, dtype=np.uint8)
    memory[:: 2 * page] = 1
    placement = numa.sample_placement(memory.ctypes.data, 8 * page)
    if placement.reason is not None:
        pytest.skip(placement.reason)
    assert placement.sampled == 8
    assert sum(placement.by_node.values()) == 4
    assert placement.untouched == 4
    assert set(placement.by_node) <= set(numa.allowed_nodes())


def test_a_thread_is_kept_to_its_node_and_never_gets_a_cpu_it_did_not_have(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    root = host(tmp_path, "0-1", "0-1", {0: "10 20", 1: "20 10"})
    (root / "sys/devices/system/node/node0/cpulist").write_text(f"{mine[0]},9000")
    (root / "sys/devices/system/node/node1/cpulist").write_text("9001-9002")
    seen: list[object] = []

    def run() -> None:
        seen.append(numa.narrow_thread(1, root))
        seen.append(numa.narrow_thread(0, root))
        seen.append(os.sched_getaffinity(0))
        seen.append(numa.narrow_thread(7, root))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[:3] == ["none of this process's CPUs belongs to node 1", None, {mine[0]}]
    assert "cannot be read" in str(seen[3])
    assert sorted(os.sched_getaffinity(0)) == mine


def test_a_line_of_numa_maps_that_is_not_read_is_left_out() -> None:
    text = (
        "10000 default file=/a\x0cbar mapped=3 N0=3 kernelpagesize_kB=4\n"
        "20000 default anon=512 N1=512\n"
        "30000 bind:0-1 anon=3 dirty=3 active=0 N0=1 N10=2 kernelpagesize_kB=4\n"
        "40000 default huge anon=2 dirty=2 N3=2 kernelpagesize_kB=2048\n"
    )
    assert numa.nodes_of_mapping(text, 0x10000, 0x10000) == {0: 3 * 4096}
    assert numa.nodes_of_mapping(text, 0x20000, 0x10000) == {}
    assert numa.nodes_of_mapping(text, 0x30000, 0x10000) == {0: 4096, 10: 8192}
    assert numa.nodes_of_mapping(text, 0x40000, 4 << 20) == {3: 4 << 20}
