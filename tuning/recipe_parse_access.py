"""The `access` of a recipe: how its setting is reached, from marked YAML; each method has its own keys. Pure."""

from __future__ import annotations

import re

from hicachectl.tuning.recipe import REGISTER_METHODS, Reach, Scope
from hicachectl.tuning.recipe_fields import Fields
from hicachectl.tuning.recipe_rules import ACCESS_CONTROL, EXPRESS, unfit
from hicachectl.tuning.target import Method

__all__ = ["parse_access"]

_ANCHORED = (Method.PCI_CONFIG, Method.PCI_ECAP)
_PATHS = {Method.SYSFS: "/sys/", Method.SYSCTL: "/proc/sys/", Method.MOUNT: "/"}
"""Methods that have a path, and what it begins with."""


def parse_access(all_: Fields) -> Reach | None:
    """Return how a setting is reached; None where that is missing or wrong, which is told. Pure."""
    keys = (
        "method", "scope", "anchor", "offset", "width", "instances", "path", "module", "parameter", "setting",
    )  # fmt: skip
    access = all_.section("access", keys, ("method", "scope"))
    if access is None:
        return None
    method_word, scope = (
        access.text("method", [m.value for m in Method]),
        access.text("scope", [s.value for s in Scope]),
    )
    if method_word is None or scope is None:
        return None
    method = Method(method_word)
    _allow_keys(access, method)
    anchor = access.section("anchor", ("cap", "ecap", "min_version"))
    capability = extended = None
    if anchor is not None:
        capability, extended = anchor.number("cap", 0, 0xFF), anchor.number("ecap", 0, 0xFFFF)
        if (capability is None) == (extended is None):
            anchor.wrong(None, "an anchor is either cap or ecap", hint="anchor: {cap: 0x10, min_version: 2}")
        if capability not in (None, EXPRESS):
            anchor.wrong("cap", f"cap is {capability:#x}; only 0x10, PCI Express, is located")
        if extended not in (None, ACCESS_CONTROL):
            anchor.wrong("ecap", f"ecap is {extended:#x}; only 0x0d, access control, is located")
    reach = Reach(
        method=method,
        scope=Scope(scope),
        offset=access.number("offset", 0, 0xFFFFFFFF),
        width=access.number("width", 8, 64),
        capability=capability,
        min_version=(anchor.number("min_version", 1, 15) if anchor is not None else None) or 1,
        extended=extended,
        instances=access.numbers("instances", 0, 0xFFFFFFFF) or (0,),
        path=_path(access, method, Scope(scope)),
        module=_word(access, "module"),
        parameter=_word(access, "parameter"),
        setting=access.text("setting"),
    )
    for key, what in unfit(reach):
        access.wrong(key if key in access.values else None, what)
    return reach


def _allow_keys(access: Fields, method: Method) -> None:
    """Width and offset are mandatory for registers; every other method has its own keys."""
    needed: tuple[str, ...] = ("setting",)
    extra: tuple[str, ...] = ()
    if method in REGISTER_METHODS:
        needed = ("offset", "width")
        extra = () if method is Method.MSR else ("anchor",) if method in _ANCHORED else ("instances",)
    elif method in _PATHS:
        needed = ("path",)
    elif method is Method.MODULE_PARAM:
        needed = ("module", "parameter")
    for key in needed:
        if key not in access.values:
            access.wrong(None, f"key {key!r} of access is missing: {method.value} needs it", hint=f"add {key}:")
    for key in access.values:
        if key not in ("method", "scope", *needed, *extra):
            access.wrong(key, f"{method.value} has no {key}", hint="it has: " + ", ".join((*needed, *extra)))


def _path(access: Fields, method: Method, scope: Scope) -> str | None:
    path = access.text("path")
    if path is None or method not in _PATHS:
        return None
    parts = path.split("/")
    if not path.startswith(_PATHS[method]) or ".." in parts or "" in parts[1:]:
        access.wrong("path", f"path is {path!r}, not a plain path below {_PATHS[method]}")
        return None
    allowed = {Scope.PER_FUNCTION: {"address"}, Scope.PER_ROOT_PORT: {"address"}, Scope.PER_CPU: {"cpu"}}.get(
        scope, set()
    )
    if (
        set(re.findall(r"\{([^{}]*)\}", path)) != allowed
        or path.count("{") != len(allowed)
        or path.count("}") != len(allowed)
    ):
        holder = " and ".join(f"{{{name}}}" for name in allowed) or "no {...}"
        access.wrong("path", f"path is {path!r}; with scope {scope.value} it holds {holder}, once")
        return None
    return path


def _word(access: Fields, key: str) -> str | None:
    word = access.text(key)
    if word is not None and not re.fullmatch(r"\w+", word, re.ASCII):
        access.wrong(key, f"{key} is {word!r}, not letters, digits and underscores")
        return None
    return word
