"""Flows of torch copies on a runtime made of host memory: what they copy, when a step ends, and devices that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_memory import MIB, FakeDriver
from fakes.cuda_runtime import FakeCuda

from hicachectl.errors import CapacityError, Unsupported, UsageError, Vanished
from hicachectl.runtime.memory.register import NoRegistrar
from hicachectl.runtime.probes.flows import run_together
from hicachectl.runtime.probes.link import run_link_probe
from hicachectl.runtime.probes.link_cases import link_cases
from hicachectl.runtime.probes.link_math import LinkTarget, Way
from hicachectl.runtime.transfer import link_rig
from hicachectl.runtime.transfer.accelerators import find_accelerators
from hicachectl.runtime.transfer.link_rig import TorchRig
from hicachectl.runtime.transfer.torch_flow import TorchFlow

KIB = 1 << 10


def flow(host: torch.Tensor, device: torch.Tensor, size: int, *, up: bool, cuda: Any = None, **how: Any) -> TorchFlow:
    return TorchFlow(host, device, size, up=up, module=cuda or FakeCuda(), **how)


def test_a_step_of_large_copies_is_one_copy_and_walks_over_the_host() -> None:
    host, device = (
        torch.arange(4, dtype=torch.uint8).repeat_interleave(32 * MIB),
        torch.zeros(32 * MIB, dtype=torch.uint8),
    )
    one = flow(host, device, 32 * MIB, up=True)
    assert one.step_bytes == 32 * MIB
    for expected in (0, 1, 2, 3, 0):
        one.submit()
        one.wait()
        assert (int(device[0]), int(device[-1])) == (expected, expected)


def test_a_step_of_small_copies_is_many_and_reaches_every_piece() -> None:
    host, device = torch.zeros(300 * 4 * KIB, dtype=torch.uint8), torch.full((4 * KIB,), 7, dtype=torch.uint8)
    one = flow(host, device, 4 * KIB, up=False)
    assert one.step_bytes == 256 * 4 * KIB
    one.submit()
    one.submit()
    one.drain()
    assert bool((host == 7).all())


def test_a_flow_runs_under_the_load_loop_and_leaves_nothing_under_way() -> None:
    cuda = FakeCuda()
    host, device = torch.zeros(4 * MIB, dtype=torch.uint8), torch.zeros(2, MIB, dtype=torch.uint8)
    both = [flow(host, device[0], MIB, up=True, cuda=cuda), flow(host, device[1], MIB, up=False, cuda=cuda)]
    rates = run_together(both, 0.01)
    assert all(rate.bytes_per_s > 0 for rate in rates)
    assert all(not one._under_way for one in both)


def test_a_step_that_does_not_end_is_a_device_that_does_not_answer() -> None:
    class Stuck:
        def query(self) -> bool:
            return False

        def record(self, stream: object) -> None: ...

    now = iter(range(1000))
    cuda = FakeCuda()
    cuda.Event = lambda blocking=False: Stuck()  # type: ignore[assignment,return-value]
    memory = torch.zeros(MIB, dtype=torch.uint8)
    one = flow(memory, memory.clone(), MIB, up=True, cuda=cuda, clock=lambda: float(next(now)), answer_s=3.0)
    one.submit()
    with pytest.raises(Vanished, match="has not ended after 3 s"):
        one.wait()
    with pytest.raises(Vanished):
        one.drain()
    one.drain()  # asked once: not again


def test_what_torch_says_of_a_lost_device_is_that_error() -> None:
    class Lost(FakeCuda):
        @contextmanager
        def stream(self, stream: Any) -> Iterator[None]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
            yield

    memory = torch.zeros(MIB, dtype=torch.uint8)
    with pytest.raises(Vanished, match="device failed"):
        flow(memory, memory.clone(), MIB, up=True, cuda=Lost()).submit()


def test_a_copy_larger_than_the_memory_and_a_device_without_streams_are_refused() -> None:
    memory = torch.zeros(MIB, dtype=torch.uint8)
    with pytest.raises(UsageError, match="copies of 2097152 bytes"):
        flow(memory, memory, 2 * MIB, up=True)
    with pytest.raises(Unsupported, match="side by side"):
        flow(memory, memory, MIB, up=True, cuda=SimpleNamespace())


# -- the rig ----------------------------------------------------------------------------------------------------------


def rig(driver: Any, cuda: FakeCuda | None = None, **how: Any) -> TorchRig:
    module = cuda or FakeCuda()
    return TorchRig(
        MIB, register_with=lambda kind, index: driver, module_of=lambda device: module, region_bytes=2 * MIB, **how
    )


def test_the_rig_registers_memory_once_a_device_and_node_and_gives_it_back() -> None:
    driver = FakeDriver()
    with closing(rig(driver)) as made:
        up, down = made.flow("cpu", None, MIB, up=True), made.flow("cpu", None, 64 * KIB, up=False)
        assert len(driver.registered) == 1
        assert made.memory("cpu", None).registered_bytes >= 4 * MIB
        run_together([up, down], 0.01)
        made.release()
        assert not driver.registered
        made.flow("cpu", None, MIB, up=True)
        assert len(driver.registered) == 1
    assert not driver.registered


def test_the_two_ways_use_memory_of_their_own() -> None:
    with closing(rig(NoRegistrar("nobody"))) as made:
        up, down = made.flow("cpu", None, MIB, up=True), made.flow("cpu", None, MIB, up=False)
        spans = [(at.data_ptr(), at.data_ptr() + at.numel()) for one in (up, down) for at in one._host_pieces]
        assert len(spans) == len({start for start, _ in spans}) == 4
        assert up._device_piece.data_ptr() != down._device_piece.data_ptr()


def test_a_device_without_room_is_a_capacity_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*sizes: int, **how: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    monkeypatch.setattr(torch, "zeros", refuse)
    with closing(rig(NoRegistrar("nobody"))) as made, pytest.raises(CapacityError) as caught:
        made.flow("cpu", None, MIB, up=True)
    assert "smaller --size" in (caught.value.hint or "")


def test_the_probe_runs_on_the_rig_and_gives_everything_back() -> None:
    driver, target = FakeDriver(), LinkTarget("cpu", "X0", "cpu", own_bytes_per_s=1e15)
    asked = link_cases([target], {"cpu": (None,)}, ways=tuple(Way), sizes=(64 * KIB, MIB))
    with closing(rig(driver)) as made:
        found = run_link_probe(asked, made, seconds=0.01, rounds=2)
    assert len(found.rows) == 6
    assert all(row.bytes_per_s and len(row.samples) == 2 for row in found.rows)
    assert [one.registered_with for one in found.memory] == [driver.name]
    assert not driver.registered


def test_memory_of_a_device_that_was_lost_in_a_copy_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(link_rig, "_KEPT", kept)
    driver = FakeDriver()
    made = rig(driver)
    one = made.flow("cpu", None, MIB, up=False)
    one.lost = True
    made.close()
    assert len(kept) == 1
    assert driver.registered  # it may still write there
    made.close()
    assert len(kept) == 1
    for mapping in kept[0][0].values():
        mapping.close()


# -- which device is which --------------------------------------------------------------------------------------------


def module(*properties: Any) -> Any:
    return SimpleNamespace(device_count=lambda: len(properties), get_device_properties=lambda i: properties[i])


def test_addresses_come_from_torch_or_else_from_the_driver() -> None:
    known = SimpleNamespace(name="H200", pci_domain_id=0x10000, pci_bus_id=0xB7, pci_device_id=0)
    bare = SimpleNamespace(name="R300", pci_bus_id=1)
    found = find_accelerators(
        lambda: ["cuda"], lambda kind: module(known, bare), lambda kind, index: f"0000:b{index}:00.0"
    )
    assert [(one.name, one.address, one.model) for one in found] == [
        ("cuda:0", "10000:b7:00.0", "H200"),
        ("cuda:1", "0000:b1:00.0", "R300"),
    ]


def test_a_device_whose_address_nobody_tells_stays_with_the_reason() -> None:
    (one,) = find_accelerators(
        lambda: ["xpu"], lambda kind: module(SimpleNamespace(name="x")), lambda kind, index: None
    )
    assert one.address is None
    assert "xpu:0" in (one.reason or "")
    assert find_accelerators(list) == ()


def test_no_thread_is_left_behind() -> None:
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hicache-flow")]
