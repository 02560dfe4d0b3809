"""The table of behaviours names tests that exist, and each of the 24."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")


def test_every_test_the_table_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TABLE)
    assert len(named) > 30
    for path, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), f"{path}::{name}"


def test_every_behaviour_has_a_row_with_a_test_or_a_reason() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", TABLE, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 25))
    for number, _, proof in rows:
        assert "::test_" in proof or re.match(r"(not yet|does not apply): ", proof), f"row {number} has neither"
