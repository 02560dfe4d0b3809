"""The room for pools: available memory under every cgroup limit, read from recorded trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.errors import CapacityError, HostError
from hicachectl.memory_room import cgroup_headroom, host_memory, hugetlb_room, require_reserved, tightest_group
from hicachectl.runtime.memory.budget import Ask, GroupLimit, HugetlbRoom, ledger
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.spec import MappingSpec

GIB, MIB = 1 << 30, 1 << 20
V2_MOUNT = "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 none rw\n"
RESERVED = MappingSpec(kind=Kind.HUGETLB)


def write(root: Path, **files: object) -> Path:
    """Write files of one folder, by name."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name).write_text(f"{content}\n")
    return root


def group(root: Path, path: str, limit: str, used: int = 0, inactive: int = 0) -> Path:
    stat = f"anon 1\nfile 2\ninactive_file {inactive}"
    return write(root / "sys/fs/cgroup" / path, **{"memory.max": limit, "memory.current": used, "memory.stat": stat})


def member(root: Path, text: str, mounts: str = V2_MOUNT) -> Path:
    write(root / "proc/self", cgroup=text, mountinfo=mounts)
    (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    return root


def meminfo(
    root: Path, text: str = f"MemTotal: {1 << 30} kB\nMemAvailable: {1 << 29} kB\nHugepagesize: 2048 kB\n"
) -> Path:
    write(root / "proc", meminfo=text)
    return root


def pages(root: Path, page_bytes: int, free: int, promised: int = 0) -> None:
    folder = root / f"sys/kernel/mm/hugepages/hugepages-{page_bytes >> 10}kB"
    write(folder, nr_hugepages=free, free_hugepages=free, resv_hugepages=promised)


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


V1_MOUNTS = {
    "the path of the host": "35 31 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
    "docker": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
    "hybrid": V2_MOUNT.replace("cgroup rw", "cgroup/unified rw")
    + "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
}


@pytest.mark.parametrize("mounts", V1_MOUNTS.values(), ids=V1_MOUNTS)
def test_a_limit_of_version_1_binds_as_one_of_version_2(tmp_path: Path, mounts: str) -> None:
    root = meminfo(member(tmp_path, "4:memory:/docker/abc\n0::/system.slice\n", mounts))
    folder = root / "sys/fs/cgroup/memory"
    if "/docker/abc" not in mounts:
        write(folder, **{"memory.limit_in_bytes": 9223372036854771712})
        write(folder / "docker", **{"memory.limit_in_bytes": 9223372036854771712})
        folder = folder / "docker/abc"
    write(
        folder,
        **{
            "memory.limit_in_bytes": 64 * GIB, "memory.usage_in_bytes": 20 * GIB,
            "memory.stat": f"inactive_file 1\nhierarchical_memory_limit {64 * GIB}\ntotal_inactive_file {18 * GIB}",
        },
    )  # fmt: skip
    assert tightest_group(root) == GroupLimit(64 * GIB, 2 * GIB, "cgroup /docker/abc")
    assert host_memory(root).unread is None


def test_a_limit_above_what_version_1_shows_is_named_as_that(tmp_path: Path) -> None:
    root = member(tmp_path, "4:memory:/docker/abc\n", V1_MOUNTS["docker"])
    use = {"memory.limit_in_bytes": 9223372036854771712, "memory.usage_in_bytes": 3 * GIB}
    stat = f"hierarchical_memory_limit {8 * GIB}\ntotal_inactive_file {GIB}"
    write(root / "sys/fs/cgroup/memory", **use, **{"memory.stat": stat})
    assert tightest_group(root) == GroupLimit(
        8 * GIB, 2 * GIB, "a group above those that can be seen", "used by this group under it, others are not seen"
    )


def test_a_limit_above_that_version_1_says_does_not_bind_is_left_out(tmp_path: Path) -> None:
    """Before Linux 5.11 a group could stand outside of those above it."""
    root = member(tmp_path, "4:memory:/a/b\n", V1_MOUNTS["the path of the host"])
    for path, limit in (("", 1 << 63), ("a", 2 * GIB), ("a/b", 64 * GIB)):
        stat = f"hierarchical_memory_limit {limit}\ntotal_inactive_file 0"
        write(
            root / "sys/fs/cgroup/memory" / path,
            **{"memory.limit_in_bytes": limit, "memory.usage_in_bytes": 0, "memory.stat": stat},
        )
    assert tightest_group(root) == GroupLimit(64 * GIB, 0, "cgroup /a/b")


def test_file_cache_in_use_counts_as_what_the_kernel_gives_back_too(tmp_path: Path) -> None:
    root = member(tmp_path, "0::/a\n")
    write(
        group(root, "a", str(200 * GIB), used=190 * GIB),
        **{"memory.stat": f"inactive_file {20 * GIB}\nactive_file {150 * GIB}"},
    )
    assert cgroup_headroom(root) == 180 * GIB


@pytest.mark.parametrize("how", ["no hierarchy was mounted", "no control groups", "switched off"])
def test_a_kernel_without_the_controller_limits_nothing_and_says_nothing(tmp_path: Path, how: str) -> None:
    root = meminfo(
        member(
            tmp_path, "3:cpuset:/x\n0::/\n" if how == "switched off" else "", "31 23 0:27 / /proc rw - proc none rw\n"
        )
    )
    if how == "no control groups":
        (root / "proc/self/cgroup").unlink()
        write(root / "proc/self", stat="1 (x) R")
    if how == "switched off":
        write(
            root / "proc", cgroups="#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t1\t1\nmemory\t0\t1\t0\n"
        )
    heard: list[str] = []
    found = host_memory(root, tell=heard.append)
    assert (found.group, found.unread, heard) == (None, None, [])


def test_reserved_pages_that_are_charged_to_the_group_are_under_its_limit_on_memory(tmp_path: Path) -> None:
    for name, options, room in (("apart", "rw", 40 * GIB), ("charged", "rw,memory_hugetlb_accounting", 7 * GIB)):
        root = reserved_host(tmp_path / name, "0::/pod\n", V2_MOUNT.replace("none rw", f"none {options}"))
        pages(root, 2 * MIB, free=20 << 10)
        write(group(root, "pod", str(8 * GIB), used=GIB), **{"hugetlb.2MB.max": "max"})
        assert hugetlb_room(2 * MIB, root).room_bytes == room


def test_a_mount_with_an_odd_name_hides_no_limit(tmp_path: Path) -> None:
    root = member(tmp_path, "0::/a\n", f"{V2_MOUNT}40 23 8:1 / /mnt/a\u2028b\x0cc rw - ext4 /dev/x rw\n")
    group(root, "a", str(32 * GIB), used=GIB)
    assert cgroup_headroom(root) == 31 * GIB


def test_where_the_kernel_throttles_is_a_limit_and_named(tmp_path: Path) -> None:
    root = meminfo(member(tmp_path, "0::/a/b\n"))
    group(root, "a", str(10 * GIB), used=GIB)
    write(group(root, "a/b", str(8 * GIB), used=GIB), **{"memory.high": 4 * GIB})
    assert tightest_group(root) == GroupLimit(4 * GIB, GIB, "cgroup /a/b (memory.high)")
    with pytest.raises(CapacityError) as caught:
        ledger(host_memory(root), [Ask("host pool", 5 * GIB)], reserve_bytes=0).require()
    assert dict(caught.value.terms)["limit of cgroup /a/b (memory.high)"] == 4 * GIB


def test_file_cache_that_cannot_be_told_counts_as_used_and_says_so(tmp_path: Path) -> None:
    root = member(tmp_path, "0::/a\n")
    (group(root, "a", str(4 * GIB), used=3 * GIB, inactive=2 * GIB) / "memory.stat").unlink()
    found = tightest_group(root)
    assert found == GroupLimit(4 * GIB, 3 * GIB, "cgroup /a", "used under it, file cache counted")
    assert found.terms[1] == ("used under it, file cache counted", -3 * GIB)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0::/../other", "/../other is outside of the control group namespace"),
        ("0::/gone", "no such file (/sys/fs/cgroup/gone/memory.max)"),
        ("12:memory:/v1\n11:cpu:/v1", "no control group version 1 is mounted"),
        ("noise", "names no group"),
        ("0::", "names no group"),
    ],
    ids=["above this namespace", "not mounted", "version 1 without a mount", "noise", "no path"],
)
def test_a_group_that_cannot_be_found_is_not_known_to_be_free(tmp_path: Path, text: str, why: str) -> None:
    root = meminfo(member(tmp_path, text))
    heard: list[str] = []
    found = host_memory(root, tell=heard.append)
    assert found.group is None
    assert why in str(found.unread)
    assert [str(found.unread) in one for one in heard] == [True]
    with pytest.raises(CapacityError) as caught:
        ledger(found, [Ask("host pool", 1 << 60)], reserve_bytes=0).require()
    assert f"it may be less: {found.unread}" in str(caught.value.why)


