"""`hicachectl profile`: the profiles that come with the tool, each value with its reason, and the check of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hicachectl.context import Context
from hicachectl.envelope import Diagnostic, Result, Severity
from hicachectl.errors import ExitCode, HicacheError
from hicachectl.profiles import profile_names
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table

app = typer.Typer(help="List, show and check profiles.", no_args_is_help=True)

_TARGET_HELP = "Name of a built-in profile, or a file (with a slash, or ending in .yaml)."


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of `profile list`."""

    name: str
    revision: int
    n_values: int
    summary: str
    path: str


@app.command("list")
def list_profiles(ctx: typer.Context) -> None:
    """List the profiles that come with the tool."""
    from hicachectl.profiles_io import load_profile

    cli: Context = ctx.obj
    loaded = [load_profile(name) for name in profile_names()]
    data = {"profiles": [Summary(p.name, p.revision, len(p.values), p.summary, p.path) for p in loaded]}
    cli.emit(Result("hicachectl.profile-list/1", data, rows="/profiles"), render=_render_list)


@dataclass(frozen=True, slots=True)
class ShownValue:
    """One value of `profile show`; `where` is its file:line."""

    key: str
    value: Any
    reason: str
    source: str
    confidence: str
    where: str


@dataclass(frozen=True, slots=True)
class ShownProfile:
    """What `profile show` prints."""

    name: str
    revision: int
    summary: str
    path: str
    values: tuple[ShownValue, ...]


@app.command()
def show(
    ctx: typer.Context,
    profile: Annotated[str, typer.Argument(metavar="NAME|FILE", help=_TARGET_HELP, autocompletion=profile_names)],
) -> None:
    """Show a profile: each value with its reason, where the reason can be read, and how far to trust it."""
    from hicachectl.profiles_io import load_profile

    cli: Context = ctx.obj
    loaded = load_profile(profile)
    values = tuple(
        ShownValue(v.key, v.value, v.reason, v.source, v.confidence.value, v.where) for v in loaded.values.values()
    )
    data = ShownProfile(loaded.name, loaded.revision, loaded.summary, loaded.path, values)
    cli.emit(Result("hicachectl.profile-show/1", data, rows="/values"), render=_render_show)


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome for one profile; `name`, `revision` and `n_values` are None when it cannot be used, and `reason` says so."""

    target: str
    ok: bool
    n_problems: int
    name: str | None
    revision: int | None
    n_values: int | None
    reason: str | None


@app.command()
def validate(
    ctx: typer.Context,
    profiles: Annotated[
        list[str], typer.Argument(metavar="NAME|FILE...", help=_TARGET_HELP, autocompletion=profile_names)
    ],
) -> None:
    """Check profiles and list every problem with its line. Exit code 2 when there is one."""
    cli: Context = ctx.obj
    checked, problems = [], []
    for target in profiles:
        outcome, found = _check(target)
        checked.append(outcome)
        problems += found
    diagnostics = [
        Diagnostic(p.code, Severity.ERROR, f"{p.what} ({p.why})" if p.why else p.what, subject=p.where, hint=p.hint)
        for p in problems
    ]
    result = Result(
        "hicachectl.profile-validate/1",
        {"profiles": checked},
        diagnostics=diagnostics,
        exit_code=ExitCode.USAGE if problems else ExitCode.OK,
        rows="/profiles",
    )
    cli.emit(result, render=_render_validate)


def _check(target: str) -> tuple[Checked, list[HicacheError]]:
    from hicachectl.config import check_profile
    from hicachectl.profiles_io import problems_in_profile

    try:
        profile, problems = problems_in_profile(target)
        if profile is not None:
            check_profile(profile)
    except HicacheError as error:
        profile, problems = None, [error]
    if profile is None:
        reason = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        return Checked(target, False, len(problems), None, None, None, reason), problems
    return Checked(target, True, 0, profile.name, profile.revision, len(profile.values), None), []


def _render_list(screen: Screen, data: dict[str, list[Summary]]) -> None:
    columns = (
        Column("NAME"), Column("REV", right=True, keep=1), Column("VALUES", right=True, keep=2), Column("SUMMARY"), Column("PATH", wide=True, keep=3),
    )  # fmt: skip
    rows = [(p.name, str(p.revision), str(p.n_values), p.summary, p.path) for p in data["profiles"]]
    screen.table(Table(columns, rows))


def _render_show(screen: Screen, profile: ShownProfile) -> None:
    from hicachectl.commands.config import show_value

    screen.print(
        f"PROFILE {profile.name}  rev {profile.revision}  {len(profile.values)} values  {profile.path}", "bold"
    )
    screen.paragraph("", profile.summary)
    for value in profile.values:
        screen.print()
        screen.print(f"{value.key}  {show_value(value.value)}", "bold")
        screen.paragraph("  why     ", value.reason)
        screen.paragraph("  source  ", f"{value.source} ({value.confidence})")


def _render_validate(screen: Screen, data: dict[str, list[Checked]]) -> None:
    for outcome in data["profiles"]:
        if outcome.ok:
            screen.print(
                f"ok     {outcome.target}  {outcome.name} rev {outcome.revision}, {outcome.n_values} values", "ok"
            )
        else:
            screen.print(f"wrong  {outcome.target}  {outcome.reason}", "error")
