"""A look at a made-up host through recipes: what is read, what the knobs say of it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hosts.builder import build_root, write_shape
from hosts.shapes import describe
from hosts.spec import Function, HostSpec

from hicachectl.tuning.access import read_doors, read_target
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.knobs.recipe import RecipeKnob
from hicachectl.tuning.recipe import Recipe
from hicachectl.tuning.recipe_load import load_shipped
from hicachectl.tuning.sight import Sight

SHIPPED = {recipe.id: recipe for recipe in load_shipped()}
KNOBS = {recipe.knob: RecipeKnob(recipe) for recipe in SHIPPED.values()}


def wants(wanted: Mapping[str, str], **permissions: Any) -> Choices:
    """Choices that ask for these knobs."""
    return Choices("kv-host", 1, {k: Choice(v, "because", f"--set {k}") for k, v in wanted.items()}, **permissions)


def edited(spec: HostSpec, address: str, **new: Any) -> HostSpec:
    """Change one function of a description; a callable value gets the old one."""

    def one(function: Function) -> Function:
        children = tuple(one(child) for child in function.children)
        if function.address != address:
            return replace(function, children=children)
        values = {k: v(getattr(function, k)) if isinstance(v, Callable) else v for k, v in new.items()}  # type: ignore[arg-type]
        return replace(function, children=children, **values)

    return replace(spec, buses=tuple(replace(b, functions=tuple(one(f) for f in b.functions)) for b in spec.buses))


def root_of(host: str | HostSpec, folder: Path) -> HostRoot:
    """Write a host below a folder of its own and open it. A named one is written once for all tests: nobody changes it."""
    if isinstance(host, str):
        return HostRoot(_named(host), name="made-up")
    at = folder / host.hostname
    return HostRoot(at if at.exists() else build_root(at, host), name="made-up")


@cache
def _named(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    atexit.register(shutil.rmtree, folder)
    write_shape(name, folder / name)
    return folder / name


def sight_of(root: HostRoot, choices: Choices, knobs: Sequence[RecipeKnob]) -> Sight:
    """Read the machine and every target of the knobs, as a session does."""
    machine = read_machine(root)
    targets = [target for knob in knobs for target in knob.targets(machine, choices)]
    return Sight(machine, {target: read_target(root, target) for target in targets}, doors=read_doors(root, targets))


def look(
    host: str | HostSpec, folder: Path, wanted: Mapping[str, str], *, recipes: Sequence[Recipe] = (), **permissions: Any
) -> dict[str, Item]:
    """Return the items of all shipped recipes, and of `recipes`, on a host."""
    choices, knobs = wants(wanted, **permissions), [*KNOBS.values(), *map(RecipeKnob, recipes)]
    sight = sight_of(root_of(host, folder), choices, knobs)
    found = [item for knob in knobs for item in knob.items(sight, choices)]
    items = {item.id: item for item in found}
    assert len(items) == len(found)
    return items


__all__ = ["KNOBS", "SHIPPED", "describe", "edited", "look", "root_of", "sight_of", "wants"]
