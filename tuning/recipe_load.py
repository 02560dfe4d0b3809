"""Recipes from YAML, strictly: the shipped ones, and a vendor's from a folder that only root can write.

    load_recipes     all of them, or the first problem
    parse_recipe     bytes -> a recipe and every problem in it, each with file:line
    read_trusted     a vendor's file, its owner and mode checked on the file that was opened

A vendor's file decides what is written to registers as root, so it must not be possible for anybody else to change it:
the folder and each file belong to root and nobody else may write them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hicachectl.errors import HicacheError, PermissionDenied, ProfileError, UsageError
from hicachectl.profiles import recipe_data, recipe_names
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.recipe import Recipe
from hicachectl.tuning.recipe_parse import parse_fields
from hicachectl.yaml_marks import MAX_FILE_BYTES, parse_marked

__all__ = [
    "RECIPES_FOLDER",
    "doubles",
    "load_recipes",
    "load_shipped",
    "parse_recipe",
    "read_recipe_file",
    "read_trusted",
]

RECIPES_FOLDER = Path("/etc/hicachectl/recipes.d")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def load_recipes(
    folder: Path | None = RECIPES_FOLDER,
    *,
    root: HostRoot | None = None,
    owner: int = 0,
    on_problem: Callable[[HicacheError], None] | None = None,
) -> tuple[Recipe, ...]:
    """Return the shipped recipes, then those of a folder by file name. Reads files, changes nothing.

    `folder` lies below `root` (the live host unless given); one that is not there holds none, and None asks for the
    shipped ones alone. `owner` is the uid files must belong to. A file that has the id or the knob of another one is
    refused: a vendor's recipe never replaces a shipped one, for the plan would look the same.
    Raises ProfileError (file:line, or the file with owner and mode), PermissionDenied where a file may not be read; with
    `on_problem` that is called instead, and the file, or the folder, is left out.
    """
    tell = on_problem or _raise
    recipes = list(load_shipped())
    if folder is not None:
        for recipe in _vendors((root or HostRoot()).at(str(folder)), owner, tell):
            problems = list(doubles([*recipes, recipe]))
            if problems:
                tell(problems[0])
            else:
                recipes.append(recipe)
    return tuple(recipes)


def load_shipped() -> tuple[Recipe, ...]:
    """Return the recipes of the package, by id. Reads files. Raises ProfileError for one that is wrong: a bug."""
    return tuple(_sound(recipe_data(name), f"profiles/recipes/{name}.yaml", shipped=True) for name in recipe_names())


def parse_recipe(data: bytes, name: str, *, shipped: bool = False) -> tuple[Recipe | None, list[ProfileError]]:
    """Return the recipe that bytes of YAML are, or None and every problem in them, in the order of lines. Pure.

    `name` stands for the file in messages; the recipe's sha256 is that of `data`.
    """
    try:
        doc = parse_marked(data.decode("utf-8-sig"), name, error=ProfileError)
    except UnicodeDecodeError as error:
        return None, [ProfileError(f"is not UTF-8 text (byte {data[error.start]:#04x} at {error.start})", where=name)]
    except ProfileError as error:
        return None, [error]
    recipe, problems = parse_fields(doc, shipped=shipped, sha256=hashlib.sha256(data).hexdigest())
    return recipe, sorted(problems, key=_line)


def doubles(recipes: Iterable[Recipe]) -> Iterator[ProfileError]:
    """Yield a problem for each recipe that has the id or the knob of one before it. Pure."""
    seen: dict[str, Recipe] = {}
    for recipe in recipes:
        for key, what in ((f"id {recipe.id}", "id"), (f"knob {recipe.knob}", "knob")):
            other = seen.setdefault(key, recipe)
            if other is not recipe:
                kind = "shipped recipe" if other.shipped else "recipe"
                yield ProfileError(
                    f"has the {key}, as the {kind} {other.where} has",
                    where=recipe.where,
                    why="two recipes of one name could not be told apart in a plan or a journal",
                    hint=f"give it another {what}, such as vendor-{recipe.id}",
                )
                break


def read_recipe_file(path: Path) -> bytes:
    """Return the bytes of any file, to be checked as a recipe. Reads the file. Raises UsageError, PermissionDenied."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(
            "no such file" if isinstance(error, FileNotFoundError) else "is a folder", where=str(path)
        ) from error
    except OSError as error:
        raise _unreadable(error, path) from error
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"is larger than the {MAX_FILE_BYTES} bytes a recipe may have", where=str(path))
    return data


