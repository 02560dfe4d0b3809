"""The order of a mapping, what its steps report, and the law that a failure at any step leaves nothing behind."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_memory import MIB, FakeDriver, FakeKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import (
    CapacityError,
    HicacheError,
    HostError,
    InvariantBroken,
    PermissionDenied,
    UsageError,
    Vanished,
)
from hicachectl.linux_calls import MADV_HUGEPAGE
from hicachectl.runtime.memory.faults import Fault, FaultyRegistrar, with_fault
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.live import LiveRegistrations
from hicachectl.runtime.memory.mapping import Mapping, map_memory, reserve
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.preflight import require_pool
from hicachectl.runtime.memory.refusals import not_obtained
from hicachectl.runtime.memory.register import NoRegistrar, Refusal, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import StepState
from hicachectl.runtime.memory.syscalls import PoolCalls

ORDER = ["reserve", "bind", "advise", "populate", "verify", "register"]
SPREAD = Placed(PlacementMode.INTERLEAVE, (0, 1))


def made(
    kernel: FakeKernel,
    spec: MappingSpec = MappingSpec(),  # noqa: B008
    registrar: Registrar | NoRegistrar = NoRegistrar("none here"),  # noqa: B008
    live: LiveRegistrations | None = None,
    n_bytes: int = 5 * MIB,
) -> Mapping:
    live = live or LiveRegistrations(at_exit=False)
    return map_memory(n_bytes, spec, registrar=registrar, calls=kernel, clock=lambda: 0.0, live=live)


def test_a_reserved_range_is_zeroed_writable_and_starts_on_a_huge_page() -> None:
    mapping = reserve(3_000_000)
    assert mapping.buffer.size == 3_000_000
    assert mapping.buffer.ctypes.data % (2 << 20) == 0
    assert not mapping.buffer.any()
    mapping.buffer[-1] = 7
    assert mapping.buffer[-1] == 7


def test_every_step_says_what_it_got_and_a_refused_one_says_why() -> None:
    steps = reserve(4096).steps
    assert [step.name for step in steps] == ["reserve", "advise"]
    assert all(step.ok or step.reason for step in steps)


def test_a_range_the_kernel_refuses_is_a_capacity_error_with_its_terms() -> None:
    with pytest.raises(CapacityError) as caught:
        reserve(1 << 60)
    assert caught.value.terms == (("pool bytes", 1 << 60),)


@pytest.mark.parametrize("kind", [Kind.ANONYMOUS, Kind.MEMFD, Kind.TMPFS])
def test_a_real_mapping_is_populated_looked_at_and_zeroed(kind: Kind) -> None:
    spec = MappingSpec(kind=kind, path="/dev/shm", n_threads=2)
    with map_memory(5 * MIB, spec) as mapping:
        report = mapping.report
        assert [step.name for step in report.steps] == ORDER
        assert report.touched
        assert report.resident_bytes == report.mapped_bytes
        assert not mapping.buffer.any()
        assert mapping.buffer.ctypes.data % report.huge_page_bytes == 0
        assert all(step.ok or step.reason for step in report.steps)
        assert (mapping.fd is None) == (kind is Kind.ANONYMOUS)
    with pytest.raises(InvariantBroken, match="closed"):
        _ = mapping.buffer


def mapped_at(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16) for line in lines)


def test_the_memory_stays_as_long_as_a_view_of_it_and_not_longer() -> None:
    mapping = map_memory(2 * MIB, MappingSpec(n_threads=1))
    view = mapping.buffer[100:200]
    at = view.ctypes.data
    mapping.close()
    mapping.close()
    view[:] = 3
    assert int(view.sum()) == 300
    del view
    gc.collect()
    assert not mapped_at(at)


def test_a_named_file_has_its_name_until_close_and_a_second_one_is_refused(tmp_path: Path) -> None:
    path = f"/dev/shm/hicachectl-test-{os.getpid()}"
    spec = MappingSpec(kind=Kind.TMPFS, path=path, named=True, n_threads=1)
    with map_memory(MIB, spec) as mapping:
        mapping.buffer[0] = 9
        assert Path(path).read_bytes()[0] == 9
        with pytest.raises(UsageError, match="is there already"):
            map_memory(MIB, spec)
        assert Path(path).exists()
    assert not Path(path).exists()


def test_a_path_given_with_another_kind_of_memory_is_left_alone(tmp_path: Path) -> None:
    bystander = tmp_path / "mine"
    bystander.write_text("keep")
    map_memory(MIB, MappingSpec(path=str(bystander), named=True, n_threads=1)).close()
    assert bystander.read_text() == "keep"


def test_a_file_that_would_lie_on_a_disk_is_refused() -> None:
    kernel = FakeKernel()
    with pytest.raises(UsageError, match="ext4"):
        made(kernel, MappingSpec(kind=Kind.TMPFS, path="/var/pool", named=True))
    assert kernel.holds_nothing


def test_a_file_its_mount_has_no_room_for_is_refused_before_a_page_is_touched() -> None:
    kernel = FakeKernel()
    kernel.free = MIB
    with pytest.raises(CapacityError) as caught:
        made(kernel, MappingSpec(kind=Kind.TMPFS, path="/dev/shm/pool", named=True))
    assert caught.value.terms == (("file bytes", 5 * MIB + 4096), ("bytes left on the mount", MIB))
    assert "populate" not in kernel.calls
    assert kernel.holds_nothing


def test_a_file_on_a_mount_without_a_limit_is_made() -> None:
    kernel = FakeKernel()
    kernel.free = None
    require_pool(kernel, 5 * MIB, MappingSpec(kind=Kind.TMPFS, path="/dev/shm"))
    with made(kernel, MappingSpec(kind=Kind.TMPFS, path="/dev/shm/pool", named=True)):
        assert "populate" in kernel.calls


def test_the_kernel_is_asked_in_the_order_of_the_contract() -> None:
    kernel, driver = FakeKernel(), FakeDriver()
    mapping = made(kernel, MappingSpec(placed=SPREAD), driver)
    asked = [
        c for c in kernel.calls if c in ("reserve", "place", "bind", "advise 14", "populate", "read /proc/self/smaps")
    ]
    assert list(dict.fromkeys(asked)) == ["reserve", "place", "bind", "advise 14", "populate", "read /proc/self/smaps"]
    assert mapping.report.placement == "interleave on nodes 0, 1"
    assert mapping.report.registered_bytes == mapping.report.mapped_bytes == 5 * MIB
    assert [step.state for step in mapping.steps] == [StepState.DONE] * 6
    mapping.close()
    assert kernel.holds_nothing
    assert not driver.registered


@pytest.mark.parametrize(
    ("number", "named"),
    [(errno.EPERM, "CAP_SYS_NICE"), (errno.EINVAL, "cpuset"), (errno.ENOSYS, "ENOSYS")],
)
def test_a_refused_policy_is_in_the_report_with_its_reason(number: int, named: str) -> None:
    def refuse(call: str) -> None:
        if call == "bind":
            raise OSError(number, os.strerror(number), "mbind")

    with made(FakeKernel(refuse), MappingSpec(placed=SPREAD)) as mapping:
        step = mapping.report.step("bind")
        assert step is not None
        assert step.state is StepState.REFUSED
        assert step.reason is not None
        assert step.reason.startswith("policy not applied: mbind")
        assert named in step.reason
        assert mapping.report.placement is None


WEIGHTED = "/sys/kernel/mm/mempolicy/weighted_interleave"


def test_weights_of_the_kernel_are_told_and_others_than_wanted_are_said_with_both() -> None:
    kernel = FakeKernel()
    kernel.files |= {f"{WEIGHTED}/node0": "3\n", f"{WEIGHTED}/node1": "1\n"}
    for weights, state in (
        ((), StepState.DONE),
        (((0, 3), (1, 1)), StepState.DONE),
        (((0, 1), (1, 1)), StepState.PARTLY),
    ):
        with made(kernel, MappingSpec(placed=Placed(PlacementMode.WEIGHTED, (0, 1), weights))) as mapping:
            step = mapping.report.step("bind")
            assert step is not None
            assert step.state is state
            assert "weights 0=3,1=1" in step.text
            if state is StepState.PARTLY:
                assert "are 0=3,1=1, not 0=1,1=1" in str(step.reason)


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


BALANCING = "/proc/sys/kernel/numa_balancing"


def test_memory_without_a_placement_is_kept_from_numa_balancing_where_that_runs() -> None:
    kernel = FakeKernel()
    kernel.files[BALANCING] = "1\n"
    with made(kernel) as mapping:
        step = mapping.report.step("bind")
        assert (
            step is not None
            and step.state is StepState.SKIPPED
            and step.text.endswith("and policy local keeps automatic NUMA balancing from moving them")
        )
        assert list(kernel.policies.values()) == [(4, ())]
        assert mapping.report.placement is None


def test_numa_balancing_that_cannot_be_kept_away_is_told() -> None:
    def refuse(call: str) -> None:
        if call == "bind":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), "mbind")

    kernel = FakeKernel(refuse)
    kernel.files[BALANCING] = "1\n"
    with made(kernel) as mapping:
        assert "samples them and may move them (mbind: EPERM" in str(mapping.report.step("bind").reason)  # type: ignore[union-attr]


def test_a_process_confined_to_one_node_of_several_is_kept_from_it_too() -> None:
    kernel = FakeKernel()
    kernel.files |= {BALANCING: "1\n", "/proc/self/status": "Mems_allowed_list:\t0\n"}
    with made(kernel):
        assert list(kernel.policies.values()) == [(4, ())]


@pytest.mark.parametrize(
    ("balancing", "online", "kind", "policy", "words"),
    [
        ("0\n", "0-1\n", Kind.ANONYMOUS, 0, ""),
        ("2\n", "0-1\n", Kind.ANONYMOUS, 0, ""),
        (
            "3\n",
            "0-1\n",
            Kind.ANONYMOUS,
            0,
            "; automatic NUMA balancing (kernel.numa_balancing 3) samples them and may move them",
        ),
        (None, "0-1\n", Kind.ANONYMOUS, 0, ""),
        ("1\n", "0\n", Kind.ANONYMOUS, 0, ""),
        ("1\n", "0-1\n", Kind.MEMFD, 0, ""),
        ("1\n", "0-1\n", Kind.ANONYMOUS, 3, ", by the policy of this process (interleave)"),
    ],
    ids=["off", "tiers of memory", "both", "no such kernel", "one node", "shared", "numactl --interleave"],
)
def test_elsewhere_memory_without_a_placement_gets_no_policy(
    balancing: str | None, online: str, kind: Kind, policy: int, words: str
) -> None:
    kernel = FakeKernel()
    kernel.thread_policy = policy
    kernel.files["/sys/devices/system/node/online"] = online
    if balancing is not None:
        kernel.files[BALANCING] = balancing
    with made(kernel, MappingSpec(kind=kind)) as mapping:
        first_touched = "skipped: no placement asked: pages come from where they are first touched"
        assert mapping.report.step("bind").text == first_touched + words  # type: ignore[union-attr]
    assert "bind" not in kernel.calls


def test_every_step_says_what_was_asked_of_it() -> None:
    spec = MappingSpec(placed=SPREAD, n_threads=2, largest_registration_bytes=2 * MIB, must_register=True)
    with made(FakeKernel(), spec, FakeDriver()) as mapping:
        assert [step.asked for step in mapping.steps] == [
            "5.0 MiB of anonymous memory",
            "interleave on nodes 0, 1",
            "huge pages",
            "every page touched, by 2 threads",
            "huge pages, interleave on nodes 0, 1",
            "all of it or an error, in chunks of at most 2.0 MiB",
        ]


def test_a_policy_that_reads_back_otherwise_is_not_done() -> None:
    class Liar(FakeKernel):
        def policy_of(self, address: int) -> tuple[int, tuple[int, ...]]:
            return 0, ()

    with made(Liar(), MappingSpec(placed=SPREAD)) as mapping:
        step = mapping.steps[1]
        assert step.state is StepState.PARTLY
        assert "default" in (step.reason or "")


def test_a_node_outside_the_cpuset_never_reaches_the_kernel() -> None:
    kernel = FakeKernel()
    with made(kernel, MappingSpec(placed=Placed(PlacementMode.LOCAL, (5,)))) as mapping:
        assert mapping.steps[1].reason == (
            "policy not applied: nodes [5] are not both online and allowed to this process ([0, 1] are)"
        )
    assert "bind" not in kernel.calls


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


def test_a_hugetlb_pool_that_is_too_small_is_refused_with_the_arithmetic() -> None:
    kernel = FakeKernel()
    for name, value in (("nr_hugepages", 8), ("free_hugepages", 3), ("resv_hugepages", 1)):
        kernel.files[f"/sys/kernel/mm/hugepages/hugepages-2048kB/{name}"] = f"{value}\n"
    for node, value in ((0, 2), (1, 1)):
        kernel.files[f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages"] = f"{value}\n"
    with pytest.raises(CapacityError) as caught:
        made(kernel, MappingSpec(kind=Kind.HUGETLB))
    assert caught.value.what == "3 hugetlb pages of 2048 kB are wanted, 2 can be had"
    assert dict(caught.value.terms)["pages free on node 1"] == 1
    with made(kernel, MappingSpec(kind=Kind.HUGETLB), n_bytes=4 * MIB) as mapping:
        assert mapping.report.huge_share == 1.0
        assert mapping.steps[2].state is StepState.SKIPPED
    with pytest.raises(CapacityError, match="on nodes 1"):
        made(kernel, MappingSpec(kind=Kind.HUGETLB, placed=Placed(PlacementMode.LOCAL, (1,))), n_bytes=4 * MIB)
    assert kernel.holds_nothing


def test_a_refused_registration_leaves_a_pool_that_says_so_and_nothing_registered() -> None:
    second = Refusal("cuMemHostRegister", 999, "UNKNOWN", "words of the driver")
    driver = FakeDriver(lambda call, n: second if (call, n) == ("register", 3) else None)
    spec = MappingSpec(largest_registration_bytes=2 * MIB, slot_bytes=4096)
    live = LiveRegistrations(at_exit=False)
    with made(FakeKernel(), spec, driver, live) as mapping:
        step = mapping.report.step("register")
        assert step is not None
        assert step.state is StepState.REFUSED
        assert "UNKNOWN (999), words of the driver" in (step.reason or "")
        assert mapping.report.registrations == ()
        assert not driver.registered
        taken = [at for call, at in driver.log if call == "register"]
        assert [at for call, at in driver.log if call == "unregister"] == taken[1::-1]
        assert len(live) == 0
    with pytest.raises(HostError, match="could not be registered"):
        made(
            FakeKernel(),
            MappingSpec(must_register=True),
            FakeDriver(lambda call, n: second if call == "register" else None),
        )


def test_a_driver_that_does_not_come_up_is_a_refused_registration() -> None:
    no = Refusal("cuInit", 999, "UNKNOWN", "no driver")
    driver = FakeDriver(lambda call, n: no if call == "prepare" else None)
    with made(FakeKernel(), MappingSpec(), driver) as mapping:
        assert mapping.steps[-1].state is StepState.REFUSED
    assert [call for call, _ in driver.log] == ["prepare"]


def with_free(mib_by_node: dict[int, int]) -> FakeKernel:
    kernel = FakeKernel()
    for node, mib in mib_by_node.items():
        kernel.files[f"/sys/devices/system/node/node{node}/meminfo"] = f"Node {node} MemFree: {mib << 10} kB\n"
    return kernel


def test_memory_bound_to_nodes_without_room_is_refused_before_a_page_is_touched() -> None:
    kernel = with_free({0: 9, 1: 2})
    with made(kernel, MappingSpec(placed=Placed(PlacementMode.LOCAL, (0,)))):
        pass
    kernel.calls.clear()
    with pytest.raises(CapacityError, match="which have room for 2") as caught:
        made(kernel, MappingSpec(placed=Placed(PlacementMode.LOCAL, (1,))))
    assert caught.value.why == "no other node may be used"
    assert "populate" not in kernel.calls
    assert kernel.holds_nothing


@pytest.mark.parametrize("mode", [PlacementMode.SOCKET, PlacementMode.INTERLEAVE])
def test_an_interleaved_pool_that_other_nodes_would_have_to_help_is_refused_with_that_reason(
    mode: PlacementMode,
) -> None:
    kernel = with_free({0: 9, 1: 2})
    with pytest.raises(CapacityError, match="which have room for 4") as caught:
        made(kernel, MappingSpec(placed=Placed(mode, (0, 1))))
    assert "node 1 is full first: the kernel would take what it lacks from other nodes" in (caught.value.why or "")
    assert "populate" not in kernel.calls
    assert kernel.holds_nothing


@pytest.mark.parametrize(("weights", "refused"), [((3, 1), False), ((1, 1), True), ((1, None), False), ((0, 1), False)])
def test_weighted_memory_is_refused_by_the_kernels_weights_as_far_as_they_are_known(
    weights: tuple[int | None, int | None], refused: bool
) -> None:
    kernel = with_free({0: 9, 1: 2})
    for node, weight in enumerate(weights):
        if weight is not None:
            kernel.files[f"/sys/kernel/mm/mempolicy/weighted_interleave/node{node}"] = f"{weight}\n"
    spec = MappingSpec(placed=Placed(PlacementMode.WEIGHTED, (0, 1)))
    if refused:
        with pytest.raises(CapacityError, match="node 1 is full first"):
            made(kernel, spec)
        return
    with made(kernel, spec) as mapping:
        assert "populate" in kernel.calls
        assert mapping.report.step("bind") is not None


@pytest.mark.parametrize("fault", Fault)
def test_every_injected_fault_is_reported_or_raised_and_leaves_nothing(fault: Fault) -> None:
    kernel, driver, live = FakeKernel(), FakeDriver(), LiveRegistrations(at_exit=False)
    calls, registrar = with_fault(fault, kernel, driver)
    spec = MappingSpec(placed=SPREAD, n_threads=1)
    raised = {Fault.DEVICE_LOST: Vanished, Fault.POPULATE_NO_MEMORY: CapacityError}.get(fault)
    if raised is not None:
        with pytest.raises(raised):
            map_memory(200 * MIB, spec, registrar=registrar, calls=calls, live=live)
    else:
        mapping = map_memory(200 * MIB, spec, registrar=registrar, calls=calls, live=live)
        assert any("injected" in (step.reason or "") for step in mapping.steps)
        mapping.close()
    assert kernel.holds_nothing
    assert not driver.registered
    assert len(live) == 0


def test_memory_that_ends_while_populating_is_an_error_with_what_was_touched_and_given_back() -> None:
    calls, _ = with_fault(Fault.POPULATE_NO_MEMORY, PoolCalls(), NoRegistrar("none"))
    with pytest.raises(CapacityError) as caught:
        map_memory(3 * MIB, MappingSpec(n_threads=1), calls=calls)
    assert dict(caught.value.terms)["touched bytes"] == 0


@pytest.mark.parametrize("must", [False, True])
def test_a_refused_registration_of_hugetlb_pages_is_told_or_ends_it_and_gives_the_pages_back(must: bool) -> None:
    kernel, live = FakeKernel(), LiveRegistrations(at_exit=False)
    for name, value in (("nr_hugepages", 8), ("free_hugepages", 8), ("resv_hugepages", 0)):
        kernel.files[f"/sys/kernel/mm/hugepages/hugepages-2048kB/{name}"] = f"{value}\n"
    driver = FaultyRegistrar(FakeDriver(), Fault.REGISTER_DRIVER_ERROR, at_call=2)
    spec = MappingSpec(kind=Kind.HUGETLB, must_register=must, largest_registration_bytes=4 * MIB)
    if must:
        with pytest.raises(HostError, match="could not be registered") as caught:
            made(kernel, spec, driver, live, n_bytes=16 * MIB)
        assert "NOT_SUPPORTED (801)" in str(caught.value.why)
    else:
        with made(kernel, spec, driver, live, n_bytes=16 * MIB) as mapping:
            step = mapping.report.step("register")
            assert step is not None
            assert (step.state, mapping.report.registered_bytes) == (StepState.REFUSED, 0)
            assert "NOT_SUPPORTED (801)" in str(step.reason)
            assert step.asked.endswith("all of it, in chunks of at most 4.0 MiB")
    assert kernel.holds_nothing
    assert not driver.behind.registered  # type: ignore[union-attr]
    assert len(live) == 0


CALLS = ["reserve", "place", "bind", "policy_of", "advise 14", "advise 10", "populate", "touch", "nodes_of",
         "shared_memory", "file", "own", "write", "name", "free_bytes", "read /proc/self/smaps", "read /proc/self/status", "register", "prepare"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    fails=st.sampled_from(CALLS),
    at=st.integers(1, 4),
    how=st.sampled_from([errno.ENOMEM, errno.EPERM, errno.EINVAL, errno.EFAULT, errno.EIO, None]),
    kind=st.sampled_from([Kind.ANONYMOUS, Kind.MEMFD, Kind.TMPFS]),
    named=st.booleans(),
    n_bytes=st.integers(1, 300 * MIB),
    lost=st.booleans(),
    must=st.booleans(),
)
def test_after_a_failure_at_any_step_nothing_stays_mapped_open_named_or_registered(
    fails: str, at: int, how: int | None, kind: Kind, named: bool, n_bytes: int, lost: bool, must: bool
) -> None:
    seen: dict[str, int] = {}

    def refuse(call: str) -> None:
        seen[call] = seen.get(call, 0) + 1
        if call == fails and seen[call] >= at:
            if how is None:
                raise KeyboardInterrupt
            raise OSError(how, os.strerror(how), call)

    def refused(call: str, n: int) -> Refusal | None:
        if call != fails or n < at:
            return None
        if how is None:
            raise KeyboardInterrupt
        return Refusal(call, how, "NAME", "words", device_lost=lost)

    kernel, driver, live = FakeKernel(refuse), FakeDriver(refused), LiveRegistrations(at_exit=False)
    path = "/dev/shm/a/pool" if named else "/dev/shm"
    spec = MappingSpec(
        kind=kind, path=path, named=named, placed=SPREAD, n_threads=2, slot_bytes=12288, must_register=must,
        largest_registration_bytes=64 * MIB,
    )  # fmt: skip
    try:
        mapping = map_memory(n_bytes, spec, registrar=driver, calls=kernel, live=live)
    except (HicacheError, KeyboardInterrupt):
        pass
    else:
        report = mapping.report
        assert all(step.ok or step.reason for step in report.steps)
        assert report.registered_bytes == sum(driver.registered.values())
        assert report.registered_bytes in (0, report.mapped_bytes)
        mapping.close()
    assert kernel.holds_nothing
    assert not driver.registered
    assert len(live) == 0


def test_a_faulty_registrar_without_a_driver_registers_nothing() -> None:
    registrar = FaultyRegistrar(NoRegistrar("no driver"), Fault.REGISTER_DRIVER_ERROR, at_call=2)
    assert registrar.prepare() is None
    assert registrar.register(0, 1) is None
    assert registrar.register(1, 1) is not None
    assert registrar.unregister(0) is None


def test_the_descriptor_of_a_memfd_is_the_same_memory() -> None:
    with map_memory(MIB, MappingSpec(kind=Kind.MEMFD, n_threads=1)) as mapping:
        mapping.buffer[5] = 42
        assert mapping.fd is not None
        assert os.pread(mapping.fd, 6, 0)[5] == 42
        assert np.frombuffer(os.pread(mapping.fd, 5, 0), np.uint8).sum() == 0


def test_memory_that_the_driver_does_not_let_go_of_stays_mapped_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    no = Refusal("cuMemHostUnregister", 1, "INVALID_VALUE", "words of the driver")
    kernel, driver = FakeKernel(), FakeDriver(lambda call, n: no if call == "unregister" else None)
    mapping = made(kernel, registrar=driver)
    assert mapping.close() == (no,)
    step = mapping.report.step("unregister")
    assert step is not None
    assert (step.state, step.reason) == (StepState.REFUSED, str(no))
    assert "stays mapped: cuMemHostUnregister: INVALID_VALUE (1)" in caplog.text
    assert mapping.close() == ()
    report = mapping.report
    del mapping
    gc.collect()
    assert kernel.reserved
    assert "release" not in kernel.calls
    assert report.registered_bytes


def test_memory_that_is_partly_registered_and_not_let_go_of_stays_mapped_too() -> None:
    no = Refusal("register", 2, "MEMORY_ALLOCATION", "words")
    kernel = FakeKernel()
    driver = FakeDriver(lambda call, n: no if call == "unregister" or (call == "register" and n == 2) else None)
    mapping = made(kernel, MappingSpec(slot_bytes=2 * MIB, largest_registration_bytes=2 * MIB), registrar=driver)
    assert mapping.report.registered_bytes == 0
    mapping.close()
    del mapping
    gc.collect()
    assert kernel.reserved


@pytest.mark.parametrize(("more", "fits"), [(0, False), (4096, True)])
def test_the_look_before_counts_the_label_and_the_padding_of_a_file(more: int, fits: bool) -> None:
    kernel = FakeKernel()
    kernel.free = 34 * MIB + more  # 33 MiB is 17 huge pages
    spec = MappingSpec(kind=Kind.TMPFS, path="/dev/shm")
    if fits:
        require_pool(kernel, 33 * MIB, spec)
        made(kernel, spec, n_bytes=33 * MIB).close()
    else:
        with pytest.raises(CapacityError, match=r"34\.0 MiB on a tmpfs with 34\.0 MiB left"):
            require_pool(kernel, 33 * MIB, spec)


@pytest.mark.parametrize(
    ("number", "call", "kind", "what", "hint"),
    [
        (errno.ENOMEM, "mmap", CapacityError, "no address range", "ulimit -v"),
        (errno.EMFILE, "memfd_create", CapacityError, "no memfd memory", "ulimit -n"),
        (errno.ENOSPC, "pwrite", CapacityError, "no memfd memory", "mount larger"),
        (errno.ENOMEM, "memfd_create", CapacityError, "no memfd memory", "free memory"),
        (errno.EPERM, "fcntl F_ADD_SEALS", PermissionDenied, "no memfd memory", "another kind"),
        (errno.ENOENT, "open /dev/shm/x", UsageError, "no memfd memory", "folder that is there"),
    ],
)
def test_memory_that_cannot_be_had_is_told_by_the_call_that_was_refused(
    number: int, call: str, kind: type[HicacheError], what: str, hint: str
) -> None:
    found = not_obtained(OSError(number, os.strerror(number), call), MIB, MappingSpec(kind=Kind.MEMFD))
    assert isinstance(found, kind)
    assert found.what.startswith(what)
    assert call in (found.why or "")
    assert hint in (found.hint or "")
