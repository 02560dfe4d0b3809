"""`hicachectl completion`: the script that makes a shell complete commands, flags and codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from hicachectl.context import Context
from hicachectl.envelope import Result
from hicachectl.render.screen import Screen


class Shell(str, Enum):
    """The shells with a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True, slots=True)
class Script:
    """A completion script and its shell."""

    shell: Shell
    script: str


def command(
    ctx: typer.Context, shell: Annotated[Shell, typer.Argument(help="Which shell.", show_default=False)]
) -> None:
    """Print the completion script of a shell; the examples show where to put it."""
    cli: Context = ctx.obj
    text = get_completion_script(prog_name="hicachectl", complete_var="_HICACHECTL_COMPLETE", shell=shell.value)
    cli.emit(Result("hicachectl.completion/1", Script(shell, text)), render=_render)


def _render(screen: Screen, script: Script) -> None:
    screen.write(script.script + "\n")
