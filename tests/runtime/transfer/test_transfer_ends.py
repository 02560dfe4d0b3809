"""How a transfer ends: who sees its last byte, what a failure, a timeout or Ctrl-C at any moment leaves, and who goes first."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from fakes.cuda_runtime import FakeCuda

from hicachectl.errors import CapacityError, InvariantBroken, Vanished
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import Direction, Step, Submitted
from hicachectl.runtime.transfer.cpu import CpuBackend
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.device import AcceleratorOrder, CpuOrder, Point
from hicachectl.runtime.transfer.engine import EngineState, TransferEngine
from hicachectl.runtime.transfer.straight import BatchBackend
from hicachectl.runtime.transfer.transfer import DirectionCounters, Totals, Transfer

GEOMETRY = KVGeometry("g", KVKind.GQA, n_layers=2, token_plane_bytes=8, page_tokens=4)
LONG_S = 30.0  # a wait that only ends early
LAST_LAYER = GEOMETRY.n_layers - 1


def is_waited_for(transfer: Transfer) -> bool:
    condition = transfer._ended._condition
    return condition is not None and bool(condition._waiters)  # type: ignore[attr-defined]


def some(*values: int) -> Slots:
    return np.array(values, dtype=np.int32)


class Stepped(CpuBackend):
    """The cpu backend, a page a step; `before` is called before each."""

    def __init__(self, before: Callable[[Direction], None] = lambda _: None) -> None:
        super().__init__()
        self._before = before

    def begin(self, direction: Direction, *rest: Any) -> Any:
        device_pool, host_pool, device_slots, host_slots, _ = rest
        n, planes = int(device_slots.size), range(GEOMETRY.n_planes)
        copy, before = self.copy, self._before

        class Work:
            arrives_on = "the stream"

            def __init__(self) -> None:
                self.steps = [Step(planes, i, i + 1, GEOMETRY.n_layers if i == n - 1 else None) for i in range(n)]

            def copy(self, step: Step) -> Submitted:
                before(direction)
                part = slice(step.start, step.end)
                return copy(direction, device_pool, host_pool, device_slots[part], host_slots[part], step.planes)

            def seal(self) -> None:
                pass

            def close(self) -> None:
                pass

        return Work()


@dataclass
class Scripted(CpuOrder):
    """An order whose points are never passed in time: `reached` says what a looker sees, `wait` holds who waits for one."""

    reached: Callable[[], bool] = lambda: False
    hold: Callable[[], object] = lambda: None
    begin: Callable[[], object] = lambda: None
    over: Callable[[], object] = lambda: None
    waits: list[tuple[object, float]] = field(default_factory=list)

    @contextmanager
    def thread(self) -> Iterator[None]:
        self.begin()
        yield

    @contextmanager
    def after(self, mark: object) -> Iterator[None]:
        yield
        self.over()

    def point(self, stream: Any = None) -> Point:
        order = self

        class Scripted:
            def reached(self) -> bool:
                # What the submission thread sees between its steps is not the question here.
                return threading.current_thread().name != "hicache-load" and order.reached()

            def wait(self, expected_s: float) -> None:
                order.waits.append((stream, expected_s))
                if stream is None:
                    order.hold()

            def order(self) -> None:
                pass

        return Scripted()


@contextmanager
def engine_of(
    order: Callable[[], CpuOrder], backend: CpuBackend | None = None, **more: Any
) -> Iterator[TransferEngine]:
    device, host = DevicePool(GEOMETRY, 8), HostPool(GEOMETRY, 8, Layout.PAGE_FIRST_DIRECT)
    engine = TransferEngine(device, host, backend or Stepped(), orders=lambda _: order(), **more)
    try:
        yield engine
    finally:
        engine.close()


class Gate:
    """What holds a submission thread that waits for a point, until it is opened."""

    def __init__(self) -> None:
        self.asleep, self.opened = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.asleep.set()
        assert self.opened.wait(LONG_S)


def test_who_waits_sees_the_last_byte_and_ends_the_transfer_itself() -> None:
    gate, threads = Gate(), []

    def clock() -> float:
        threads.append(threading.current_thread().name)
        return time.perf_counter()

    with engine_of(lambda: Scripted(lambda: True, gate.hold), clock=clock) as engine:
        load = engine.load(some(1, 2), some(3, 4))
        assert gate.asleep.wait(LONG_S)
        threads.clear()
        assert load.wait(LONG_S)
        assert load.ok
        assert threads == ["MainThread"]
        assert load.wait_layer(LAST_LAYER, 0)
        assert engine.counters(Direction.LOAD).n_bytes == load.n_bytes == 2 * GEOMETRY.page_bytes
        gate.opened.set()
    assert engine.counters(Direction.LOAD).transfers == 1


def test_the_last_step_alone_is_looked_at_behind_the_point_before_it() -> None:
    order = Scripted()
    with engine_of(lambda: order) as engine:
        assert engine.load(some(1, 2, 3), some(3, 4, 5)).wait(LONG_S)
    two_pages_s = 2 * GEOMETRY.page_bytes / 5e10
    assert order.waits[0] == ("the stream", two_pages_s)
    assert [stream for stream, _ in order.waits] == ["the stream", None]


@pytest.mark.parametrize("timeout_s", [0.0, 0.001, 0.05])
def test_a_wait_keeps_its_timeout_also_when_the_last_step_is_under_way(timeout_s: float) -> None:
    gate = Gate()
    with engine_of(lambda: Scripted(hold=gate.hold)) as engine:
        load = engine.load(some(1), some(1))
        assert gate.asleep.wait(LONG_S)
        assert not load.wait(timeout_s)
        assert not load.done
        gate.opened.set()
        assert load.wait(LONG_S)
        assert load.ok


def test_a_last_step_that_takes_longer_is_left_to_the_submission_thread() -> None:
    gate, looked, opened = Gate(), [], threading.Event()

    def reached() -> bool:
        looked.append(gate.opened.is_set())
        return False

    with engine_of(lambda: Scripted(reached, gate.hold)) as engine:
        load = engine.load(some(1), some(1))
        assert gate.asleep.wait(LONG_S)
        waiter = threading.Thread(target=lambda: load.wait(LONG_S) and opened.set())
        waiter.start()
        while not is_waited_for(load):
            time.sleep(0.001)
        gate.opened.set()
        waiter.join(LONG_S)
    assert opened.is_set()
    assert looked
    assert not any(looked)


def test_two_that_see_the_end_at_once_count_it_once() -> None:
    gate, contested = Gate(), threading.Event()

    class Told:
        """A lock that tells when someone has to wait for it."""

        def __init__(self) -> None:
            self._inner = threading.Lock()

        def __enter__(self) -> None:
            if not self._inner.acquire(blocking=False):
                contested.set()
                self._inner.acquire()

        def __exit__(self, *error: object) -> None:
            self._inner.release()

    def clock() -> float:
        if gate.asleep.is_set() and threading.current_thread() is threading.main_thread():
            gate.opened.set()
            assert contested.wait(LONG_S)
        return time.perf_counter()

    with engine_of(lambda: Scripted(lambda: True, gate.hold), clock=clock) as engine:
        load = engine.load(some(1), some(1))
        load._finishing = Told()  # type: ignore[assignment]
        assert gate.asleep.wait(LONG_S)
        assert load.wait(LONG_S)
        assert load.n_bytes == GEOMETRY.page_bytes
    assert engine.counters(Direction.LOAD).transfers == 1


# An interrupt that lands in a finalizer of something collected meanwhile is dropped by Python, which warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_wait_that_is_interrupted_anywhere_leaves_an_end_that_the_submission_thread_completes() -> None:
    reached: list[int] = []
    for nth in count():
        gate, places = Gate(), count()
        files = {"engine.py", "progress.py", "transfer.py"}

        # Python looks for signals where functions begin and behind calls.
        def interrupt(frame: Any, event: str, _: Any, nth: int = nth, places: Any = places, files: Any = files) -> None:
            at = frame if event == "c_return" or frame.f_back is None else frame.f_back
            ours = at.f_code.co_filename.rsplit("/", 1)[-1] in files
            if ours and event in ("call", "return", "c_return") and next(places) == nth:
                reached.append(nth)
                raise KeyboardInterrupt

        def here() -> bool:
            return threading.current_thread() is threading.main_thread()

        with engine_of(lambda gate=gate, here=here: Scripted(here, gate.hold)) as engine:  # type: ignore[misc]
            load = engine.load(some(1, 5), some(1, 3))
            assert gate.asleep.wait(LONG_S)
            other = threading.Thread(target=load.wait)
            other.start()
            while not is_waited_for(load):
                time.sleep(0.001)
            before = sys.getprofile()
            try:
                sys.setprofile(interrupt)
                load.wait(LONG_S)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(before)
            gate.opened.set()
            assert load.wait(LONG_S)
            other.join(LONG_S)
            assert not other.is_alive()
            assert load.ok
            assert load.wait_layer(LAST_LAYER, 0)
            assert load.wall_s > 0
        counted = engine.counters(Direction.LOAD)
        assert (load.n_bytes, load.n_submissions) == (2 * GEOMETRY.page_bytes, counted.n_submissions)
        assert (counted.transfers, counted.n_bytes, counted.late_failures) == (1, load.n_bytes, 0)
        assert counted.wall_s > 0
        if nth not in reached:
            break
    assert nth > 20


def test_ctrl_c_in_close_comes_through_behind_the_copy_that_is_under_way() -> None:
    gate = Gate()

    def twice(engine: TransferEngine) -> None:
        assert gate.asleep.wait(LONG_S)
        while engine.state is EngineState.RUNNING:
            time.sleep(0.001)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        gate.opened.set()

    with engine_of(lambda: Scripted(hold=gate.hold)) as engine:
        running, queued = engine.load(some(1), some(1)), engine.load(some(2), some(2))
        user = threading.Thread(target=twice, args=(engine,))
        user.start()
        with pytest.raises(KeyboardInterrupt):
            engine.close()
        assert gate.opened.is_set()
        assert (running.ok, queued.ok) == (True, True)
        assert engine.state is EngineState.CLOSED
        user.join(LONG_S)


def test_a_submission_thread_that_cannot_begin_ends_every_transfer_with_the_reason() -> None:
    def lost() -> None:
        if threading.current_thread().name == "hicache-load":
            raise RuntimeError("CUDA error: unspecified launch failure")

    with engine_of(lambda: Scripted(begin=lost)) as engine:
        for _ in range(2):
            loads = [engine.load(some(1), some(1)), engine.load(some(), some())]
            backup = engine.backup(some(2, 3), some(2, 3))
            for load in loads:
                assert load.wait(LONG_S)
                assert isinstance(load.error, Vanished)
                assert not load.wait_layer(0, LONG_S)
                assert not load.order_layer(0, LONG_S)
            assert backup.wait(LONG_S)
            assert backup.ok
        assert engine.counters(Direction.LOAD).failures == 4


@pytest.mark.parametrize(
    ("failed", "wanted"),
    [(RuntimeError("CUDA error: unspecified launch failure"), Vanished), (OSError("the vendor's driver"), OSError)],
)
def test_a_device_that_fails_behind_the_last_call_fails_the_transfer_for_every_waiter(
    failed: Exception, wanted: type[Exception]
) -> None:
    gate = Gate()

    def fail() -> bool:
        raise failed

    def hold() -> None:
        gate.hold()
        raise failed

    with engine_of(lambda: Scripted(fail, hold)) as engine:
        load = engine.load(some(1), some(1))
        assert gate.asleep.wait(LONG_S)
        told: list[object] = []
        waiters = [threading.Thread(target=lambda: told.append(load.wait(LONG_S) and load.error)) for _ in range(2)]
        waiters.append(threading.Thread(target=lambda: told.append(load.wait_layer(LAST_LAYER, LONG_S))))
        for waiter in waiters:
            waiter.start()
        gate.opened.set()
        for waiter in waiters:
            waiter.join(LONG_S)
        assert isinstance(load.error, wanted)
        assert sorted(map(repr, told)) == sorted(map(repr, [load.error, load.error, False]))
        assert load.n_bytes == 0


class LossyCuda(FakeCuda):
    """A device that can be lost behind a call: every event and stream says so from then on."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lost = False

    def run_until(self, reached: Callable[[], bool]) -> None:
        self._fail()
        super().run_until(reached)

    def run_some(self) -> None:
        self._fail()
        super().run_some()

    def _fail(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@contextmanager
def on_cuda(cuda: FakeCuda, backend: Any = None, watch: Any = None) -> Iterator[TransferEngine]:
    device, host = DevicePool(GEOMETRY, 8), HostPool(GEOMETRY, 8, Layout.PAGE_FIRST_DIRECT)
    engine = TransferEngine(
        device,
        host,
        backend or BatchBackend(CudaRuntime(cuda.library), cuda),
        orders=lambda device: AcceleratorOrder(device, cuda),
        watch=watch,
    )
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize("direction", Direction)
def test_events_that_raise_end_the_transfer_with_what_happened_to_the_device(direction: Direction) -> None:
    cuda = LossyCuda()

    def lose(transfer: Transfer, what: str) -> None:
        if what == "opened":
            cuda.lost = True

    with on_cuda(cuda, watch=lose) as engine:
        cuda.lost = False
        transfer = (engine.load if direction is Direction.LOAD else engine.backup)(some(1, 5), some(3, 2))
        assert transfer.wait(LONG_S)
        assert isinstance(transfer.error, Vanished)
        assert "illegal memory access" in str(transfer.error)
        assert not transfer.wait_layer(0, 0)
        assert engine.counters(direction) == DirectionCounters(transfers=1, failures=1, failed_pages=2)


@pytest.mark.parametrize("where", ["the end of the block", "a watcher"])
def test_what_fails_behind_the_end_of_a_transfer_is_told_and_counted(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: too late")

    def watch(transfer: Transfer, what: str) -> None:
        if what == "arrived":
            fail()

    more: dict[str, Any] = {"watch": watch} if where == "a watcher" else {}
    with (
        caplog.at_level(logging.WARNING, "hicachectl.runtime"),
        engine_of(lambda: Scripted(over=fail) if not more else Scripted(), **more) as engine,
    ):
        load = engine.load(some(1, 2), some(1, 2))
        assert load.wait(LONG_S)
    assert load.ok
    assert "after the end of a load of 2 pages" in caplog.text
    assert "too late" in caplog.text or "dmesg" in caplog.text
    counted = engine.counters(Direction.LOAD)
    assert (counted.transfers, counted.failures, counted.late_failures) == (1, 0, 1)


def test_a_reader_of_the_counters_has_all_of_a_transfer_or_nothing() -> None:
    totals, seen = Totals(), []

    class Looking(Transfer):
        @property
        def n_pages(self) -> int:
            seen.append(totals.counters())
            return super().n_pages

    for error in (None, OSError()):
        totals.add(Looking(Direction.LOAD, some(1, 2), some(3, 4), 0.0), error)
    assert seen == [DirectionCounters(), DirectionCounters(transfers=1, n_pages=2)]
    assert totals.counters() == DirectionCounters(transfers=2, n_pages=2, failures=1, failed_pages=2)


def test_a_queue_of_loads_that_never_empties_does_not_stop_a_backup() -> None:
    most = 100_000  # some seconds of loads: a thread that a busy machine holds up is not starved by them
    began, asked = threading.Event(), count(1)
    engines: list[TransferEngine] = []
    backups: list[Transfer] = []
    n = 0

    def before(direction: Direction) -> None:
        nonlocal n
        if direction is Direction.LOAD:
            assert began.wait(LONG_S)
            if not (backups and backups[0].done) and (n := next(asked)) < most:
                engines[0].load(some(1), some(1))

    with engine_of(CpuOrder, Stepped(before)) as engine:
        engines.append(engine)
        first = engine.load(some(1), some(1))
        backups.append(engine.backup(some(2, 3, 4), some(2, 3, 4)))
        began.set()
        assert first.wait(LONG_S)
        assert backups[0].wait(LONG_S)
        assert backups[0].ok
        assert n < most


def test_a_backup_that_lets_loads_pass_counts_that_as_time_in_the_queue() -> None:
    copying, asked, waits = threading.Event(), threading.Event(), threading.Event()
    now_s = 0.0

    def clock() -> float:
        if asked.is_set() and threading.current_thread().name == "hicache-backup":
            waits.set()
        return now_s

    def before(direction: Direction) -> None:
        nonlocal now_s
        if direction is Direction.LOAD:
            assert waits.wait(LONG_S)
            now_s += 100.0
        elif not copying.is_set():
            copying.set()
            assert asked.wait(LONG_S)
            now_s += 1.0

    with engine_of(CpuOrder, Stepped(before), clock=clock) as engine:
        backup = engine.backup(some(1, 2), some(1, 2))
        assert copying.wait(LONG_S)
        load = engine.load(some(4), some(4))
        asked.set()
        assert backup.wait(LONG_S)
        assert load.wait(LONG_S)
    assert (backup.wall_s, backup.submit_s, backup.queued_s) == (1.0, 1.0, 100.0)
    assert engine.counters(Direction.BACKUP).wall_s == 1.0


def test_whatever_becomes_of_a_transfer_its_mark_is_used_again() -> None:
    cuda = FakeCuda(0)
    n_events = 0
    make = cuda.Event

    def event(*given: Any, **named: Any) -> Any:
        nonlocal n_events
        n_events += 1
        return make(*given, **named)

    class NoRoom(BatchBackend):
        full = False

        def prepare(self, *given: Any) -> None:
            if self.full:
                raise CapacityError("no room", terms=())

    cuda.Event = event  # type: ignore[assignment]
    backend = NoRoom(CudaRuntime(cuda.library), cuda)
    with on_cuda(cuda, backend) as engine:
        assert engine.load(some(1), some(1)).wait(LONG_S)
        assert engine.backup(some(), some()).wait(LONG_S)  # both threads have begun, and made their own events
        before = n_events
        for _ in range(5):
            assert engine.load(some(), some()).wait(LONG_S)
        assert n_events == before
        backend.full = True
        for _ in range(5):
            refused = engine.backup(some(1), some(1))
            assert refused.wait(LONG_S)
            assert isinstance(refused.error, CapacityError)
        assert n_events == before + 1
        engine.close()
        for _ in range(5):
            with suppress(InvariantBroken):
                engine.load(some(1), some(1))
        assert n_events == before + 1


def test_a_transfer_that_is_dropped_gives_its_mark_back() -> None:
    cuda, gate, copying = FakeCuda(0), threading.Event(), threading.Event()
    orders: list[AcceleratorOrder] = []

    def order(device: torch.device) -> AcceleratorOrder:
        orders.append(AcceleratorOrder(device, cuda))
        return orders[-1]

    class Held(BatchBackend):
        def prepare(self, *given: Any) -> None:
            copying.set()
            assert gate.wait(LONG_S)

    device, host = DevicePool(GEOMETRY, 8), HostPool(GEOMETRY, 8, Layout.PAGE_FIRST)
    engine = TransferEngine(device, host, Held(CudaRuntime(cuda.library), cuda), orders=order)
    loads = [engine.load(some(i), some(i)) for i in range(4)]
    marks = [load._mark for load in loads]
    assert copying.wait(LONG_S)
    closing = threading.Thread(target=engine.close, kwargs={"finish": False})
    closing.start()
    while engine.state is EngineState.RUNNING:
        time.sleep(0)
    gate.set()
    closing.join(LONG_S)
    assert [load.ok for load in loads] == [True, False, False, False]
    by_direction = dict(zip(Direction, orders, strict=True))
    assert [by_direction[Direction.LOAD].mark() for _ in loads] == marks


def test_the_backend_of_these_tests_moves_bytes() -> None:
    with engine_of(CpuOrder) as engine:
        engine.host_pool.array[:] = np.random.default_rng(0).integers(0, 256, engine.host_pool.array.shape, np.uint8)
        assert engine.load(some(1, 6), some(3, 0)).wait(LONG_S)
        assert isinstance(engine.device_pool.tensor, torch.Tensor)
        assert Stepped.kind is Backend.CPU
        np.testing.assert_array_equal(engine.device_pool.planes_numpy()[:, 3], engine.host_pool.read_page(1))
        np.testing.assert_array_equal(engine.device_pool.planes_numpy()[:, 0], engine.host_pool.read_page(6))
