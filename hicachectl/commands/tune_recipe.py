"""`hicachectl tune recipe`: the registers and vendor settings that can be planned, the check of a file, a template, what to ask a vendor."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicachectl.context import Context
from hicachectl.envelope import Diagnostic, Fact, Result, Severity
from hicachectl.errors import ExitCode, HicacheError, ProfileError, UsageError
from hicachectl.profiles import recipe_names
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table

if TYPE_CHECKING:
    from hicachectl.tuning.host.model import Machine
    from hicachectl.tuning.host.root import HostRoot
    from hicachectl.tuning.recipe import Recipe
    from hicachectl.tuning.recipe_match import Place

app = typer.Typer(help="List, show, check and begin recipes of registers and vendor settings.", no_args_is_help=True)


# -- list ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One recipe of `list`. `n_places` are those where it holds on this host; `reason` says why there is none."""

    id: str
    knob: str
    title: str
    status: str
    method: str
    scope: str
    mode: str
    shipped: bool
    n_places: int
    reason: str | None
    path: str
    sha256: str


@app.command("list")
def list_recipes(ctx: typer.Context) -> None:
    """List the shipped recipes and those in /etc/hicachectl/recipes.d, and at how many places of this host each holds."""
    from hicachectl.tuning.host.read import read_machine
    from hicachectl.tuning.recipe_load import load_recipes

    cli: Context = ctx.obj
    recipes = load_recipes(root=cli.host_root())
    machine = read_machine(cli.host_root())
    lines = [_line(recipe, machine, cli.host_root()) for recipe in recipes]
    cli.emit(Result("hicachectl.tune-recipe-list/1", {"recipes": lines}, rows="/recipes"), render=_render_list)


def _line(recipe: Recipe, machine: Machine, root: HostRoot) -> Line:
    n_places, reason = _holds(recipe, machine, root)
    return Line(
        recipe.id, recipe.knob, recipe.title, recipe.status.value, recipe.reach.method.value, recipe.reach.scope.value, _mode(recipe),
        recipe.shipped, n_places, reason, recipe.where, recipe.sha256,
    )  # fmt: skip


def _mode(recipe: Recipe) -> str:
    return "report" if recipe.reports_only else "offer"


def _holds(recipe: Recipe, machine: Machine, root: HostRoot) -> tuple[int, str | None]:
    from hicachectl.tuning.recipe_match import find_places

    found = find_places(recipe, machine)
    whys = [_why_not(recipe, machine, place, root) for place in found.places]
    n_places = sum(why is None for why in whys)
    return n_places, None if n_places else found.why_not or next((why for why in whys if why), "it has no place here")


def _why_not(recipe: Recipe, machine: Machine, place: Place, root: HostRoot) -> str | None:
    """Say why a plan would do nothing at a place: what the plan's own gates say, and whether the way in is there."""
    from hicachectl.tuning.recipe_gates import hidden
    from hicachectl.tuning.recipe_place import locate
    from hicachectl.tuning.target import METHODS_THAT_REPORT, Method

    guest = hidden(recipe, machine, place)
    if guest is not None or place.why_not is not None:
        return place.why_not if guest is None else guest.reason
    if recipe.reach.method in METHODS_THAT_REPORT:
        return None
    spot = locate(recipe, place)
    if spot.target is None:
        return spot.why_not
    there = recipe.reach.method in (Method.MODULE_PARAM, Method.MOUNT) or root.exists(spot.target.path)
    return None if there else f"{spot.target.path} is not there"


def _render_list(screen: Screen, data: dict[str, list[Line]]) -> None:
    columns = (
        Column("RECIPE"), Column("STATUS", keep=3), Column("METHOD", keep=2), Column("SCOPE", keep=4), Column("MODE", keep=1),
        Column("HERE", right=True), Column("TITLE", keep=6), Column("WHY NOT", wide=True), Column("PATH", wide=True, keep=5),
    )  # fmt: skip
    rows = [
        (r.id, r.status, r.method, r.scope, r.mode, str(r.n_places), r.title, r.reason, r.path) for r in data["recipes"]
    ]
    screen.table(Table(columns, rows))
    screen.paragraph("", "HERE: places of this host at which a plan would look; -o wide says why there are none.")


