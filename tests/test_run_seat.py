"""Where the device of a run sits, on made-up hosts, and what a placement then means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import write_shape

from hicachectl.config_memory import HostMemoryConfig
from hicachectl.errors import UsageError
from hicachectl.run_memory import mapping_spec, parse_weights
from hicachectl.run_seat import Seat, seat_in
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot


def machine_of(shape: str, folder: Path) -> Machine:
    write_shape(shape, folder / "root")
    return read_machine(HostRoot(folder / "root"))


def seat(machine: Machine, device: str, address: str | None, cpus: set[int] = frozenset()) -> Seat:  # type: ignore[assignment]
    return seat_in(machine, device, address, cpus=lambda: set(cpus))


def test_an_accelerator_sits_on_its_node_in_its_socket_and_counts_by_address(tmp_path: Path) -> None:
    machine = machine_of("8n8x-4up16", tmp_path)
    found = seat(machine, "cuda:0", "0000:63:00.0")
    assert (found.own_node, found.index, found.reason) == (5, 4, None)
    assert found.socket_nodes == (4, 5, 6, 7)
    assert found.memory_nodes == tuple(range(8))


def test_the_processor_sits_where_this_process_may_run_when_that_is_one_node(tmp_path: Path) -> None:
    machine = machine_of("8n8x-4up16", tmp_path)
    assert seat(machine, "cpu", None, {9, 10}).own_node == 1
    spread = seat(machine, "cpu", None, {1, 9})
    assert spread.own_node is None
    assert "nodes [0, 1]" in str(spread.reason)
    assert spread.socket_nodes == ()


def test_a_device_that_tells_no_address_or_an_unknown_one_has_no_node_and_says_why(tmp_path: Path) -> None:
    machine = machine_of("2n8x", tmp_path)
    assert "does not tell its PCI address" in str(seat(machine, "xpu:1", None).reason)
    lost = seat(machine, "cuda:3", "0000:ff:00.0")
    assert (lost.own_node, lost.index) == (None, 3)
    assert "not in the list" in str(lost.reason)


SEAT = Seat(own_node=1, index=2, socket_nodes=(0, 1), memory_nodes=(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("mode", "nodes"),
    [
        ("local", (1,)),
        ("one-to-one", (2,)),
        ("socket", (0, 1)),
        ("interleave", (0, 1, 2, 3)),
        ("weighted", (0, 1, 2, 3)),
    ],
)
def test_each_mode_means_its_nodes(mode: str, nodes: tuple[int, ...]) -> None:
    spec = mapping_spec(HostMemoryConfig(placement=mode), "cuda:0", seat_of=lambda device: SEAT)  # type: ignore[arg-type]
    assert spec.placed == Placed(PlacementMode(mode), nodes)


def test_without_a_placement_the_host_is_not_looked_at() -> None:
    def nobody(device: str) -> Seat:
        raise AssertionError

    assert mapping_spec(HostMemoryConfig(), "cpu", seat_of=nobody).placed is None


def test_a_placement_that_means_nothing_here_is_refused_with_the_reason_of_the_seat() -> None:
    unknown = Seat(None, 0, (), (0, 1), "cuda:0 does not tell its PCI address")
    for mode in ("local", "socket"):
        with pytest.raises(UsageError, match="placement") as caught:
            mapping_spec(HostMemoryConfig(placement=mode), "cuda:0", seat_of=lambda device: unknown)  # type: ignore[arg-type]
        assert "does not tell its PCI address" in str(caught.value.why)
        assert "--host-memory-placement" in str(caught.value.where)


def test_weights_come_from_the_flag_before_the_plan_and_name_nodes_of_the_pool() -> None:
    def spec(weights: str | None, tuned: str | None) -> Placed | None:
        config = HostMemoryConfig(placement="weighted", weights=weights)
        return mapping_spec(config, "cpu", tuned_weights=tuned, seat_of=lambda device: SEAT).placed

    placed = spec("1=1,0=3", "0=9")
    assert placed is not None
    assert placed.weights == ((0, 3), (1, 1))
    assert str(placed) == "weighted on nodes 0, 1, 2, 3 with weights 0=3,1=1"
    tuned = spec(None, "0=9,7=2")
    assert tuned is not None
    assert tuned.weights == ((0, 9),)
    assert spec(None, "auto") == spec(None, None) == Placed(PlacementMode.WEIGHTED, (0, 1, 2, 3))
    with pytest.raises(UsageError, match=r"nodes \[7\]"):
        spec("7=2", None)
    assert parse_weights("memory") == ()


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (HostMemoryConfig(path="/dev/shm/x"), "path"),
        (HostMemoryConfig(kind="memfd", path="/dev/shm/x"), "path"),
        (HostMemoryConfig(hugetlb_bytes=2 << 20), "hugetlb_bytes"),
        (HostMemoryConfig(weights="0=1", placement="interleave"), "weights"),
        (HostMemoryConfig(weights="0=1"), "weights"),
    ],
)
def test_a_value_that_its_kind_or_placement_does_not_use_is_refused_not_dropped(
    config: HostMemoryConfig, key: str
) -> None:
    with pytest.raises(UsageError, match=f"host_memory.{key} ") as caught:
        mapping_spec(config, "cpu", seat_of=lambda device: SEAT)
    assert caught.value.where == f"run.host_memory.{key}"


def test_a_tmpfs_path_is_a_folder_for_a_nameless_file_or_the_file_to_make() -> None:
    def spec(path: str | None) -> tuple[str | None, bool]:
        made = mapping_spec(HostMemoryConfig(kind="tmpfs", path=path), "cpu")
        return made.path, made.named

    assert spec(None) == ("/dev/shm", False)
    assert spec("/dev/shm") == ("/dev/shm", False)
    assert spec("/dev/shm/pool") == ("/dev/shm/pool", True)


def test_every_setting_reaches_what_is_asked_of_the_mapping() -> None:
    config = HostMemoryConfig(
        kind="hugetlb",
        hugetlb_bytes=1 << 30,
        huge_pages=False,
        threads=3,
        chunk_bytes=1 << 30,
        must_register=True,
    )
    spec = mapping_spec(config, "cpu")
    assert spec.kind is Kind.HUGETLB
    assert (spec.hugetlb_bytes, spec.huge, spec.n_threads) == (1 << 30, False, 3)
    assert (spec.largest_registration_bytes, spec.must_register) == (1 << 30, True)
