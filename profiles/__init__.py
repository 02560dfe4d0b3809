"""Profiles and recipes as YAML data; each value carries its reason and its source."""

from __future__ import annotations

from importlib import resources

__all__ = ["profile_names", "profile_text", "recipe_data", "recipe_names"]


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles in this package, sorted. Reads the list of files only."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def profile_text(name: str) -> str:
    """Return the YAML of one profile of this package. Reads the file. `name` is one of `profile_names()`."""
    return resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def recipe_names() -> tuple[str, ...]:
    """Return the ids of the recipes in this package, sorted. Reads the list of files only."""
    files = resources.files(__name__).joinpath("recipes").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def recipe_data(name: str) -> bytes:
    """Return the bytes of one recipe of this package. Reads the file. `name` is one of `recipe_names()`."""
    return resources.files(__name__).joinpath("recipes").joinpath(f"{name}.yaml").read_bytes()
