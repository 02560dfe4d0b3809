"""The vendor's tool is asked for little, seldom, and never for long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hosts.machines import accelerator, change

from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.host.vendor_tool import LIMIT_S, parse_persistence, read_persistence


class Live(HostRoot):
    """A made-up folder that counts as the running host."""

    def __init__(self, path: Path, *, loaded: bool = True) -> None:
        super().__init__(path)
        if loaded:
            (path / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)


@pytest.fixture
def cards() -> tuple[Any, ...]:
    card = accelerator("0000:17:00.0")
    return (change(card, vendor="10de", driver="nvidia", runtime_status="active"),)


def tool(folder: Path, text: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_it_says_the_mode_by_address(tmp_path: Path, cards: tuple[Any, ...]) -> None:
    found = read_persistence(Live(tmp_path), cards, tool=tool(tmp_path, "echo '00000000:17:00.0, Enabled'"))
    assert found is not None
    assert found.value == {"0000:17:00.0": "on"} or found.reason == f"no answer within {LIMIT_S:g} s"


def test_it_is_stopped_when_it_takes_long(tmp_path: Path, cards: tuple[Any, ...]) -> None:
    start = time.monotonic()
    found = read_persistence(Live(tmp_path), cards, tool=tool(tmp_path, "exec sleep 30"))
    assert found is not None
    assert found.reason == "no answer within 0.2 s"
    assert time.monotonic() - start < 20


def test_a_failing_tool_is_a_reason(tmp_path: Path, cards: tuple[Any, ...]) -> None:
    for text in ("exit 9", "exec /missing"):
        found = read_persistence(Live(tmp_path), cards, tool=tool(tmp_path, text))
        assert found is not None
        assert found.value is None


def test_it_is_not_started_where_it_could_load_or_wake_something(tmp_path: Path, cards: tuple[Any, ...]) -> None:
    mark = tmp_path / "started"
    path = tool(tmp_path, f"touch {mark}")
    (card,) = cards
    asked = [
        (Live(tmp_path / "a", loaded=False), cards),
        (Live(tmp_path / "b"), (change(card, driver="vfio-pci"),)),
        (Live(tmp_path / "b"), (change(card, runtime_status="suspended"),)),
        (HostRoot(tmp_path, name="recording"), cards),
        (Live(tmp_path / "b"), (change(card, vendor="1d22"),)),
    ]
    answers = [read_persistence(root, devices, tool=path) for root, devices in asked]
    assert not mark.exists()
    assert answers[-1] is None
    assert all(answer is not None and answer.reason for answer in answers[:-1])


@pytest.mark.parametrize("text", ["", "nonsense", "00000000:17:00.0, [N/A]", ",", "x, Enabled"])
def test_other_words_are_left_out(text: str) -> None:
    assert parse_persistence(text) == {}
