"""The group `tune` with nothing but `recipe` in it, so that its commands can be called by their own path."""

from __future__ import annotations

import typer

from hicachectl.commands import tune_recipe

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.add_typer(tune_recipe.app, name="recipe")
