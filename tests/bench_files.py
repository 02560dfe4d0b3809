"""Results of bench as files, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hicachectl.bench_data import Costs, Setting, bench_result, measure
from hicachectl.context import read_origin
from hicachectl.envelope import envelope

__all__ = ["bench_document", "write_result"]


def bench_document(kind: str = "copy", costs: Costs | None = None, **changes: Any) -> dict[str, Any]:
    """A result with one measure, as its file holds it; `changes` replace fields of the envelope."""
    setting = Setting(
        "m", 2, "cpu", "asked for", None, None, None, "2.6", "Linux", "p", "2", "1 GiB", {"driver": "none"}
    )
    result = bench_result(kind, setting, [measure("a", "load_s", [1.0, 3.0])], costs or Costs(), {})
    made: dict[str, Any] = json.loads(json.dumps(envelope(result, read_origin(None)) | changes))
    return made


def write_result(path: str, kind: str, costs: Costs) -> Path:
    """Write one with these costs."""
    Path(path).write_text(json.dumps(bench_document(kind, costs)))
    return Path(path)