def test_without_proc_or_with_broken_files_nothing_is_known(tmp_path: Path) -> None:
    assert host_memory(meminfo(tmp_path)).unread == "no such file (/proc/self/cgroup)"
    group(member(tmp_path, "0::/a\n"), "a", "lots")
    assert "/sys/fs/cgroup/a/memory.max" in str(host_memory(tmp_path).unread)


def test_a_host_without_limits_says_nothing(tmp_path: Path) -> None:
    root = meminfo(member(tmp_path, "0::/a\n"))
    group(root, "a", "max")
    write(root / "sys/fs/cgroup", **{"cgroup.controllers": "memory"})
    heard: list[str] = []
    found = host_memory(root, tell=heard.append)
    assert (found.group, found.unread, heard) == (None, None, [])


def test_a_host_whose_kernel_has_no_memory_controller_has_no_limit(tmp_path: Path) -> None:
    root = meminfo(member(tmp_path, "3:cpuset:/\n1:name=systemd:/\n", "27 1 254:0 / / rw - ext4 /dev/vda rw\n"))
    assert (host_memory(root).group, host_memory(root).unread) == (None, None)


def test_a_group_that_hides_its_files_does_not_hide_the_limit_of_another(tmp_path: Path) -> None:
    root = meminfo(member(tmp_path, "0::/a/b\n"))
    group(root, "a", str(GIB))
    (root / "sys/fs/cgroup/a/b").mkdir()
    write(root / "sys/fs/cgroup", **{"cgroup.controllers": "memory"})
    assert cgroup_headroom(root) == GIB
    assert host_memory(root).unread == "no such file (/sys/fs/cgroup/a/b/memory.max)"


