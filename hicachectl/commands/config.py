"""`hicachectl config`: what the effective configuration is, where each value comes from, and which file was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.context import Context
from hicachectl.envelope import Fact, Result
from hicachectl.profiles import profile_names
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import format_bytes

if TYPE_CHECKING:
    from hicachectl.config import Effective

app = typer.Typer(help="Show the effective configuration and where each value comes from.", no_args_is_help=True)

ProfileOption = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Profile to fill in what nothing else sets.", autocompletion=profile_names),
]


@app.command()
def show(
    ctx: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    profile: ProfileOption = None,
) -> None:
    """Show every setting as `run` and `tune` without flags would use it.

    Without a trace that includes the profile cpu-demo; what nobody sets for tune comes from the profile kv-host.

    A value is taken from the first place that has one: flag, HICACHECTL_* variable, hicache.yaml, profile,
    measurement, default. Every place is checked, also where another one wins.
    """
    from hicachectl.config import BASE_PROFILE, DEMO_PROFILE, load_config

    cli: Context = ctx.obj
    effective = load_config(
        env=cli.environ, path=cli.config_path, profile=profile, fallback_profile=DEMO_PROFILE, base_profile=BASE_PROFILE
    )
    facts = {pointer: Fact(reason=reason) for pointer, reason in effective.null_reasons().items()}
    result = Result("hicachectl.config-show/1", effective.data(), facts=facts, rows="/settings")
    cli.emit(result, render=lambda screen, data: _render_show(screen, effective, origin=origin or screen.wide))


@dataclass(frozen=True, slots=True)
class Place:
    """One place a settings file may be in. `state` is used, hidden (an earlier place is used), absent or missing."""

    path: str
    state: str


@dataclass(frozen=True, slots=True)
class ConfigPath:
    """What `config path` prints; `path` is the file in use or None, `reason` says what chose it."""

    path: str | None
    reason: str
    places: tuple[Place, ...]


@app.command()
def path(ctx: typer.Context) -> None:
    """Say which hicache.yaml is read, and where it is looked for. Reads no file."""
    from hicachectl.config import find_config

    cli: Context = ctx.obj
    found = find_config(cli.config_path, env=cli.environ)
    places, used = [], False
    for place in found.searched:
        if place == found.path:
            state = "used" if place.exists() else "missing"
            used = True
        else:
            state = "hidden" if used and place.exists() else "absent"
        places.append(Place(str(place), state))
    shown = ConfigPath(None if found.path is None else str(found.path), found.because, tuple(places))
    cli.emit(Result("hicachectl.config-path/1", shown, rows="/places"), render=_render_path)


def _render_show(screen: Screen, effective: Effective, *, origin: bool) -> None:
    from hicachectl.config_keys import catalogue

    file, profile = effective.file, effective.profile
    name = f"{profile.name} rev {profile.revision} ({effective.origins['profile']})" if profile else "none"
    screen.print(f"CONFIG  file {file.path or 'none'}  profile {name}", "bold")
    columns = [Column("KEY"), Column("VALUE")]
    if origin:
        columns += [Column("FROM"), Column("WHERE", keep=1)]
    columns += [Column("FLAG", wide=True, keep=2), Column("VARIABLE", wide=True, keep=3)]
    rows = []
    for setting in effective.settings():
        key = catalogue()[setting.key]
        row = [setting.key, show_value(setting.value, is_size=setting.key.endswith("_bytes"))]
        if origin:
            row += [setting.origin.kind.value, setting.origin.short_where or "-"]
        rows.append([*row, key.flag, key.env])
    screen.table(Table(columns, rows))


def _render_path(screen: Screen, shown: ConfigPath) -> None:
    screen.print(f"CONFIG  {shown.path or 'no file'}  ({shown.reason})", "bold")
    screen.table(Table((Column("PLACE"), Column("STATE")), [(place.path, place.state) for place in shown.places]))


def show_value(value: Any, *, is_size: bool = False) -> str:
    """Write a setting for a person: null for None, true and false, numbers as YAML reads them back, a size with its unit beside. Pure.

    >>> show_value(None), show_value(5.12e-10), show_value("auto"), show_value(1 << 30, is_size=True)
    ('null', '5.12e-10', 'auto', '1073741824 (1.0 GiB)')
    """
    if is_size and value is not None:
        return f"{value} ({format_bytes(int(value))})"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
