"""The effective configuration -> `Choices`: what the operator wants of a host, each value with its reason and its origin.

effective = load_config(flags, env=environ, profile=name, base_profile=BASE_PROFILE)
choices = choices_of(effective, Permissions(bound=True), only=("thp",))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from hicachectl.config import Effective, Origin, OriginKind
from hicachectl.config_keys import catalogue
from hicachectl.errors import UsageError
from hicachectl.tuning.choices import Choice, Choices

__all__ = ["KEY_OF_KNOB", "Permissions", "choices_of", "knob_of_recipe"]

_DECIDE_SEVERAL = ("tune.thp.sizes", "tune.recipes")

KEY_OF_KNOB: dict[str, str] = {
    key.removeprefix("tune.").replace("_", "-"): key
    for key in catalogue()
    if key.startswith("tune.") and key not in _DECIDE_SEVERAL
}
"""The config key of each knob that one value decides: `pcie.ido-request` is `tune.pcie.ido_request`."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a line allows beyond the settings; each is the flag of its name. See `Choices`."""

    bound: bool = False
    allow_isolation_loss: bool = False
    online: bool = False
    persist_files: bool = False

    def flags(self) -> tuple[str, ...]:
        """Return the flags that were given. Pure."""
        return tuple("--" + f.name.replace("_", "-") for f in fields(self) if getattr(self, f.name))


def choices_of(effective: Effective, permissions: Permissions = Permissions(), only: tuple[str, ...] = ()) -> Choices:
    """Return what `tune plan` works from. Pure.

    A knob whose key is null is not in it, so it is left alone. Raises UsageError for a word of `only` that cannot name
    an item, or a recipe named twice.
    """
    profile = effective.profile or effective.base
    return Choices(
        profile=profile.name if profile is not None else "none",
        revision=profile.revision if profile is not None else 0,
        wanted=dict(_wanted(effective)),
        only=tuple(map(_checked_only, only)),
        bound=permissions.bound,
        allow_isolation_loss=permissions.allow_isolation_loss,
        online=permissions.online,
        persist_files=permissions.persist_files,
        origins=dict(_origins(effective, permissions)),
    )


def knob_of_recipe(recipe: str) -> str:
    """Return the name of the knob that uses a recipe: its first dash becomes a dot. Pure.

    >>> knob_of_recipe("pcie-ido-request")
    'pcie.ido-request'
    """
    return recipe.replace("-", ".", 1)


def _wanted(effective: Effective) -> Iterator[tuple[str, Choice]]:
    for knob, key in KEY_OF_KNOB.items():
        value = effective.value(key)
        if value is not None:
            yield knob, _choice(effective, key, str(value))
    for pair in _parts(effective, "tune.thp.sizes"):
        size, _, word = pair.partition("=")
        yield f"thp.size.{size}", _choice(effective, "tune.thp.sizes", word)
    for recipe in _parts(effective, "tune.recipes"):
        yield knob_of_recipe(recipe), _choice(effective, "tune.recipes", "on")


def _parts(effective: Effective, key: str) -> list[str]:
    value = effective.value(key)
    parts = [] if value is None else str(value).split(",")
    names = [part.partition("=")[0] for part in parts]
    taken = set(names) if key != "tune.recipes" else {name for name in names if knob_of_recipe(name) not in KEY_OF_KNOB}
    if len(taken) != len(names):
        raise UsageError(
            f"{key} is {value!r}: one of them is given twice",
            where=effective.origins[key].where,
            why="a recipe with a setting of its own is chosen there" if key == "tune.recipes" else None,
            hint="name each one once",
        )
    return parts


def _choice(effective: Effective, key: str, value: str) -> Choice:
    origin = effective.origins[key]
    return Choice(value, origin.reason or f"set by {origin}", _where(origin))


def _where(origin: Origin) -> str:
    """The place in few words: a flag, a variable and a file:line say what they are, a profile's file is shown without its folder."""
    return origin.short_where or origin.kind.value


def _origins(effective: Effective, permissions: Permissions) -> Iterator[tuple[str, str]]:
    if effective.profile is not None:
        yield "profile", str(effective.origins["profile"])
    if effective.base is not None:
        yield "base", f"{effective.base.name} rev {effective.base.revision}"
    for flag in permissions.flags():
        yield flag.removeprefix("--"), f"flag {flag}"
    for key in (*KEY_OF_KNOB.values(), *_DECIDE_SEVERAL):
        origin = effective.origins[key]
        if effective.value(key) is None and origin.kind not in (OriginKind.DEFAULT, OriginKind.PROFILE):
            yield key, f"left alone by {origin}"


def _checked_only(word: str) -> str:
    name, at, subject = word.partition("@")
    if not name or (at and not subject):
        raise UsageError(
            f"--only {word!r} names no setting",
            where="--only",
            why="it is KNOB or KNOB@ADDRESS",
            hint="--only thp, or --only pcie.ido-request@0000:95:00.0; hicachectl tune plan lists the ids",
        )
    return word
