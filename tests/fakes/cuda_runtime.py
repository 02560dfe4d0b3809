"""A CUDA runtime on host memory: bytes really move, but only when somebody waits, and in any order streams and events allow.

`FakeCuda.library` has the runtime's functions as a `ctypes.CDLL` would (plain integers in, an error code out); `FakeCuda`
itself stands for `torch.cuda` (Stream, Event, current_stream, stream). A copy that lacks a wait sooner or later reads
what is not there yet: the seed decides when.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from hicachectl.runtime.transfer import triton_kernels
from hicachectl.runtime.transfer.movers import Mover, TorchMover, TritonMover

__all__ = ["FakeCuda", "LaunchOnProcessor", "QueuedMover"]

NO_MEMORY, LOST, UNKNOWN_CALL = 2, 719, 801


class _Token:
    """One recording of an event."""

    done = False


class FakeCuda:
    """`version` is that of the runtime (12080 has `failIdx`, 13000 has not), `driver_batch` whether the driver can do batches.

    `fail[call]` is the error code the next calls of that name return. `calls` counts them, `pieces` what batches moved.
    """

    def __init__(self, seed: int = 0, *, version: int = 13000, driver_batch: bool = True) -> None:
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._streams: dict[int, Any] = {}
        self._local = threading.local()
        self.fail: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.pieces: list[int] = []
        self.started: list[tuple[str, int]] = []
        """Every copy call and its stream."""
        self.borders: list[int] = []
        """Addresses where registrations of host memory meet: a copy that spans one fails."""
        self.Stream = self._make_stream
        self.Event = self._make_event
        self._default = FakeStream(self, 0)
        self._streams[0] = self._default
        self.library = self._make_library(version, driver_batch)

    # -- torch.cuda

    def _make_stream(self, device: Any = None, priority: int = 0) -> FakeStream:
        with self._lock:
            stream = FakeStream(self, len(self._streams))
            self._streams[stream.cuda_stream] = stream
            return stream

    def _make_event(self, blocking: bool = False, enable_timing: bool = False) -> FakeEvent:
        return FakeEvent(self)

    def current_stream(self, device: Any = None) -> FakeStream:
        return getattr(self._local, "stream", self._default)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self._local.stream = stream
        try:
            yield
        finally:
            self._local.stream = before

    # -- the device

    def enqueue(self, stream: FakeStream, action: Callable[[], object]) -> None:
        with self._lock:
            stream.queue.append(action)

    def hold(self, stream: FakeStream) -> Callable[[], None]:
        """Keep what is enqueued on a stream from now on from being done until the function returned is called."""
        token = _Token()
        self.enqueue(stream, token)  # type: ignore[arg-type]

        def let_go() -> None:
            token.done = True

        return let_go

    def spans(self, *ranges: tuple[int, int]) -> bool:
        return any(start < border < end for start, end in ranges for border in self.borders)

    def run_until(self, reached: Callable[[], bool]) -> None:
        with self._lock:
            while not reached():
                assert self._one(), "the streams wait for one another"

    def drain(self) -> None:
        """Do all that is enqueued, as a device does whether anybody waits or not."""
        with self._lock:
            while self._one():
                pass

    def run_some(self) -> None:
        with self._lock:
            for _ in range(self._random.randrange(4)):
                self._one()

    def _one(self) -> bool:
        ready = [
            s
            for s in self._streams.values()
            if s.queue and not (isinstance(s.queue[0], _Token) and not s.queue[0].done)
        ]
        if not ready:
            return False
        action = self._random.choice(ready).queue.popleft()
        if not isinstance(action, _Token):
            action()
        return True

    # -- libcudart

    def _make_library(self, version: int, driver_batch: bool) -> SimpleNamespace:
        def called(name: str) -> int:
            self.calls[name] = self.calls.get(name, 0) + 1
            return self.fail.get(name, 0)

        def copy(to: int, fro: int, n: int, kind: int, stream: int) -> int:
            assert kind == 4
            if self.spans((to, to + n), (fro, fro + n)):
                return 1
            if not (code := called("cudaMemcpyAsync")):
                self.started.append(("copy", stream))
                self.enqueue(self._streams[stream], lambda: ctypes.memmove(to, fro, n))
            return code

        def copy_2d(
            to: int, to_pitch: int, fro: int, fro_pitch: int, width: int, height: int, kind: int, stream: int
        ) -> int:
            assert kind == 4
            if width > min(to_pitch, fro_pitch):
                return 12  # cudaErrorInvalidPitchValue
            if self.spans(
                *((at, at + (height - 1) * pitch + width) for at, pitch in ((to, to_pitch), (fro, fro_pitch)))
            ):
                return 1

            def move() -> None:
                for row in range(height):
                    ctypes.memmove(to + row * to_pitch, fro + row * fro_pitch, width)

            if not (code := called("cudaMemcpy2DAsync")):
                self.enqueue(self._streams[stream], move)
            return code

        def batch(
            to: int, fro: int, sizes: int, n: int, attributes: Any, first: Any, n_attributes: int, stream: int
        ) -> int:
            assert ctypes.cast(attributes, ctypes.POINTER(ctypes.c_int))[0] == 1
            assert (list(first), n_attributes) == ([0], 1)
            if stream == 0:
                return 1  # cudaErrorInvalidValue: not on the legacy stream
            if not driver_batch:
                return UNKNOWN_CALL
            if code := called("cudaMemcpyBatchAsync"):
                return code
            self.pieces.append(n)
            self.started.append(("batch", stream))
            lists = [list((ctypes.c_uint64 * n).from_address(at)) for at in (to, fro, sizes)]
            pieces = list(zip(*lists, strict=True))
            if any(self.spans((to, to + n), (fro, fro + n)) for to, fro, n in pieces):
                return 1
            self._random.shuffle(pieces)

            def move() -> None:
                for piece in pieces:
                    ctypes.memmove(*piece)

            self.enqueue(self._streams[stream], move)
            return 0

        def batch_12(
            to: int,
            fro: int,
            sizes: int,
            n: int,
            attributes: Any,
            first: Any,
            n_attributes: int,
            failed: Any,
            stream: int,
        ) -> int:
            assert failed is not None
            return batch(to, fro, sizes, n, attributes, first, n_attributes, stream)

        def number(value: int) -> Callable[[Any], int]:
            def get(found: Any) -> int:
                found._obj.value = value
                return 0

            return get

        library = SimpleNamespace(
            cudaMemcpyAsync=copy,
            cudaMemcpy2DAsync=copy_2d,
            cudaRuntimeGetVersion=number(version),
            cudaDriverGetVersion=number(version),
            cudaGetErrorString=lambda code: f"fake error {code}".encode(),
            cudaGetLastError=lambda: 0,
        )
        if version >= 12080:
            library.cudaMemcpyBatchAsync = batch if version >= 13000 else batch_12
        return library


class FakeStream:
    def __init__(self, cuda: FakeCuda, handle: int) -> None:
        self._cuda = cuda
        self.cuda_stream = handle
        self.queue: deque[Any] = deque()

    def wait_event(self, event: Any) -> None:
        if event.token is not None:
            self._cuda.enqueue(self, event.token)

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self._cuda)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._cuda.run_until(lambda: not self.queue)


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.token: Any = None

    def record(self, stream: FakeStream | None = None) -> None:
        token = self.token = _Token()

        def reach() -> None:
            token.done = True

        self._cuda.enqueue(stream if stream is not None else self._cuda.current_stream(), reach)

    def query(self) -> bool:
        self._cuda.run_some()
        return self.token is None or self.token.done

    def synchronize(self) -> None:
        token = self.token
        if token is not None:
            self._cuda.run_until(lambda: token.done)

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1.0


class QueuedMover:
    """A mover whose moves run in the order of the fake's current stream."""

    def __init__(self, cuda: FakeCuda, inner: Mover | None = None) -> None:
        self._cuda = cuda
        self._inner = inner if inner is not None else TorchMover()
        self.kind, self.reads_host, self.note = self._inner.kind, True, self._inner.note
        self.programs: set[int | None] = set()
        self.fail: Exception | None = None

    def move(self, source: Any, target: Any, **counts: Any) -> None:
        if self.fail is not None:
            raise self.fail
        self.programs.add(counts.get("programs"))
        stream = self._cuda.current_stream()
        self._cuda.started.append(("move", stream.cuda_stream))
        self._cuda.enqueue(stream, lambda: self._inner.move(source, target, **counts))


