"""What smaps and move_pages say of one mapping, and of no neighbour."""

from __future__ import annotations

import errno
import os

import pytest
from fake_memory import MIB, FakeKernel

from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.numa import sampled_addresses
from hicachectl.runtime.memory.verify_pages import ResidentPages, read_resident, resident_of, sample_nodes

SMAPS = """\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0 
Rss:                2048 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:        0 kB
Private_Hugetlb:       0 kB
VmFlags: rd wr mr mw me ac sd hg
7f0000200000-7f0000400000 ---p 00000000 00:00 0 
Rss:                   0 kB
AnonHugePages:         0 kB
7f0000400000-7f0000800000 rw-s 00000000 00:01 1 /memfd:hicachectl (deleted)
Rss:                4096 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
Private_Hugetlb:    4096 kB
"""  # noqa: W291


@pytest.mark.parametrize(
    ("address", "n_bytes", "kind", "found"),
    [
        (0x7F0000000000, 2 * MIB, Kind.ANONYMOUS, ResidentPages(2 * MIB, 2 * MIB)),
        (0x7F0000400000, 4 * MIB, Kind.MEMFD, ResidentPages(4 * MIB, 2 * MIB)),
        (0x7F0000400000, 4 * MIB, Kind.HUGETLB, ResidentPages(4 * MIB, 4 * MIB)),
        (0x7F0000600000, 4 * MIB, Kind.MEMFD, None),
        (0x7F0000000000, 8 * MIB, Kind.ANONYMOUS, ResidentPages(6 * MIB, 2 * MIB)),
    ],
)
def test_only_the_entries_inside_the_mapping_count(
    address: int, n_bytes: int, kind: Kind, found: ResidentPages | None
) -> None:
    assert resident_of(SMAPS, address, n_bytes, kind) == found


def test_a_kernel_that_counts_no_huge_pages_gives_no_share() -> None:
    assert resident_of("1000-2000 rw-p 0 00:00 0 \nRss: 4 kB\n", 0x1000, 4096, Kind.ANONYMOUS) is None
    assert ResidentPages(0, 0).share is None


def test_smaps_that_cannot_be_read_is_a_reason_not_a_zero() -> None:
    def refuse(call: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    assert (
        read_resident(FakeKernel(refuse), Kind.ANONYMOUS, 0, 4096)
        == "/proc/self/smaps cannot be read: Permission denied"
    )


def test_a_refused_question_and_an_odd_page_are_told() -> None:
    def refuse(call: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), call)

    assert sample_nodes(FakeKernel(refuse), 0, MIB).reason == "nodes_of: EPERM (Operation not permitted)"

    class Odd(FakeKernel):
        def nodes_of(self, addresses: object) -> list[int]:
            return [0, 0, -errno.ENOENT, -errno.EFAULT]

    found = sample_nodes(Odd(), 0, MIB)
    assert (found.by_node, found.absent) == ({0: 2}, 2)
    assert found.reason == "move_pages of one page: EFAULT"


@pytest.mark.parametrize("period", [1, 512, 1024, 4096])
@pytest.mark.parametrize("n_nodes", [2, 3, 8])
def test_a_sample_of_interleaved_memory_meets_every_node_about_equally(period: int, n_nodes: int) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    asked = sampled_addresses(0, 16 << 30, 256)
    nodes = [at // page // period % n_nodes for at in asked]
    counts = [nodes.count(node) for node in range(n_nodes)]
    assert len(asked) == 256
    assert min(counts) >= 256 / n_nodes * 0.7
    assert max(counts) <= 256 / n_nodes * 1.3


def test_a_small_range_is_asked_about_whole() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    assert sampled_addresses(page, 8 * page, 256) == [page * i for i in range(1, 9)]
