from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes.cuda_runtime import FakeCuda

from hicachectl.errors import CapacityError, HostError, Unsupported, Vanished
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime, find_cuda_runtime


@pytest.mark.parametrize("version", [12080, 12090, 13000, 13020])
def test_a_batched_copy_is_called_as_the_librarys_own_version_wants_it(version: int) -> None:
    cuda = FakeCuda(version=version)
    runtime, stream = CudaRuntime(cuda.library), cuda.Stream()
    source, target = np.arange(8, dtype=np.uint8), np.zeros(8, dtype=np.uint8)
    lists = np.array([[target.ctypes.data + 4], [source.ctypes.data + 1], [3]], dtype=np.int64)
    runtime.copy_batch(*(row.ctypes.data for row in lists), 1, stream.cuda_stream)
    stream.synchronize()
    assert target.tolist() == [0, 0, 0, 0, 1, 2, 3, 0]


def test_a_batched_copy_is_tried_before_it_is_believed() -> None:
    source, target = np.arange(4, dtype=np.uint8), np.zeros(4, dtype=np.uint8)
    for version, driver_batch, named in ((12060, True, "12.6"), (12080, False, "801"), (13000, True, None)):
        cuda = FakeCuda(version=version, driver_batch=driver_batch)
        runtime, stream = CudaRuntime(cuda.library), cuda.Stream()
        missing = runtime.try_batch(target.ctypes.data, source.ctypes.data, stream.cuda_stream)
        assert missing == runtime.batch_missing
        assert (missing is None) if named is None else (missing is not None and named in missing)
        if missing is not None:
            with pytest.raises(Unsupported, match="no batched copy"):
                runtime.copy_batch(0, 0, 0, 1, stream.cuda_stream)


def test_a_library_without_the_call_has_no_batched_copy() -> None:
    library = FakeCuda().library
    del library.cudaMemcpyBatchAsync
    assert "no cudaMemcpyBatchAsync" in (CudaRuntime(library).batch_missing or "")


@pytest.mark.parametrize(
    ("code", "kind"), [(2, CapacityError), (719, Vanished), (46, Vanished), (36, Unsupported), (1, HostError)]
)
def test_error_codes_become_errors_that_say_what_to_do(code: int, kind: type[Exception]) -> None:
    cuda = FakeCuda()
    runtime = CudaRuntime(cuda.library, "libcudart.so.13")
    cuda.fail["cudaMemcpyAsync"] = code
    with pytest.raises(kind) as caught:
        runtime.copy(4096, 8192, 1, cuda.Stream().cuda_stream)
    error = caught.value
    assert isinstance(error, (HostError, CapacityError))
    assert "cudaMemcpyAsync failed" in error.what
    assert error.why == f"fake error {code}"
    assert error.where == "libcudart.so.13"
    assert error.hint


def test_where_no_runtime_is_loaded_nothing_is_made_up(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 0 0:0 1  /lib/libc.so.6\n7f02-7f03 r--p 0 0:0 1 /nowhere/libcudart-1.so.13 (deleted)\n"
    )
    with pytest.raises(Unsupported, match="no CUDA runtime is loaded") as caught:
        find_cuda_runtime(maps, names=())
    assert "/nowhere/libcudart-1.so.13" in (caught.value.why or "")


def test_a_library_without_the_calls_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no CUDA runtime is loaded") as caught:
        find_cuda_runtime(tmp_path / "none", names=("libc.so.6",))
    assert (caught.value.why or "").startswith("libc.so.6: ")


def test_every_function_that_is_called_is_declared() -> None:
    library = FakeCuda().library
    declared = SimpleNamespace(**{name: getattr(library, name) for name in vars(library)})
    CudaRuntime(declared)
    assert all(hasattr(function, "argtypes") for function in vars(declared).values())
