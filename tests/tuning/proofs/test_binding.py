"""Proof of binding: pages where they were bound, elsewhere, or not to be asked for."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from fakes.calls import REFUSALS, FakeCalls
from fakes.items import item
from hosts.machines import GIB

from hicachectl.linux_calls import MPOL_BIND, LinuxCalls, node_mask
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.proofs import Proof, prove_effect

NODES = "sys/devices/system/node"


def host(
    top: Path, online: str = "0-3", allowed: str = "0-3", memory: str = "0-3", free_kb: int = GIB >> 10
) -> HostRoot:
    files = {
        f"{NODES}/online": online, f"{NODES}/has_memory": memory, "proc/self/status": f"Mems_allowed_list:\t{allowed}",
        "proc/cpuinfo": "vendor_id : HygonGenuine",
        **{f"{NODES}/node{node}/meminfo": f"Node {node} MemFree: {free_kb} kB" for node in range(4)},
    }  # fmt: skip
    for path, text in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text + "\n")
    return HostRoot(top)


def prove(top: Path, root: HostRoot, subject: str | None = None, **kernel: Any) -> tuple[Proof, FakeCalls]:
    calls = FakeCalls(top, **kernel)
    found = prove_effect(item("numa.balancing", wanted="0", proof="binding", subject=subject), root, calls=calls)
    assert calls.all_given_back
    return found, calls


def test_every_node_with_memory_holds_what_is_bound_to_it(tmp_path: Path) -> None:
    found, calls = prove(tmp_path, host(tmp_path, memory="0-1,3"))
    assert (found.held, found.seen) == (True, "3 of 3 nodes hold every page bound to them")
    assert found.observed["node3_pages_there"] == found.observed["node3_pages"] == 1024
    assert calls.calls.count("bind") == 3


def test_one_node_is_asked_for_by_its_subject(tmp_path: Path) -> None:
    found, calls = prove(tmp_path, host(tmp_path), "node2")
    assert found.held is True
    assert set(found.observed) == {"node2_pages", "node2_pages_there"}
    assert calls.calls.count("bind") == 1


def test_pages_elsewhere_are_seen_and_counted(tmp_path: Path) -> None:
    found, _ = prove(tmp_path, host(tmp_path), lies_on=lambda node: 0)
    assert found.held is False
    assert "node 1 0 of 1024 pages" in (found.reason or "")
    assert "node 0" not in (found.reason or "")


def test_a_page_without_a_node_proves_nothing(tmp_path: Path) -> None:
    found, _ = prove(tmp_path, host(tmp_path), "node1", lies_on=lambda node: -errno.ENOENT)
    assert found.held is None
    assert "move_pages of one page: ENOENT" in (found.reason or "")


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ({"online": "0-2"}, "not online"),
        ({"allowed": "0-1"}, "outside the cpuset"),
        ({"free_kb": 16383}, "15 MiB are free"),
    ],
)
def test_a_node_that_cannot_be_used_is_not_named_to_the_kernel_and_the_reason_is_said(
    root: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found, calls = prove(tmp_path, host(tmp_path, **root), "node3")
    assert found.held is None
    assert said in (found.reason or "")
    assert calls.calls == []


def test_a_cpuset_of_two_nodes_leaves_the_others_unproven(tmp_path: Path) -> None:
    found, calls = prove(tmp_path, host(tmp_path, allowed="0-1"))
    assert (found.held, found.seen) == (None, "2 of 4 nodes hold every page bound to them")
    assert "node 2: outside the cpuset" in (found.reason or "")
    assert calls.calls.count("bind") == 2


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("call", ["reserve", "place", "bind", "populate", "nodes_of"])
def test_a_refused_call_is_not_observed_and_leaves_nothing_behind(call: str, code: int, tmp_path: Path) -> None:
    found, calls = prove(tmp_path, host(tmp_path), "node0", refuse={call: code, "touch": code})
    assert found.held is None
    assert errno.errorcode[code] in (found.reason or "")
    assert calls.all_given_back


@pytest.mark.parametrize("lost", [f"{NODES}/online", "proc/self/status", "proc/cpuinfo"])
def test_nothing_is_asked_of_a_host_whose_nodes_are_not_known(lost: str, tmp_path: Path) -> None:
    root = host(tmp_path)
    (tmp_path / lost).unlink()
    found, calls = prove(tmp_path, root)
    assert found.held is None
    assert "no such file" in (found.reason or "")
    assert calls.calls == []


def test_the_mask_always_has_room_for_its_node() -> None:
    for node in (0, 1, 7, 62, 63, 64, 127, 128, 1023):
        words, max_node = node_mask([node])
        assert max_node >= node + 2
        assert max_node - 1 <= 64 * len(words)
        assert sum(word << 64 * at for at, word in enumerate(words)) == 1 << node


def test_an_unknown_architecture_is_refused_not_guessed() -> None:
    calls = LinuxCalls(machine="sparc64")
    for call in (lambda: calls.bind(0, 4096, MPOL_BIND, [0]), lambda: calls.nodes_of([0])):
        with pytest.raises(OSError, match="sparc64"):
            call()


def test_the_first_allowed_node_of_this_machine_holds_what_is_bound_to_it() -> None:
    found = prove_effect(item("numa.balancing", wanted="0", proof="binding"), HostRoot())
    assert found.held is not False, found
    if found.held:
        assert all(
            found.observed[f"{name}_there"] == n for name, n in found.observed.items() if name.endswith("_pages")
        )