def test_a_group_whose_use_is_hidden_leaves_its_limit_at_most_and_says_so(tmp_path: Path) -> None:
    root = meminfo(member(tmp_path, "0::/a\n"))
    (group(root, "a", str(GIB)) / "memory.current").unlink()
    write(root / "sys/fs/cgroup", **{"cgroup.controllers": "memory"})
    assert tightest_group(root) == GroupLimit(GIB, 0, "cgroup /a", "used under it, not known")
    assert host_memory(root).unread == "no such file (/sys/fs/cgroup/a/memory.current)"


def test_one_look_at_the_host_has_every_term(tmp_path: Path) -> None:
    group(member(tmp_path, "0::/a\n"), "a", str(2 * GIB), used=GIB, inactive=1)
    meminfo(
        tmp_path,
        "MemTotal:       100 kB\nMemFree: 1 kB\nMemAvailable:   60 kB\nHugePages_Total:  9\nHugePages_Free:   5\n"
        "HugePages_Rsvd:   2\nHugepagesize:  2 kB\nHugetlb: 18 kB\n",
    )
    pages(tmp_path, 2048, 5, promised=2)
    for node, free in ((0, 7), (1, 9)):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(f"Node {node} MemFree: {free} kB\nNode {node} Inactive(file): 1 kB\n")
    (tmp_path / "sys/devices/system/node/node2").mkdir()
    found = host_memory(tmp_path, of=RESERVED)
    assert (found.total_bytes, found.available_bytes, found.other_use_bytes) == (102400, 61440, 22 << 10)
    assert found.hugetlb_bytes == 18 << 10
    assert found.hugetlb is not None and found.hugetlb.free_bytes == 3 * 2048
    assert found.group == GroupLimit(2 * GIB, GIB - 1, "cgroup /a")
    assert found.node_free_bytes == {0: 8 << 10, 1: 10 << 10}
    assert host_memory(tmp_path).hugetlb is None


# -- reserved huge pages ------------------------------------------------------------------------------------------------


