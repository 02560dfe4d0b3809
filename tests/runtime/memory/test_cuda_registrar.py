"""CUDA through ctypes: the library and the spelling that are there, portable flags, answers in the driver's words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicachectl.runtime.memory.cuda_registrar import find_cuda_registrar, registrar_for
from hicachectl.runtime.memory.register import NoRegistrar, Registrar


class Library:
    """A CUDA library with the functions named, each answering 0 unless `answers` says otherwise."""

    def __init__(self, names: str, answers: dict[str, int] | None = None) -> None:
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        for name in names.split():
            setattr(self, name, self._function(name, (answers or {}).get(name, 0)))

    def _function(self, name: str, answer: int) -> Callable[..., Any]:
        def act(*arguments: Any) -> Any:
            self.log.append((name, tuple(getattr(a, "value", a) for a in arguments)))
            if name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_X"
            if name == "cuGetErrorString":
                arguments[1]._obj.value = b"words"
            return {"cudaGetErrorName": b"cudaErrorX", "cudaGetErrorString": b"words"}.get(name, answer)

        act.__name__ = name
        return act


DRIVER = (
    "cuInit cuDeviceGet cuDevicePrimaryCtxRetain cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuMemHostRegister_v2 "
    "cuMemHostUnregister cuGetErrorName cuGetErrorString"
)
RUNTIME = "cudaHostRegister cudaHostUnregister cudaFree cudaGetLastError cudaGetErrorName cudaGetErrorString"


def found(libraries: dict[str, Library], maps: Path = Path("/nowhere")) -> Registrar | NoRegistrar:
    def load(name: str) -> Library:
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return libraries[name]

    return find_cuda_registrar(3, load=load, maps=maps)


def real(libraries: dict[str, Library], maps: Path = Path("/nowhere")) -> Registrar:
    registrar = found(libraries, maps)
    assert not isinstance(registrar, NoRegistrar)
    return registrar


def test_without_a_library_the_reason_is_the_loaders_own() -> None:
    registrar = found({})
    assert isinstance(registrar, NoRegistrar)
    assert "libcuda.so.1: cannot open" in registrar.reason


def test_the_driver_registers_portable_in_the_primary_context_of_the_device_and_gives_the_thread_its_own_back() -> None:
    library = Library(DRIVER)
    registrar = real({"libcuda.so.1": library, "libcudart.so": Library(RUNTIME)})
    assert registrar.name == "cuMemHostRegister_v2 of libcuda.so.1"
    assert registrar.register(4096, 8192) is None
    assert registrar.unregister(4096) is None
    names = [name for name, _ in library.log]
    assert names == [
        "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2", "cuMemHostRegister_v2", "cuCtxPopCurrent_v2",
        "cuCtxPushCurrent_v2", "cuMemHostUnregister", "cuCtxPopCurrent_v2",
    ]  # fmt: skip
    assert dict(library.log)["cuMemHostRegister_v2"] == (4096, 8192, 3)
    assert dict(library.log)["cuDeviceGet"][1] == 3


def test_the_older_spelling_is_taken_where_there_is_no_other() -> None:
    library = Library(DRIVER.replace("cuMemHostRegister_v2", "cuMemHostRegister").replace("_v2", ""))
    assert real({"libcuda.so.1": library}).name == "cuMemHostRegister of libcuda.so.1"


def test_a_driver_without_the_function_gives_way_to_the_runtime_library_that_the_process_has_loaded(
    tmp_path: Path,
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f10 r-xp 00000000 08:01 12 /opt/torch/lib/libcudart.so.13\n7f20-7f30 rw-p 00000000 00:00 0 \n"
    )
    loaded, other = Library(RUNTIME), Library(RUNTIME)
    registrar = real(
        {"libcuda.so.1": Library("cuInit"), "/opt/torch/lib/libcudart.so.13": loaded, "libcudart.so": other}, maps
    )
    assert registrar.name == "cudaHostRegister of /opt/torch/lib/libcudart.so.13"
    assert registrar.prepare() is None
    assert registrar.register(4096, 8192) is None
    assert registrar.unregister(4096) is None
    assert ("cudaHostRegister", (4096, 8192, 3)) in loaded.log
    assert not other.log


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        (2, False),
        (1, False),
        (46, True),
        (100, True),
        (304, False),  # the operating system refused: memory of a device file, a limit
        (700, True),
        (709, True),
        (719, True),
        (999, True),
    ],
)
def test_an_answer_is_told_in_the_drivers_words_and_a_lost_device_is_known(code: int, lost: bool) -> None:
    refused = real({"libcuda.so.1": Library(DRIVER, {"cuMemHostRegister_v2": code})}).register(0, 1)
    assert refused is not None
    assert str(refused) == f"cuMemHostRegister: CUDA_ERROR_X ({code}), words"
    assert refused.device_lost is lost


def test_the_runtimes_error_is_forgotten_so_that_no_later_call_reports_it() -> None:
    library = Library(RUNTIME, {"cudaHostRegister": 712})
    refused = real({"libcudart.so": library}).register(0, 1)
    assert refused is not None
    assert (refused.code, refused.name) == (712, "cudaErrorX")
    assert "cudaGetLastError" in [name for name, _ in library.log]


def test_a_driver_that_does_not_come_up_says_so_registers_nothing_and_has_lost_no_device() -> None:
    library = Library(DRIVER, {"cuInit": 100})
    registrar = real({"libcuda.so.1": library})
    refused = registrar.register(0, 1)
    assert refused is not None
    assert not refused.device_lost
    assert "cuMemHostRegister_v2" not in [name for name, _ in library.log]


def test_an_error_in_the_push_of_the_context_registers_nothing_and_pops_nothing() -> None:
    library = Library(DRIVER, {"cuCtxPushCurrent_v2": 201})
    assert real({"libcuda.so.1": library}).register(0, 1) is not None
    names = [name for name, _ in library.log]
    assert "cuMemHostRegister_v2" not in names
    assert "cuCtxPopCurrent_v2" not in names


def test_the_processor_and_unknown_devices_register_nothing_and_say_why() -> None:
    for device, named in (("cpu", "the device is the CPU"), ("xpu", "xpu")):
        registrar = registrar_for(device)
        assert isinstance(registrar, NoRegistrar)
        assert named in registrar.reason


def test_the_words_of_an_error_the_library_does_not_know_are_not_made_up() -> None:
    library = Library(DRIVER, {"cuMemHostRegister_v2": 999, "cuGetErrorName": 1, "cuGetErrorString": 1})
    refused = real({"libcuda.so.1": library}).register(0, 1)
    assert refused is not None
    assert (refused.name, refused.words) == ("unknown error", "unknown error")