# -- show ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Here:
    """One place of a recipe on this host; `reason` says why it does not hold there."""

    subject: str | None
    holds: bool
    uplink: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Part:
    """One line of what a recipe says."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A recipe in full: what it says, and where it holds here."""

    id: str
    knob: str
    title: str
    status: str
    mode: str
    path: str
    sha256: str
    parts: tuple[Part, ...]
    words: dict[str, str]
    sources: tuple[str, ...]
    places: tuple[Here, ...]
    reason: str | None


@app.command()
def show(
    ctx: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="ID|FILE", help="A recipe by its id, or a file.", autocompletion=recipe_names)
    ],
) -> None:
    """Show a recipe: where it applies, what it writes and never writes, what it risks, where that was read; and its places here."""
    from hicachectl.render.recipe_words import parts_of
    from hicachectl.tuning.host.read import read_machine
    from hicachectl.tuning.recipe_match import find_places

    cli: Context = ctx.obj
    found = _named(cli, recipe)
    machine = read_machine(cli.host_root())
    places = find_places(found, machine)
    whys = [_why_not(found, machine, place, cli.host_root()) for place in places.places]
    here = tuple(Here(p.subject, why is None, p.uplink, why) for p, why in zip(places.places, whys, strict=True))
    data = Shown(
        found.id, found.knob, found.title, found.status.value, _mode(found), found.where, found.sha256,
        parts=tuple(Part(name, value) for name, value in parts_of(found)),
        words={word: _number(value) for word, value in found.words},
        sources=tuple(f"{source.ref} ({source.kind}, {source.checked})" for source in found.sources),
        places=here,
        reason=None if any(place.holds for place in here) else places.why_not or next((p.reason for p in here if p.reason), "it has no place here"),
    )  # fmt: skip
    unknown = {
        f"/places/{i}/uplink": Fact(reason="no accelerator's uplink")
        for i, p in enumerate(data.places)
        if p.uplink is None
    }
    unknown |= {
        f"/places/{i}/subject": Fact(reason="the host itself") for i, p in enumerate(data.places) if p.subject is None
    }
    cli.emit(Result("hicachectl.tune-recipe-show/1", data, facts=unknown, rows="/parts"), render=_render_show)


def _named(cli: Context, name: str) -> Recipe:
    """Load one recipe, by id or file. Raises UsageError with the nearest id, ProfileError for a file that is wrong."""
    from difflib import get_close_matches

    from hicachectl.tuning.recipe_load import load_recipes, parse_recipe, read_recipe_file

    if "/" in name or name.endswith((".yaml", ".yml")):
        recipe, problems = parse_recipe(read_recipe_file(Path(name)), name)
        if recipe is None:
            raise problems[0]
        return recipe
    known = {recipe.id: recipe for recipe in load_recipes(root=cli.host_root())}
    known |= {recipe.knob: recipe for recipe in known.values()}
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        raise UsageError(
            f"there is no recipe {name!r}",
            why=f"the nearest is {near[0]!r}"
            if near
            else "recipes here: " + ", ".join(r.id for r in dict.fromkeys(known.values())),
            hint=f"hicachectl tune recipe show {near[0]}" if near else "hicachectl tune recipe list",
        )
    return known[name]


def _number(value: str | int) -> str:
    return f"{value:#06x}" if isinstance(value, int) else value


