from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.transfer.backends import CopyBackend, Direction, Submitted, make_backend
from hicachectl.runtime.transfer.cpu import CpuBackend
from hicachectl.runtime.transfer.engine import DirectionCounters, EngineState, TransferEngine

GEOMETRY = KVGeometry("g", KVKind.GQA, n_layers=4, token_plane_bytes=8, page_tokens=4)
LONG_S = 30.0  # a wait that only ends early


def some(*values: int) -> Slots:
    return np.array(values, dtype=np.int32)


def require(opened: bool) -> None:
    assert opened


class Hooked(CpuBackend):
    """The cpu backend with a call before each copy: to hold it, to slow it, to break it."""

    def __init__(self, before: Callable[[Direction, range], None]) -> None:
        super().__init__()
        self._before = before

    def copy(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        planes: range,
    ) -> Submitted:
        self._before(direction, planes)
        return super().copy(direction, device_pool, host_pool, device_slots, host_slots, planes)


@contextmanager
def engine_of(
    backend: CopyBackend, *, layout: Layout = Layout.PAGE_FIRST_DIRECT, layer_groups: list[int] | None = None
) -> Iterator[tuple[TransferEngine, DevicePool, HostPool]]:
    device, host = DevicePool(GEOMETRY, 8), HostPool(GEOMETRY, 8, layout)
    device.planes_numpy()[:] = np.random.default_rng(0).integers(0, 256, device.planes_numpy().shape, dtype=np.uint8)
    host.array[:] = np.random.default_rng(1).integers(0, 256, host.array.shape, dtype=np.uint8)
    engine = TransferEngine(device, host, backend, layer_groups)
    try:
        yield engine, device, host
    finally:
        engine.close()


def test_the_caller_only_enqueues_and_another_thread_copies() -> None:
    gate, copying = threading.Event(), threading.Event()
    threads: list[str] = []

    def hold(direction: Direction, planes: range) -> None:
        threads.append(threading.current_thread().name)
        copying.set()
        assert gate.wait(LONG_S)

    with engine_of(Hooked(hold)) as (engine, device, host):
        transfer = engine.load(some(1, 2), some(5, 3))
        assert copying.wait(LONG_S)
        assert not transfer.done
        assert not transfer.wait(0)
        assert not transfer.wait_layer(0, 0)
        gate.set()
        assert transfer.wait(LONG_S)
        assert transfer.ok
        assert threads == ["hicache-load"]
        np.testing.assert_array_equal(device.planes_numpy()[:, 5], host.read_page(1))


@pytest.mark.parametrize("direction", Direction)
def test_a_call_returns_in_less_than_5_ms_while_a_copy_is_held(direction: Direction) -> None:
    gate = threading.Event()
    with engine_of(Hooked(lambda *_: gate.wait(LONG_S))) as (engine, _, _):
        call = engine.load if direction is Direction.LOAD else engine.backup
        took_s, transfers = [], []
        for i in range(3):
            start = time.perf_counter()
            transfers.append(call(some(i), some(i)))
            took_s.append(time.perf_counter() - start)
        assert min(took_s) < 0.005
        assert not any(transfer.done for transfer in transfers)
        time.sleep(0.1)
        gate.set()
        assert all(transfer.wait(LONG_S) and transfer.ok for transfer in transfers)
        assert transfers[0].wall_s + transfers[0].queued_s >= 0.1
        assert transfers[2].queued_s >= 0.1


def test_a_load_goes_on_while_a_backup_is_held() -> None:
    gate = threading.Event()

    def hold(direction: Direction, planes: range) -> None:
        if direction is Direction.BACKUP:
            assert gate.wait(LONG_S)

    with engine_of(Hooked(hold)) as (engine, _, _):
        backup, load = engine.backup(some(0), some(0)), engine.load(some(1), some(1))
        assert load.wait(LONG_S)
        assert load.ok
        assert not backup.done
        gate.set()
        assert backup.wait(LONG_S)
        assert backup.ok


def test_transfers_of_a_direction_happen_in_the_order_asked() -> None:
    with engine_of(CpuBackend()) as (engine, device, host):
        wanted = device.planes_numpy()[:, 2].copy()
        transfers = [engine.backup(some(slot), some(7)) for slot in (0, 1, 2)]
        assert transfers[-1].wait(LONG_S)
        assert all(transfer.done for transfer in transfers)
        np.testing.assert_array_equal(host.read_page(7), wanted)


