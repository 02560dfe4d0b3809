"""The TSV form of a document: a header and rows of one list in `data`, or every leaf as pointer and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hicachectl.envelope import Envelope
from hicachectl.render.text import printable

__all__ = ["tsv_lines"]


def tsv_lines(document: Envelope, rows: str | None) -> list[str]:
    """Lay a document out as tab-separated lines, header first. Pure.

    `rows` is the pointer of a list of objects in `data` ("/findings"). A failed document lists its diagnostics instead.
    Tabs, newlines, backslashes and other control characters inside a value are written as backslash escapes; null is empty.
    """
    if document["status"] == "failed":
        return _objects(document["diagnostics"])
    if rows is not None:
        value: Any = document["data"]
        for part in rows.strip("/").split("/"):
            value = value[part]
        return _objects(value)
    return ["pointer\tvalue", *(f"{_cell(p)}\t{_cell(v)}" for p, v in _leaves(document["data"], ""))]


def _objects(items: list[Mapping[str, Any]]) -> list[str]:
    keys = list(dict.fromkeys(key for item in items for key in item))
    return ["\t".join(map(_cell, keys)), *("\t".join(_cell(item.get(key)) for key in keys) for item in items)]


def _leaves(value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{pointer}/{index}")
    else:
        yield pointer, value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Mapping, list)):
        import json

        text = json.dumps(value, ensure_ascii=False) if value else ""
        return text if printable(text) == text else json.dumps(value).replace("\x7f", "\\u007f")
    text = str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return text if text.isascii() and text.isprintable() else printable(text)
