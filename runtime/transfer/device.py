"""Streams and events of a device, by its torch type: the one place that knows what "after" means there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from hicachectl.errors import CapacityError, Unsupported, Vanished
from hicachectl.runtime.transfer.streams import CurrentStream, StreamModule, new_event, new_stream, wait_for_device

__all__ = [
    "AcceleratorOrder",
    "CpuOrder",
    "DeviceOrder",
    "DevicePick",
    "Point",
    "WholeDeviceOrder",
    "device_error",
    "device_order",
    "device_type",
    "first_line",
    "no_streams",
    "pick_device",
    "usable_accelerators",
]

# A wait of less than this spins: a sleeping thread wakes up some tens of microseconds late.
_SPIN_S = 1e-3


class Point(Protocol):
    """A point in a submission thread's work on the device."""

    def reached(self) -> bool:
        """Say whether everything before the point is done."""
        ...

    def wait(self, expected_s: float) -> None:
        """Return when everything before the point is done; `expected_s` decides whether to spin or to sleep meanwhile."""
        ...

    def order(self) -> None:
        """Make the calling thread's current stream wait for the point. Returns at once."""
        ...


class DeviceOrder(Protocol):
    """Orders the copies of a submission thread after the caller's work, and tells when they are done."""

    def mark(self) -> object:
        """Note, on the caller's thread, what the caller has submitted so far. Returns at once."""
        ...

    def thread(self) -> AbstractContextManager[None]:
        """Make this thread a submission thread: its work goes to the order's own stream."""
        ...

    def after(self, mark: object) -> AbstractContextManager[None]:
        """Run a block after the caller's mark; when it ends, whatever it started is done."""
        ...

    def drop(self, mark: object) -> None:
        """Take back a mark after which nothing will run."""
        ...

    def point(self, stream: Any = None) -> Point:
        """Return the point behind what was submitted so far, to the order's own stream or to `stream`."""
        ...


class _Past:
    """A point that is always reached."""

    def reached(self) -> bool:
        return True

    def wait(self, expected_s: float) -> None:
        pass

    def order(self) -> None:
        pass


class CpuOrder:
    """The processor: what the caller did is done, and a copy is done when its call returns."""

    def mark(self) -> object:
        return None

    @contextmanager
    def thread(self) -> Iterator[None]:
        yield

    @contextmanager
    def after(self, mark: object) -> Iterator[None]:
        yield

    def drop(self, mark: object) -> None:
        pass

    def point(self, stream: Any = None) -> Point:
        return _PAST


_PAST = _Past()


class AcceleratorOrder:
    """A device with streams and events in torch's own interface (cuda, xpu, or a vendor's module).

    `module` is torch's module of the device. Marks and points are events used again and again: one that is recorded anew
    makes a late reader wait longer, never too short. The stream has the priority of compute unless `ahead`: a kernel that
    goes ahead of compute delays it.
    """

    def __init__(self, device: torch.device, module: StreamModule | None = None, *, ahead: bool = False) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device) if module is None else module
        self._stream: Any = new_stream(self._module, device, ahead=ahead)
        self._current = CurrentStream(self._module, device)
        self._marks: deque[Any] = deque()
        self._points: deque[_EventPoint] = deque()
        self._n_points = 0

    def mark(self) -> object:
        event = self._marks.popleft() if self._marks else new_event(self._module)
        event.record(self._current())
        return event

    @contextmanager
    def thread(self) -> Iterator[None]:
        with self._module.stream(self._stream):
            for _ in range(_POINTS_AT_FIRST):  # an event is made when it is first recorded: not during a transfer
                self._points.append(_EventPoint(self._module, self._device))
                self._points[-1].record(self._stream)
            self._stream.synchronize()
            yield

    def after(self, mark: object) -> AbstractContextManager[None]:
        self._stream.wait_event(mark)
        self._n_points = 0
        return _Until(self._stream, lambda: self.drop(mark))

    def drop(self, mark: object) -> None:
        self._marks.append(mark)

    def point(self, stream: Any = None) -> Point:
        used = self._n_points < len(self._points)  # none twice in a transfer
        point = self._points.popleft() if used else _EventPoint(self._module, self._device)
        self._n_points += 1
        self._points.append(point)
        point.record(self._stream if stream is None else stream)
        return point


class _Until(AbstractContextManager[None]):
    """A block at whose end nothing that it started on a stream moves any more, also when it failed: slots are given back then."""

    __slots__ = ("_over", "_stream")

    def __init__(self, stream: Any, over: Callable[[], None]) -> None:
        self._stream, self._over = stream, over

    def __exit__(self, *error: object) -> None:
        self._stream.synchronize()
        self._over()


# Enough for the layer groups of some transfers; one with more groups makes more.
_POINTS_AT_FIRST = 32


