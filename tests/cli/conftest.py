"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_traces import conversations, write_trace
from tune_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "hicache.yaml").touch()
    return Desk(tmp_path)


@pytest.fixture
def chats_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to run in, with chats.jsonl: 40 chats of 6 pages of which the last 25 come back.

    The plateau is where all of them fit.
    """
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "chats.jsonl", [*conversations(40, 6, 1), *conversations(25, 6, 2)])
    return tmp_path
