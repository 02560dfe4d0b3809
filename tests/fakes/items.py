"""Plan items for tests: everything a test does not care for has a value."""

from __future__ import annotations

from typing import Any

from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.target import Method, Rule, Target

THP = "/sys/kernel/mm/transparent_hugepage"


def item(
    knob: str = "thp.enabled", path: str = f"{THP}/enabled", wanted: str | int = "madvise", **changes: Any
) -> Item:
    """Return a planned change of one settings file, with `changes` of any field; `method` is the target's."""
    method = changes.pop("method", Method.SYSFS)
    subject = changes.get("subject")
    values: dict[str, Any] = {
        "id": f"{knob}@{subject}" if subject else knob, "knob": knob, "subject": subject, "title": knob, "kind": ItemKind.CHANGE,
        "target": Target(method, path), "old": "never", "old_reason": None, "wanted": (wanted,), "rule": Rule.EQUAL,
        "why": "a test", "origin": "test", "source": "a test",
    }  # fmt: skip
    return Item(**{**values, **changes})
