"""Placement: what each policy gives and costs, what it refuses, and the worked case of two cards behind one uplink."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hosts.machines import GIB, accelerator, change, device, four_nodes, lost, machine, node, port, unread, uplink

from hicachectl.tuning.assignment import cheapest_assignment
from hicachectl.tuning.host.facts import unknown
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.placement import Placement, Policy, place, placements

GB = 10**9


def worked(**numa: Any) -> Machine:
    """Return the published case: eight nodes of two sockets, 1.5 TB, eight cards in pairs on nodes 1 1 3 3 5 5 7 7.

    A node has 187.5 GB, of which 150 are available.
    """
    row = [{b: 10 if a == b else 16 if a // 4 == b // 4 else 32 for b in range(8)} for a in range(8)]
    nodes = tuple(
        node(i, row[i], memory_total_bytes=187_500_000_000, memory_available_bytes=150 * GB, interleave_weight=1)
        for i in range(8)
    )
    devices, uplinks = [], []
    for i, on in enumerate((1, 3, 5, 7)):
        root, up = f"0000:{2 * i + 2}0:01.0", f"0000:{2 * i + 2}1:00.0"
        cards = tuple(accelerator(f"0000:{2 * i + 2}{3 + j}:00.0", root, up, node=on) for j in range(2))
        devices += [port(root, node=on), port(up, root, kind="upstream", node=on), *cards]
        uplinks.append(uplink(cards, up, root, f"U{i}", node=on))
    told = {"nodes": nodes, "nodes_a_socket": 4, "allowed_nodes": tuple(range(8)), **numa}
    return machine(*devices, uplinks=tuple(uplinks), numa=told)


def homes(found: Placement) -> list[list[int]]:
    return [sorted(binding.bytes_by_node) for binding in found.bindings]


# -- the worked case --------------------------------------------------------------------------------------------------


def test_local_binding_of_the_worked_case_reaches_half_of_the_memory_and_75_gb_a_card() -> None:
    found = place(worked(), Policy.LOCAL)
    assert homes(found) == [[1], [1], [3], [3], [5], [5], [7], [7]]
    assert (found.reached_bytes, found.installed_bytes) == (750 * GB, 1500 * GB)  # 4 and 8 nodes of 187.5
    assert [binding.pool_bytes for binding in found.bindings] == [75 * GB] * 8  # 150 available, two cards a node
    assert found.pool_bytes == 600 * GB
    assert {binding.distance for binding in found.bindings} == {10}
    assert any("reaches 698.5 GiB of 1.4 TiB" in cost for cost in found.costs)


def test_one_to_one_of_the_worked_case_puts_card_i_on_node_i_and_doubles_the_pool() -> None:
    found = place(worked(), Policy.ONE_TO_ONE)
    assert homes(found) == [[i] for i in range(8)]
    assert [binding.pool_bytes for binding in found.bindings] == [150 * GB] * 8
    assert found.pool_bytes == 2 * place(worked(), Policy.LOCAL).pool_bytes
    assert [binding.distance for binding in found.bindings] == [16, 10] * 4  # one of each pair is a hop away
    (told,) = [cost for cost in found.costs if "strict ordering" in cost]
    assert "U0, U1, U2 and U3" in told


def test_two_writers_of_one_uplink_to_one_node_do_not_wait_for_each_other() -> None:
    assert not any("strict ordering" in cost for cost in place(worked(), Policy.LOCAL).costs)


def test_each_card_gets_half_of_its_uplink_when_both_are_busy() -> None:
    found = place(worked(), Policy.LOCAL)
    assert {(b.uplink, b.busy_bytes_per_s) for b in found.bindings} == {(f"U{i}", 15.75e9) for i in range(4)}
    assert any("8 of 8 share an uplink: down to 14.7 GiB/s" in cost for cost in found.costs)


def test_socket_interleave_and_weighted_reach_everything_at_the_distances_of_their_nodes() -> None:
    socket, spread, weighted = (place(worked(), p) for p in (Policy.SOCKET, Policy.INTERLEAVE, Policy.WEIGHTED))
    assert homes(socket) == [[0, 1, 2, 3]] * 4 + [[4, 5, 6, 7]] * 4
    assert homes(spread) == [list(range(8))] * 8
    assert socket.bindings[0].distance == (10 + 3 * 16) / 4
    assert spread.bindings[0].distance == (10 + 3 * 16 + 4 * 32) / 8
    assert [found.pool_bytes for found in (socket, spread, weighted)] == [1200 * GB] * 3
    assert weighted.weights == dict.fromkeys(range(8), 255)


def test_unbound_registered_memory_is_told_with_the_nearest_published_size() -> None:
    for pool, told in ((8 * 80 * GB, "20.6 %"), (8 * 40 * GB, "11.5 %"), (8 * 15 * GB, "8.8 %")):
        assert any(told in cost for cost in place(worked(), Policy.INTERLEAVE, pool_bytes=pool).costs)
        assert not any("registered" in cost for cost in place(worked(), Policy.LOCAL, pool_bytes=8 * 15 * GB).costs)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", Policy)
def test_no_node_gives_more_than_it_has_and_all_pools_are_equal(policy: Policy) -> None:
    rng = random.Random(3)
    for _ in range(50):
        value = worked()
        nodes = tuple(change(n, memory_available_bytes=rng.randrange(1, 200) * GB) for n in value.numa.nodes)
        value = replace(value, numa=replace(value.numa, nodes=nodes))
        found = place(value, policy)
        assert found.refused is None
        assert len({binding.pool_bytes // GB for binding in found.bindings}) == 1
        for one in nodes:
            assert found.bytes_by_node.get(one.id, 0) <= (one.memory_available_bytes.value or 0)
        assert sum(binding.pool_bytes for binding in found.bindings) == found.pool_bytes


def test_a_wanted_pool_is_given_evenly_and_refused_with_both_sizes_when_it_does_not_fit() -> None:
    assert {b.pool_bytes for b in place(worked(), Policy.LOCAL, pool_bytes=8 * GB).bindings} == {GB}
    refused = place(worked(), Policy.LOCAL, pool_bytes=8 * 76 * GB)
    assert refused.bindings == ()
    assert refused.refused == (
        "70.8 GiB for each of 8 accelerators is more than node 1 allows: 69.8 GiB"
    )  # fmt: skip


def test_a_margin_is_kept_on_each_node() -> None:
    assert place(worked(), Policy.ONE_TO_ONE, margin_bytes=50 * GB).pool_bytes == 800 * GB


def test_the_control_group_bounds_the_sum() -> None:
    value = worked()
    group = change(value.memory.cgroup, memory_max_bytes=81 * GB, memory_current_bytes=GB)
    value = replace(value, memory=replace(value.memory, cgroup=group))
    assert place(value, Policy.INTERLEAVE).pool_bytes == 80 * GB
    assert "the control group allows" in (place(value, Policy.LOCAL, pool_bytes=90 * GB).refused or "")
    cached = change(group, memory_current_bytes=71 * GB, memory_file_cache_bytes=70 * GB)
    value = replace(value, memory=replace(value.memory, cgroup=cached))
    assert place(value, Policy.INTERLEAVE).pool_bytes == 80 * GB


def test_free_memory_is_used_where_available_is_not_known() -> None:
    value = worked()
    nodes = tuple(lost(n, "memory_available_bytes") for n in value.numa.nodes)
    found = place(replace(value, numa=replace(value.numa, nodes=nodes)), Policy.ONE_TO_ONE)
    assert found.pool_bytes == 8 * 56 * GIB


# -- refusals ---------------------------------------------------------------------------------------------------------


def refusal(value: Machine, policy: Policy = Policy.LOCAL) -> str:
    found = place(value, policy)
    assert found.bindings == ()
    assert found.bytes_by_node == {}
    return found.refused or ""


def test_what_is_not_known_is_refused_with_its_reason() -> None:
    value = machine()
    homeless = replace(value, devices=tuple(lost(d, "node", reason="firmware") for d in value.devices))
    assert "node of 0000:11:00.0 is not known (firmware)" in refusal(homeless)
    for policy in (Policy.ONE_TO_ONE, Policy.SOCKET):
        assert "not known" in refusal(homeless, policy)
    dark = replace(value, numa=change(value.numa, nodes=tuple(lost(n, "distances") for n in four_nodes())))
    assert "distances of node 0 are not known" in refusal(dark, Policy.ONE_TO_ONE)
    assert "socket is not known" in refusal(machine(numa={"sockets": unknown("cpu", "none")}), Policy.SOCKET)
    empty = tuple(lost(n, "memory_available_bytes", "memory_free_bytes") for n in four_nodes())
    assert "free memory of node 0 is not known" in refusal(machine(numa={"nodes": empty}))


def test_every_policy_of_a_machine_of_which_nothing_was_read_is_refused() -> None:
    assert all(found.refused for found in placements(unread(machine())))
    assert [found.policy for found in placements(machine())] == list(Policy)


def test_a_node_without_memory_or_outside_the_cpuset_is_named() -> None:
    bare = (change(four_nodes()[0], memory_total_bytes=0), *four_nodes()[1:])
    assert "node 0, which has no memory" in refusal(machine(numa={"nodes": bare}))
    assert "node 2, which this process may not use" in refusal(machine(numa={"allowed_nodes": (0, 1)}))


def test_memory_of_a_device_is_never_used() -> None:
    nodes = (*four_nodes()[:2], *(change(n, kind="device-memory", cpus=()) for n in four_nodes()[2:]))
    found = place(machine(numa={"nodes": nodes}), Policy.INTERLEAVE)
    assert set(found.bytes_by_node) == {0, 1}
    assert "whose memory is a device's" in refusal(machine(numa={"nodes": nodes}))


def test_more_cards_than_nodes_cannot_have_one_each() -> None:
    assert "8 accelerators and 2 nodes" in refusal(worked(allowed_nodes=(0, 1)), Policy.ONE_TO_ONE)


def test_denied_calls_refuse_every_policy_and_unknown_ones_are_told() -> None:
    denied = machine(numa={"mempolicy_calls": False})
    assert all("may not set a memory policy" in (found.refused or "") for found in placements(denied))
    unasked = place(machine(numa={"mempolicy_calls": unknown("set_mempolicy", "snapshot")}), Policy.LOCAL)
    assert any("not known (snapshot)" in cost for cost in unasked.costs)


def test_weighted_needs_a_kernel_that_has_it() -> None:
    nodes = tuple(lost(n, "interleave_weight") for n in four_nodes())
    assert "Linux has it since 6.9" in refusal(machine(numa={"nodes": nodes}), Policy.WEIGHTED)


def test_sockets_that_distances_do_not_show_are_not_made_up() -> None:
    flat = tuple(change(n, distances={b: 10 if b == n.id else 20 for b in range(4)}) for n in four_nodes())
    assert "distances do not show 2 sockets of 2 nodes" in refusal(machine(numa={"nodes": flat}), Policy.SOCKET)


def test_where_a_card_is_not_known_how_far_its_bytes_are_is_not_claimed() -> None:
    value = machine()
    homeless = replace(value, devices=tuple(lost(d, "node") for d in value.devices))
    found = place(homeless, Policy.INTERLEAVE)
    assert {(b.distance, b.remote_share) for b in found.bindings} == {(None, None)}
    assert any("is not known" in cost for cost in found.costs)


# -- assignment -------------------------------------------------------------------------------------------------------


def test_an_assignment_is_the_cheapest_and_among_equals_the_first() -> None:
    rng = random.Random(5)
    for _ in range(200):
        n = rng.randint(1, 5)
        m = rng.randint(n, 6)
        costs = [[rng.choice((10, 16, 32)) for _ in range(m)] for _ in range(n)]
        best = min((sum(costs[i][c] for i, c in enumerate(p)), list(p)) for p in permutations(range(m), n))
        assert cheapest_assignment(costs) == best[1]


def test_too_few_columns_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 rows"):
        cheapest_assignment([[1], [2]])


# -- what was not read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"memory_max_bytes": unknown("memory.max", "permission denied")}, "the control group's limit is not known"),
        (
            {"memory_max_bytes": 64 * GIB, "memory_current_bytes": unknown("memory.current", "odd")},
            "has used is not known",
        ),
    ],
)
def test_sizes_under_a_limit_that_was_not_read_say_so(group: dict[str, Any], words: str) -> None:
    value = machine()
    found = place(
        replace(value, memory=change(value.memory, cgroup=change(value.memory.cgroup, **group))), Policy.INTERLEAVE
    )
    assert [words in term for term in found.unknown] == [True]
    assert set(found.unknown) <= set(found.costs)
    assert place(value, Policy.INTERLEAVE).unknown == ()


def test_nodes_are_not_all_allowed_because_the_list_was_not_read() -> None:
    found = place(machine(numa={"allowed_nodes": unknown("/proc/self/status", "permission denied")}), Policy.INTERLEAVE)
    assert ["which nodes this process may use is not known" in term for term in found.unknown] == [True]


def test_a_node_whose_cpus_were_not_read_may_be_an_accelerators_memory_and_holds_no_pool() -> None:
    first, *rest = four_nodes()
    found = place(machine(numa={"nodes": (lost(first, "cpus", "kind"), *rest)}), Policy.INTERLEAVE)
    assert sorted(found.bytes_by_node) == [1, 2, 3]


def half_read(value: Machine, ident: int, *names: str) -> Machine:
    """The machine with one node of which some facts were denied."""
    nodes = tuple(lost(n, *names, reason="permission denied") if n.id == ident else n for n in value.numa.nodes)
    return replace(value, numa=replace(value.numa, nodes=nodes))


MEMINFO = ("memory_total_bytes", "memory_free_bytes", "memory_available_bytes", "kind")


@pytest.mark.parametrize("names", [MEMINFO, ("cpus", "kind")])
def test_a_node_that_was_not_read_is_neither_without_memory_nor_left_out_of_the_installed(
    names: tuple[str, ...],
) -> None:
    value = half_read(worked(), 1, *names)
    missing = lost(value.numa.nodes[1], names[0], reason="permission denied")
    source = getattr(missing, names[0]).source
    told = refusal(value)
    assert "0000:23:00.0 is on node 1, whose" in told
    assert f"not known (permission denied; {source})" in told
    assert "has no memory" not in told
    each = refusal(value, Policy.ONE_TO_ONE)
    assert "8 accelerators and 7 nodes known to have memory: whether they can have one each is not known" in each
    if "cpus" in names:
        assert "which nodes form a socket is not known (node 1: permission denied" in refusal(value, Policy.SOCKET)
    for policy in (Policy.SOCKET, Policy.INTERLEAVE, Policy.WEIGHTED)["cpus" in names :]:
        found = place(value, policy)
        assert 1 not in found.bytes_by_node
        assert (found.installed_bytes, found.reached_bytes) == (None, 7 * 187_500_000_000)
        assert "node 1" in (found.installed_reason or "")
        assert [f"({'permission denied'}; {source})" in term for term in found.unknown] == [True]
        assert set(found.unknown) <= set(found.costs)
        assert not any("1.2 TiB of" in cost for cost in found.costs)


def test_an_unread_node_that_no_pool_could_use_takes_nothing_from_what_is_known() -> None:
    outside = half_read(worked(allowed_nodes=tuple(range(7))), 7, *MEMINFO)
    assert place(outside, Policy.INTERLEAVE).installed_bytes == 7 * 187_500_000_000
    assert "node 7, which this process may not use" in refusal(outside)
    first, *rest = four_nodes()
    bare = machine(numa={"nodes": (lost(change(first, cpus=()), *MEMINFO), *rest)})
    assert place(bare, Policy.INTERLEAVE).installed_bytes == 3 * 64 * GIB


def test_what_is_installed_is_not_zero_where_the_nodes_could_not_be_listed() -> None:
    dark = machine(numa={"nodes": (), "listed": {"nodes": unknown("/sys/devices/system/node", "permission denied")}})
    found = place(dark, Policy.INTERLEAVE)
    assert (found.installed_bytes, found.installed_reason) == (
        None, "nodes: permission denied (/sys/devices/system/node)"
    )  # fmt: skip


def test_pools_say_which_functions_may_be_accelerators_too() -> None:
    value = machine()
    stranger = device("0000:71:00.0", "0000:70:01.0", kind="other", class_code=unknown("class", "permission denied"))
    found = place(machine(*value.devices, port("0000:70:01.0"), stranger), Policy.INTERLEAVE)
    (term,) = found.unknown
    assert term == "whether 0000:71:00.0 is an accelerator is not known (permission denied; class): pools are for 4"
    gone = change(stranger, kind="accelerator")
    assert place(machine(*value.devices, port("0000:70:01.0"), gone), Policy.INTERLEAVE).unknown == ()


def test_cards_whose_share_of_an_uplink_is_not_known_are_not_left_out_of_the_count() -> None:
    value = worked()
    first, *rest = value.uplinks
    told = place(replace(value, uplinks=(lost(first, "busy_bytes_per_s"), *rest)), Policy.LOCAL).costs
    assert any(
        "8 of 8 share an uplink: down to 14.7 GiB/s each when all are busy, not known for 2 of them" in c for c in told
    )
    none = place(
        replace(value, uplinks=tuple(lost(one, "busy_bytes_per_s") for one in value.uplinks)), Policy.LOCAL
    ).costs
    assert any("8 of 8 share an uplink: what is left for each is not known" in cost for cost in none)
