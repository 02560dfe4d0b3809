"""The device of a probe: what auto picks, what is refused, and that what is not known has a reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hicachectl.errors import ExitCode, Unsupported, UsageError
from hicachectl.runtime.probes.device import find_probe_device

MODULE = SimpleNamespace(device_count=lambda: 2, get_device_name=lambda device: f"a card {device.index}")


def test_auto_takes_an_accelerator_and_names_it_with_its_driver(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (who@where)\nGCC\n"
    )
    found = find_probe_device("auto", root=tmp_path, accelerators=lambda: ["cuda"], module_of=lambda device: MODULE)
    assert (found.name, found.words, found.driver) == ("cuda:0", "a card 0", "NVIDIA 580.159.04")
    assert found.is_accelerator


def test_the_processor_needs_no_driver_and_says_so() -> None:
    found = find_probe_device("auto", accelerators=list)
    assert (found.name, found.words, found.driver, found.is_accelerator) == ("cpu", None, None, False)
    assert set(found.reasons) == {"accelerator", "driver", "cuda"}


def test_what_is_not_known_of_an_accelerator_has_a_reason(tmp_path: Path) -> None:
    found = find_probe_device(
        "xpu:0", root=tmp_path, accelerators=lambda: ["xpu"], module_of=lambda d: SimpleNamespace()
    )
    assert found.words is None
    assert found.driver is None
    assert {"accelerator", "driver"} <= set(found.reasons)


@pytest.mark.parametrize(
    ("wanted", "words"), [("xpu", "torch cannot use device xpu"), ("cuda:2", "torch counts 2 of cuda")]
)
def test_a_device_that_is_not_there_is_unsupported(wanted: str, words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        find_probe_device(wanted, accelerators=lambda: ["cuda"], module_of=lambda device: MODULE)
    assert caught.value.exit_code is ExitCode.UNSUPPORTED


@pytest.mark.parametrize(
    "wanted", ["cuda:", "cuda:-1", "cuda:foo", "cuda:1:2", "cuda:256", "cpu:foo", "CPU", "foo", ""]
)
def test_what_names_no_device_is_a_usage_error_before_torch_is_asked(wanted: str) -> None:
    with pytest.raises(UsageError, match="--device"):
        find_probe_device(wanted, accelerators=lambda: ["cuda"], module_of=lambda device: MODULE)
