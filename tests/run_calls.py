"""Calls of `hicachectl run` on tiny tiers: 4 KiB pages, no L3 unless named, every hit restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
from cli_runner import Ran, call
from small_traces import conversations, write_trace

from hicachectl.schemas_io import document_schema

__all__ = ["COUNTS", "conversation_trace", "counts", "replay", "run"]

COUNTS = (
    "pages_total", "pages_hit", "pages_hit_by_tier", "pages_used", "pages_restored", "pages_restored_by_tier", "pages_verified",
    "pages_mismatched", "missed_tokens_by_reason", "evicted_pages", "dropped_pages", "failures_by_reason",
)  # fmt: skip
"""What must not depend on timing."""


def run(*argv: str, **options: Any) -> Ran:
    """`hicachectl run` with small defaults, a JSON document that fits its schema, and its exit code in it."""
    small = ("--geometry", "tiny-4k", "--storage-path", "none", "--restore", "always")
    given = {word for word in argv if word.startswith("--")}
    defaults = [w for pair in zip(small[::2], small[1::2], strict=True) if pair[0] not in given for w in pair]
    ran = call("run", "--progress", "none", "-o", "json", *defaults, *argv, **options)
    _, schema = document_schema("run-check" if "--check" in argv else "run")
    jsonschema.Draft202012Validator(schema).validate(
        ran.json if ran.json["data"] else {**ran.json, "schema": schema["properties"]["schema"]["const"]}
    )
    assert ran.json["exit_code"] == ran.code
    return ran


def replay(*argv: str, **options: Any) -> Any:
    """The data of a run that ends well and proved every page it restored."""
    ran = run(*argv, **options)
    assert ran.code == 0, ran.err
    data = ran.json["data"]
    assert data["pages_mismatched"] == 0
    assert data["pages_verified"] == data["pages_restored"]
    assert data["pages_hit"] == sum(data["pages_hit_by_tier"].values())
    assert data["missed_tokens"] == sum(data["missed_tokens_by_reason"].values())
    page_tokens = data["pools"]["page_tokens"]
    assert data["input_tokens"] == data["pages_used"] * page_tokens + data["missed_tokens"]
    return data


def counts(data: Any) -> dict[str, Any]:
    return {name: data[name] for name in COUNTS}


def conversation_trace(folder: Path, n: int = 12, pages: int = 8, rounds: int = 2) -> str:
    """Write `n` conversations asked `rounds` times; with 8 device slots every later round hits below the device."""
    return str(write_trace(folder / "trace.jsonl", conversations(n, pages, rounds)))
