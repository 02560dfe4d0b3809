from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fake_memory import MIB, FakeKernel

from hicachectl.errors import CapacityError
from hicachectl.runtime.memory.kinds import (
    HugetlbPool,
    Kind,
    base_page_bytes,
    huge_page_bytes,
    huge_setting,
    read_hugetlb,
    require_hugetlb,
    small_pages_reason,
)
from hicachectl.runtime.memory.preflight import mapped_size
from hicachectl.runtime.memory.syscalls import PoolCalls


def test_the_huge_page_is_what_the_kernel_says_and_else_what_a_page_of_entries_spans() -> None:
    kernel = FakeKernel()
    kernel.files["/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"] = "536870912\n"
    assert huge_page_bytes(kernel) == 512 * MIB
    del kernel.files["/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"]
    assert huge_page_bytes(kernel) == base_page_bytes() * (base_page_bytes() // 8)


@pytest.mark.parametrize(
    ("n_bytes", "huge", "whole", "size"),
    [(1, 2 * MIB, False, 4096), (16 * MIB + 1, 2 * MIB, False, 18 * MIB), (3 * MIB, 2 * MIB, False, 3 * MIB),
     (3 * MIB, 2 * MIB, True, 4 * MIB), (600 * MIB, 512 * MIB, False, 600 * MIB), (4 * MIB, 2 * MIB, False, 4 * MIB)],
)  # fmt: skip
def test_a_range_is_rounded_to_huge_pages_where_that_wastes_little(
    n_bytes: int, huge: int, whole: bool, size: int
) -> None:
    assert mapped_size(n_bytes, 4096, huge, whole_huge=whole) == size


def test_each_kind_names_the_setting_that_governs_it() -> None:
    kernel = FakeKernel()
    assert huge_setting(kernel, Kind.ANONYMOUS, None) == "transparent_hugepage/enabled is madvise"
    assert huge_setting(kernel, Kind.MEMFD, None) == "transparent_hugepage/shmem_enabled is never"
    assert huge_setting(kernel, Kind.TMPFS, "/dev/shm/x") == "the mount of /dev/shm/x has huge=never"
    del kernel.files["/sys/kernel/mm/transparent_hugepage/enabled"]
    assert "cannot be read" in huge_setting(kernel, Kind.ANONYMOUS, None)


def test_pages_promised_to_others_are_not_counted_as_free() -> None:
    pool = HugetlbPool(2 * MIB, total=10, free=6, promised=4, free_by_node={0: 3, 1: 3})
    require_hugetlb(pool, 4 * MIB)
    with pytest.raises(CapacityError) as caught:
        require_hugetlb(pool, 5 * MIB)
    assert caught.value.why == "6 free - 4 promised = 2; node 0 3, node 1 3"


def test_a_host_without_a_pool_of_that_page_size_says_so() -> None:
    with pytest.raises(CapacityError, match="1048576 kB"):
        read_hugetlb(FakeKernel(), 1 << 30, (0,))


def test_on_an_unknown_architecture_numa_calls_are_refused_not_guessed() -> None:
    calls = PoolCalls(machine="m68k")
    for act in (lambda: calls.bind(0, 1, 2, (0,)), lambda: calls.policy_of(0), lambda: calls.nodes_of([0])):
        with pytest.raises(OSError, match="m68k") as caught:
            act()  # type: ignore[no-untyped-call]
        assert caught.value.errno == errno.ENOSYS


def test_a_mount_without_a_limit_has_no_free_bytes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(n_blocks: int, n_free: int) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, n_blocks, n_free, n_free, 0, 0, 0, 0, 255))

    monkeypatch.setattr("os.statvfs", lambda at: statvfs(0, 0))  # tmpfs with size=0
    assert PoolCalls().free_bytes("/dev/shm") is None
    monkeypatch.setattr("os.statvfs", lambda at: statvfs(2, 0))
    assert PoolCalls().free_bytes("/dev/shm") == 0


