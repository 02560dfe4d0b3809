"""What `topo -o json` says of each made-up host: stable keys, findings, reasons. UPDATE_HOSTS=1 rewrites them; read them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call

from hosts.builder import write_shape
from hosts.shapes import SHAPES

FOLDER = Path(__file__).parent
KEYS = {
    "nodes": ("id", "cpus", "memory_total_bytes", "memory_free_bytes", "distances", "kind"),
    "devices": (
        "address", "class", "vendor", "device", "kind", "node", "node_fallback", "driver", "link", "ido", "relaxed_ordering", "path",
    ),
    "uplinks": ("id", "port", "capacity_bytes_per_s", "shared_by", "node", "busy_bytes_per_s"),
    "findings": ("code", "severity", "subject"),
}  # fmt: skip


def summary(document: dict[str, Any]) -> dict[str, Any]:
    data = document["data"]
    found: dict[str, Any] = {
        kind: [{key: item[key] for key in keys} for item in data[kind]] for kind, keys in KEYS.items()
    }
    reasons = Counter(note["reason"] for note in data["facts"].values() if "reason" in note)
    found["unknown"] = dict(sorted(reasons.items()))
    return found


def written(found: dict[str, Any]) -> str:
    """One thing a line, so that a difference can be read."""
    parts = []
    for kind, items in found.items():
        if isinstance(items, dict):
            lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in items.items()]
            parts.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            parts.append(f"{json.dumps(kind)}: [\n" + ",\n".join(f"  {json.dumps(item)}" for item in items) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


@pytest.mark.parametrize("name", SHAPES)
def test_a_host_is_seen_as_recorded(name: str, tmp_path: Path) -> None:
    ran = call("topo", "--root", str(write_shape(name, tmp_path / name)), "-o", "json")
    assert ran.code == 0
    found, path = summary(ran.json), FOLDER / name / "expected.json"
    if os.environ.get("UPDATE_HOSTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(written(found), encoding="utf-8")
    assert found == json.loads(path.read_text(encoding="utf-8"))


def test_every_expectation_belongs_to_a_host() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/expected.json")} == set(SHAPES)
