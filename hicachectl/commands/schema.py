"""`hicachectl schema`: the JSON Schema of a command's document, for validators and code generators."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hicachectl.context import Context
from hicachectl.envelope import Result
from hicachectl.render.screen import Screen
from hicachectl.schemas_io import document_schema, schema_names


@dataclass(frozen=True, slots=True)
class Schemas:
    """What `schema` prints: the names of all documents, and the schema of the asked one."""

    documents: tuple[str, ...]
    json_schema: dict[str, Any]


def _complete(incomplete: str) -> list[str]:
    return [str(name) for name in schema_names() if str(name).startswith(incomplete)]


def command(
    ctx: typer.Context,
    name: Annotated[
        list[str] | None,
        typer.Argument(
            help="A document such as run, run/1 or config show; all names when left out.",
            autocompletion=_complete,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a command's document as it is; with -o json it stands in the envelope."""
    cli: Context = ctx.obj
    if not name:
        schemas = Schemas(tuple(str(s) for s in schema_names()), {})
    else:
        chosen, schema = document_schema(" ".join(name))
        schemas = Schemas((str(chosen),), schema)
    cli.emit(Result("hicachectl.schema/1", schemas), render=_render)


def _render(screen: Screen, schemas: Schemas) -> None:
    if schemas.json_schema:
        screen.write(json.dumps(schemas.json_schema, indent=2, ensure_ascii=not screen.is_unicode) + "\n")
    else:
        screen.lines(schemas.documents)
