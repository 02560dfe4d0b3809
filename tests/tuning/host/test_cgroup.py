"""Control groups: the tightest limit up the tree and who sets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_host import GIB, GROUPS, MIB, V1_GROUP, V2_GROUP, small_host, write_host

from hicachectl.tuning.host.cgroup import NO_LIMIT, read_cgroup
from hicachectl.tuning.host.model import Cgroup


def read(tmp_path: Path, version: int, changes: dict[str, str] | None = None, without: tuple[str, ...] = ()) -> Cgroup:
    files = {path: text for path, text in (small_host(version) | (changes or {})).items() if path not in without}
    return read_cgroup(write_host(tmp_path, files))


@pytest.mark.parametrize(("version", "group"), [(1, "/serving/engine"), (2, "/serving.slice/engine.service")])
def test_the_tightest_limit_up_the_tree_names_its_group(tmp_path: Path, version: int, group: str) -> None:
    found = read(tmp_path, version)
    assert (found.version.value, found.path.value) == (version, group)
    assert found.memory_max_bytes.value == 2 * GIB
    assert found.memory_limited_by.value == group.rpartition("/")[0]
    assert found.memory_current_bytes.value == GIB  # of the group that limits
    assert (found.cpuset_mems.value, found.cpuset_cpus.value) == ((1,), (2, 3))


def test_the_own_group_limits_when_it_is_tighter(tmp_path: Path) -> None:
    found = read(tmp_path, 2, {f"{V2_GROUP}/memory.max": f"{GIB}\n"})
    assert found.memory_max_bytes.value == GIB
    assert found.memory_limited_by.value == "/serving.slice/engine.service"
    assert found.memory_current_bytes.value == GIB // 2


def test_the_least_room_counts_not_the_smallest_limit(tmp_path: Path) -> None:
    """A pod whose slice is larger and nearly full."""
    slice_ = f"{GROUPS}/serving.slice"
    pod = {f"{V2_GROUP}/memory.max": f"{500 * GIB}\n", f"{V2_GROUP}/memory.current": f"{10 * GIB}\n"}
    full = {f"{slice_}/memory.max": f"{600 * GIB}\n", f"{slice_}/memory.current": f"{590 * GIB}\n"}
    found = read(tmp_path / "full", 2, pod | full | {f"{slice_}/memory.stat": "inactive_file 0\n"})
    assert (found.memory_max_bytes.value, found.memory_limited_by.value) == (600 * GIB, "/serving.slice")
    assert found.memory_room_bytes.value == 10 * GIB
    cached = read(tmp_path / "cached", 2, pod | full | {f"{slice_}/memory.stat": f"inactive_file {500 * GIB}\n"})
    assert (cached.memory_max_bytes.value, cached.memory_room_bytes.value) == (500 * GIB, 490 * GIB)


@pytest.mark.parametrize("version", [1, 2])
def test_file_cache_that_goes_first_is_no_use(tmp_path: Path, version: int) -> None:
    found = read(tmp_path, version)
    assert (found.memory_current_bytes.value, found.memory_file_cache_bytes.value) == (GIB, MIB)
    assert (found.memory_used_bytes.value, found.memory_room_bytes.value) == (GIB - MIB, GIB + MIB)
    stat = f"{GROUPS}/memory/serving/memory.stat" if version == 1 else f"{GROUPS}/serving.slice/memory.stat"
    lost = read(tmp_path / "lost", version, without=(stat,))
    assert lost.memory_file_cache_bytes.reason == "no such file"
    assert lost.memory_room_bytes.value == GIB  # all of the cache counts as used


def test_where_the_kernel_throttles_is_a_limit_and_named(tmp_path: Path) -> None:
    slow = {f"{GROUPS}/serving.slice/memory.high": f"{GIB + 2 * MIB}\n"}
    found = read(tmp_path / "slow", 2, slow)
    assert (found.memory_max_bytes.value, found.memory_room_bytes.value) == (GIB + 2 * MIB, 3 * MIB)
    assert found.memory_max_bytes.source == f"{GROUPS}/serving.slice/memory.high"
    assert found.memory_limit_words == " (memory.high)"
    assert read(tmp_path / "max", 2).memory_limit_words == ""
    above = {f"{GROUPS}/serving.slice/memory.high": f"{3 * GIB}\n"}
    assert read(tmp_path / "above", 2, above).memory_max_bytes.source.endswith("memory.max")
    odd = read(tmp_path / "odd", 2, {f"{GROUPS}/serving.slice/memory.high": "lots\n"})
    assert odd.memory_max_bytes.source.endswith("memory.high") and not odd.memory_max_bytes.is_known


def test_of_equal_limits_the_highest_counts(tmp_path: Path) -> None:
    assert read(tmp_path, 2, {f"{V2_GROUP}/memory.max": f"{2 * GIB}\n"}).memory_limited_by.value == "/serving.slice"


def test_no_limit_anywhere_says_so(tmp_path: Path) -> None:
    unlimited = "9223372036854771712\n"
    second = read(tmp_path / "2", 2, {f"{GROUPS}/serving.slice/memory.max": "max\n"})
    first = read(
        tmp_path / "1",
        1,
        {
            f"{GROUPS}/memory/serving/memory.limit_in_bytes": unlimited,
            f"{V1_GROUP}/memory.limit_in_bytes": unlimited,
            f"{V1_GROUP}/memory.stat": f"hierarchical_memory_limit {unlimited}",
        },
    )
    for found in (first, second):
        assert found.memory_max_bytes.reason == NO_LIMIT
        assert found.memory_limited_by.reason == NO_LIMIT
        assert found.memory_current_bytes.value == GIB // 2


def test_a_limit_above_what_can_be_seen_counts_in_version_1(tmp_path: Path) -> None:
    found = read(tmp_path, 1, {f"{V1_GROUP}/memory.stat": f"hierarchical_memory_limit {GIB}\n"})
    assert found.memory_max_bytes.value == GIB
    assert found.memory_limited_by.value == "a group above those that can be seen"


def test_a_limit_that_cannot_be_read_hides_the_tightest(tmp_path: Path) -> None:
    found = read(tmp_path, 2, {f"{GROUPS}/serving.slice/memory.max": "lots\n"})
    assert found.memory_max_bytes.value is None
    assert found.memory_max_bytes.reason != NO_LIMIT


def test_a_group_without_the_controller_has_no_limit_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, 2, {f"{V2_GROUP}/cgroup.controllers": "cpuset\n"}, without=(f"{V2_GROUP}/memory.max",))
    assert found.memory_max_bytes.value == 2 * GIB


def test_a_missing_limit_of_a_group_with_the_controller_is_unknown(tmp_path: Path) -> None:
    found = read(tmp_path, 2, without=(f"{V2_GROUP}/memory.max",))
    assert found.memory_max_bytes.reason == "no such file"


def test_a_container_sees_its_group_as_the_top(tmp_path: Path) -> None:
    """Without a namespace of its own, the mount shows the part below /docker/abc, and the path is the host's."""
    mounts = "31 23 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    found = read(
        tmp_path,
        1,
        {
            "/proc/self/cgroup": "4:memory:/docker/abc\n",
            "/proc/self/mountinfo": mounts,
            f"{GROUPS}/memory/memory.limit_in_bytes": f"{GIB}\n",
            f"{GROUPS}/memory/memory.usage_in_bytes": "4096\n",
            f"{GROUPS}/memory/memory.stat": f"hierarchical_memory_limit {GIB}\n",
        },
    )
    assert found.memory_max_bytes.value == GIB
    assert found.memory_limited_by.value == "/docker/abc"


