"""Products beside transfers are timed and waited for on their own device, whichever is the thread's current one."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hicachectl.runtime.probes.copy_rig import synchronize
from hicachectl.runtime.probes.products import Products
from hicachectl.runtime.transfer import cuda_backends
from hicachectl.runtime.transfer.backends import Direction, prepare_both
from hicachectl.runtime.transfer.load import ComputeLoad

META = torch.device("meta")


class Module:
    """Stands for torch's module of a device with several devices: remembers whose stream was asked for and recorded on."""

    Stream, stream = SimpleNamespace, object

    def __init__(self) -> None:
        self.recorded: list[object] = []
        self.waited: list[object] = []
        module = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                pass

            def record(self, stream: object = None) -> None:
                module.recorded.append(stream)

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: object) -> float:
                return 2000.0

        self.Event = Event

    def current_stream(self, device: object = None) -> object:
        return ("stream", device)

    def synchronize(self, device: object = None) -> None:
        self.waited.append(device)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return module


def test_compute_beside_transfers_is_timed_on_its_own_stream(module: Module) -> None:
    assert ComputeLoad(META, 8, 2).seconds() == 2.0
    assert module.recorded == [("stream", META)] * 2


def test_products_are_timed_on_their_own_stream(module: Module) -> None:
    assert Products(META, 8).in_a_row((1, 2), {}) == [2.0, 2.0]
    assert module.recorded == [("stream", META)] * 3


def test_without_streams_both_wait_for_their_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    bare = SimpleNamespace(synchronize=lambda device=None: waited.append(device))
    monkeypatch.setattr(torch, "get_device_module", lambda device: bare)
    assert ComputeLoad(META, 8, 1).seconds() > 0
    Products(META, 8).in_a_row((1,), {})
    assert waited == [META] * 3


def test_a_rig_waits_for_its_own_device(module: Module) -> None:
    synchronize(META)
    assert module.waited == [META]


def test_what_a_backend_takes_before_any_transfer_is_there_when_it_has_taken_it(module: Module) -> None:
    taken: list[object] = []
    backend: Any = SimpleNamespace(prepare=lambda direction, *rest: taken.append((direction, len(module.waited))))
    pool: Any = SimpleNamespace(device=META, geometry=SimpleNamespace(n_planes=2))
    prepare_both(backend, pool, pool)
    assert taken == [(Direction.LOAD, 0), (Direction.BACKUP, 0)]
    assert module.waited == [META]  # a transfer is on other streams than whoever took it


def test_the_batched_copy_is_tried_on_the_device_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    stream = SimpleNamespace(cuda_stream=1, synchronize=lambda: None)
    memory = torch.zeros(4, dtype=torch.uint8)
    monkeypatch.setattr(cuda_backends, "new_stream", lambda streams, device: asked.append(device) or stream)
    monkeypatch.setattr(cuda_backends, "_on_device", lambda n, device: asked.append(device) or memory)
    monkeypatch.setattr(cuda_backends, "_pinned", lambda n: memory)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.no_grad())
    device = torch.device("cuda", 3)
    cuda_backends._try_batch(SimpleNamespace(try_batch=lambda *given: None), device)  # type: ignore[arg-type]
    assert asked == [device, device]


def test_what_the_trial_of_a_batched_copy_moves_is_held_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def memory(n_bytes: int, device: object = None) -> torch.Tensor:
        tensor = torch.zeros(n_bytes, dtype=torch.uint8)
        made.append(weakref.ref(tensor))
        return tensor

    ends: list[list[bool]] = []
    stream = SimpleNamespace(
        cuda_stream=1, synchronize=lambda: ends.append([reference() is not None for reference in made])
    )
    monkeypatch.setattr(cuda_backends, "new_stream", lambda streams, device: stream)
    monkeypatch.setattr(cuda_backends, "_on_device", memory)
    monkeypatch.setattr(cuda_backends, "_pinned", memory)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.no_grad())
    cuda_backends._try_batch(SimpleNamespace(try_batch=lambda *given: None), META)  # type: ignore[arg-type]
    assert ends == [[True, True]]
