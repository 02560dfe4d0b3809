"""NUMA balancing, zone reclaim, interleave weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts.spec import GIB, HostSpec, NodeSpec
from knob_looks import items, look, one, small, wants

from hicachectl.tuning.item import ItemKind

WEIGHTS = "/sys/kernel/mm/mempolicy/weighted_interleave"


def sysctl(**values: str) -> dict[str, str]:
    return {**small().sysctl, **{name.replace("__", "/"): value for name, value in values.items()}}


ON = sysctl(kernel__numa_balancing="1")


def test_balancing_is_switched_off_only_where_pools_are_bound(tmp_path: Path) -> None:
    bound = wants("numa.balancing=0", bound=True)
    item = one(look(tmp_path / "a", small(2, sysctl=ON), bound), bound, "numa.balancing")
    assert (item.kind, item.old, item.new, item.proof) == (ItemKind.CHANGE, "1", "0", "")
    free = wants("numa.balancing=0")
    item = one(look(tmp_path / "b", small(2, sysctl=ON), free), free, "numa.balancing")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-NUMA-BALANCING")
    assert item.remedy is not None and "--bound" in item.remedy


def test_off_already_is_the_same_and_says_what_it_may_cost_unbound(tmp_path: Path) -> None:
    free = wants("numa.balancing=0")
    item = one(look(tmp_path / "two", small(2), free), free, "numa.balancing")
    assert item.kind is ItemKind.SAME and any("unbound programs may lose" in note for note in item.notes)
    assert one(look(tmp_path / "one", small(1), free), free, "numa.balancing").notes == ()


def test_switching_it_on_needs_no_permission(tmp_path: Path) -> None:
    choices = wants("numa.balancing=1")
    assert one(look(tmp_path, small(2), choices), choices, "numa.balancing").kind is ItemKind.CHANGE


def test_a_pinned_balancing_is_skipped(tmp_path: Path) -> None:
    choices = wants("numa.balancing=0", bound=True)
    item = one(look(tmp_path, small(2, sysctl=ON, cmdline="numa_balancing=enable"), choices), choices, "numa.balancing")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-PINNED")


def test_a_kernel_without_balancing_is_skipped(tmp_path: Path) -> None:
    choices = wants("numa.balancing=0", bound=True)
    item = one(look(tmp_path, small(2, sysctl={}), choices), choices, "numa.balancing")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-UNSUPPORTED")
    odd = wants("numa.balancing=off")
    assert one(look(tmp_path / "b", small(2), odd), odd, "numa.balancing").kind is ItemKind.SKIP


@pytest.mark.parametrize("mode", ["0", "1"])
def test_zone_reclaim_is_reported_and_never_changed(mode: str, tmp_path: Path) -> None:
    choices = wants("numa.zone-reclaim=report")
    item = one(
        look(tmp_path, small(2, sysctl=sysctl(vm__zone_reclaim_mode=mode)), choices), choices, "numa.zone-reclaim"
    )
    assert (item.kind, item.old) == (ItemKind.REPORT, mode)
    assert item.remedy is not None and ("sysctl -w vm.zone_reclaim_mode=0" in item.remedy) is (mode == "1")


def uneven(auto: str | None = None) -> HostSpec:
    nodes = (NodeSpec(0, "0-1", 24 * GIB, 20 * GIB, weight=1), NodeSpec(1, "2-3", 8 * GIB, 6 * GIB, weight=1))
    return small(nodes=nodes, files={} if auto is None else {f"{WEIGHTS}/auto": f"{auto}\n".encode()})


def test_weights_are_offered_in_one_line(tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=offer")
    item = one(look(tmp_path, uneven(), choices), choices, "numa.interleave-weight")
    assert (item.kind, item.old, item.wanted) == (ItemKind.REPORT, "0=1,1=1", ("0=3,1=1",))
    assert item.reason is not None and "offered, not set" in item.reason


def test_on_even_nodes_there_is_nothing_to_offer(tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=offer")
    item = one(look(tmp_path, small(2), choices), choices, "numa.interleave-weight")
    assert (item.kind, item.remedy) == (ItemKind.REPORT, "nothing to do")


def test_weights_by_memory_change_the_nodes_that_differ_and_are_proven_by_pages(tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=memory")
    found = items(look(tmp_path, uneven(), choices), choices)
    assert [(item.id, item.kind, item.new) for item in found] == [
        ("numa.interleave-weight@node0", ItemKind.CHANGE, "3"), ("numa.interleave-weight@node1", ItemKind.SAME, None),
    ]  # fmt: skip
    assert {item.proof for item in found} == {"binding"}


def test_the_kernels_own_weights_are_stopped_first_so_that_rollback_starts_them_last(tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=0=4,1=2")
    found = items(look(tmp_path, uneven("true"), choices), choices)
    assert [(item.id, item.old, item.new) for item in found] == [
        ("numa.interleave-weight@auto", "true", "false"), ("numa.interleave-weight@node0", "1", "4"), ("numa.interleave-weight@node1", "1", "2"),
    ]  # fmt: skip


def test_weights_that_are_there_leave_auto_alone(tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=0=1")
    assert [item.kind for item in items(look(tmp_path, uneven("true"), choices), choices)] == [ItemKind.SAME]


@pytest.mark.parametrize(("auto", "kind"), [("false", ItemKind.REPORT), ("true", ItemKind.SAME), (None, ItemKind.SKIP)])
def test_auto_is_never_set_since_the_weights_it_replaces_could_not_be_put_back(
    auto: str | None, kind: ItemKind, tmp_path: Path
) -> None:
    choices = wants("numa.interleave-weight=auto")
    item = one(look(tmp_path, uneven(auto), choices), choices, "numa.interleave-weight@auto")
    assert (item.kind, item.new) == (kind, None)
    if auto == "false":
        assert item.reason is not None and "0=1,1=1" in item.reason
        assert item.remedy == f"echo true > {WEIGHTS}/auto"
    if auto is None:
        assert item.remedy is not None and "write weights" in item.remedy


@pytest.mark.parametrize("only", ["numa.interleave-weight@node0", "numa.interleave-weight@auto"])
def test_a_weight_that_would_stop_the_kernels_own_in_silence_is_skipped(only: str, tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=0=4,1=2", only=[only])
    found = {item.subject: item for item in items(look(tmp_path / "a", uneven("true"), choices), choices)}
    if only.endswith("auto"):
        assert found["auto"].kind is ItemKind.CHANGE
        return
    assert found["node0"].kind is ItemKind.SKIP
    assert "auto is true" in (found["node0"].reason or "")
    assert "--only numa.interleave-weight" in (found["node0"].remedy or "")
    manual = {item.subject: item for item in items(look(tmp_path / "b", uneven("false"), choices), choices)}
    assert manual["node0"].kind is ItemKind.CHANGE


def test_while_it_is_not_known_who_weighs_nothing_is_written(tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=0=4")
    sight = look(tmp_path, uneven("maybe so"), choices)
    assert {item.kind for item in items(sight, choices)} == {ItemKind.SKIP}


@pytest.mark.parametrize("choice", ["0=0", "0=256", "0=x", "heavy"])
def test_what_is_no_weight_is_skipped(choice: str, tmp_path: Path) -> None:
    choices = wants(f"numa.interleave-weight={choice}")
    assert {item.kind for item in items(look(tmp_path, uneven(), choices), choices)} == {ItemKind.SKIP}


def test_a_kernel_without_weights_and_a_node_that_is_not_there_are_skipped(tmp_path: Path) -> None:
    choices = wants("numa.interleave-weight=0=1,7=2")
    found = items(look(tmp_path / "a", uneven(), choices), choices)
    assert [(item.id, item.kind) for item in found] == [
        ("numa.interleave-weight@node0", ItemKind.SAME), ("numa.interleave-weight@node7", ItemKind.SKIP),
    ]  # fmt: skip
    offer = wants("numa.interleave-weight=offer")
    bare = small(nodes=tuple(replace(node, weight=None) for node in small(2).nodes))
    assert one(look(tmp_path / "b", bare, offer), offer, "numa.interleave-weight").code == "HC-UNSUPPORTED"