def test_a_layer_may_be_used_when_its_group_is_there_and_not_before() -> None:
    gates = {0: threading.Event(), 2: threading.Event(), 6: threading.Event()}

    def hold(direction: Direction, planes: range) -> None:
        assert gates[planes.start].wait(LONG_S)

    with engine_of(Hooked(hold), layer_groups=[1, 2, 1]) as (engine, device, host):
        transfer = engine.load(some(4, 1), some(0, 6))
        assert not transfer.wait_layer(0, 0)
        gates[0].set()
        assert transfer.wait_layer(0, LONG_S)
        np.testing.assert_array_equal(device.planes_numpy()[:2, 6], host.read_page(1)[:2])
        assert not transfer.wait_layer(1, 0)
        gates[2].set()
        assert transfer.wait_layer(2, LONG_S)
        assert not transfer.wait_layer(3, 0)
        assert not transfer.done
        gates[6].set()
        assert transfer.wait_layer(3, LONG_S)
        assert transfer.wait(LONG_S)
        np.testing.assert_array_equal(device.planes_numpy()[:, 0], host.read_page(4))
        assert transfer.n_bytes == 2 * GEOMETRY.page_bytes


def test_a_backup_moves_all_layers_at_once_whatever_the_groups() -> None:
    seen: list[range] = []
    with engine_of(Hooked(lambda _, planes: seen.append(planes)), layer_groups=[1, 3]) as (engine, _, _):
        assert engine.backup(some(0), some(0)).wait(LONG_S)
        assert seen == [range(8)]


def test_a_copy_that_fails_ends_with_its_error_and_the_engine_goes_on() -> None:
    broken = [True]

    def fail(direction: Direction, planes: range) -> None:
        if broken.pop():
            raise OSError("the link went away")
        broken.append(False)

    with engine_of(Hooked(fail)) as (engine, _, _):
        transfer = engine.load(some(1), some(1))
        assert transfer.wait(LONG_S)
        assert isinstance(transfer.error, OSError)
        assert transfer.done
        assert not transfer.ok
        assert not transfer.wait_layer(0, LONG_S)
        broken.append(False)
        again = engine.load(some(1), some(1))
        assert again.wait(LONG_S)
        assert again.ok
        counters = engine.counters(Direction.LOAD)
        assert (counters.transfers, counters.failures, counters.n_pages) == (2, 1, 1)


def test_layers_that_came_before_a_failure_stay_usable() -> None:
    def fail(direction: Direction, planes: range) -> None:
        if planes.start:
            raise OSError("the link went away")

    with engine_of(Hooked(fail), layer_groups=[1, 3]) as (engine, _, _):
        transfer = engine.load(some(1), some(1))
        assert transfer.wait(LONG_S)
        assert transfer.wait_layer(0, 0)
        assert not transfer.wait_layer(1, 0)


def test_counters_have_a_transfer_before_it_is_done() -> None:
    with engine_of(CpuBackend()) as (engine, _, _):
        assert engine.counters(Direction.LOAD) == DirectionCounters()
        assert engine.counters(Direction.LOAD).bytes_per_s is None
        first = engine.load(some(1, 2, 3), some(1, 2, 3))
        assert first.wait(LONG_S)
        counters = engine.counters(Direction.LOAD)
        assert (counters.transfers, counters.n_pages, counters.n_bytes) == (1, 3, 3 * GEOMETRY.page_bytes)
        assert (counters.n_submissions, counters.n_segments) == (first.n_submissions, first.n_segments) == (1, 24)
        assert counters.wall_s == first.wall_s > 0
        assert counters.bytes_per_s == counters.n_bytes / counters.wall_s
        assert engine.counters(Direction.BACKUP) == DirectionCounters()


def test_a_transfer_of_no_pages_ends_well_and_moves_nothing() -> None:
    with engine_of(CpuBackend()) as (engine, _, _):
        transfer = engine.load(some(), some())
        assert transfer.wait(LONG_S)
        assert transfer.ok
        assert transfer.wait_layer(3, 0)
        assert (transfer.n_bytes, transfer.n_submissions) == (0, 0)


def test_what_the_caller_does_to_its_slots_afterwards_changes_nothing() -> None:
    gate = threading.Event()
    with engine_of(Hooked(lambda *_: require(gate.wait(LONG_S)))) as (engine, device, host):
        host_slots, device_slots = some(1), some(5)
        transfer = engine.load(host_slots, device_slots)
        host_slots[:] = 0
        device_slots[:] = 0
        gate.set()
        assert transfer.wait(LONG_S)
        np.testing.assert_array_equal(device.planes_numpy()[:, 5], host.read_page(1))


