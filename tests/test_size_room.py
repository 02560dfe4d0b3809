from __future__ import annotations

from typing import Any

import pytest

from hicachectl.run_seat import Seat
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.memory.budget import HugetlbRoom
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.size_room import pool_plan
from hicachectl.tuning.sizing.budget import PoolPlan

GIB = 1 << 30
FREE = {0: 40 * GIB, 1: 24 * GIB, 2: 60 * GIB}
GQA, MLA = preset("qwen3-8b", 64), preset("mla-78", 64)


class Calls:
    """Weights of two nodes, and a mount with 3 GiB left."""

    def read(self, path: str) -> str:
        return {"node0": "3", "node1": "1"}[path.rpartition("/")[2]]

    def free_bytes(self, at: str | int) -> int | None:
        assert at == "/dev/shm"
        return 3 * GIB


def plan(spec: MappingSpec = MappingSpec(), device: str = "cpu", **changed: Any) -> PoolPlan:  # noqa: B008 - frozen
    given = {
        "geometry": GQA, "ranks": 1, "shared": False, "calls": Calls(), "free_on_nodes": lambda: FREE,
        "seat_of": lambda _: Seat(1, 1, (0, 1), (0, 1, 2)), **changed,
    }  # fmt: skip
    return pool_plan(spec, given.pop("geometry"), device, **given)


def placed(mode: PlacementMode, *nodes: int) -> MappingSpec:
    return MappingSpec(placed=Placed(mode, nodes))


def test_ranks_that_hold_the_same_bytes_are_copies() -> None:
    assert plan(geometry=MLA, ranks=8).copies == 8
    assert plan(geometry=MLA, ranks=8, shared=True).copies == 1
    few_heads = preset("qwen3-235b-a22b", 64)
    assert [plan(geometry=few_heads, ranks=ranks).copies for ranks in (1, 4, 8)] == [1, 1, 2]


def test_without_a_placement_no_node_binds() -> None:
    assert plan() == PoolPlan()


@pytest.mark.parametrize(
    ("spec", "ranks", "host_gib", "trial_gib"),
    [
        (placed(PlacementMode.LOCAL, 1), 1, 24, 24),
        (placed(PlacementMode.ONE_TO_ONE, 1), 1, 24, 24),
        (placed(PlacementMode.ONE_TO_ONE, 2), 2, 80, 60),  # nodes 2 and 0: twice the smaller
        (placed(PlacementMode.ONE_TO_ONE, 1), 3, 72, 24),
        (placed(PlacementMode.ONE_TO_ONE, 1), 5, 60, 24),  # two pools on node 0 and 1 each: 12 GiB a rank
        (placed(PlacementMode.INTERLEAVE, 0, 1, 2), 8, 72, 72),
        (placed(PlacementMode.WEIGHTED, 0, 1), 1, 53, 53),  # 3 : 1, node 0 is full first
    ],
)
def test_the_nodes_of_a_placement_bind(spec: MappingSpec, ranks: int, host_gib: int, trial_gib: int) -> None:
    nodes = plan(spec, ranks=ranks).nodes
    assert nodes is not None
    assert ((nodes.host_bytes or 0) // GIB, (nodes.trial_bytes or 0) // GIB) == (host_gib, trial_gib)


def test_only_a_latent_that_every_rank_holds_for_itself_is_there_several_times() -> None:
    assert plan(ranks=8).copies == 1
    assert plan(geometry=MLA, ranks=8).copies == 8
    assert plan(geometry=MLA, ranks=8, shared=True).copies == 1


def test_a_file_is_bound_by_its_mount_with_or_without_a_name() -> None:
    folder = MappingSpec(kind=Kind.TMPFS, path="/dev/shm")
    named = MappingSpec(kind=Kind.TMPFS, path="/dev/shm/pool", named=True)
    assert [plan(spec).mount_free_bytes for spec in (folder, named)] == [3 * GIB, 3 * GIB]


def test_a_pool_of_reserved_pages_is_bound_by_those_of_its_size() -> None:
    rooms = {None: HugetlbRoom(2 << 20, 7 * GIB), GIB: HugetlbRoom(GIB, 600 * GIB)}
    for size, room in rooms.items():
        spec = MappingSpec(kind=Kind.HUGETLB, hugetlb_bytes=size)
        assert plan(spec, reserved=rooms.__getitem__).hugetlb == room
    assert plan(reserved=rooms.__getitem__).hugetlb is None


def test_a_mount_without_a_limit_does_not_bind() -> None:
    class Unlimited(Calls):
        def free_bytes(self, at: str | int) -> None:
            return None

    folder = MappingSpec(kind=Kind.TMPFS, path="/dev/shm")
    assert plan(folder, calls=Unlimited()).mount_free_bytes is None


def test_why_locked_memory_does_not_bind_is_said_of_the_device() -> None:
    assert plan().lock_reason == "nothing is registered"
    assert plan(device="cuda").lock_reason == "registering with cuda is not bound by it"