def read_trusted(folder: int, name: str, shown: Path, owner: int) -> bytes:
    """Read a file of an open folder, having checked the file that was opened. Raises ProfileError, PermissionDenied.

    A link is not followed and a pipe not waited for. `shown` is the folder's path for messages.
    """
    path = shown / name
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    except OSError as error:
        raise _unreadable(error, path) from error
    try:
        _check_trust(os.fstat(handle), path, owner, folder=False)
        data = b""
        while len(data) <= MAX_FILE_BYTES and (piece := os.read(handle, MAX_FILE_BYTES + 1 - len(data))):
            data += piece
    except OSError as error:
        raise _unreadable(error, path) from error
    finally:
        os.close(handle)
    if len(data) > MAX_FILE_BYTES:
        raise ProfileError(f"is larger than the {MAX_FILE_BYTES} bytes a recipe may have", where=str(path))
    return data


# -- helpers ------------------------------------------------------------------------------------------------------------


def _sound(data: bytes, name: str, *, shipped: bool = False) -> Recipe:
    recipe, problems = parse_recipe(data, name, shipped=shipped)
    if problems:
        first = problems[0]
        if len(problems) > 1:
            first.hint = (
                f"{first.hint or 'correct it'}; {len(problems) - 1} more: hicachectl tune recipe validate {name}"
            )
        raise first
    assert recipe is not None
    return recipe


def _raise(error: HicacheError) -> None:
    raise error


def _vendors(folder: Path, owner: int, tell: Callable[[HicacheError], None]) -> list[Recipe]:
    """Read every .yaml and .yml of the folder, hidden files aside, and hand each problem to `tell`."""
    try:
        names = _vendor_names(folder, owner)
    except HicacheError as error:
        tell(error)
        return []
    found = []
    for name in names:
        try:
            found.append(_sound(_vendor_file(folder, name, owner), str(folder / name)))
        except HicacheError as error:
            tell(error)
    return found


def _vendor_names(folder: Path, owner: int) -> list[str]:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(error, folder) from error
    try:
        _check_trust(os.fstat(handle), folder, owner, folder=True)
        names = sorted(n for n in os.listdir(handle) if n.endswith((".yaml", ".yml")) and not n.startswith("."))
        return names
    finally:
        os.close(handle)


def _vendor_file(folder: Path, name: str, owner: int) -> bytes:
    """Read one file through its folder, which is checked again: between two looks it may have become another one."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise _unreadable(error, folder) from error
    try:
        _check_trust(os.fstat(handle), folder, owner, folder=True)
        return read_trusted(handle, name, folder, owner)
    finally:
        os.close(handle)


def _check_trust(found: os.stat_result, path: Path, owner: int, *, folder: bool) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if not folder and not stat.S_ISREG(found.st_mode):
        raise ProfileError("is not a file", where=str(path), hint="a recipe is one YAML file; remove this")
    if found.st_uid == owner and not mode & _OTHERS_WRITE:
        return
    name = "root" if owner == 0 else str(owner)
    right = "0755" if folder else "0644"
    raise ProfileError(
        f"is not trusted: owner uid {found.st_uid}, mode {mode:04o}; it must belong to {name} and nobody else may write it",
        where=str(path),
        why="whoever can change a recipe decides what root writes to registers",
        hint=f"look at what it says, then: sudo chown {name} {path} && sudo chmod {right} {path}",
    )


def _unreadable(error: OSError, path: Path) -> UsageError | PermissionDenied:
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            "cannot be read",
            where=str(path),
            why=error.strerror,
            hint=f"recipes are part of every plan: run it as root, or let others read (sudo chmod a+r {path})",
        )
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return ProfileError("is a link, or no folder", where=str(path), hint="put the files themselves there")
    return ProfileError("cannot be read", where=str(path), why=error.strerror)


def _line(problem: ProfileError) -> int:
    line = (problem.where or "").rpartition(":")[2]
    return int(line) if line.isdigit() else 0