class _Block(np.ndarray[Any, Any]):
    """What the kernel computes with."""

    def to(self, dtype: Any) -> _Block:
        return self.astype(dtype)  # type: ignore[return-value]


class _Pointer:
    def __init__(self, memory: np.ndarray[Any, Any], at: Any = 0) -> None:
        self.memory, self.at = memory, at

    def __add__(self, more: Any) -> _Pointer:
        return _Pointer(self.memory, self.at + more)


class LaunchOnProcessor:
    """Stands for the compiled kernel: `launch[grid](...)` runs the kernel's own code, program by program, checking addresses."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        language = SimpleNamespace(int64=np.int64, num_programs=lambda axis: grid[axis])
        language.arange = lambda start, end: np.arange(start, end, dtype=np.int32).view(_Block)
        language.load, language.store = _load, _store
        code = FunctionType(triton_kernels.kernel.__code__, {"tl": language, "range": range})

        def run(*values: Any, num_warps: int, **constants: Any) -> None:
            assert num_warps in (4, 8)
            assert all(c & (c - 1) == 0 for c in (constants["ROWS"], constants["COLS"]))
            arguments = [_Pointer(v.numpy()) if isinstance(v, torch.Tensor) else v for v in values]
            for program in range(grid[0]):
                language.program_id = lambda axis, program=program: program
                code(*arguments, **constants)

        return run


def launched_on_processor() -> TritonMover:
    return TritonMover(LaunchOnProcessor())


def _load(pointer: _Pointer, mask: Any, other: int = 0) -> _Block:
    at, mask = np.broadcast_arrays(pointer.at, mask)
    assert ((at[mask] >= 0) & (at[mask] < pointer.memory.size)).all()
    found = np.full(at.shape, other, dtype=pointer.memory.dtype)
    found[mask] = pointer.memory[at[mask]]
    return found.view(_Block)


def _store(pointer: _Pointer, values: Any, mask: Any) -> None:
    at, values, mask = np.broadcast_arrays(pointer.at, values, mask)
    assert ((at[mask] >= 0) & (at[mask] < pointer.memory.size)).all()
    assert np.unique(at[mask]).size == at[mask].size
    pointer.memory[at[mask]] = values[mask]
