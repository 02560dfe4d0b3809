"""Which nodes a mapping lies on: policies set, read back and refused, room on the nodes, and NUMA balancing kept away."""

from __future__ import annotations

import errno
import os

import pytest
from fake_memory import FakeKernel
from made_mapping import SPREAD, WEIGHTED, made

from hicachectl.errors import (
    CapacityError,
)
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import StepState

BALANCING = "/proc/sys/kernel/numa_balancing"


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
