from __future__ import annotations

import gc
import json
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from small_traces import conversations, write_trace

from hicachectl.errors import CapacityError, HostError, Vanished
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import KVGeometry, preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.faults import Fault, with_fault
from hicachectl.runtime.memory.host_pool import MakeHost, map_pool
from hicachectl.runtime.memory.mapping import Mapping, MappingSpec
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.syscalls import MemoryCalls, PoolCalls
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.workload import TraceFile, open_trace
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.trial import Trial, try_pool
from hicachectl.tuning.sizing.trial_record import trial_of
from hicachectl.tuning.sizing.trial_storage import TrialStorage
from hicachectl.tuning.sizing.window import Definition, window_of

BASE = ReplayConfig(
    preset("tiny-4k", 512), CacheConfig(restore="always", strict=True, seen_keys=1 << 10), Layout.PAGE_FIRST_DIRECT,
    Backend.CPU, None, 0, CostModel(RecomputeCost(1e-3, 1e-4, 0.0)),
)  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> TraceFile:
    return open_trace(write_trace(tmp_path / "t.jsonl", conversations(10, 4, 3)))


def trial(trace: TraceFile, pages: int, **seams: Any) -> Trial:
    return try_pool(trace, trace.info(), BASE, pages, root=HostRoot("/"), **seams)


def test_a_real_pool_hits_what_the_curve_says(trace: TraceFile) -> None:
    curve = curve_of(window_of(trace, 512), Definition.D3)
    for pages in (0, 4, 30, 40):
        found = trial(trace, pages)
        assert (found.hit_pages, found.total_pages) == (curve.at(max(4, pages)), curve.total)
        assert (found.n_bytes, found.failures, found.dropped_pages) == (pages * 4096, {}, 0)


def making(
    fault: Fault | None = None, held: list[weakref.ref[Mapping]] | None = None, registrar: Registrar | None = None
) -> MakeHost:
    """Make memory as `map_pool` does, with a fault in one of its seams; `held` gets the mappings, `registrar` plays a driver."""

    def make(
        geometry: KVGeometry, n_slots: int, layout: Layout, spec: MappingSpec, *, registrar: Registrar | NoRegistrar
    ) -> Mapping:
        calls: MemoryCalls = PoolCalls()
        registrar = driver or registrar
        if fault is not None:
            calls, registrar = with_fault(fault, calls, registrar)
        mapping = map_pool(geometry, n_slots, layout, spec, registrar=registrar, calls=calls)
        if held is not None:
            held.append(weakref.ref(mapping.buffer.base if mapping.buffer.base is not None else mapping.buffer))
        return mapping

    driver = registrar
    return make


def test_its_memory_is_given_back_before_the_next_one_is_made(trace: TraceFile) -> None:
    held: list[Any] = []
    trial(trace, 40, make_host=making(held=held))
    assert held[0]() is None


def test_a_step_says_how_its_memory_was_made_and_that_all_of_it_was_there(trace: TraceFile) -> None:
    found = trial(trace, 40)
    assert found.made is not None
    assert (found.made.kind, found.made.placement, found.made.registered_bytes) == ("anonymous", None, 0)
    assert [step.name for step in found.made.steps] == ["reserve", "bind", "advise", "populate", "verify", "register"]
    assert found.fill_s == found.made.seconds("populate") > 0
    assert (found.made.resident_bytes or 0) >= found.n_bytes
    assert found.is_resident
    assert found.verified_pages == found.restored_pages > 0
    assert (found.device, found.backend, found.layout) == ("cpu", "cpu", "page_first_direct")
    assert (found.register_s, found.reasons["register_s"]) == (
        None,
        "the device is the CPU: there is no driver to register with",
    )
    alone = trial(trace, 0)
    assert (alone.made, alone.memory, alone.reasons["made"]) == (None, None, "no host pool")


class Driver:
    """Registers everything and keeps what is registered now."""

    name = "made-up driver"

    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.sizes: list[int] = []

    def prepare(self) -> None:
        return None

    def register(self, address: int, n_bytes: int) -> None:
        self.now[address] = n_bytes
        self.sizes.append(n_bytes)

    def unregister(self, address: int) -> None:
        del self.now[address]


def test_with_a_driver_the_whole_pool_is_registered_in_chunks_and_taken_back(trace: TraceFile) -> None:
    driver = Driver()
    base = replace(BASE, host_memory=MappingSpec(largest_registration_bytes=64 << 10))
    found = try_pool(trace, trace.info(), base, 40, root=HostRoot("/"), make_host=making(registrar=driver))
    assert found.made is not None
    assert found.made.registered_bytes == found.made.mapped_bytes == sum(driver.sizes)
    assert (found.made.n_registrations, found.made.registered_with) == (3, "made-up driver")
    assert found.register_s == found.made.seconds("register")
    assert "register_s" not in found.reasons
    assert driver.now == {}


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.POPULATE_NO_MEMORY, CapacityError), (Fault.REGISTER_MEMLOCK, HostError), (Fault.REGISTER_TOO_LARGE, HostError),
        (Fault.REGISTER_DRIVER_ERROR, HostError), (Fault.DEVICE_LOST, Vanished),
    ],
)  # fmt: skip
def test_a_pool_that_cannot_be_had_or_registered_is_an_error_and_leaves_nothing(
    trace: TraceFile, fault: Fault, error: type[Exception]
) -> None:
    driver, mapped = Driver(), mapped_bytes()
    geometry = preset("tiny-512k", 512)  # large enough for a second slice of populating
    with pytest.raises(error, match="injected"):
        try_pool(
            trace, trace.info(), replace(BASE, geometry=geometry), 400, root=HostRoot("/"), make_host=making(fault, registrar=driver),
        )  # fmt: skip
    gc.collect()
    assert driver.now == {}
    assert mapped_bytes() - mapped < 100 << 20  # the pool had 200 MiB


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


def test_a_fault_that_only_hides_or_refuses_a_policy_is_in_the_record_and_the_step_counts(trace: TraceFile) -> None:
    found = trial(trace, 40, make_host=making(Fault.SMAPS_UNREADABLE))
    assert found.made is not None
    assert (found.made.huge_share, found.made.resident_bytes) == (None, None)
    assert "injected" in found.reasons["made/huge_share"]
    assert found.is_resident


def test_a_trial_survives_its_record(trace: TraceFile) -> None:
    found = trial(trace, 40)
    assert trial_of(json.loads(json.dumps(asdict(found)))) == found
    assert found.restores.pages
    assert sum(found.restores.pages) == found.restored_pages


def test_each_step_learns_its_costs_anew(trace: TraceFile) -> None:
    trial(trace, 40)
    assert all(path.n_observed == 0 for path in BASE.costs.state().paths)


def test_a_step_on_a_storage_tier_restores_from_it_and_takes_its_waits_off_those_of_the_host(
    trace: TraceFile, tmp_path: Path
) -> None:
    storage = TrialStorage(tmp_path, "l3", "marker", 40, 4096)
    base = replace(BASE, cache=replace(BASE.cache, settle_storage=True))
    found = try_pool(trace, trace.info(), base, 8, root=HostRoot("/"), storage=storage)
    assert found.hit_pages + (found.storage_hit_pages or 0) == 80  # all but the first turn of each chat
    assert found.storage_restore_s_per_token is not None
    assert list(tmp_path.glob("l3")) == []
    assert trial_of(json.loads(json.dumps(asdict(found)))) == found
    alone = trial(trace, 0, storage=storage)
    assert (alone.storage_hit_pages, alone.reasons["storage_hit_pages"]) == (None, "no storage tier")
