"""Where the recorded traces and machines lie: $HICACHECTL_SHARED, else `../shared` beside the repository root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["shared_path"]


def shared_path(relative: str) -> Path:
    """Return the recorded file `relative` (such as `traces/README.md`), or skip the test and say what was looked for."""
    named = os.environ.get("HICACHECTL_SHARED")
    root = Path(named) if named else Path(__file__).resolve().parents[1].parent / "shared"
    path = root / relative
    if not path.exists():
        origin = "$HICACHECTL_SHARED" if named else "../shared beside the checkout"
        pytest.skip(f"recorded data {relative} is not there ({origin}); set HICACHECTL_SHARED to its folder")
    return path
