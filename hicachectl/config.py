"""The effective configuration: every value with where it came from.

A value is taken from the first place that has one: flag > HICACHECTL_* > hicache.yaml > profile > base profile > measured > default. Every place is checked in full
even when another one wins, so a broken file never waits for the day it is needed.

    load_config   find the file, read the layers, merge
    Effective     the typed config (`.run`), the origin of each key, rows for a screen, plain data for JSON
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from hicachectl.config_keys import ENV_PREFIX, catalogue, check_value, key_named, nearest, sections
from hicachectl.config_models import ComputeConfig, HicacheConfig, PrefetchConfig, RunConfig, TuneConfig
from hicachectl.errors import UsageError
from hicachectl.flags import GLOBAL_FLAGS
from hicachectl.profiles_io import Profile, load_profile
from hicachectl.yaml_marks import Marked, read_marked

__all__ = [
    "BASE_PROFILE",
    "DEMO_PROFILE",
    "LOCAL_FILE",
    "SYSTEM_FILE",
    "ComputeConfig",
    "Effective",
    "FileSearch",
    "HicacheConfig",
    "Origin",
    "OriginKind",
    "PrefetchConfig",
    "RunConfig",
    "Setting",
    "check_profile",
    "find_config",
    "load_config",
]

DEMO_PROFILE = "cpu-demo"
"""What `hicachectl run` without a trace and without a profile uses."""

BASE_PROFILE = "kv-host"
"""What lies below every named profile for `hicachectl tune`: its values hold where nobody else sets one."""

LOCAL_FILE = Path("hicache.yaml")
SYSTEM_FILE = Path("/etc/hicachectl/hicache.yaml")

_CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"
_NOT_KEYS = frozenset({flag.variable for flag in GLOBAL_FLAGS} | {f"{ENV_PREFIX}SHARED"})
"""Environment variables that are not config keys: global flags, and where the tests find recorded data. Any other HICACHECTL_* must be a key."""


class OriginKind(str, Enum):
    """Where a value came from, strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    PROFILE = "profile"
    MEASURED = "measured"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of one value: `where` is a flag, a variable, a file:line or what was measured; `reason` is the profile's."""

    kind: OriginKind
    where: str | None = None
    reason: str | None = None

    @property
    def short_where(self) -> str | None:
        """The place for a column of a table: of a profile the file name alone, its folder is the same for all. Pure."""
        return Path(self.where).name if self.where and self.kind is OriginKind.PROFILE else self.where

    def __str__(self) -> str:
        """Write it for a screen. Pure."""
        return f"{self.kind.value} {self.where}" if self.where else self.kind.value


@dataclass(frozen=True, slots=True)
class FileSearch:
    """Which settings file is used: `path` or None, the places looked at in order, and what asked for it."""

    path: Path | None
    searched: tuple[Path, ...]
    because: str