def _render_show(screen: Screen, recipe: Shown) -> None:
    screen.print(f"RECIPE {recipe.id}  {recipe.status}  {recipe.mode}", "bold")
    screen.paragraph("", recipe.title)
    screen.print()
    screen.paragraph(f"  {'file':<12}", recipe.path)
    for part in recipe.parts:
        screen.paragraph(f"  {part.name:<12}", part.value)
    if recipe.words:
        screen.paragraph(f"  {'words':<12}", ", ".join(f"{word} = {value}" for word, value in recipe.words.items()))
    for source in recipe.sources:
        screen.paragraph(f"  {'source':<12}", source)
    screen.paragraph(f"  {'sha256':<12}", recipe.sha256)
    screen.print()
    holds = [place for place in recipe.places if place.holds]
    screen.print(f"HERE  {len(holds)} of {len(recipe.places)} places", "bold")
    if not recipe.places:
        screen.paragraph("  none    ", recipe.reason or "")
    for place in recipe.places:
        where = f"{place.subject or 'host'}{f'  {place.uplink}' if place.uplink else ''}"
        screen.paragraph(
            f"  {'holds' if place.holds else 'not':<6}  ", f"{where}{f'  {place.reason}' if place.reason else ''}"
        )


# -- validate -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome for one file; `id` and `sha256` are None where it cannot be used, and `reason` says how many problems it has."""

    target: str
    ok: bool
    n_problems: int
    id: str | None
    sha256: str | None
    reason: str | None


@app.command()
def validate(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(readable=False, metavar="FILE...", help="Recipes to check.")],
) -> None:
    """Check recipes and list every problem with its line; exit code 2 when there is one. Who owns a file does not count here."""
    from hicachectl.tuning.recipe_load import doubles, load_shipped, parse_recipe, read_recipe_file

    cli: Context = ctx.obj
    sound: list[Recipe] = list(load_shipped())
    checked: list[Checked] = []
    problems: list[HicacheError] = []
    for path in files:
        found: list[HicacheError] = []
        recipe = None
        try:
            recipe, wrong = parse_recipe(read_recipe_file(path), str(path))
            found += wrong
        except HicacheError as error:
            found.append(error)
        if recipe is not None:
            found += doubles([*sound, recipe])
            found += _from_tomorrow(recipe, datetime.now(timezone.utc).date())
            if not found:
                sound.append(recipe)
        problems += found
        checked.append(_outcome(str(path), recipe, len(found)))
    diagnostics = [
        Diagnostic(p.code, Severity.ERROR, f"{p.what} ({p.why})" if p.why else p.what, subject=p.where, hint=p.hint)
        for p in problems
    ]
    result = Result(
        "hicachectl.tune-recipe-validate/1",
        {"recipes": checked},
        diagnostics=diagnostics,
        exit_code=ExitCode.USAGE if problems else ExitCode.OK,
        rows="/recipes",
    )
    cli.emit(result, render=_render_validate)


def _from_tomorrow(recipe: Recipe, today: date) -> list[HicacheError]:
    """A source that will be read one day: a slip of the pen. A day is left for clocks of other zones."""
    late = [s for s in recipe.sources if s.checked > (today + timedelta(days=1)).isoformat()]
    return [
        ProfileError(
            f"source {s.ref!r} was checked on {s.checked}, and today is {today}",
            where=recipe.where,
            hint="correct the date",
        )
        for s in late
    ]


def _outcome(target: str, recipe: Recipe | None, n_problems: int) -> Checked:
    if recipe is None or n_problems:
        return Checked(
            target, False, n_problems, None, None, "1 problem" if n_problems == 1 else f"{n_problems} problems"
        )
    return Checked(target, True, 0, recipe.id, recipe.sha256, None)


def _render_validate(screen: Screen, data: dict[str, list[Checked]]) -> None:
    for outcome in data["recipes"]:
        if outcome.ok:
            screen.print(f"ok     {outcome.target}  {outcome.id}", "ok")
        else:
            screen.print(f"wrong  {outcome.target}  {outcome.reason}", "error")
    good = [outcome for outcome in data["recipes"] if outcome.ok]
    if len(good) == len(data["recipes"]):
        files, ids = shlex.join(o.target for o in good), ",".join(str(o.id) for o in good)
        screen.print(f"Next: sudo install -D -o root -g root -m 0644 {files} -t /etc/hicachectl/recipes.d")
        screen.print(f"      sudo hicachectl tune plan --recipes {ids} --output-file plan.json")


