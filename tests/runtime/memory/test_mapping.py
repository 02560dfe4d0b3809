"""The order of a mapping, what its steps report, and the law that a failure at any step leaves nothing behind."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest
from fake_memory import MIB, FakeDriver, FakeKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from made_mapping import SPREAD, made

from hicachectl.errors import (
    CapacityError,
    HicacheError,
    HostError,
    InvariantBroken,
    PermissionDenied,
    UsageError,
    Vanished,
)
from hicachectl.runtime.memory.faults import Fault, FaultyRegistrar, with_fault
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.live import LiveRegistrations
from hicachectl.runtime.memory.mapping import map_memory, reserve
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.preflight import require_pool
from hicachectl.runtime.memory.refusals import not_obtained
from hicachectl.runtime.memory.register import NoRegistrar, Refusal
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import StepState
from hicachectl.runtime.memory.syscalls import PoolCalls

ORDER = ["reserve", "bind", "advise", "populate", "verify", "register"]


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
