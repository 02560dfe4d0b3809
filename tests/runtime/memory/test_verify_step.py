"""What a mapping says of its pages once they are there: how many, how many huge and why not more, on which nodes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest
from fake_memory import MIB, FakeKernel
from made_mapping import SPREAD, WEIGHTED, made

from hicachectl.linux_calls import MADV_HUGEPAGE
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import StepState


def test_pages_that_lie_unevenly_on_the_nodes_of_a_spread_pool_are_told() -> None:
    class OneSided(FakeKernel):
        def nodes_of(self, addresses: Sequence[int]) -> list[int]:
            return [0 if i % 4 else 1 for i in range(len(addresses))]

    large = 2 * 32 * 2 * MIB
    for placed, kernel_weights in ((SPREAD, {}), (Placed(PlacementMode.WEIGHTED, (0, 1)), {0: 1, 1: 1})):
        kernel = OneSided()
        kernel.files |= {f"{WEIGHTED}/node{node}": f"{weight}\n" for node, weight in kernel_weights.items()}
        with made(kernel, MappingSpec(placed=placed), n_bytes=large) as mapping:
            step = mapping.report.step("verify")
            assert step is not None
            assert "node 0 has 75 % of the sampled pages, not 50 %" in str(step.reason)
    kernel = OneSided()
    kernel.files |= {f"{WEIGHTED}/node0": "3\n", f"{WEIGHTED}/node1": "1\n"}
    with made(kernel, MappingSpec(placed=Placed(PlacementMode.WEIGHTED, (0, 1))), n_bytes=large) as mapping:
        assert mapping.report.step("verify").reason is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("answer", "words", "state"),
    [
        (errno.EFAULT, "huge pages not known, 5.0 MiB in memory; pages: node 1 1280", StepState.PARTLY),
        (errno.ENOENT, "100 % in huge pages, 5.0 MiB in memory; pages: node 1 1280", StepState.DONE),
    ],
    ids=["huge", "small"],
)
def test_pages_hidden_while_they_are_sampled_are_counted_by_numa_maps_and_not_moved(
    answer: int, words: str, state: StepState
) -> None:
    kernel = FakeKernel()
    kernel.hidden = answer
    with made(kernel, MappingSpec(n_threads=1)) as mapping:
        step = mapping.report.step("verify")
        assert step is not None and (step.text, step.state) == (words, state), step
        assert ("leaves out pages that automatic NUMA balancing samples" in str(step.reason)) is (
            answer == errno.EFAULT
        )
        assert mapping.report.resident_bytes == mapping.report.mapped_bytes
        assert mapping.report.pages_by_node == {1: 1280}
    looked = kernel.calls.index("read /proc/self/smaps")
    assert "populate" not in kernel.calls[looked:], "a fault moves the page it brings back"


@pytest.mark.parametrize("kind", [Kind.ANONYMOUS, Kind.MEMFD])
@pytest.mark.parametrize("text", ["", None], ids=["not in it", "no such file"])
def test_pages_that_nothing_tells_of_are_told_as_that(kind: Kind, text: str | None) -> None:
    def refuse(call: str) -> None:
        if call == "read /proc/self/numa_maps" and text is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), call)

    kernel = FakeKernel(refuse)
    kernel.files["/proc/self/numa_maps"] = text or ""
    for kernel.hidden, reason in (
        (errno.EFAULT, "0 B of 5.0 MiB are in memory; nodes not known: move_pages of one page: EFAULT"),
        (errno.ENOENT, "nodes not known: move_pages has none of 256 sampled pages (ENOENT)"),
    ):
        with made(kernel, MappingSpec(kind=kind, n_threads=1)) as mapping:
            step = mapping.report.step("verify")
            assert step is not None and step.state is StepState.PARTLY
            assert str(step.reason).startswith(reason) or str(step.reason).endswith(reason), step


def test_pages_swapped_out_are_not_in_memory_and_not_brought_back_to_look_better() -> None:
    class Swapped(FakeKernel):
        def _smaps(self, at: int, n_bytes: int) -> str:
            half = self.populated[at] >> 11
            return f"{at:x}-{at + n_bytes:x} rw-p 00000000 00:00 0 \nRss: {half} kB\nAnonHugePages: {half} kB\nSwap: {half} kB\n"

    with made(Swapped(), MappingSpec(n_threads=1)) as mapping:
        assert "2.5 MiB of 5.0 MiB are in memory" in str(mapping.report.step("verify").reason)  # type: ignore[union-attr]
        assert mapping.report.huge_share == 1.0


def test_small_pages_are_told_with_the_setting_that_governs_them() -> None:
    with made(FakeKernel(huge=False), MappingSpec(kind=Kind.MEMFD)) as mapping:
        step = mapping.report.step("verify")
        assert step is not None
        assert step.state is StepState.PARTLY
        assert step.reason == "0 % in huge pages: transparent_hugepage/shmem_enabled is never"
        assert mapping.report.huge_share == 0.0


def test_the_tail_that_no_huge_page_fits_into_is_no_fault_of_a_setting() -> None:
    class Whole(FakeKernel):  # what a kernel does: whole huge pages alone
        def _smaps(self, at: int, n_bytes: int) -> str:
            text = super()._smaps(at, n_bytes)
            whole = self.populated[at] // (2 * MIB) * 2048
            return text.replace(f"AnonHugePages: {self.populated[at] >> 10} kB", f"AnonHugePages: {whole} kB")

    with made(Whole(), n_bytes=8704 << 10) as mapping:
        step = mapping.report.step("verify")
        assert step is not None
        assert step.state is StepState.DONE
        assert step.reason == "94 % in huge pages: the last 512.0 KiB are less than a huge page of 2.0 MiB"


@pytest.mark.parametrize("kind", [Kind.ANONYMOUS, Kind.MEMFD])
def test_a_process_that_may_have_no_huge_pages_is_told_so_and_not_that_none_were_free(kind: Kind) -> None:
    kernel = FakeKernel(huge=False)
    kernel.files["/proc/self/status"] += "THP_enabled:\t0\n"
    with made(kernel, MappingSpec(kind=kind)) as mapping:
        assert mapping.report.step("verify").reason == (  # type: ignore[union-attr]
            "0 % in huge pages: huge pages are switched off for this process (THP_enabled 0 in /proc/self/status: prctl PR_SET_THP_DISABLE)"
        )


def test_a_kernel_without_huge_pages_is_not_a_process_that_may_have_none() -> None:
    kernel = FakeKernel(huge=False)
    kernel.files["/proc/self/status"] += "THP_enabled:\t0\n"
    del kernel.files["/sys/kernel/mm/transparent_hugepage/enabled"]
    with made(kernel) as mapping:
        assert "enabled cannot be read" in str(mapping.report.step("verify").reason)  # type: ignore[union-attr]


def test_the_counter_named_is_the_one_that_counts_memory_of_that_kind() -> None:
    kernel = FakeKernel(huge=False)
    kernel.files["/sys/kernel/mm/transparent_hugepage/shmem_enabled"] = "always within_size [advise] never deny force\n"
    for kind, counter in ((Kind.ANONYMOUS, "(thp_fault_fallback of"), (Kind.MEMFD, "(thp_file_fallback of")):
        with made(kernel, MappingSpec(kind=kind)) as mapping:
            assert counter in str(mapping.report.step("verify").reason)  # type: ignore[union-attr]


def test_a_setting_that_gives_advised_memory_huge_pages_is_no_cause() -> None:
    kernel = FakeKernel(huge=False)
    with made(kernel) as mapping:
        step = mapping.report.step("verify")
        assert step is not None
        assert step.reason is not None
        assert "too few free huge pages" in step.reason
    kernel.files["/sys/kernel/mm/transparent_hugepage/enabled"] = "always madvise [never]\n"
    with made(kernel) as mapping:
        step = mapping.report.step("verify")
        assert step is not None
        assert step.reason == "0 % in huge pages: transparent_hugepage/enabled is never"


def test_refused_advice_is_named_before_the_setting() -> None:
    def refuse(call: str) -> None:
        if call == f"advise {MADV_HUGEPAGE}":
            raise OSError(errno.EINVAL, "Invalid argument")

    with made(FakeKernel(refuse)) as mapping:
        step = mapping.report.step("verify")
        assert step is not None
        assert (
            step.reason == "0 % in huge pages: MADV_HUGEPAGE was not given, and transparent_hugepage/enabled is madvise"
        )


def test_a_page_size_that_is_off_is_the_cause() -> None:
    kernel = FakeKernel(huge=False)
    kernel.files["/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled"] = "always inherit madvise [never]\n"
    with made(kernel) as mapping:
        step = mapping.report.step("verify")
        assert step is not None
        assert step.reason == "0 % in huge pages: transparent_hugepage/hugepages-2048kB/enabled is never"


def test_pages_on_other_nodes_than_asked_are_told() -> None:
    class Elsewhere(FakeKernel):
        def nodes_of(self, addresses: object) -> list[int]:
            return [0, 0, 0, 1]

    with made(Elsewhere(), MappingSpec(placed=Placed(PlacementMode.LOCAL, (0,)))) as mapping:
        step = mapping.report.step("verify")
        assert step is not None
        assert step.reason == "1 of 4 sampled pages lie outside nodes [0]"