def test_a_group_outside_of_what_is_mounted_is_unknown_not_unlimited(tmp_path: Path) -> None:
    elsewhere = read(
        tmp_path / "1", 2, {"/proc/self/mountinfo": "31 23 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 none rw\n"}
    )
    assert "is outside of what /sys/fs/cgroup shows (/docker/abc)" in str(elsewhere.memory_max_bytes.reason)
    above = read(tmp_path / "2", 2, {"/proc/self/cgroup": "0::/../other\n"})
    assert "outside of the control group namespace" in str(above.memory_max_bytes.reason)
    nowhere = read(tmp_path / "3", 2, {"/proc/self/mountinfo": "27 1 254:0 / / rw - ext4 /dev/vda rw\n"})
    assert nowhere.memory_max_bytes.reason == "no control group version 2 is mounted"


def test_the_cpuset_of_a_group_without_the_controller_is_its_parents(tmp_path: Path) -> None:
    gone = (f"{V2_GROUP}/cpuset.mems.effective", f"{V2_GROUP}/cpuset.cpus.effective")
    found = read(tmp_path, 2, {f"{V2_GROUP}/cgroup.controllers": "memory\n"}, without=gone)
    assert found.cpuset_mems.value == (0, 1)
    assert found.cpuset_cpus.reason == "no such file"
