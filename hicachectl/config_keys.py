"""The catalogue of config keys: for each dotted key its flag, its environment variable, what it accepts, and the check of one value.

Built once from the models, so a key exists in one place only. Flags are the last words of the key with dashes (`run.page_tokens` is
`--page-tokens`), environment variables the whole key (`HICACHECTL_RUN_PAGE_TOKENS`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from hicachectl.config_models import HicacheConfig
from hicachectl.errors import UsageError

__all__ = ["ENV_PREFIX", "Key", "catalogue", "check_value", "key_named", "nearest", "sections"]

ENV_PREFIX = "HICACHECTL_"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: `name` is dotted, `default` is what holds when nobody sets it, `wanted` says in words what it accepts.

    `choices` are the words it accepts, all or the commonest: a mistyped one is answered with the nearest.
    """

    name: str
    flag: str
    env: str
    default: object
    nullable: bool
    wanted: str
    choices: tuple[str, ...]
    description: str
    adapter: TypeAdapter[Any]


@cache
def catalogue() -> Mapping[str, Key]:
    """Return every key by its dotted name, in the order of the models. Pure.

    >>> catalogue()["run.page_tokens"].flag, catalogue()["run.page_tokens"].env
    ('--page-tokens', 'HICACHECTL_RUN_PAGE_TOKENS')
    """
    return {key.name: key for key in _walk(HicacheConfig, "")}


@cache
def sections() -> frozenset[str]:
    """Return the dotted names that hold other keys, such as `run` and `run.compute`. Pure."""
    return frozenset(name.rpartition(".")[0] for name in catalogue() if "." in name) | {"run", "tune"}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like this one, or None when nothing is near. Pure.

    >>> nearest("run.page_token", ["run.page_tokens", "run.seed"])
    'run.page_tokens'
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def key_named(name: str, *, where: str | None = None, error: type[UsageError] = UsageError) -> Key:
    """Return the key of this dotted name. Pure.

    Raises `error` for an unknown name, with the nearest known one as its hint.
    """
    key = catalogue().get(name)
    if key is not None:
        return key
    if name in sections():
        raise error(
            f"{name!r} is a section, not a key",
            where=where,
            hint=f"give one of its keys, such as {_first_under(name)!r}",
        )
    near = nearest(name, (*catalogue(), *sections())) or _nearest_last_word(name)
    hint = f"did you mean {near!r}?" if near else "`hicachectl config show` lists every key"
    raise error(f"unknown key {name!r}", where=where, hint=hint)


def check_value(
    key: Key, raw: object, *, text: bool, where: str | None = None, error: type[UsageError] = UsageError
) -> object:
    """Return the value of one key as its type, or refuse it with what was given and what is wanted. Pure.

    `text` is True for what comes from a flag or the environment: numbers are then read from text, and `none` is null. From a file the type must be
    right as it stands: a number for a number, not "512" in quotes.

    >>> check_value(catalogue()["run.storage_bytes"], "2GiB", text=True)
    2147483648
    """
    if text and isinstance(raw, str):
        if key.nullable and raw.lower() == "none":
            return None
        check = key.adapter.validate_strings
    else:
        check = _strictly(key.adapter)
    try:
        return check(raw)
    except ValidationError as e:
        near = nearest(raw.lower(), key.choices) if isinstance(raw, str) else None
        hint = f"did you mean {near!r}?" if near else "give " + key.wanted
        why = next((str(d["ctx"]["error"]) for d in e.errors() if d["type"] == "value_error"), None)
        raise error(f"{key.name} is {_shown(raw)}, not {key.wanted}", where=where, why=why, hint=hint) from None


def _nearest_last_word(name: str) -> str | None:
    """Match the last word alone: the right word under the wrong section is still found."""
    by_word = {known.rpartition(".")[2]: known for known in reversed(tuple(catalogue()))}
    found = nearest(name.rpartition(".")[2], by_word)
    return by_word[found] if found else None


def _shown(raw: object) -> str:
    if isinstance(raw, (dict, list)):
        return "a mapping" if isinstance(raw, dict) else "a list"
    text = "null" if raw is None else repr(raw)
    return text if len(text) <= 100 else f"{text[:96]}... ({len(text)} characters)"


def _strictly(adapter: TypeAdapter[Any]) -> Any:
    return lambda raw: adapter.validate_python(raw, strict=True)


def _first_under(section: str) -> str:
    return next(name for name in catalogue() if name.startswith(section + "."))


def _walk(model: type[BaseModel], prefix: str) -> Iterable[Key]:
    for name, field in model.model_fields.items():
        dotted = prefix + name
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _walk(inner, dotted + ".")
            continue
        annotated: Any = Annotated.__class_getitem__((inner, *field.metadata)) if field.metadata else inner  # type: ignore[attr-defined]
        adapter: TypeAdapter[Any] = TypeAdapter(annotated, config=ConfigDict(allow_inf_nan=False))
        schema = adapter.json_schema()
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        nullable = any(part.get("type") == "null" for part in _parts(schema))
        words = dotted.split(".")
        yield Key(
            name=dotted,
            flag=str(extra.get("flag") or "--" + "-".join(words[1:] or words).replace("_", "-")),
            env=ENV_PREFIX + "_".join(words).upper(),
            default=field.get_default(),
            nullable=nullable,
            wanted=str(extra["want"]) if "want" in extra else _wanted(schema),
            choices=_choices(schema, extra),
            description=field.description or "",
            adapter=adapter,
        )


def _parts(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(schema.get("anyOf", [schema]))


def _constants(part: Mapping[str, Any]) -> list[Any]:
    return list(part["enum"]) if "enum" in part else [part["const"]] if "const" in part else []


def _choices(schema: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[str, ...]:
    words = extra.get("words") or [c for part in _parts(schema) for c in _constants(part)]
    return tuple(str(word) for word in words)


def _wanted(schema: Mapping[str, Any]) -> str:
    """Say in words what a JSON schema of one value accepts."""
    return " or ".join(_wanted_part(part) for part in _parts(schema))


def _wanted_part(part: Mapping[str, Any]) -> str:
    constants = _constants(part)
    if constants:
        return str(constants[0]) if len(constants) == 1 else "one of " + ", ".join(str(c) for c in constants)
    noun = {"integer": "a whole number", "number": "a number", "string": "text", "null": "null"}[str(part["type"])]
    low, high = part.get("minimum"), part.get("maximum")
    if low is not None and high is not None:
        return f"{noun} from {low:.12g} to {high:.12g}"
    return f"{noun} of at least {low:.12g}" if low is not None else noun
