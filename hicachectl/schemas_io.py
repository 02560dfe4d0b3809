"""The JSON Schemas of the documents: one file a command and version beside this module, the envelope around them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from hicachectl.errors import UsageError

__all__ = ["SchemaName", "document_schema", "schema_names"]

_ENVELOPE = "envelope"
_PARTS = "$parts"
"""Key of a schema that names a file of definitions which several documents share."""
_FOLDER = files("hicachectl") / "schemas"


@dataclass(frozen=True, slots=True, order=True)
class SchemaName:
    """A document and its version: topo, 1 is "topo/1"."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


def schema_names() -> list[SchemaName]:
    """List every document with a schema, sorted. Reads the package's folder."""
    found = []
    for item in _FOLDER.iterdir():
        name, dash, version = item.name.removesuffix(".json").rpartition("-")
        if item.name.endswith(".json") and dash and name != _ENVELOPE and not name.endswith("-parts"):
            found.append(SchemaName(name, int(version)))
    return sorted(found)


def document_schema(wanted: str) -> tuple[SchemaName, dict[str, Any]]:
    """Read the schema of a whole document, envelope included. The newest version unless "NAME/N" says which.

    Raises UsageError with the nearest name.

    >>> name, schema = document_schema("version"); str(name), schema["properties"]["schema"]["const"]
    ('version/1', 'hicachectl.version/1')
    """
    text = wanted.removeprefix("hicachectl.").replace(" ", "-")
    name, slash, number = text.partition("/")
    known = schema_names()
    matches = [s for s in known if s.name == name and (not slash or str(s.version) == number)]
    if not matches:
        near = get_close_matches(text, [s.name for s in known] + [str(s) for s in known], n=1)
        raise UsageError(
            f"there is no document {wanted!r}",
            why=f"the nearest one is {near[0]!r}" if near else "no name is near it",
            hint=f"hicachectl schema {near[0]}" if near else "hicachectl schema lists the documents",
        )
    chosen = matches[-1]
    schema = _read(SchemaName(_ENVELOPE, 1))
    data = _read(chosen)
    parts = data.pop(_PARTS, None)
    shared = {} if parts is None else _read(SchemaName(parts, chosen.version))["$defs"]
    schema["$id"] = f"hicachectl.{chosen}"
    schema["title"] = f"hicachectl {chosen.name}, document version {chosen.version}"
    schema["properties"]["schema"] = {"const": f"hicachectl.{chosen}"}
    schema["$defs"] = {**schema.get("$defs", {}), **shared, **data.pop("$defs", {}), "data": data}
    schema["properties"]["data"] = {"anyOf": [{"$ref": "#/$defs/data"}, {"type": "null"}]}
    return chosen, schema


def _read(name: SchemaName) -> dict[str, Any]:
    text = (_FOLDER / f"{name.name}-{name.version}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
