from __future__ import annotations

from pathlib import Path

from hicachectl.runtime import memory


def test_the_reading_order_lists_every_module_once() -> None:
    folder = Path(__file__).parents[3] / "runtime" / "memory"
    assert sorted(memory.READING_ORDER) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
