"""Limits are told with sums and lines, and never called fine for an engine that was not looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.spec import CAPABILITIES, GIB, HostSpec, NodeSpec
from knob_looks import items, look, one, small, wants

from hicachectl.tuning.item import Item, ItemKind


def limit(tmp_path: Path, spec: HostSpec, knob: str, choice: str = "report") -> Item:
    choices = wants(f"limits.{knob}={choice}")
    item = one(look(tmp_path, spec, choices), choices, f"limits.{knob}")
    assert item.target is None and item.new is None
    return item


def test_unlimited_memory_to_lock_is_told_of_this_process_only(tmp_path: Path) -> None:
    item = limit(tmp_path, small(), "memlock")
    assert (item.kind, item.old) == (ItemKind.REPORT, "unlimited")
    assert any("read of this process" in note for note in item.notes)


def test_a_small_limit_is_told_with_the_sum_and_the_lines(tmp_path: Path) -> None:
    spec = small(memlock="1073741824", capabilities=CAPABILITIES["none"])
    item = limit(tmp_path, spec, "memlock", "6GiB")
    assert item.reason == "1.0 GiB may be locked, pools = 6.0 GiB: 5.0 GiB short"
    assert item.remedy is not None
    for line in ("LimitMEMLOCK=infinity", "* soft memlock unlimited", "--ulimit memlock=-1:-1"):
        assert line in item.remedy


def test_without_a_pool_the_hosts_memory_is_the_measure(tmp_path: Path) -> None:
    assert (
        limit(tmp_path, small(memlock="1073741824"), "memlock").reason
        == "1.0 GiB may be locked, the host's memory = 8.0 GiB: 7.0 GiB short"
    )


def test_the_capability_that_lifts_the_limit_is_told(tmp_path: Path) -> None:
    assert any("CAP_IPC_LOCK" in note for note in limit(tmp_path, small(memlock="65536"), "memlock").notes)


def test_idle_reserved_pages_come_with_the_command_that_gives_them_back(tmp_path: Path) -> None:
    node = NodeSpec(0, "0-1", 8 * GIB, 4 * GIB, huge_2m=(1024, 1000))
    item = limit(tmp_path, small(nodes=(node,)), "hugetlb")
    assert item.kind is ItemKind.REPORT
    assert item.remedy == "echo 24 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    assert item.reason is not None and "2.0 GiB are reserved, 2.0 GiB of them idle" in item.reason


def test_a_pool_of_reserved_pages_is_divided_over_the_nodes(tmp_path: Path) -> None:
    item = limit(tmp_path, small(2), "hugetlb", "5GiB")
    assert item.reason is not None and "1280 pages of 2.0 MiB on each of 2 nodes, not enough is idle" in item.reason
    assert item.notes == tuple(
        f"w /sys/devices/system/node/node{n}/hugepages/hugepages-2048kB/nr_hugepages - - - - 1280" for n in (0, 1)
    )


def test_idle_pages_of_another_size_are_not_enough_for_a_pool(tmp_path: Path) -> None:
    pool = "/sys/kernel/mm/hugepages/hugepages-1048576kB"
    files = {f"{pool}/nr_hugepages": b"8", f"{pool}/free_hugepages": b"8"}
    item = limit(tmp_path, small(2, files=files), "hugetlb", "5GiB")
    assert item.reason is not None and "8.0 GiB of them idle" in item.reason and "not enough is idle" in item.reason


def test_a_group_that_is_too_small_is_told_with_the_sum_and_the_size_it_needs(tmp_path: Path) -> None:
    spec = small(cgroup={"memory.max": str(4 * GIB), "memory.current": str(GIB)})
    item = limit(tmp_path, spec, "cgroup", "6GiB")
    assert item.old == str(4 * GIB)
    assert item.reason is not None and "pools 6.0 GiB + used 1.0 GiB = 7.0 GiB: 3.0 GiB short" in item.reason
    assert item.remedy is not None and "MemoryMax=7G or more" in item.remedy


def test_file_cache_that_goes_first_is_no_use_and_the_limit_that_throttles_is_named(tmp_path: Path) -> None:
    files = {"memory.max": "max", "memory.high": str(4 * GIB), "memory.current": str(3 * GIB)}
    spec = small(cgroup={**files, "memory.stat": f"anon 7\ninactive_file {2 * GIB}"})
    item = limit(tmp_path, spec, "cgroup", "3GiB")
    assert item.reason is not None
    assert "(memory.high) allows 4.0 GiB, pools 3.0 GiB + used 1.0 GiB = 4.0 GiB: 0 B left" in item.reason


def test_no_limit_is_told_as_none(tmp_path: Path) -> None:
    assert limit(tmp_path, small(), "cgroup").old == "no limit"


@pytest.mark.parametrize("knob", ["memlock", "hugetlb", "cgroup"])
def test_what_is_no_size_is_skipped(knob: str, tmp_path: Path) -> None:
    item = limit(tmp_path, small(), knob, "lots")
    assert item.kind is ItemKind.SKIP and item.reason and item.remedy


def test_unreadable_limits_are_skipped_with_a_code(tmp_path: Path) -> None:
    choices = wants("limits.memlock=report", "limits.cgroup=report")
    spec = small(files={"/proc/self/limits": b"x\n", "/proc/self/cgroup": b"x\n"})
    for item in items(look(tmp_path, spec, choices), choices):
        assert (item.kind, item.code) == (ItemKind.SKIP, "HC-HOST")
        assert item.old is None and item.old_reason


def test_advice_is_given_only_where_something_is_short(tmp_path: Path) -> None:
    free = wants("limits.memlock=report", "limits.cgroup=report")
    for item in items(look(tmp_path / "a", small(memlock="unlimited"), free), free):
        assert item.remedy == "nothing to do", item.id
    enough, short = wants("limits.memlock=1GiB"), wants("limits.memlock=3GiB")
    limited = small(memlock=f"{2 * GIB}")
    assert one(look(tmp_path / "b", limited, enough), enough, "limits.memlock").remedy == "nothing to do"
    assert "LimitMEMLOCK" in str(one(look(tmp_path / "c", limited, short), short, "limits.memlock").remedy)
