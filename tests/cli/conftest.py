"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tune_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "hicache.yaml").touch()
    return Desk(tmp_path)