def reserved_host(root: Path, text: str = "0::/pod\n", mounts: str = V2_MOUNT) -> Path:
    """A host with 512 free pages of 2 MiB, 100 of them promised, 600 free ones of 1 GiB and no limit on either."""
    meminfo(member(root, text, mounts))
    pages(root, 2 * MIB, 512, promised=100)
    pages(root, GIB, 600)
    if mounts == V2_MOUNT:
        write(root / "sys/fs/cgroup", **{"cgroup.controllers": "memory hugetlb"})
        group(root, "pod", "max")
        write(root / "sys/fs/cgroup/pod", **{"hugetlb.2MB.max": "max", "hugetlb.1GB.max": "max"})
    return root


def test_the_pages_of_the_size_asked_count_and_those_promised_to_others_do_not(tmp_path: Path) -> None:
    root = reserved_host(tmp_path)
    assert hugetlb_room(None, root) == HugetlbRoom(2 * MIB, 412 * 2 * MIB)
    assert hugetlb_room(GIB, root) == HugetlbRoom(GIB, 600 * GIB)
    require_reserved(MappingSpec(kind=Kind.HUGETLB, hugetlb_bytes=GIB), 512 * GIB, "less", root)
    with pytest.raises(CapacityError, match="412 can be had"):
        require_reserved(RESERVED, GIB, "less", root)
    require_reserved(MappingSpec(), 1 << 60, "less", root)


@pytest.mark.parametrize("kind", ["", "rsvd."])
def test_a_limit_on_reserved_pages_is_refused_with_its_terms(tmp_path: Path, kind: str) -> None:
    root = reserved_host(tmp_path)
    limits = {f"hugetlb.2MB.{kind}max": 100 * MIB, f"hugetlb.2MB.{kind}current": 37 * MIB}
    write(root / "sys/fs/cgroup/pod", **limits)
    name = f"cgroup /pod (hugetlb.2MB.{kind}max)"
    room = hugetlb_room(None, root)
    assert (room.group, room.room_bytes) == (GroupLimit(100 * MIB, 37 * MIB, name), 62 * MIB)  # 31 whole pages
    require_reserved(RESERVED, 62 * MIB, "less", root)
    with pytest.raises(CapacityError, match="free hugetlb memory under the cgroup limit is 62") as caught:
        require_reserved(RESERVED, 63 * MIB, "less", root)
    assert dict(caught.value.terms) == {
        "host pool": 63 * MIB, "wanted, the sum of these": 63 * MIB, "free pages of 2.0 MiB, promised to nobody": 824 * MIB,
        f"limit of {name}": 100 * MIB, "used under it": -37 * MIB, "free hugetlb memory under the cgroup limit": 62 * MIB,
    }  # fmt: skip
    assert hugetlb_room(GIB, root).group is None


def test_a_limit_on_reserved_pages_of_a_group_above_and_of_version_1_binds_too(tmp_path: Path) -> None:
    above = reserved_host(tmp_path / "2", "0::/slice/pod\n")
    for path, limit in (("slice", 0), ("slice/pod", "max")):
        group(above, path, "max")
        write(above / "sys/fs/cgroup" / path, **{"hugetlb.2MB.max": limit, "hugetlb.2MB.current": 0})
    assert hugetlb_room(None, above).room_bytes == 0
    mounts = "36 31 0:33 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n"
    first = reserved_host(tmp_path / "1", "5:hugetlb:/pod\n", mounts)
    no_limit = {
        "hugetlb.1GB.limit_in_bytes": 9223372035781033984,
        "hugetlb.1GB.rsvd.limit_in_bytes": 9223372035781033984,
    }
    write(first / "sys/fs/cgroup/hugetlb", **no_limit)
    write(first / "sys/fs/cgroup/hugetlb/pod", **no_limit)
    assert hugetlb_room(GIB, first) == HugetlbRoom(GIB, 600 * GIB)
    use = {"hugetlb.1GB.rsvd.limit_in_bytes": 8 * GIB, "hugetlb.1GB.rsvd.usage_in_bytes": 5 * GIB}
    write(first / "sys/fs/cgroup/hugetlb/pod", **use)
    assert hugetlb_room(GIB, first).room_bytes == 3 * GIB


def test_a_limit_on_reserved_pages_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    root = reserved_host(tmp_path)
    write(root / "sys/fs/cgroup/pod", **{"hugetlb.2MB.max": "lots"})
    heard: list[str] = []
    found = host_memory(root, of=RESERVED, tell=heard.append)
    assert "hugetlb.2MB.max" in str(found.unread)
    assert len(heard) == 1
    assert host_memory(root).unread is None


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
