"""Lets tests import the lab's modules by name, whatever pytest's import mode, and says when the lab cannot run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lab import Pieces
from qemu_machine import LabError


@pytest.fixture(scope="session")
def pieces() -> Pieces:
    """What the lab is made of; skips the test where it is not set up, or fails it when LAB_REQUIRED=1."""
    try:
        return Pieces.find()
    except LabError as error:
        if os.environ.get("LAB_REQUIRED") == "1":
            pytest.fail(f"LAB_REQUIRED=1, and {error}")
        pytest.skip(str(error))