def test_slots_that_do_not_pair_or_lie_outside_are_refused_at_the_call() -> None:
    with engine_of(CpuBackend()) as (engine, _, _):
        with pytest.raises(InvariantBroken, match="1 device slots and 2 host slots"):
            engine.load(some(1, 2), some(1))
        with pytest.raises(InvariantBroken, match=r"\[8\] outside"):
            engine.backup(some(1), some(8))
        with pytest.raises(InvariantBroken, match=r"\[-1\] outside"):
            engine.load(some(1), some(-1))
        assert engine.counters(Direction.LOAD).transfers == 0


@pytest.mark.parametrize(
    ("groups", "named"), [([1, 2], "add up to 3"), ([5], "add up to 5"), ([4, 0], r"\[4, 0\]"), ([], "add up to 0")]
)
def test_layer_groups_must_add_up_to_the_layers(groups: list[int], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        TransferEngine(DevicePool(GEOMETRY, 8), HostPool(GEOMETRY, 8, Layout.PAGE_FIRST), CpuBackend(), groups)


def test_pools_of_two_geometries_are_refused() -> None:
    other = KVGeometry("h", KVKind.MLA, n_layers=4, token_plane_bytes=8, page_tokens=4)
    with pytest.raises(InvariantBroken, match="device pool of g, host pool of h"):
        TransferEngine(DevicePool(GEOMETRY, 8), HostPool(other, 8, Layout.PAGE_FIRST), CpuBackend())


def test_the_cpu_backend_is_refused_for_a_pool_that_is_not_in_host_memory() -> None:
    with pytest.raises(UsageError, match="cpu cannot reach memory on meta"):
        TransferEngine(DevicePool(GEOMETRY, 8, "meta"), HostPool(GEOMETRY, 8, Layout.PAGE_FIRST), CpuBackend())


def test_close_finishes_what_is_queued_and_takes_no_more() -> None:
    with engine_of(CpuBackend()) as (engine, _, _):
        transfers = [engine.load(some(1), some(1)) for _ in range(20)] + [engine.backup(some(2), some(2))]
        assert engine.state is EngineState.RUNNING
        engine.close()
        engine.close()
        assert engine.state is EngineState.CLOSED
        assert all(transfer.ok for transfer in transfers)
        with pytest.raises(InvariantBroken, match="closed"):
            engine.load(some(1), some(1))
    assert not [thread for thread in threading.enumerate() if thread in engine._threads]


def test_close_without_finishing_ends_what_is_queued_with_an_error() -> None:
    gate, copying = threading.Event(), threading.Event()

    def hold(direction: Direction, planes: range) -> None:
        copying.set()
        assert gate.wait(LONG_S)

    with engine_of(Hooked(hold)) as (engine, _, _):
        first, second = engine.load(some(1), some(1)), engine.load(some(2), some(2))
        assert copying.wait(LONG_S)
        closing = threading.Thread(target=engine.close, kwargs={"finish": False})
        closing.start()
        while engine.state is EngineState.RUNNING:
            time.sleep(0)
        gate.set()
        closing.join(LONG_S)
        assert first.ok
        assert second.done
        assert isinstance(second.error, InvariantBroken)


@pytest.mark.parametrize("groups", [None, [1, 3]])
@pytest.mark.parametrize("kind", [Backend.CPU, Backend.TORCH])
@pytest.mark.parametrize("layout", Layout)
def test_pages_keep_their_bytes_under_random_traffic_in_both_directions(
    layout: Layout, kind: Backend, groups: list[int] | None
) -> None:
    rng = np.random.default_rng(7)
    with engine_of(make_backend(kind, layout), layout=layout, layer_groups=groups) as (engine, device, host):
        on_device = {slot: device.planes_numpy()[:, slot].tobytes() for slot in range(8)}
        on_host = {slot: host.read_page(slot).tobytes() for slot in range(8)}
        for _ in range(60):
            up, down = int(rng.integers(1, 5)), int(rng.integers(1, 4))
            device_slots, host_slots = rng.permutation(8).astype(np.int32), rng.permutation(8).astype(np.int32)
            load = engine.load(host_slots[:up], device_slots[:up])
            backup = engine.backup(device_slots[up : up + down], host_slots[up : up + down])
            assert load.wait(LONG_S)
            assert backup.wait(LONG_S)
            assert load.ok
            assert backup.ok
            for d, h in zip(device_slots[:up].tolist(), host_slots[:up].tolist(), strict=True):
                on_device[d] = on_host[h]
            for d, h in zip(device_slots[up : up + down].tolist(), host_slots[up : up + down].tolist(), strict=True):
                on_host[h] = on_device[d]
            for slot in range(8):
                assert device.planes_numpy()[:, slot].tobytes() == on_device[slot]
                assert host.read_page(slot).tobytes() == on_host[slot]
