"""Findings of memory: huge pages, limits, and whether a large pool fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from finding_cases import (
    CARD,
    large,
    nodeless,
    of,
    shm,
    thp,
    weights,
    with_nic,
)
from hosts.machines import (
    GIB,
    change,
    lost,
    machine,
    with_device,
)

from hicachectl.tuning.host.facts import Fact, unknown


@pytest.mark.parametrize(("kernel", "hit"), [("6.10.9", False), ("6.11.0", True), ("6.13.7", True), ("6.14.0", False)])
def test_the_kernels_with_the_pin_fault_are_6_11_to_6_13(kernel: str, hit: bool) -> None:
    assert bool(of("HC-KERNEL-GUP", machine(host={"kernel": kernel}))) is hit


def test_never_at_the_top_with_always_for_two_megabytes_is_not_off() -> None:
    sizes = {"hugepages-2048kB/enabled": Fact("always", "hugepages-2048kB/enabled")}
    assert of("HC-THP-OFF", thp(enabled="never", sizes=sizes)) == []


def test_a_launcher_that_switched_huge_pages_off_is_found() -> None:
    (found,) = of("HC-THP-OFF", thp(process_enabled=False))
    assert found.source == "/proc/self/status"


def test_force_and_deny_reach_past_the_mount_option() -> None:
    assert of("HC-SHM-4K", shm("never", shmem_enabled="force")) == []
    assert weights("HC-SHM-4K", shm("advise", shmem_enabled="deny")) == ["warn"]


def test_a_process_that_may_lock_everything_is_not_warned_of_the_limit() -> None:
    limited = replace(with_nic(0), memory=change(machine().memory, memlock_bytes=8 << 20))
    assert of("HC-MEMLOCK-LOW", replace(limited, host=change(limited.host, capabilities=("CAP_IPC_LOCK",)))) == []
    assert of("HC-MEMLOCK-LOW", replace(limited, host=lost(limited.host, "capabilities"))) == []


def test_one_registration_of_512_gib_is_a_hazard_only_with_the_driver_it_was_reported_for() -> None:
    assert of("HC-PIN-LARGE", with_device(large(256, 225), CARD, vendor="1d22")) == []
    assert weights("HC-PIN-LARGE", large(256, 225)) == ["warn"]
    assert of("HC-PIN-LARGE", large(64, 60)) == []


def test_a_pool_that_does_not_fit_now_is_not_said_to_fit() -> None:
    (found,) = of("HC-PIN-LARGE", large(256, 100))
    assert found.severity == "note"
    assert "does not fit now (400.0 GiB available of 1.0 TiB on nodes 0, 1, 2 and 3)" in found.message
    (bound,) = of("HC-PIN-LARGE", large(256, 225, available_bytes=300 * GIB))
    assert (
        "does not fit now (300.0 GiB available of" in bound.message
    )  # MemAvailable, where it is less than the nodes' sum


def test_the_memory_of_accelerators_holds_no_pool_to_register() -> None:
    (found,) = of("HC-PIN-LARGE", large(300, 250, "memory", "memory", "device-memory", "cpu-less"))
    assert found.severity == "note"
    assert "does not fit now (500.0 GiB available of 600.0 GiB on nodes 0 and 1)" in found.message
    assert of("HC-PIN-LARGE", large(300, 290, "memory", "device-memory", "device-memory", "device-memory")) == []


def test_a_control_group_and_reserved_huge_pages_are_terms_of_what_fits() -> None:
    value = large(256, 225)
    limited = change(value.memory.cgroup, memory_max_bytes=600 * GIB, memory_current_bytes=100 * GIB)
    (found,) = of("HC-PIN-LARGE", replace(value, memory=change(value.memory, cgroup=limited)))
    assert found.severity == "note"
    assert (
        "900.0 GiB available of 1.0 TiB on nodes 0, 1, 2 and 3, 500.0 GiB left in the control group)" in found.message
    )
    cached = change(limited, memory_current_bytes=590 * GIB, memory_file_cache_bytes=550 * GIB)
    (roomy,) = of("HC-PIN-LARGE", replace(value, memory=change(value.memory, cgroup=cached)))
    assert "560.0 GiB left in the control group" in roomy.message
    for part in (
        {"memory_max_bytes": unknown("memory.max", "permission denied")},
        {"memory_current_bytes": unknown("m", "odd")},
    ):
        (lost_limit,) = of("HC-PIN-LARGE", replace(value, memory=change(value.memory, cgroup=change(limited, **part))))
        assert lost_limit.severity == "note" and "whether a pool of 512.0 GiB fits is not known" in lost_limit.message
    (huge,) = of("HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=520 * GIB))
    assert huge.severity == "warn" and "520.0 GiB in free hugetlb pages" in huge.message


def test_whether_a_pool_fits_is_not_known_while_a_node_was_not_read() -> None:
    value = large(256, 225)
    first, *rest = value.numa.nodes
    for broken in (
        lost(first, "memory_total_bytes"),
        lost(first, "kind"),
        lost(first, "memory_available_bytes", "memory_free_bytes"),
    ):
        (found,) = of("HC-PIN-LARGE", replace(value, numa=change(value.numa, nodes=(broken, *rest))))
        assert found.severity == "note"
        assert "whether a pool of 512.0 GiB fits is not known (node 0: no such file" in found.message
    (blind,) = of("HC-PIN-LARGE", large(256, 225, available_bytes=unknown("meminfo", "odd")))
    assert blind.severity == "warn"  # the nodes tell
    (bare,) = of("HC-PIN-LARGE", nodeless(available_bytes=unknown("meminfo", "odd")))
    assert bare.severity == "note" and "is not known (odd" in bare.message
    (all_there,) = of("HC-PIN-LARGE", nodeless())
    assert all_there.severity == "warn" and "900.0 GiB available of 1.0 TiB on the host" in all_there.message


DENIED = unknown("/sys/kernel/mm/hugepages", "permission denied")


def test_reserved_pages_that_were_not_read_are_not_none() -> None:
    (found,) = of("HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=DENIED, hugetlb_bytes=DENIED))
    assert found.severity == "note"
    assert "fits is not known (free hugetlb pages: permission denied; 400.0 GiB available" in found.message
    assert "? in free hugetlb pages" in found.message
    (fits,) = of("HC-PIN-LARGE", large(256, 225, hugetlb_free_bytes=DENIED, hugetlb_bytes=DENIED))
    assert fits.severity == "warn"
    for held in (0, 100 * GIB):  # what is free is no more than what is held
        (small,) = of("HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=DENIED, hugetlb_bytes=held))
        assert "does not fit now (400.0 GiB available" in small.message
    no_file = unknown("/sys/kernel/mm/hugepages", "no such file")
    (none,) = of(
        "HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=no_file, hugetlb_bytes=no_file, listed={"hugetlb": no_file})
    )
    assert "does not fit now (400.0 GiB available" in none.message  # a kernel without them


@pytest.mark.parametrize("huge", [0, 520 * GIB])
def test_a_pool_fits_on_no_nodes_that_this_process_may_not_be_allowed(huge: int) -> None:
    status = unknown("/proc/self/status", "permission denied")
    value = large(256, 225, hugetlb_free_bytes=huge, hugetlb_bytes=huge)
    blind = replace(value, numa=change(value.numa, allowed_nodes=status))
    (found,) = of("HC-PIN-LARGE", blind)
    assert found.severity == "note"
    assert "fits is not known (nodes of this process: permission denied; 900.0 GiB" in found.message
    small = large(256, 100)
    (certain,) = of("HC-PIN-LARGE", replace(small, numa=change(small.numa, allowed_nodes=status)))
    assert "does not fit now" in certain.message
    one = replace(
        blind,
        numa=replace(
            blind.numa,
            nodes=(change(blind.numa.nodes[0], memory_total_bytes=1024 * GIB, memory_available_bytes=900 * GIB),),
        ),
    )
    assert weights("HC-PIN-LARGE", one) == ["warn"]


def test_nodes_that_could_not_be_listed_are_not_a_host_without_them() -> None:
    folder = "/sys/devices/system/node"
    for reason, severity in (("permission denied", "note"), ("no such file", "warn")):
        value = nodeless()
        value = replace(value, numa=replace(value.numa, listed={"nodes": unknown(folder, reason)}))
        (found,) = of("HC-PIN-LARGE", value)
        assert found.severity == severity
        assert ("fits is not known (nodes: permission denied" in found.message) == (severity == "note")


def test_where_no_node_takes_a_pool_none_is_said_to_fit() -> None:
    value = large(300, 290, *["device-memory"] * 4)
    assert of("HC-PIN-LARGE", value) == []
