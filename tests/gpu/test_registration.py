"""Registration with a CUDA device: what it reports is what the driver has, and nothing is left."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest
import torch

from hicachectl.errors import Vanished
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.cuda_registrar import RuntimeRegistrar, find_cuda_registrar
from hicachectl.runtime.memory.faults import Fault, with_fault
from hicachectl.runtime.memory.host_pool import HostPool, map_pool
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.libcudart import loaded_libcudart
from hicachectl.runtime.memory.mapping import map_memory
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import PoolCalls

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def torch_is_up() -> None:
    """torch says what is pinned only once it uses the device."""
    torch.zeros(1, device="cuda")


def driver() -> Registrar:
    found = find_cuda_registrar()
    assert not isinstance(found, NoRegistrar)
    return found


@pytest.mark.parametrize("kind", [Kind.ANONYMOUS, Kind.MEMFD, Kind.TMPFS])
def test_a_registered_pool_is_pinned_for_torch_until_it_is_closed(kind: Kind) -> None:
    spec = MappingSpec(kind=kind, path="/dev/shm", largest_registration_bytes=16 * MIB, slot_bytes=4096)
    mapping = map_memory(40 * MIB, spec, registrar=driver())
    assert [step.reason for step in mapping.steps if step.name == "register"] == [None]
    assert mapping.report.registered_bytes == mapping.report.mapped_bytes
    assert len(mapping.report.registrations) == 3
    tensor = torch.from_numpy(mapping.buffer)
    assert tensor.is_pinned()
    tensor[:] = torch.arange(40 * MIB, dtype=torch.int64).to(torch.uint8)
    for start, end in mapping.report.registrations:
        on_device = tensor[start : min(end, tensor.numel())].to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(on_device.cpu(), tensor[start : min(end, tensor.numel())])
    assert mapping.unregister() == ()
    assert not tensor.is_pinned()
    mapping.close()


def test_the_runtime_library_that_torch_loaded_registers_too() -> None:
    paths = loaded_libcudart()
    if not paths:
        pytest.skip("torch has no libcudart of its own loaded")
    with map_memory(4 * MIB, registrar=RuntimeRegistrar(ctypes.CDLL(paths[0]), paths[0])) as mapping:
        assert mapping.report.registered_bytes == 4 * MIB
        assert torch.from_numpy(mapping.buffer).is_pinned()


def test_a_pool_registered_twice_is_refused_in_the_drivers_words_and_the_first_stays() -> None:
    registrar = driver()
    with map_memory(4 * MIB, registrar=registrar) as mapping:
        refused = registrar.register(mapping.buffer.ctypes.data, 4 * MIB)
        assert refused is not None
        assert refused.code == 712
        assert "REGISTERED" in refused.name.upper()
        assert torch.from_numpy(mapping.buffer).is_pinned()
        assert torch.zeros(1, device="cuda").item() == 0.0


@pytest.mark.parametrize("layout", Layout)
def test_a_host_pool_is_registered_in_chunks_that_end_on_its_slots(layout: Layout) -> None:
    geometry = preset("qwen3-8b", 16)
    spec = MappingSpec(largest_registration_bytes=32 * MIB)
    mapping = map_pool(geometry, 64, layout, spec, registrar=driver())
    pool = HostPool(geometry, 64, layout, mapping=mapping)
    try:
        assert pool.report.registered_bytes == pool.report.mapped_bytes
        assert len(pool.registrations) > 1
        assert all(end % geometry.chunk_bytes == 0 for _, end in pool.registrations[:-1])
        pool.array[:] = np.uint8(7)
        assert torch.from_numpy(pool.array).is_pinned()
    finally:
        pool.close()


@pytest.mark.parametrize(
    "fault", [Fault.REGISTER_MEMLOCK, Fault.REGISTER_TOO_LARGE, Fault.REGISTER_DRIVER_ERROR, Fault.DEVICE_LOST]
)
def test_an_injected_refusal_leaves_a_device_that_works(fault: Fault) -> None:
    calls, registrar = with_fault(fault, PoolCalls(), driver())
    if fault is Fault.DEVICE_LOST:
        with pytest.raises(Vanished):
            map_memory(4 * MIB, registrar=registrar, calls=calls)
    else:
        with map_memory(4 * MIB, registrar=registrar, calls=calls) as mapping:
            assert mapping.report.registered_bytes == 0
            assert not torch.from_numpy(mapping.buffer).is_pinned()
    assert torch.zeros(1, device="cuda").item() == 0.0


def test_a_process_that_ends_with_a_registered_pool_ends_at_once() -> None:
    program = (
        "import torch\n"
        "from hicachectl.runtime.memory.mapping import map_memory\n"
        "from hicachectl.runtime.memory.cuda_registrar import find_cuda_registrar\n"
        "mapping = map_memory(64 << 20, registrar=find_cuda_registrar())\n"
        "view = mapping.buffer\n"
        "print(mapping.report.registered_bytes)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(64 << 20)), done.stderr