def test_a_touch_of_memory_that_is_not_there_is_refused_and_not_killed() -> None:
    calls = PoolCalls()
    at = calls.reserve(1 << 20)
    try:
        with pytest.raises(OSError, match="touch") as caught:
            calls.touch(at, 4096)
        assert caught.value.errno == errno.EFAULT
    finally:
        calls.release(at, 1 << 20)


def test_a_refused_call_on_a_file_is_named(tmp_path: Path) -> None:
    calls, taken = PoolCalls(), tmp_path / "taken"
    taken.touch()
    fd = os.open(taken, os.O_RDONLY)
    file = calls.file("/dev/shm", 4096)
    named = f"/dev/shm/hicachectl-named-{os.getpid()}"
    identity = calls.name(file, named)
    try:
        for call, act in (
            ("pwrite", lambda: calls.write(fd, b"x", 0)),
            ("fcntl F_OFD_SETLK", lambda: calls.own(fd)),  # a lock to write needs a descriptor that may
            (f"linkat {named}", lambda: calls.name(file, named)),
            ("statvfs /no/such/mount", lambda: calls.free_bytes("/no/such/mount")),
            ("open /no/such/mount", lambda: calls.file("/no/such/mount", 4096)),
            ("ftruncate in /dev/shm", lambda: calls.file("/dev/shm", -1)),
        ):
            with pytest.raises(OSError, match=call) as caught:
                act()  # type: ignore[no-untyped-call]
            assert caught.value.filename == call
    finally:
        calls.unlink(named, identity)
        calls.close(file)
        calls.close(fd)


def test_a_touch_populates_and_writes_zeros() -> None:
    calls = PoolCalls()
    at = calls.reserve(1 << 20)
    try:
        calls.place(at, 1 << 20, None, None)
        calls.touch(at, 1 << 20)
        nodes = calls.nodes_of([at, at + (1 << 19)])
        assert all(node >= 0 for node in nodes) or nodes == [-errno.ENOENT] * 2
    finally:
        calls.release(at, 1 << 20)


def test_a_file_that_cannot_be_made_long_leaves_no_name() -> None:
    open_before = os.listdir("/proc/self/fd")
    with TemporaryDirectory(dir="/dev/shm") as folder:
        with pytest.raises(OSError, match="Invalid argument"):
            PoolCalls().file(folder, -1)
        assert not os.listdir(folder)
    assert os.listdir("/proc/self/fd") == open_before


@pytest.mark.parametrize(
    ("kind", "path", "shmem", "mount", "said"),
    [
        (Kind.MEMFD, None, "never", "never", "shmem_enabled is never"),
        (Kind.MEMFD, None, "advise", "never", None),
        (Kind.MEMFD, None, "deny", "always", "shmem_enabled is deny"),
        (Kind.TMPFS, "/dev/shm/x", "advise", "never", "the mount of /dev/shm/x has huge=never"),
        (Kind.TMPFS, "/dev/shm", "never", "advise", None),
        (Kind.TMPFS, "/dev/shm", "never", "within_size", None),
        (Kind.TMPFS, "/dev/shm", "deny", "always", "shmem_enabled is deny"),
        (Kind.TMPFS, "/dev/shm", "force", "never", None),
    ],
)
def test_a_shared_kind_says_beforehand_which_setting_leaves_it_with_small_pages(
    kind: Kind, path: str | None, shmem: str, mount: str, said: str | None
) -> None:
    kernel = FakeKernel()
    thp = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    kernel.files[thp] = "always within_size advise never deny force\n".replace(shmem, f"[{shmem}]")
    kernel.files["/proc/self/mountinfo"] = kernel.files["/proc/self/mountinfo"].replace("huge=never", f"huge={mount}")
    reason = small_pages_reason(kernel, kind, path)
    assert reason is None if said is None else said in str(reason)
