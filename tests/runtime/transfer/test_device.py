from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.cuda_runtime import FakeCuda

from hicachectl.errors import Unsupported
from hicachectl.runtime.transfer import torch_index
from hicachectl.runtime.transfer.device import (
    AcceleratorOrder,
    CpuOrder,
    WholeDeviceOrder,
    device_order,
    no_streams,
    pick_device,
)
from hicachectl.runtime.transfer.streams import CurrentStream

CPU = torch.device("cpu")


def test_the_processor_needs_no_stream_and_runs_the_block_at_once() -> None:
    order = device_order(CPU)
    assert isinstance(order, CpuOrder)
    ran = []
    with order.thread(), order.after(order.mark()):
        ran.append(True)
        assert order.point().reached()
    assert ran == [True]


def test_a_device_with_streams_and_events_is_ordered_by_them() -> None:
    cuda = FakeCuda()
    order = device_order(CPU, cuda)
    assert isinstance(order, AcceleratorOrder)
    done: list[str] = []
    cuda.enqueue(cuda.current_stream(), lambda: done.append("caller"))
    mark = order.mark()
    with order.thread(), order.after(mark):
        cuda.enqueue(cuda.current_stream(), lambda: done.append("copy"))
        point = order.point()
    assert done == ["caller", "copy"]
    assert point.reached()


def test_a_device_without_streams_is_waited_for_as_a_whole() -> None:
    waits: list[str] = []
    module = SimpleNamespace(synchronize=lambda: waits.append("device"), Stream=object)
    assert "Event, current_stream, stream" in (no_streams(module) or "")
    order = device_order(CPU, module)
    assert isinstance(order, WholeDeviceOrder)
    with order.thread(), order.after(order.mark()):
        waits.append("copy")
        assert order.point().reached()
    assert waits == ["device", "copy", "device", "device"]


def test_it_is_that_device_that_is_waited_for() -> None:
    waits: list[object] = []
    device = torch.device("cuda", 1)
    order = device_order(device, SimpleNamespace(synchronize=lambda device=None: waits.append(device)))
    with order.thread(), order.after(order.mark()):
        order.point()
    assert waits == [device] * 3


def test_the_torch_backend_waits_for_a_device_without_streams_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = []
    module = SimpleNamespace(synchronize=lambda device=None: waits.append(device))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    on = torch.empty(1, device="meta")
    torch_index._finish(on)
    assert waits == [on.device]


def test_a_device_that_cannot_be_waited_for_is_refused() -> None:
    with pytest.raises(Unsupported, match="cannot be ordered"):
        device_order(CPU, SimpleNamespace())
    with pytest.raises(Unsupported, match="no module for meta"):
        device_order(torch.device("meta"))


def test_the_device_is_picked_by_name_or_as_the_first_accelerator_there_is() -> None:
    assert pick_device("auto", lambda: ["cuda", "xpu"]).name == "cuda:0"
    assert pick_device("auto", lambda: ["privateuseone"]).type == "privateuseone"
    alone = pick_device("auto", list)
    assert (alone.name, alone.reason) == ("cpu", "auto: torch has no accelerator it can use here")
    assert pick_device("cuda:3", list).name == "cuda:3"


def test_the_current_stream_is_the_threads_own_and_its_object_is_made_once() -> None:
    cuda = FakeCuda(0)
    asked = []

    class Module:
        Stream, Event, stream = cuda.Stream, cuda.Event, cuda.stream

        def current_stream(self, device: Any = None) -> Any:
            asked.append(device)
            return cuda.current_stream()

    device = torch.device("cuda", 3)
    handles: list[int] = []

    def handle_of(index: int) -> int:
        handles.append(index)
        return int(cuda.current_stream().cuda_stream)

    current, slow = CurrentStream(Module(), device, handle_of), CurrentStream(Module(), device)
    one, other = cuda.Stream(), cuda.Stream()
    for stream in (one, other, one, other):
        with cuda.stream(stream):
            assert current() is stream
    assert (asked, handles) == ([device] * 2, [3] * 4)
    with cuda.stream(one):
        assert slow() is slow() is one
    assert asked == [device] * 4
