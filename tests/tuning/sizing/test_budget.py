from __future__ import annotations

from dataclasses import replace

from hicachectl.runtime.memory.budget import GroupLimit, HugetlbRoom
from hicachectl.runtime.memory.placement_modes import PlacementMode
from hicachectl.tuning.host.facts import known, unknown
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.model import Memory
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.budget import PoolPlan, budget_of
from hicachectl.tuning.sizing.node_room import node_room

GIB = 1 << 30


def memory(
    total: int = 100, available: int = 80, limit: int | None = None, current: int = 10, lock: int | None = None
) -> Memory:
    """A host's memory in GiB; None: no limit."""
    base = read_memory(HostRoot("/nonexistent"))

    def fact(amount: int | None) -> object:
        return unknown("made up", "no limit") if amount is None else known(amount * GIB, "made up")

    cgroup = replace(base.cgroup, memory_max_bytes=fact(limit), memory_current_bytes=fact(current))  # type: ignore[arg-type]
    return replace(
        base, total_bytes=fact(total), available_bytes=fact(available), memlock_bytes=fact(lock), cgroup=cgroup,  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_is_available_less_margin_and_own_use_binds_where_nothing_is_tighter() -> None:
    found = budget_of(memory(), taken_bytes=5 * GIB)
    assert (found.can_use_bytes, found.bound) == (70 * GIB, "available memory")  # 80 - 5 % of 100 - 5
    assert {term.name: term.n_bytes for term in found.terms}["other use"] == 20 * GIB


def test_the_tightest_of_group_lock_and_flag_binds_and_is_named() -> None:
    assert budget_of(memory(limit=40), taken_bytes=0).bound == "room under the cgroup limit"
    assert budget_of(memory(limit=40), taken_bytes=0).can_use_bytes == 25 * GIB
    assert budget_of(memory(), taken_bytes=0, max_bytes=3 * GIB).bound == "--max-bytes"
    assert budget_of(memory(lock=2), taken_bytes=0, plan=PoolPlan(locked=True)).bound == "locked memory"
    assert budget_of(memory(lock=2), taken_bytes=0).bound == "available memory"


def test_a_term_that_is_not_there_does_not_bind_and_says_why() -> None:
    terms = {term.name: term for term in budget_of(memory(), taken_bytes=0).terms}
    assert (terms["room under the cgroup limit"].n_bytes, terms["room under the cgroup limit"].reason) == (
        None,
        "no limit",
    )
    assert terms["--max-bytes"].reason == "not given"


def test_too_little_is_none_and_never_negative() -> None:
    assert budget_of(memory(available=1), taken_bytes=5 * GIB).can_use_bytes == 0


FREE = {0: 40 * GIB, 1: 24 * GIB, 2: 60 * GIB, 3: 60 * GIB}


def test_each_mode_has_the_room_of_its_nodes() -> None:
    def room(mode: PlacementMode, *nodes: int, **more: object) -> int | None:
        return node_room(mode, nodes, FREE, **more).host_bytes  # type: ignore[arg-type]

    assert room(PlacementMode.LOCAL, 2) == 60 * GIB
    assert room(PlacementMode.ONE_TO_ONE, 0, 1, 2, 3) == 4 * 24 * GIB
    assert room(PlacementMode.SOCKET, 0, 1) == 2 * 24 * GIB
    assert room(PlacementMode.INTERLEAVE, 0, 2, 3) == 3 * 40 * GIB
    # node 0 gives three quarters and is full at 40: 40 * 4 / 3, before node 1 at 24 * 4
    assert room(PlacementMode.WEIGHTED, 0, 1, weights={0: 3, 1: 1}) == 40 * GIB * 4 // 3
    assert room(PlacementMode.WEIGHTED, 0, 1) == 2 * 24 * GIB
    assert room(PlacementMode.LOCAL, 9) is None
    assert "nodes [9]" in node_room(PlacementMode.LOCAL, (9,), FREE).words


def test_a_placement_binds_where_its_nodes_have_less_than_the_host_and_its_terms_are_named() -> None:
    local = node_room(PlacementMode.LOCAL, (1,), FREE)
    found = budget_of(memory(), taken_bytes=0, margin_bytes=GIB, plan=PoolPlan(nodes=local))
    assert (found.can_use_bytes, found.bound, found.trial_bytes) == (23 * GIB, "placement local", 23 * GIB)
    terms = {term.name: term for term in found.terms}
    assert terms["free on node 1"].n_bytes == 24 * GIB
    assert (terms["placement local"].n_bytes, terms["placement local"].reason) == (24 * GIB, "node 1")
    unread = budget_of(memory(), taken_bytes=0, plan=PoolPlan(nodes=node_room(PlacementMode.LOCAL, (9,), FREE)))
    assert unread.bound == "available memory"


def test_one_to_one_has_the_smallest_node_times_the_ranks_and_a_trial_pool_one_node() -> None:
    nodes = node_room(PlacementMode.ONE_TO_ONE, (0, 1), FREE, trial_nodes=(1,))
    found = budget_of(memory(), taken_bytes=0, margin_bytes=0, plan=PoolPlan(nodes=nodes))
    assert (found.can_use_bytes, found.trial_bytes) == (48 * GIB, 24 * GIB)


def test_ranks_that_each_hold_a_pool_share_the_host_and_the_flag_is_of_one_pool() -> None:
    found = budget_of(memory(), taken_bytes=0, margin_bytes=0, plan=PoolPlan(copies=4))
    assert found.can_use_bytes == 20 * GIB
    assert {term.name: term.n_bytes for term in found.terms}["one of 4 copies on the ranks"] == 20 * GIB
    assert budget_of(memory(), taken_bytes=0, max_bytes=15 * GIB, plan=PoolPlan(copies=4)).can_use_bytes == 15 * GIB


def test_a_file_is_bound_by_its_mount_and_reserved_pages_by_their_pool() -> None:
    found = budget_of(memory(), taken_bytes=0, plan=PoolPlan(mount_free_bytes=3 * GIB))
    assert (found.can_use_bytes, found.bound) == (3 * GIB, "room on the tmpfs")
    held = replace(memory(), hugetlb_free_bytes=known(99 * GIB, "pages of other sizes, and promised ones"))
    found = budget_of(held, taken_bytes=5 * GIB, plan=PoolPlan(hugetlb=HugetlbRoom(GIB, 7 * GIB)))
    assert (found.can_use_bytes, found.bound) == (7 * GIB, "free pages of the hugetlb pool")
    terms = {term.name: term for term in found.terms}
    assert terms["hugetlb pages free"].reason == "of 1.0 GiB, promised to nobody"
    assert terms["room under the cgroup limit on hugetlb"].reason == "no limit"


def test_a_limit_on_reserved_pages_binds_and_is_named() -> None:
    group = GroupLimit(5 * GIB, GIB // 2, "cgroup /pod (hugetlb.1GB.max)")
    found = budget_of(memory(), taken_bytes=0, plan=PoolPlan(hugetlb=HugetlbRoom(GIB, 7 * GIB, group)))
    assert (found.can_use_bytes, found.bound) == (4 * GIB, "room under the cgroup limit on hugetlb")
    assert {term.name: term.reason for term in found.terms}[found.bound] == "cgroup /pod (hugetlb.1GB.max)"
    unread = budget_of(memory(), taken_bytes=0, plan=PoolPlan(hugetlb=HugetlbRoom(GIB, 7 * GIB, unread="odd")))
    assert {term.name: term.reason for term in unread.terms}["room under the cgroup limit on hugetlb"] == "odd"


def test_file_cache_that_goes_first_is_room_under_the_limit_and_the_group_is_named() -> None:
    """A pod that has read its weights."""
    base = memory(total=1024, available=1000, limit=512, current=511)
    cgroup = replace(
        base.cgroup,
        memory_max_bytes=known(512 * GIB, "/sys/fs/cgroup/pod/memory.high"),
        memory_file_cache_bytes=known(480 * GIB, "made up"),
        memory_limited_by=known("/pod", "made up"),
    )
    found = budget_of(replace(base, cgroup=cgroup), taken_bytes=0, margin_bytes=0)
    assert (found.can_use_bytes, found.bound) == (481 * GIB, "room under the cgroup limit")
    assert {term.name: term.reason for term in found.terms}[found.bound] == "/pod (memory.high)"
