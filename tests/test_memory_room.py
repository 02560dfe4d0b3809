"""The room for pools: available memory under every cgroup limit, read from recorded trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.memory_room import MemoryRoom, cgroup_headroom, memory_room

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


def test_the_room_is_the_smaller_bound_and_says_which(tmp_path: Path) -> None:
    group(member(tmp_path, "0::/a\n"), "a", str(2 * GIB))
    assert memory_room(tmp_path, available_bytes=GIB) == MemoryRoom(GIB, "available memory")
    assert memory_room(tmp_path, available_bytes=3 * GIB) == MemoryRoom(2 * GIB, "room under the cgroup limit")


def test_the_live_host_has_some_room() -> None:
    assert memory_room().room_bytes > 0
