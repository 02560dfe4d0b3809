"""The PCI address of a device, from a library that answers or does not."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from hicachectl.runtime.memory.pci_address import pci_address_of


class Library:
    """Answers as libcuda does; `fail` names a call that answers an error."""

    def __init__(self, fail: str = "") -> None:
        self.fail = fail

    def cuInit(self, flags: Any) -> int:
        return 100 if self.fail == "cuInit" else 0

    def cuDeviceGet(self, device: Any, index: Any) -> int:
        device._obj.value = index.value
        return 101 if self.fail == "cuDeviceGet" else 0

    def cuDeviceGetPCIBusId(self, text: Any, size: Any, device: Any) -> int:
        text.value = b"0000:B8:00.%d" % device.value
        assert ctypes.sizeof(text) == size.value
        return 1 if self.fail == "cuDeviceGetPCIBusId" else 0


def test_the_address_is_written_as_the_kernel_writes_it() -> None:
    assert pci_address_of("cuda", 3, load=lambda name: Library()) == "0000:b8:00.3"


@pytest.mark.parametrize("fail", ["cuInit", "cuDeviceGet", "cuDeviceGetPCIBusId"])
def test_a_call_that_fails_tells_no_address(fail: str) -> None:
    assert pci_address_of("cuda", 0, load=lambda name: Library(fail)) is None


def test_a_missing_library_a_missing_call_and_another_device_tell_no_address() -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    assert pci_address_of("cuda", 0, load=missing) is None
    assert pci_address_of("cuda", 0, load=lambda name: object()) is None
    assert pci_address_of("xpu", 0, load=missing) is None
