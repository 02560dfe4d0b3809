from __future__ import annotations

import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode, nodes_of_mode, policy_number

NODES = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("mode", "nodes", "policy"),
    [
        ("local", (2,), 2),
        ("one-to-one", (1,), 2),
        ("socket", (2, 3), 3),
        ("interleave", NODES, 3),
        ("weighted", NODES, 6),
    ],
)
def test_each_mode_means_its_nodes_and_its_policy(mode: str, nodes: tuple[int, ...], policy: int) -> None:
    found = nodes_of_mode(PlacementMode.parse(mode), own_node=2, index=1, socket_nodes=(3, 2), memory_nodes=NODES)
    assert found == Placed(PlacementMode.parse(mode), nodes)
    assert policy_number(found.mode) == policy


@pytest.mark.parametrize(
    ("mode", "own", "index", "socket", "named"),
    [
        (PlacementMode.LOCAL, None, 0, NODES, "not known"),
        (PlacementMode.LOCAL, 7, 0, NODES, r"\[7\]"),
        (PlacementMode.ONE_TO_ONE, 0, 4, NODES, "accelerator 4 of a host with 4"),
        (PlacementMode.SOCKET, 0, 0, (), r"\[\]"),
        (PlacementMode.SOCKET, 0, 0, (3, 4), r"\[3, 4\]"),
    ],
)
def test_a_mode_that_needs_what_is_not_there_is_refused_not_guessed(
    mode: PlacementMode, own: int | None, index: int, socket: tuple[int, ...], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        nodes_of_mode(mode, own_node=own, index=index, socket_nodes=socket, memory_nodes=NODES)


def test_a_wrong_name_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        PlacementMode.parse("interleaved")
    assert caught.value.hint is not None
    assert "did you mean interleave?" in caught.value.hint
