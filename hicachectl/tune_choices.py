"""The effective configuration -> `Choices`: what the operator wants of a host, each value with its reason and its origin.

effective = load_config(flags, env=environ, profile=name, base_profile=BASE_PROFILE)
choices = choices_of(effective, Permissions(bound=True), only=("thp",))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from hicachectl.config import Effective, Origin, OriginKind
from hicachectl.config_keys import catalogue, nearest
from hicachectl.errors import UsageError
from hicachectl.tuning.choices import Choice, Choices

__all__ = ["KEY_OF_KNOB", "Permissions", "choices_of"]

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
    in_guest: bool = False

    def flags(self) -> tuple[str, ...]:
        """Return the flags that were given. Pure."""
        return tuple("--" + f.name.replace("_", "-") for f in fields(self) if getattr(self, f.name))


def choices_of(
    effective: Effective,
    permissions: Permissions = Permissions(),
    only: tuple[str, ...] = (),
    recipes: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Choices:
    """Return what `tune plan` works from. Pure.

    `recipes` maps the id of each recipe there is to its knob and to the word it stands for when it is named alone. A knob
    whose key is null is not in the choices, so it is left alone. Raises UsageError for a word of `only` that cannot name an
    item, and for a recipe that is not there or is chosen twice.
    """
    profile = effective.profile or effective.base
    wanted = dict(_single(effective))
    for knob, choice in (*_sizes(effective), *_recipes(effective, recipes)):
        if knob in wanted:
            raise _twice(effective, choice, knob)
        wanted[knob] = choice
    return Choices(
        profile=profile.name if profile is not None else "none",
        revision=profile.revision if profile is not None else 0,
        wanted=wanted,
        only=tuple(map(_checked_only, only)),
        bound=permissions.bound,
        allow_isolation_loss=permissions.allow_isolation_loss,
        online=permissions.online,
        persist_files=permissions.persist_files,
        in_guest=permissions.in_guest,
        origins=dict(_origins(effective, permissions)),
    )


def _single(effective: Effective) -> Iterator[tuple[str, Choice]]:
    for knob, key in KEY_OF_KNOB.items():
        value = effective.value(key)
        if value is not None:
            yield knob, _choice(effective, key, str(value))


def _sizes(effective: Effective) -> Iterator[tuple[str, Choice]]:
    for size, _, word in _pairs(effective, "tune.thp.sizes"):
        yield f"thp.size.{size}", _choice(effective, "tune.thp.sizes", word)


def _recipes(effective: Effective, recipes: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, Choice]]:
    key = "tune.recipes"
    for name, _, word in _pairs(effective, key):
        if name not in recipes:
            near = nearest(name, recipes)
            raise UsageError(
                f"{key} names {name!r}, and there is no such recipe",
                where=effective.origins[key].where,
                why="recipes here: " + (", ".join(recipes) or "none"),
                hint=f"did you mean {near!r}?" if near else "hicachectl tune recipe list",
            )
        knob, first = recipes[name]
        yield knob, _choice(effective, key, word or first)


def _pairs(effective: Effective, key: str) -> list[tuple[str, str, str]]:
    value = effective.value(key)
    return [] if value is None else [part.partition("=") for part in str(value).split(",")]


def _twice(effective: Effective, choice: Choice, knob: str) -> UsageError:
    own = KEY_OF_KNOB.get(knob)
    return UsageError(
        f"{knob} is chosen twice",
        where=choice.origin,
        why=f"its own key {own} is set by {effective.origins[own]}" if own else "one list names it two times",
        hint="name it once",
    )


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
