"""`hicachectl version`: the tool, Python and the libraries it works with."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import typer

from hicachectl import __version__
from hicachectl.context import Context
from hicachectl.envelope import Result
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table

LIBRARIES = (
    "torch",
    "numpy",
    "typer",
    "rich",
    "pydantic",
    "PyYAML",
    "psutil",
    "py-libnuma",
    "prometheus-client",
    "zstandard",
    "msgpack",
)


@dataclass(frozen=True, slots=True)
class Library:
    """One library: its version, or None and why."""

    name: str
    version: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Versions:
    """What `version` prints."""

    hicachectl: str
    python: str
    machine: str
    kernel: str
    libraries: tuple[Library, ...]


def command(ctx: typer.Context) -> None:
    """Print the versions of the tool, of Python and of the libraries it works with.

    Reads package metadata only; no library is imported.
    """
    cli: Context = ctx.obj
    versions = Versions(
        hicachectl=__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        kernel=platform.release(),
        libraries=tuple(_library(name) for name in LIBRARIES),
    )
    cli.emit(Result("hicachectl.version/1", versions), render=_render)


def _library(name: str) -> Library:
    try:
        return Library(name, version(name), None)
    except PackageNotFoundError:
        return Library(name, None, "not installed")


def _render(screen: Screen, versions: Versions) -> None:
    screen.print(
        f"hicachectl {versions.hicachectl}  Python {versions.python}  {versions.machine}  kernel {versions.kernel}",
        "bold",
    )
    rows = [(library.name, library.version or library.reason) for library in versions.libraries]
    screen.table(Table((Column("LIBRARY"), Column("VERSION")), rows))