class _EventPoint:
    """Two events at one point: one to spin on, one to sleep on."""

    def __init__(self, module: StreamModule, device: torch.device) -> None:
        self._module, self._device = module, device
        self._event, self._sleeping = new_event(module), new_event(module, sleeping=True)

    def record(self, stream: Any) -> None:
        self._event.record(stream)
        self._sleeping.record(stream)

    def reached(self) -> bool:
        return bool(self._event.query())

    def wait(self, expected_s: float) -> None:
        (self._event if expected_s < _SPIN_S else self._sleeping).synchronize()

    def order(self) -> None:
        self._module.current_stream(self._device).wait_event(self._event)


class WholeDeviceOrder:
    """A device whose torch module has no streams or events: everything on it is waited for, before and after."""

    def __init__(self, synchronize: Callable[[], object]) -> None:
        self._synchronize = synchronize

    def mark(self) -> object:
        return None

    @contextmanager
    def thread(self) -> Iterator[None]:
        yield

    @contextmanager
    def after(self, mark: object) -> Iterator[None]:
        self._synchronize()
        try:
            yield
        finally:
            self._synchronize()

    def drop(self, mark: object) -> None:
        pass

    def point(self, stream: Any = None) -> Point:
        self._synchronize()
        return _PAST


def device_order(device: torch.device, module: Any = None) -> DeviceOrder:
    """Return a new order for one submission thread on `device`; on an accelerator it owns a stream.

    `module` is torch's module of the device. Raises Unsupported when it can neither order work nor wait for it.
    """
    if device.type == "cpu" and module is None:
        return CpuOrder()
    module = _module(device) if module is None else module
    if no_streams(module) is None:
        return AcceleratorOrder(device, module)
    if not hasattr(module, "synchronize"):
        raise Unsupported(
            f"transfers cannot be ordered on {device}",
            why=f"{no_streams(module)}, and nothing to wait for the device with",
            hint="use device cpu",
        )
    return WholeDeviceOrder(partial(wait_for_device, module, device))


def no_streams(module: Any) -> str | None:
    """Say what the torch module of a device lacks to order copies by streams, or None. Pure."""
    missing = [name for name in ("Stream", "Event", "current_stream", "stream") if not hasattr(module, name)]
    return f"torch's module of the device has no {', '.join(missing)}" if missing else None


def device_error(error: Exception) -> Exception:
    """Return what went wrong on the device as an error that says what to do; other errors as they are. Pure.

    torch raises AcceleratorError (before 2.8 a RuntimeError) with "CUDA error" for what the device reports afterwards.
    """
    first = first_line(error)
    if isinstance(error, torch.OutOfMemoryError):
        return CapacityError(
            "no room on the device for a transfer", terms=(), why=first, hint="give fewer device slots"
        )
    of_device = getattr(torch, "AcceleratorError", ())
    if isinstance(error, of_device) or (isinstance(error, RuntimeError) and "CUDA error" in first):
        hint = "the device is of no more use to this process: look at dmesg, then start it again"
        return Vanished("the device failed during a transfer", why=first, hint=hint)
    return error


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its type where it says nothing. Pure.

    >>> first_line(RuntimeError("one\\ntwo")), first_line(RuntimeError())
    ('one', 'RuntimeError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True, slots=True)
class DevicePick:
    """A device by its torch name, and why it is this one."""

    name: str
    reason: str

    @property
    def type(self) -> str:
        """The torch type: cpu, cuda, ..."""
        return device_type(self.name)


def device_type(name: str) -> str:
    """Return the torch type of a device by its name. Pure.

    >>> device_type("cuda:1")
    'cuda'
    """
    return name.partition(":")[0]


def pick_device(wanted: str, accelerators: Callable[[], Sequence[str]] | None = None) -> DevicePick:
    """Return the device to run on: `wanted`, or for `auto` the first accelerator torch can use here, else the processor.

    `accelerators` lists the torch types that can be used. What is named and cannot be used is refused when its memory is
    taken (`DevicePool`), never replaced.

    >>> pick_device("auto", lambda: ["cuda"])
    DevicePick(name='cuda:0', reason='auto: torch can use cuda here')
    >>> pick_device("auto", lambda: []).name
    'cpu'
    """
    if wanted != "auto":
        return DevicePick(wanted, "asked for")
    for kind in (accelerators or usable_accelerators)():
        return DevicePick(f"{kind}:0", f"auto: torch can use {kind} here")
    return DevicePick("cpu", "auto: torch has no accelerator it can use here")


def usable_accelerators() -> list[str]:
    """Return the types of the accelerators torch can use in this process, cuda first."""
    found = ["cuda"] if torch.cuda.is_available() else []
    other = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found + [other.type for other in (other,) if other is not None and other.type not in ("cuda", "cpu")]


def _module(device: torch.device) -> Any:
    try:
        return torch.get_device_module(device)
    except RuntimeError as error:
        raise Unsupported(
            f"torch has no module for {device}",
            why=first_line(error),
            hint="import the vendor's torch package",
        ) from error
