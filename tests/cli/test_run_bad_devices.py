"""Drivers and devices that refuse, as `hicachectl run` meets them: a clear error or a fallback with its reason, and nothing left.

The device is a made-up CUDA runtime over host memory, put where the run makes its copy backend; nothing is provoked.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_memory import FakeDriver
from fakes.cuda_runtime import LOST, FakeCuda, QueuedMover
from run_calls import conversation_trace, counts, replay, run

from hicachectl.runtime.layout import Backend
from hicachectl.runtime.memory.faults import Fault, FaultyRegistrar
from hicachectl.runtime.memory.live import LIVE
from hicachectl.runtime.memory.register import NoRegistrar, Refusal
from hicachectl.runtime.replay import driver
from hicachectl.runtime.transfer.backends import CopyBackend
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime
from hicachectl.runtime.transfer.device import AcceleratorOrder
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.straight import BatchBackend
from hicachectl.runtime.transfer.strided import StridedBackend
from hicachectl.runtime.transfer.uva import UvaBackend

POOL = f"/dev/shm/hicachectl-bad-{os.getpid()}"
NAMED = ("--host-memory-kind", "tmpfs", "--host-memory-path", POOL)
MODES = {
    Fault.REGISTER_MEMLOCK: "out of lockable memory",
    Fault.REGISTER_TOO_LARGE: "as for 512 GiB or more",
    Fault.REGISTER_DRIVER_ERROR: "NOT_SUPPORTED (801)",
}


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    gc.collect()
    assert len(LIVE) == 0
    assert not os.path.lexists(POOL)
    assert "hicachectl-bad" not in Path("/proc/self/maps").read_text()


def use_cuda(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, kind: Backend = Backend.STRIDED, room: int | None = None
) -> None:
    """Let the run copy through a made-up CUDA runtime; an allocation above `room` bytes is refused."""

    def allocate(n_bytes: int, device: torch.device) -> torch.Tensor:
        if room is not None and n_bytes > room:
            raise torch.OutOfMemoryError(f"tried to allocate {n_bytes} bytes")
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def make(*_: object) -> CopyBackend:
        runtime = CudaRuntime(cuda.library)
        if kind is Backend.BATCH:
            return BatchBackend(runtime, cuda)
        backend = StridedBackend if kind is Backend.STRIDED else UvaBackend
        pinned = partial(torch.zeros, dtype=torch.uint8)
        return backend(
            runtime, QueuedMover(cuda), cuda, StagingOptions(16 << 20), allocate=allocate, allocate_pinned=pinned
        )

    monkeypatch.setattr(driver, "make_backend", make)
    orders: Callable[[torch.device], AcceleratorOrder] = lambda device: AcceleratorOrder(device, cuda)  # noqa: E731
    monkeypatch.setattr(driver, "TransferEngine", partial(TransferEngine, orders=orders))


COPIES = ("cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemcpyBatchAsync")


def lost_after(n: int, cuda: FakeCuda, real: Callable[..., None]) -> Callable[..., None]:
    """Return a call of the runtime on a device that is lost after `n` calls."""

    def call(self: CudaRuntime, *arguments: int, **named: int) -> None:
        if sum(cuda.calls.get(name, 0) for name in COPIES) >= n:
            cuda.fail.update(dict.fromkeys(COPIES, LOST))
        real(self, *arguments, **named)

    return call


def refuse(monkeypatch: pytest.MonkeyPatch, fault: Fault, at_call: int = 1) -> None:
    behind = NoRegistrar("a driver of the tests")
    monkeypatch.setattr(driver, "registrar_for", lambda *_: FaultyRegistrar(behind, fault, at_call))


def register_step(data: Any) -> Any:
    return next(step for step in data["pools"]["host_memory"]["steps"] if step["name"] == "register")


def test_without_a_batched_copy_strided_goes_on_and_the_report_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = conversation_trace(tmp_path)
    expected = counts(replay("--trace", trace))
    use_cuda(monkeypatch, FakeCuda(version=12060))
    data = replay("--trace", trace)
    assert data["pools"]["backend"] == "strided"
    assert counts(data) == expected
    assert any("no batched copy" in note and "12.6" in note for note in data["notes"])


def test_without_a_batched_copy_the_backend_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cuda(monkeypatch, FakeCuda(version=12060), Backend.BATCH)
    ran = run("--trace", conversation_trace(tmp_path), *NAMED)
    assert ran.code == 5
    assert "copy backend batch cannot work here" in ran.err
    assert "12.6" in ran.err
    assert "use copy backend strided" in ran.err


@pytest.mark.parametrize("fault", MODES)
@pytest.mark.parametrize("at_call", [1, 2])
def test_a_refused_registration_is_a_finding_and_the_run_goes_on_with_the_same_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, at_call: int
) -> None:
    trace = conversation_trace(tmp_path)
    expected = counts(replay("--trace", trace))
    use_cuda(monkeypatch, FakeCuda())
    refuse(monkeypatch, fault, at_call)
    ran = run("--trace", trace, *NAMED, "--host-memory-chunk-bytes", "1MiB")
    assert (ran.code, ran.json["status"]) == (0, "findings")
    data = ran.json["data"]
    step = register_step(data)
    assert step["state"] == "refused"
    assert MODES[fault] in step["reason"]
    assert step["asked"] == "all of it, in chunks of at most 1.0 MiB"
    assert (data["pools"]["host_memory"]["registered_bytes"], data["pools"]["host_memory"]["registered_with"]) == (
        0,
        None,
    )
    assert MODES[fault] in next(d["message"] for d in ran.json["diagnostics"] if d["code"] == "HC-POOL-MEMORY")
    assert counts(data) == expected


def test_memory_that_the_driver_does_not_take_back_at_the_end_is_a_step_and_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no = Refusal("cuMemHostUnregister", 1, "INVALID_VALUE", "words of the driver")
    monkeypatch.setattr(
        driver, "registrar_for", lambda *_: FakeDriver(lambda call, n: no if call == "unregister" else None)
    )
    ran = run("--trace", conversation_trace(tmp_path), "--report", "out.html")
    assert (ran.code, ran.json["status"]) == (0, "findings")
    step = ran.json["data"]["pools"]["host_memory"]["steps"][-1]
    assert (step["name"], step["state"], step["reason"]) == ("unregister", "refused", str(no))
    (finding,) = [d for d in ran.json["diagnostics"] if d["code"] == "HC-POOL-MEMORY"]
    assert finding["subject"] == "host_memory.unregister"
    assert "asked all of it taken back, not taken back" in finding["message"]
    assert str(no) in finding["message"]
    assert "words of the driver" in Path("out.html").read_text()


@pytest.mark.parametrize("fault", MODES)
def test_a_registration_that_must_be_ends_the_run_with_what_the_driver_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    refuse(monkeypatch, fault)
    ran = run("--trace", conversation_trace(tmp_path), *NAMED, "--host-memory-must-register", "true")
    assert ran.code == 4
    assert "could not be registered with the device" in ran.err
    assert MODES[fault] in " ".join(ran.err.split())


def test_a_kernel_is_not_let_at_a_pool_that_is_not_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    use_cuda(monkeypatch, cuda, Backend.UVA)
    refuse(monkeypatch, Fault.REGISTER_MEMLOCK)
    ran = run("--trace", conversation_trace(tmp_path), *NAMED)
    assert ran.code == 5
    assert "uva cannot reach the host pool: 0 of its" in ran.err
    assert not cuda.started


def test_a_device_lost_at_registration_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, Fault.DEVICE_LOST)
    ran = run("--trace", conversation_trace(tmp_path), *NAMED)
    assert ran.code == 5
    assert "HC-DEVICE-GONE" in ran.err
    assert "dmesg" in ran.err


def test_a_device_without_room_gets_smaller_staging_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cuda(monkeypatch, FakeCuda(), room=1 << 20)
    data = replay("--trace", conversation_trace(tmp_path, n=6), "--geometry", "tiny-512k", "--device-slots", "40")
    assert any("staging buffers of" in note and "tried to allocate" in note for note in data["notes"])


def test_a_device_without_room_for_any_staging_ends_the_run_before_the_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cuda(monkeypatch, FakeCuda(), room=512)
    ran = run("--trace", conversation_trace(tmp_path), *NAMED)
    assert ran.code == 10
    assert "no room on the device for 2 staging buffers" in ran.err
    assert "fewer device slots" in ran.err


def test_a_device_lost_in_a_copy_ends_the_run_with_a_report_of_what_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda()
    use_cuda(monkeypatch, cuda)
    for name in ("copy", "copy_rows", "copy_batch"):
        monkeypatch.setattr(CudaRuntime, name, lost_after(20, cuda, getattr(CudaRuntime, name)))
    ran = run("--trace", conversation_trace(tmp_path), *NAMED, "--report", "out.html")
    assert ran.code == 5
    assert "HC-DEVICE-GONE" in ran.err
    assert "719" in ran.err
    data = ran.json["data"]
    assert data["stop"] == "device_lost"
    assert 0 < data["requests"] < 24
    assert any("719" in words for words in data["failure_words"].values())
    assert data["pages_mismatched"] == 0
    assert "STOPPED: THE DEVICE IS LOST" in Path("out.html").read_text()


def test_what_torch_reports_of_a_lost_device_outside_a_copy_ends_the_run_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr(driver.PoolContent, "fill", lost)
    ran = run("--trace", conversation_trace(tmp_path), *NAMED)
    assert ran.code == 5
    assert "an illegal memory access" in ran.err
    assert ran.json["data"]["stop"] == "device_lost"


def test_copies_that_fail_have_the_words_of_the_first_one_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda()
    use_cuda(monkeypatch, cuda)
    cuda.fail.update(dict.fromkeys(COPIES[:2], 1))
    ran = run("--trace", conversation_trace(tmp_path))
    assert ran.code == 0
    (finding,) = [d for d in ran.json["diagnostics"] if d["code"] == "HC-TIER-DEGRADED"]
    assert "24 transfer_backup (the first: libcudart: cudaMemcpyAsync failed with 1" in finding["message"]
    assert ran.json["data"]["pages_restored"] == 0
