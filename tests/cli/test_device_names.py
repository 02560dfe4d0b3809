"""The name of a device is read alike by every command: a typing error is one (2), whatever this host has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import call
from link_results import Seen

COMMANDS = {
    "run": ("run", "--check"),
    "pool": ("bench", "pool", "--size", "8MiB", "--kind", "anonymous", "--threads", "1", "--rounds", "1"),
    "copy": ("bench", "copy", "--pages", "8", "--rounds", "1"),
    "model": ("bench", "model", "--path", "none", "--lengths", "512,1024", "--rounds", "1"),
    "link": ("bench", "link", "--seconds", "0.01", "--rounds", "1"),
}
NAMES = {
    "cpu:foo": "cpu", "cpu:": "cpu", "cpu:-1": "cpu", "CPU": "cpu", "cuda:foo": "cuda", "cuda:1:2": "cuda", "cuda:": "cuda",
    "cuda:-1": "cuda", "cuda:007": "cuda", "cuda:256": "cuda", "cud": "cuda", "foo": None, "": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["a host without an accelerator", "a host with one"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "a host with one":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr("hicachectl.prove_load.see_accelerators", lambda: [Seen("cuda:0", "0000:63:00.0")])
    return request.param


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_device_is_a_wrong_line_and_the_nearest_name_is_told(command: str, name: str, host: str) -> None:
    ran = call(*COMMANDS[command], "--device", name)
    assert (ran.code, "HC-USAGE" in ran.err) == (2, True), ran.err
    assert repr(name) in ran.err
    near = NAMES[name]
    assert ("did you mean" in ran.err, f"did you mean {near!r}" in ran.err) == (near is not None,) * 2, ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_that_this_host_lacks_is_not_a_wrong_line(command: str) -> None:
    ran = call(*COMMANDS[command], "--device", "cuda:1")
    assert (ran.code, "HC-UNSUPPORTED" in ran.err) == (5, True), ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_processor_with_a_number_is_the_processor(command: str) -> None:
    ran = call(*COMMANDS[command], "--device", "cpu:1")
    assert ran.code in (0, 9), ran.err  # 9: one round of a benchmark is no answer
