"""The room for pools: available memory under every cgroup limit, read from recorded trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.errors import HostError
from hicachectl.memory_room import cgroup_headroom, host_memory, tightest_group
from hicachectl.runtime.memory.budget import GroupLimit

GIB = 1 << 30


def group(root: Path, path: str, limit: str, used: int = 0, inactive: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\nfile 2\ninactive_file {inactive}\n")


def member(root: Path, text: str) -> Path:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(text)
    (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    return root


def test_the_limit_less_what_is_used_is_the_room(tmp_path: Path) -> None:
    group(member(tmp_path, "0::/a/b\n"), "a/b", str(8 * GIB), used=3 * GIB)
    assert cgroup_headroom(tmp_path) == 5 * GIB


def test_the_tightest_of_all_groups_above_counts(tmp_path: Path) -> None:
    root = member(tmp_path, "0::/a/b/c\n")
    group(root, "a", str(4 * GIB), used=3 * GIB)
    group(root, "a/b", "max", used=9 * GIB)
    group(root, "a/b/c", str(8 * GIB), used=GIB)
    assert cgroup_headroom(root) == GIB


def test_in_a_container_the_mount_itself_is_the_group(tmp_path: Path) -> None:
    group(member(tmp_path, "0::/\n"), ".", str(2 * GIB), used=GIB)
    assert cgroup_headroom(tmp_path) == GIB


def test_file_cache_that_goes_first_counts_as_free_and_a_passed_limit_is_no_room(tmp_path: Path) -> None:
    root = member(tmp_path, "0::/a\n")
    group(root, "a", str(4 * GIB), used=4 * GIB, inactive=GIB)
    assert cgroup_headroom(root) == GIB
    group(root, "a", str(GIB), used=2 * GIB)
    assert cgroup_headroom(root) == 0


@pytest.mark.parametrize(
    "text",
    ["", "0::/../other\n", "0::/gone\n", "12:memory:/v1\n11:cpu:/v1\n", "noise", "0::"],
    ids=["empty", "above this namespace", "not mounted", "version 1", "noise", "no path"],
)
def test_without_a_readable_limit_there_is_no_bound(tmp_path: Path, text: str) -> None:
    assert cgroup_headroom(member(tmp_path, text)) is None


def test_without_proc_or_with_broken_files_there_is_no_bound(tmp_path: Path) -> None:
    assert cgroup_headroom(tmp_path) is None
    group(member(tmp_path, "0::/a\n"), "a", "lots")
    assert cgroup_headroom(tmp_path) is None


def test_a_group_that_hides_its_files_does_not_hide_the_limit_of_another(tmp_path: Path) -> None:
    root = member(tmp_path, "0::/a/b\n")
    group(root, "a", str(GIB))
    (root / "sys/fs/cgroup/a/b").mkdir()
    assert cgroup_headroom(root) == GIB


def meminfo(root: Path, text: str) -> Path:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text(text)
    return root


def test_one_look_at_the_host_has_every_term(tmp_path: Path) -> None:
    group(member(tmp_path, "0::/a\n"), "a", str(2 * GIB), used=GIB, inactive=1)
    meminfo(
        tmp_path,
        "MemTotal:       100 kB\nMemFree: 1 kB\nMemAvailable:   60 kB\nHugePages_Total:  9\nHugePages_Free:   5\n"
        "HugePages_Rsvd:   2\nHugepagesize:  2 kB\nHugetlb: 18 kB\n",
    )
    for node, free in ((0, 7), (1, 9)):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(f"Node {node} MemFree: {free} kB\nNode {node} Inactive(file): 1 kB\n")
    (tmp_path / "sys/devices/system/node/node2").mkdir()
    found = host_memory(tmp_path)
    assert (found.total_bytes, found.available_bytes, found.other_use_bytes) == (102400, 61440, 22 << 10)
    assert (found.hugetlb_bytes, found.hugetlb_free_bytes) == (18 << 10, 3 * 2048)
    assert found.group == GroupLimit(2 * GIB, GIB - 1, "cgroup /a")
    assert found.node_free_bytes == {0: 8 << 10, 1: 10 << 10}


def test_the_group_that_leaves_least_is_named(tmp_path: Path) -> None:
    root = member(tmp_path, "0::/a/b\n")
    group(root, "a", str(4 * GIB), used=3 * GIB)
    group(root, "a/b", str(3 * GIB), used=GIB)
    assert tightest_group(root) == GroupLimit(4 * GIB, 3 * GIB, "cgroup /a")


@pytest.mark.parametrize("text", [None, "", "MemTotal: 5 kB\n"])
def test_a_host_that_does_not_say_what_is_available_is_no_host_with_room(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        meminfo(tmp_path, text)
    with pytest.raises(HostError, match="not known"):
        host_memory(tmp_path)


def test_the_live_host_has_some_room() -> None:
    found = host_memory()
    assert 0 < found.available_bytes < found.total_bytes
    assert found.node_free_bytes