@dataclass(frozen=True, slots=True)
class Effective:
    """The merged configuration; `origins` has every dotted key. `base` is the profile below the named one, where there is one."""

    config: HicacheConfig
    origins: Mapping[str, Origin]
    file: FileSearch
    profile: Profile | None
    base: Profile | None = None

    @property
    def run(self) -> RunConfig:
        """Return the settings of `hicachectl run`."""
        return self.config.run

    @property
    def tune(self) -> TuneConfig:
        """Return the settings of `hicachectl tune`."""
        return self.config.tune

    def value(self, name: str) -> object:
        """Return the value of one dotted key. Pure. Raises UsageError for an unknown one."""
        key_named(name)
        found: object = self.config
        for word in name.split("."):
            found = getattr(found, word)
        return found

    def with_measured(self, name: str, value: object, what: str) -> Effective:
        """Return a copy in which a measurement stands in for `auto` or for a default. Pure.

        `what` says what was measured, such as "longest request of the trace". A value that a flag, the environment, a file or a profile set to
        something other than `auto` stays. Raises UsageError when the value does not fit the key.
        """
        measured = self.replaced({name: value}, what)
        if self.value(name) != "auto" and self.origins[name].kind is not OriginKind.DEFAULT:
            return self
        return measured

    def replaced(self, measured: Mapping[str, object], what: str) -> Effective:
        """Return a copy with measured values in place of those that these keys had. Pure.

        `what` says what was measured, or the file it is in. Raises UsageError when a value does not fit its key.
        """
        checked = {
            name: check_value(key_named(name), value, text=False, where=what) for name, value in measured.items()
        }
        values = {key: self.value(key) for key in catalogue()} | checked
        new = {name: Origin(OriginKind.MEASURED, what) for name in measured}
        return replace(self, config=_build(values), origins=MappingProxyType({**self.origins, **new}))

    def unused_workload(self) -> str | None:
        """Say that a trace from a stronger place replaces the synthetic workload the settings file asks for, and what of the file stays. Pure.

        None when the file asks for no workload or its own is replayed.
        """
        synthetic, trace = self.origins["run.synthetic"], self.origins["run.trace"]
        if synthetic.kind is not OriginKind.FILE or self.run.trace is None or trace.kind is OriginKind.FILE:
            return None
        workload = ("run.synthetic", "run.seed")
        kept = [s.key for s in self.settings() if s.origin.kind is OriginKind.FILE and s.key not in workload]
        rest = f"still used from that file: {', '.join(kept)}" if kept else "nothing else is set there"
        return f"{synthetic.where}: synthetic {self.run.synthetic} is not replayed, the trace of {trace} is; {rest}"

    def settings(self) -> list[Setting]:
        """Return every key with its value and origin, in the order of the models. Pure."""
        return [Setting(name, self.value(name), self.origins[name]) for name in catalogue()]

    def data(self) -> dict[str, object]:
        """Return plain data for JSON: the values nested as in hicache.yaml, and flat with the origin of each. Pure.

        A null has its reason beside it in `settings`; `null_reasons` has the pointers for the nested values.
        """
        profile, base = self.profile, self.base
        return {
            "file": {
                "path": None if self.file.path is None else str(self.file.path),
                "reason": self.file.because,
                "searched": [str(path) for path in self.file.searched],
            },
            "profile": {"name": profile.name, "revision": profile.revision, "path": profile.path} if profile else None,
            "profile_reason": str(self.origins["profile"]) if profile else "no profile was asked for",
            "base_profile": None if base is None else {"name": base.name, "revision": base.revision, "path": base.path},
            "base_profile_reason": "below every profile" if base else "not used here",
            "values": self.config.model_dump(mode="json"),
            "settings": [
                {
                    "key": s.key,
                    "value": s.value,
                    "origin": s.origin.kind.value,
                    "where": s.origin.where,
                    "reason": s.reason,
                }
                for s in self.settings()
            ],
        }

    def null_reasons(self, prefix: str = "") -> dict[str, str]:
        """Return why each null of `data()["values"]` is null, by its JSON pointer; `prefix` is the pointer of `data()`. Pure."""
        return {
            f"{prefix}/values/{s.key.replace('.', '/')}": s.reason
            for s in self.settings()
            if s.value is None and s.reason is not None
        }


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the effective configuration."""

    key: str
    value: object
    origin: Origin

    @property
    def reason(self) -> str | None:
        """Why the value is what it is, where somebody said so or nothing else explains it. Pure."""
        if self.origin.kind is OriginKind.DEFAULT:
            return f"default; {catalogue()[self.key].description}"
        return self.origin.reason or (f"set to null by {self.origin}" if self.value is None else None)


@dataclass(frozen=True, slots=True)
class _Set:
    value: object
    origin: Origin


_Layer = Mapping[str, _Set]


def load_config(
    flags: Mapping[str, object] | None = None,
    *,
    env: Mapping[str, str],
    path: Path | None = None,
    profile: str | None = None,
    fallback_profile: str | None = None,
    base_profile: str | None = None,
    cwd: Path | None = None,
    system_file: Path = SYSTEM_FILE,
) -> Effective:
    """Merge every layer into the effective configuration. Reads the settings file and the profile, changes nothing.

    `flags` maps dotted keys to what the user gave, None where nothing was given; `env` is the environment; `path` is --config; `profile` is
    --profile (a name or a file); `fallback_profile` is taken when nobody names a profile or a trace; `base_profile` supplies
    what no other place sets; `cwd` is the folder searched for hicache.yaml, default the current one.
    Raises UsageError (ProfileError inside a profile) with file:line, flag or variable, for an unknown key, a wrong value, or two
    values that exclude each other.
    """
    file = find_config(path, env=env, cwd=cwd, system_file=system_file)
    by_flag = _flag_layer({**(flags or {}), **({"profile": profile} if profile is not None else {})})
    by_env = _env_layer(env)
    by_file = _file_layer(read_marked(file.path)) if file.path else {}
    given: list[_Layer] = [by_flag, by_env, by_file]
    chosen = next((layer["profile"].value for layer in given if "profile" in layer), None)
    if fallback_profile is not None and not any("profile" in layer or "run.trace" in layer for layer in given):
        chosen = fallback_profile
        given.append({"profile": _Set(fallback_profile, Origin(OriginKind.DEFAULT, "no trace and no profile given"))})
    loaded = load_profile(str(chosen)) if chosen is not None else None
    base = load_profile(base_profile) if base_profile is not None else None
    merged = _merge([*given, *(_profile_layer(profile) for profile in (loaded, base) if profile is not None)])
    _choose_workload(merged)
    _forget_whose_prefill(merged)
    _check_together(merged)
    config = _build({name: s.value for name, s in merged.items()})
    return Effective(config, MappingProxyType({name: s.origin for name, s in merged.items()}), file, loaded, base)


def check_profile(profile: Profile) -> None:
    """Check that the values of a profile go together when nothing else is set. Pure. Raises UsageError as `load_config` would."""
    merged = _merge([_profile_layer(profile)])
    _choose_workload(merged)
    _check_together(merged)


def find_config(
    path: Path | None, *, env: Mapping[str, str], cwd: Path | None = None, system_file: Path = SYSTEM_FILE
) -> FileSearch:
    """Find the settings file: --config, else HICACHECTL_CONFIG, else ./hicache.yaml, else /etc/hicachectl/hicache.yaml, else none.

    Looks at the file system, reads nothing. A file that was named is returned also when it does not exist: reading it says so.
    """
    if path is not None:
        by_variable = env.get(_CONFIG_VARIABLE) == str(path)  # a global flag takes its start value from there
        return FileSearch(path, (path,), _CONFIG_VARIABLE if by_variable else "--config")
    if env.get(_CONFIG_VARIABLE):
        named = Path(env[_CONFIG_VARIABLE])
        return FileSearch(named, (named,), _CONFIG_VARIABLE)
    places = (cwd / LOCAL_FILE if cwd else LOCAL_FILE, system_file)
    found = next((p for p in places if _present(p)), None)
    return FileSearch(found, places, "search order" if found else "no file in the search order")


def _present(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return True  # it cannot be looked at: reading it says so, where passing it over would hide it


def _flag_layer(flags: Mapping[str, object]) -> _Layer:
    layer = {}
    for name, raw in flags.items():
        key = key_named(name)
        if raw is not None:
            layer[name] = _Set(check_value(key, raw, text=True, where=key.flag), Origin(OriginKind.FLAG, key.flag))
    return layer


def _env_layer(env: Mapping[str, str]) -> _Layer:
    by_variable = {key.env: key for key in catalogue().values()}
    layer = {}
    for variable, raw in env.items():
        if not variable.startswith(ENV_PREFIX) or variable in _NOT_KEYS or raw == "":
            continue  # an empty variable is an unset one
        key = by_variable.get(variable)
        if key is None:
            near = nearest(variable, by_variable)
            raise UsageError(
                f"unknown environment variable {variable}", where=variable,
                hint=f"did you mean {near}?" if near else f"unset it; {ENV_PREFIX}* is reserved for config keys, such as {ENV_PREFIX}RUN_SEED",
            )  # fmt: skip
        layer[key.name] = _Set(
            check_value(key, raw, text=True, where=variable), Origin(OriginKind.ENVIRONMENT, variable)
        )
    return layer


def _file_layer(doc: Marked) -> _Layer:
    layer: dict[str, _Set] = {}
    if doc.value is None:
        return layer
    if not isinstance(doc.value, dict):
        raise UsageError("the file is not a mapping of sections", where=doc.where(), hint="start with run:")
    _read_section(doc, doc.value, (), layer)
    return layer


def _read_section(doc: Marked, section: Mapping[str, object], at: tuple[str, ...], layer: dict[str, _Set]) -> None:
    for word, raw in section.items():
        path = (*at, word)
        name, where = ".".join(path), doc.where(path)
        if name in sections() and "." not in word:
            if isinstance(raw, dict):
                _read_section(doc, raw, path, layer)
            elif raw is not None:  # an empty section sets nothing
                raise UsageError(
                    f"{name} is {raw!r}, not a section",
                    where=where,
                    hint=f"put its keys below it, indented, such as {_example(name)}",
                )
            continue
        if "." in word:
            raise UsageError(
                f"unknown key {word!r}",
                where=where,
                hint="nest sections instead of joining them with dots: run: on its own line, its keys indented below",
            )
        key = key_named(name, where=where)
        layer[name] = _Set(check_value(key, raw, text=False, where=where), Origin(OriginKind.FILE, where))


def _example(section: str) -> str:
    return next(name for name in catalogue() if name.startswith(section + ".")).rpartition(".")[2] + ":"


def _profile_layer(profile: Profile) -> _Layer:
    return {name: _Set(v.value, Origin(OriginKind.PROFILE, v.where, v.reason)) for name, v in profile.values.items()}


def _merge(layers: list[_Layer]) -> dict[str, _Set]:
    """Take each key from the first layer that has it; the default closes the list."""
    merged = {}
    for name, key in catalogue().items():
        merged[name] = next(
            (layer[name] for layer in layers if name in layer), _Set(key.default, Origin(OriginKind.DEFAULT))
        )
    return merged


def _choose_workload(merged: dict[str, _Set]) -> None:
    """Drop a trace that a stronger place replaced by a synthetic workload; refuse both from one place."""
    trace, synthetic = merged["run.trace"], merged["run.synthetic"]
    if trace.value is None or synthetic.origin.kind is OriginKind.DEFAULT:
        return
    if trace.origin.kind is synthetic.origin.kind:
        raise UsageError(
            f"trace {trace.value!r} and synthetic {synthetic.value!r} exclude each other",
            where=f"{trace.origin.where} and {synthetic.origin.where}", hint="keep one of them",
        )  # fmt: skip
    ranks = list(OriginKind)
    if ranks.index(synthetic.origin.kind) < ranks.index(trace.origin.kind):
        merged["run.trace"] = _Set(None, synthetic.origin)


def _forget_whose_prefill(merged: dict[str, _Set]) -> None:
    """Take back a model and a card that describe other coefficients than those in force.

    A stronger place that sets a_s, b_s or c_s says nothing about the model and card named by a weaker one.
    """
    ranks = list(OriginKind)
    coefficients = (merged[f"run.compute.{word}"].origin for word in ("a_s", "b_s", "c_s"))
    strongest = min(coefficients, key=lambda origin: ranks.index(origin.kind))
    for name in ("run.compute.model", "run.compute.hardware"):
        if ranks.index(strongest.kind) < ranks.index(merged[name].origin.kind):
            why = f"the coefficients set by {strongest} are not those of {merged[name].value}"
            merged[name] = _Set(None, Origin(strongest.kind, strongest.where, why))


def _check_together(merged: Mapping[str, _Set]) -> None:
    from hicachectl.runtime.geometry import PRESETS

    for name in ("run.geometry", "run.compute.model"):
        given = merged[name]
        if given.value is not None and given.value not in PRESETS:
            near = nearest(str(given.value), PRESETS)
            raise UsageError(
                f"{name} {given.value!r} is not known",
                where=given.origin.where,
                why="presets: " + ", ".join(PRESETS),
                hint=f"did you mean {near!r}?"
                if near
                else "give one of these names, of another model that with the same bytes a token",
            )
    base, bound = merged["run.prefetch.base_s"], merged["run.prefetch.max_s"]
    if float(str(bound.value)) < float(str(base.value)):
        raise UsageError(
            f"run.prefetch.max_s {bound.value} is below run.prefetch.base_s {base.value}",
            where=bound.origin.where or base.origin.where,
            why=f"max_s from {bound.origin}, base_s from {base.origin}",
            hint="the deadline starts at base_s and ends at max_s: raise max_s",
        )


def _build(values: Mapping[str, object]) -> HicacheConfig:
    nested: dict[str, object] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        inside = nested
        for word in outer:
            inside = inside.setdefault(word, {})  # type: ignore[assignment]
        inside[last] = value
    return HicacheConfig.model_validate(nested)