# -- new ----------------------------------------------------------------------------------------------------------------


class TemplateMethod(str, Enum):
    """How the new recipe's setting is reached."""

    PCI_CONFIG = "pci-config"
    MSR = "msr"
    SMN_DEBUGFS = "smn-debugfs"
    SYSFS = "sysfs"
    MODULE_PARAM = "module-param"
    BIOS = "bios"


@dataclass(frozen=True, slots=True)
class Template:
    """A new recipe's text with its blanks."""

    id: str
    method: str
    n_blanks: int
    text: str


@app.command()
def new(
    ctx: typer.Context,
    recipe_id: Annotated[str, typer.Argument(metavar="ID", help="Its id: VENDOR-WHAT-IT-SETS.")],
    method: Annotated[
        TemplateMethod, typer.Option("--method", help="How the setting is reached.")
    ] = TemplateMethod.PCI_CONFIG,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --output-file.")] = False,
) -> None:
    """Print the template of a recipe; --output-file writes it. Each <blank> must be filled in: validate names those that are not."""
    from hicachectl.tuning.recipe_fields import blanks
    from hicachectl.tuning.recipe_parse import is_recipe_id
    from hicachectl.tuning.recipe_template import recipe_template
    from hicachectl.tuning.target import Method
    from hicachectl.yaml_marks import parse_marked

    cli: Context = ctx.obj
    if not is_recipe_id(recipe_id):
        raise UsageError(
            f"{recipe_id!r} cannot be the id of a recipe",
            why="it is small letters and digits, words with dashes between, and the first is no area of other knobs",
            hint="hicachectl tune recipe new vendor-what-it-sets",
        )
    if recipe_id in recipe_names():
        raise UsageError(
            f"{recipe_id!r} is the id of a shipped recipe",
            why="a recipe never replaces another one",
            hint=f"hicachectl tune recipe new vendor-{recipe_id}",
        )
    if cli.output.file is not None and os.path.exists(cli.output.file) and not force:
        raise UsageError(
            "is there already",
            where=str(cli.output.file),
            why="a template would replace what was filled in",
            hint="another --output-file, or --force",
        )
    text = recipe_template(recipe_id, Method(method.value))
    data = Template(recipe_id, method.value, len(blanks(parse_marked(text, recipe_id))), text)
    cli.emit(Result("hicachectl.tune-recipe-new/1", data), render=lambda screen, shown: screen.write(shown.text))


# -- checklist ------------------------------------------------------------------------------------------------------------


class Vendor(str, Enum):
    """Whom to ask."""

    HYGON = "hygon"
    KUNLUN = "kunlun"


@app.command()
def checklist(
    ctx: typer.Context,
    vendor: Annotated[Vendor | None, typer.Argument(help="Whom to ask.", show_default=False)] = None,
) -> None:
    """Print what to get from a vendor before a recipe can be written, why each answer decides something, and what to do then."""
    from hicachectl.tuning.checklists import CHECKLISTS

    cli: Context = ctx.obj
    if vendor is None:
        raise UsageError(
            "whom to ask is missing",
            where="hicachectl tune recipe checklist",
            why="there are lists for " + " and ".join(CHECKLISTS),
            hint=f"hicachectl tune recipe checklist {next(iter(CHECKLISTS))}",
        )
    data = CHECKLISTS[vendor.value]
    cli.emit(Result("hicachectl.tune-recipe-checklist/1", data, rows="/questions"), render=_render_checklist)


def _render_checklist(screen: Screen, data: object) -> None:
    from hicachectl.tuning.checklists import Checklist

    assert isinstance(data, Checklist)
    screen.print(f"CHECKLIST {data.name}  {data.title}", "bold")
    screen.paragraph("", data.about)
    for number, question in enumerate(data.questions, 1):
        screen.print()
        screen.paragraph(f"{number:>3} [ ] ", f"{question.topic}: {question.ask}")
        screen.paragraph("        ", question.why, "dim")
    screen.print()
    screen.print("THEN", "bold")
    for step in data.then:
        screen.print(f"  {step}")
