"""Results of bench as files, made up."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hicachectl.bench_data import Costs, Setting, bench_result, measure
from hicachectl.context import read_origin
from hicachectl.envelope import envelope
from hicachectl.render.screen import Screen
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.memory.steps import MappingReport

__all__ = ["POOL_MEMORY", "bench_document", "marked_lines", "pages_of", "write_result"]

POOL_MEMORY = MappingReport(
    "anonymous",
    1 << 30,
    1 << 30,
    2 << 20,
    (),
    huge_share=1.0,
    placement="local on node 0",
    registered_with="cuMemHostRegister_v2 of libcuda.so.1",
)
"""A pool on one H200 host, as the screens of measurements show it."""


def bench_document(kind: str = "copy", costs: Costs | None = None, **changes: Any) -> dict[str, Any]:
    """A result with one measure, as its file holds it; `changes` replace fields of the envelope."""
    setting = Setting(
        "m", 2, "cpu", "asked for", None, None, None, "2.6", "Linux", "p", "2", "1 GiB", {"driver": "none"}
    )
    costs = costs or Costs()
    measures = [measure("a", "load_s", [1.0, 3.0])]
    for field in ("host_read", "host_write", "storage_read", "storage_write"):
        line = getattr(costs, field)
        if line is not None:
            measures.append(measure(f"{field.replace('_', ' ')}, 4096 B", "transfer_s", [1.0] * line.n_samples))
    result = bench_result(kind, setting, measures, costs, pages_of(kind))
    made: dict[str, Any] = json.loads(json.dumps(envelope(result, read_origin(None)) | changes))
    return made


def pages_of(kind: str, geometry: str = "tiny-64k", tokens: int = 512, **changes: Any) -> dict[str, Any]:
    """What a document of this kind says of its pages; `changes` replace some of it."""
    made = preset(geometry, tokens)
    told: dict[str, Any] = {
        "name": geometry,
        "page_tokens": tokens,
        "page_bytes": made.page_bytes,
        "dtype": made.dtype,
    }
    told |= {"layout": "page_first_direct"} | changes
    if kind not in ("copy", "store", "model"):
        return {}
    if kind != "copy":
        return {"geometry": told} | ({"backend": "cpu"} if kind == "model" else {})
    name, of = told.pop("name"), {"layout": told.pop("layout"), "backend": "cpu"}
    return {**told, "geometry": name, "costs_of": of}


def marked_lines(draw: Callable[[Screen, Any], None], data: dict[str, Any], subject: str, width: int) -> list[str]:
    """The lines of a screen in plain text whose row has the mark of no answer, when `subject` has none."""
    stream = io.StringIO()
    draw(Screen(stream, width=width, ascii=True), {**data, "no_answer": [subject]})
    assert "? no answer (HC-NO-ANSWER): nothing may rest on this row" in " ".join(stream.getvalue().split())
    return [line for line in stream.getvalue().splitlines() if f"{line} ".count(" ? ") and "HC-NO-ANSWER" not in line]


def write_result(path: str, kind: str, costs: Costs) -> Path:
    """Write one with these costs."""
    Path(path).write_text(json.dumps(bench_document(kind, costs)))
    return Path(path)
