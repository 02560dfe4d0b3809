"""Host-wide memory facts."""

from __future__ import annotations

import resource
import struct
from pathlib import Path

import pytest
from small_host import GIB, KIB, MIB, THP, small_host, write_host

from hicachectl.tuning.host.facts import Confidence, is_absent
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.model import Memory
from hicachectl.tuning.host.root import HostRoot


def read(tmp_path: Path, changes: dict[str, str | bytes] | None = None, without: tuple[str, ...] = ()) -> Memory:
    files = {path: text for path, text in (small_host() | (changes or {})).items() if path not in without}
    return read_memory(write_host(tmp_path, files))


def test_totals_are_bytes(tmp_path: Path) -> None:
    memory = read(tmp_path)
    assert memory.total_bytes.value == 6 * GIB
    assert memory.available_bytes.value == 4 * GIB
    assert memory.shmem_bytes.value == MIB
    assert memory.hugetlb_bytes.value == 16 * MIB
    assert memory.hugetlb_free_bytes.value == 12 * MIB
    assert memory.page_bytes.value == 4096
    assert memory.memlock_bytes.value == 8 * MIB


def test_transparent_huge_pages_give_the_chosen_words(tmp_path: Path) -> None:
    thp = read(tmp_path).thp
    assert (thp.enabled.value, thp.defrag.value, thp.shmem_enabled.value) == ("madvise", "defer+madvise", "never")
    assert {name: fact.value for name, fact in thp.sizes.items()} == {
        "hugepages-64kB/enabled": "never",
        "hugepages-2048kB/enabled": "inherit",
        "hugepages-2048kB/shmem_enabled": "inherit",
    }
    assert (thp.khugepaged_defrag.value, thp.khugepaged_pages_to_scan.value) == (1, 4096)
    assert thp.process_enabled.value is True
    assert thp.counters["thp_split_pmd"].value == 5
    assert thp.counters["compact_stall"].value == 3
    assert "nr_free_pages" not in thp.counters
    assert thp.listed["counters"].value == 6


def test_a_choice_without_brackets_is_unknown(tmp_path: Path) -> None:
    memory = read(tmp_path, {f"{THP}/enabled": "always madvise never", f"{THP}/defrag": "[always] [never]"})
    assert not memory.thp.enabled.is_known
    assert not memory.thp.defrag.is_known


def test_a_process_whose_launcher_disabled_huge_pages_is_told(tmp_path: Path) -> None:
    assert read(tmp_path, {"/proc/self/status": "THP_enabled:\t0\n"}).thp.process_enabled.value is False


def test_a_tmpfs_mount_shows_its_huge_option_and_the_last_mount_hides_the_first(tmp_path: Path) -> None:
    memory = read(tmp_path)
    mounts = {mount.path: mount for mount in memory.tmpfs}
    assert list(mounts) == ["/dev/shm", "/mnt/a pool"]
    assert mounts["/dev/shm"].huge.value == "advise"
    assert mounts["/dev/shm"].size_bytes.value == 2 * GIB
    assert mounts["/mnt/a pool"].huge.value == "never"
    assert mounts["/mnt/a pool"].huge.confidence is Confidence.DERIVED
    assert mounts["/mnt/a pool"].size_bytes.reason == "no size= option: the kernel's default"


def test_a_tmpfs_of_size_0_has_no_limit(tmp_path: Path) -> None:
    table = {"/proc/mounts": "tmpfs /dev/shm tmpfs rw,size=0k 0 0\n"}
    (mount,) = read(tmp_path, table, without=("/proc/self/mountinfo",)).tmpfs
    assert (mount.size_bytes.value, mount.size_bytes.reason) == (None, "no limit: size=0")
    assert is_absent(mount.size_bytes.reason or "")


def test_an_older_mount_table_serves_where_mountinfo_is_missing(tmp_path: Path) -> None:
    older = {"/proc/mounts": "tmpfs /dev/shm tmpfs rw,huge=always,size=4096k 0 0\n"}
    memory = read(tmp_path, older, without=("/proc/self/mountinfo",))
    assert [(mount.path, mount.huge.value, mount.size_bytes.value) for mount in memory.tmpfs] == [
        ("/dev/shm", "always", 4 * MIB)
    ]


def test_no_limit_on_locked_memory_is_unknown_with_that_reason(tmp_path: Path) -> None:
    limits = "Max locked memory         unlimited            unlimited            bytes     \n"
    assert read(tmp_path, {"/proc/self/limits": limits}).memlock_bytes.reason == "unlimited"


def test_hugetlb_of_an_old_kernel_is_summed_up_from_its_pools(tmp_path: Path) -> None:
    memory = read(tmp_path, {"/proc/meminfo": "MemTotal: 1 kB\nHugePages_Total: 8\n"})
    assert memory.hugetlb_bytes.value == 16 * MIB
    assert memory.hugetlb_bytes.confidence is Confidence.DERIVED


def test_a_host_without_pools_holds_nothing_and_one_that_cannot_be_listed_is_unknown(tmp_path: Path) -> None:
    pool = "/sys/kernel/mm/hugepages/hugepages-2048kB"
    gone = (f"{pool}/nr_hugepages", f"{pool}/free_hugepages")
    unlisted = read(tmp_path / "unlisted", without=gone)
    assert unlisted.hugetlb_free_bytes.reason == "no such file"
    assert unlisted.listed["hugetlb"].reason == "no such file"
    empty = read(tmp_path / "empty", {"/sys/kernel/mm/hugepages/README": ""}, without=gone)
    assert empty.hugetlb_free_bytes.value == 0


@pytest.mark.parametrize(
    ("vector", "page_bytes"),
    [
        (struct.pack("<4Q", 33, 1, 6, 65536), 65536),
        (struct.pack(">4Q", 33, 1, 6, 65536), 65536),
        (struct.pack("<4Q", 33, 1, 6, 16384), 16384),
    ],
)
def test_the_page_size_is_the_auxiliary_vectors(tmp_path: Path, vector: bytes, page_bytes: int) -> None:
    assert read(tmp_path, {"/proc/self/auxv": vector}).page_bytes.value == page_bytes


def test_without_a_vector_only_x86_has_a_page_size(tmp_path: Path) -> None:
    derived = read(tmp_path / "x86", without=("/proc/self/auxv",)).page_bytes
    assert (derived.value, derived.confidence) == (4096, Confidence.DERIVED)
    arm = read(
        tmp_path / "arm", {"/proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\n"}, without=("/proc/self/auxv",)
    )
    assert arm.page_bytes.reason == "no such file"


def test_this_hosts_totals_agree_with_its_table() -> None:
    memory = read_memory(HostRoot())
    table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    # a balloon may move the total between two reads
    assert memory.total_bytes.value == pytest.approx(int(table["MemTotal"].split()[0]) * KIB, rel=0.2)
    assert memory.page_bytes.value == resource.getpagesize()
