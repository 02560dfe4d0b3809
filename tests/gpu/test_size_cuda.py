"""Steps of a sizing on a CUDA device: registered pools, pages compared on the device, and the rows beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_traces import conversations, write_trace

from hicachectl.errors import HostError
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import KVGeometry, preset
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.faults import Fault, with_fault
from hicachectl.runtime.memory.host_pool import map_pool
from hicachectl.runtime.memory.mapping import Mapping
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import PoolCalls
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.trial import try_pool

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BASE = ReplayConfig(
    preset("tiny-512k", 512), CacheConfig(restore="always", strict=True), Layout.PAGE_FIRST_DIRECT, None, None, 0,
    CostModel(RecomputeCost(1e-3, 1e-4, 0.0)), device="cuda", host_memory=MappingSpec(largest_registration_bytes=64 << 20),
)  # fmt: skip


def test_a_step_registers_its_pool_in_chunks_and_compares_what_it_restores_on_the_device(tmp_path: Path) -> None:
    trace = open_trace(write_trace(tmp_path / "t.jsonl", conversations(40, 6, 2)))
    found = try_pool(trace, trace.info(), BASE, 300, root=HostRoot("/"))
    assert found.made is not None
    assert found.made.registered_bytes == found.made.mapped_bytes >= found.n_bytes == 300 << 19
    assert found.made.n_registrations == 3
    assert found.register_s is not None
    assert found.is_resident
    assert found.device.startswith("cuda")
    assert found.failures == {}
    assert found.verified_pages == found.restored_pages == 240


def test_a_refused_registration_is_the_steps_failure_and_the_device_works_on(tmp_path: Path) -> None:
    def refused(
        geometry: KVGeometry, n_slots: int, layout: Layout, spec: MappingSpec, *, registrar: Registrar | NoRegistrar
    ) -> Mapping:
        calls, faulty = with_fault(Fault.REGISTER_DRIVER_ERROR, PoolCalls(), registrar)
        return map_pool(geometry, n_slots, layout, spec, registrar=faulty, calls=calls)

    trace = open_trace(write_trace(tmp_path / "t.jsonl", conversations(4, 6, 2)))
    with pytest.raises(HostError, match="injected"):
        try_pool(trace, trace.info(), BASE, 100, root=HostRoot("/"), make_host=refused)
    again = try_pool(trace, trace.info(), replace(BASE, host_memory=MappingSpec()), 100, root=HostRoot("/"))
    assert again.verified_pages == again.restored_pages > 0


def test_the_benchmark_has_a_row_for_registering_and_for_a_copy_a_chunk(tmp_path: Path) -> None:
    trace, target = write_trace(tmp_path / "t.jsonl", conversations(40, 6, 2)), tmp_path / "size.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_size.py"), "--device", "cuda", "--geometry", "tiny-64k"]
    command += ["--trace", str(trace), "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads(target.read_text())
    names = [row["name"] for row in content["rows"]]
    assert content["benchmark"] == "bench_size_device"
    assert sum(name.endswith("register") for name in names) == 3
    stages = [row["stage"] for row in content["environment"]["found"]["waterfall"]["rows"]]
    assert stages[:2] == ["L1 only", "+ host pool, a copy a chunk, small pages"]
    left_out = content["environment"]["found"]["waterfall"]["left_out"]
    assert {left["stage"] for left in left_out} <= {"copy backend"}  # uva needs registered memory
