"""Path classes, ours and in the words of nvidia-smi topo -m."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import write_shape
from hosts.machines import change, machine, unread

from hicachectl.tuning.host.matrix import LEGEND, VENDOR_LEGEND, Matrix, PathClass, VendorWord, find_matrix, vendor_word
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot


def of(name: str, folder: Path) -> Matrix:
    return find_matrix(read_machine(HostRoot(write_shape(name, folder / name), name=name)))


def rows(found: Matrix, what: str) -> list[str]:
    size = len(found.accelerators)
    facts = [getattr(pair, what) for pair in found.to_accelerators]
    words = ["?" if fact.value is None else fact.value.value for fact in facts]
    return [" ".join(words[i * size : (i + 1) * size]) for i in range(size)]


def test_pairs_behind_one_uplink_nodes_and_sockets(tmp_path: Path) -> None:
    found = of("8n8x-4up16", tmp_path)
    assert rows(found, "path_class")[0] == "SELF UPL SOCK SOCK XSOCK XSOCK XSOCK XSOCK"
    assert rows(found, "path_class")[6] == "XSOCK XSOCK XSOCK XSOCK SOCK SOCK SELF UPL"
    assert rows(found, "vendor_word")[0] == "X PIX SYS SYS SYS SYS SYS SYS"
    first = [pair.path_class.value for pair in found.to_nodes[:8]]
    assert [c.value for c in first if c] == ["SOCK", "NODE", "SOCK", "SOCK", "XSOCK", "XSOCK", "XSOCK", "XSOCK"]


def test_one_node_and_several_host_bridges(tmp_path: Path) -> None:
    found = of("2n8x", tmp_path)
    assert rows(found, "path_class")[0] == "SELF UPL NODE NODE XSOCK XSOCK XSOCK XSOCK"
    assert rows(found, "vendor_word")[0] == "X PIX NODE NODE SYS SYS SYS SYS"


def test_all_behind_one_switch(tmp_path: Path) -> None:
    assert rows(of("2n4x-plx", tmp_path), "vendor_word")[1] == "PIX X PIX PIX"


def test_without_vendor_files_or_nodes_it_is_a_question_mark_with_a_reason(tmp_path: Path) -> None:
    one = machine()
    lost = unread(one)
    found = find_matrix(change(one, devices=lost.devices, uplinks=()))
    for pair in (*found.to_nodes, *found.to_accelerators):
        if pair.accelerator != pair.to:
            assert pair.path_class.value is None
            assert pair.path_class.reason


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        (("r0",), ("r0",), "PIX"),
        (("r0", "up", "d1"), ("r0", "up", "d2"), "PIX"),
        (("r0", "up", "d1", "up2", "d3"), ("r0", "up", "d2"), "PXB"),
        (("r0",), ("r1",), "PHB"),
    ],
)
def test_words_follow_the_bridges_on_the_way(a: tuple[str, ...], b: tuple[str, ...], word: str) -> None:
    base = next(d for d in machine().devices if d.kind == "accelerator")
    first = change(base, address="0000:01:00.0", path=a, host_bridge="0000:00", node=0)
    second = change(base, address="0000:02:00.0", path=b, host_bridge="0000:00", node=0)
    assert vendor_word(first, second).value is VendorWord(word)
    other = change(second, path=("r9",), host_bridge="0000:80")
    assert vendor_word(first, other).value is VendorWord.NODE
    assert vendor_word(first, change(other, node=1)).value is VendorWord.SYS


def test_every_word_is_in_its_legend() -> None:
    assert {c.value for c in PathClass} | {"?"} == set(LEGEND)
    assert {w.value for w in VendorWord} == set(VENDOR_LEGEND)
