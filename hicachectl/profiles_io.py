"""Profiles: YAML files that set config keys for one kind of machine, each value with its reason and its source.

    name: cpu-demo
    revision: 1
    summary: one line
    values:
      run.page_tokens: {value: 512, reason: why this value, source: where the reason can be read, confidence: read}

`confidence` is how far the value can be trusted: read (measured or published for this kind of machine), derived (computed from such figures, the
reason says how) or assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from hicachectl.config_keys import check_value, key_named, nearest
from hicachectl.errors import HicacheError, ProfileError, UsageError
from hicachectl.profiles import profile_names, profile_text
from hicachectl.yaml_marks import Marked, parse_marked, read_marked

__all__ = ["Confidence", "Profile", "ProfileValue", "load_profile", "problems_in_profile"]

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")
_TOP_KEYS = ("name", "revision", "summary", "values")
_VALUE_KEYS = ("value", "reason", "source", "confidence")


class Confidence(str, Enum):
    """How far a value can be trusted."""

    READ = "read"
    DERIVED = "derived"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class ProfileValue:
    """One value of a profile; `where` is its file:line."""

    key: str
    value: object
    reason: str
    source: str
    confidence: Confidence
    where: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A checked profile; `path` is the file it came from, as shown to people."""

    name: str
    revision: int
    summary: str
    values: Mapping[str, ProfileValue]
    path: str


def load_profile(name_or_file: str) -> Profile:
    """Load and check one profile, by the name of a built-in one or by file. Reads the file, changes nothing.

    What contains a slash or ends in .yaml or .yml is a file. Raises ProfileError (file:line) for the first problem in it, UsageError for a name that
    does not exist, with the nearest one.
    """
    profile, problems = _checked(name_or_file)
    if problems:
        first = problems[0]
        if len(problems) > 1:
            first.hint = (
                f"{first.hint or 'correct it'}; {len(problems) - 1} more: hicachectl profile validate {name_or_file}"
            )
        raise first
    assert profile is not None
    return profile


def problems_in_profile(name_or_file: str) -> tuple[Profile | None, list[HicacheError]]:
    """Return the profile, or None, and every problem in it. Reads the file, changes nothing.

    A problem is the error `load_profile` would raise. Raises UsageError only for a name or a file that does not exist or cannot be read.
    """
    return _checked(name_or_file)


def _checked(name_or_file: str) -> tuple[Profile | None, list[HicacheError]]:
    try:
        doc = _document(name_or_file)
    except ProfileError as e:
        return None, [e]
    problems: list[HicacheError] = []
    if not isinstance(doc.value, dict):
        return None, [ProfileError("a profile is a mapping of " + ", ".join(_TOP_KEYS), where=doc.where())]
    top = doc.value
    _check_keys(doc, (), top, _TOP_KEYS, problems)
    name = _text(doc, (), top, "name", problems)
    if name and not set(name) <= _NAME_CHARACTERS:
        problems.append(
            ProfileError(f"name is {name!r}, not small letters, digits, dots and dashes", where=doc.where(("name",)))
        )
    summary = _text(doc, (), top, "summary", problems)
    revision = top.get("revision")
    if "revision" in top and (type(revision) is not int or revision < 1):
        problems.append(
            ProfileError(f"revision is {revision!r}, not a whole number of at least 1", where=doc.where(("revision",)))
        )
    raw_values = top.get("values", {})
    values: dict[str, ProfileValue] = {}
    if not isinstance(raw_values, dict):
        problems.append(
            ProfileError(
                "values is not a mapping of config keys",
                where=doc.where(("values",)),
                hint="run.page_tokens: {value, reason, source, confidence}",
            )
        )
    else:
        for key, entry in raw_values.items():
            value = _value(doc, key, entry, problems)
            if value is not None:
                values[key] = value
    problems.sort(key=_line)
    if problems or type(revision) is not int:
        return None, problems
    return Profile(name, revision, summary, MappingProxyType(values), doc.path), []


def _line(problem: HicacheError) -> int:
    line = (problem.where or "").rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def _document(name_or_file: str) -> Marked:
    if "/" in name_or_file or name_or_file.endswith((".yaml", ".yml")):
        return read_marked(Path(name_or_file), error=ProfileError)
    names = profile_names()
    if name_or_file not in names:
        near = nearest(name_or_file, names)
        raise UsageError(
            f"unknown profile {name_or_file!r}",
            why="built-in profiles: " + ", ".join(names),
            hint=f"did you mean {near!r}?" if near else "give one of these names, or a file ending in .yaml",
        )
    text = profile_text(name_or_file)
    return parse_marked(text, f"profiles/{name_or_file}.yaml", error=ProfileError)


def _value(doc: Marked, name: str, entry: object, problems: list[HicacheError]) -> ProfileValue | None:
    at = ("values", name)
    before = len(problems)
    try:
        key = key_named(name, where=doc.where(at), error=ProfileError)
        if name == "profile":
            raise ProfileError("a profile cannot name another profile", where=doc.where(at), hint="copy the values")
    except ProfileError as e:
        problems.append(e)
        return None
    if not isinstance(entry, dict):
        problems.append(
            ProfileError(
                f"{name} is not a mapping of value, reason, source, confidence",
                where=doc.where(at),
                hint="every value carries its reason",
            )
        )
        return None
    _check_keys(doc, at, entry, _VALUE_KEYS, problems)
    value: object = None
    if "value" in entry:
        try:
            value = check_value(key, entry["value"], text=False, where=doc.where((*at, "value")), error=ProfileError)
        except ProfileError as e:
            problems.append(e)
    reason, source = _text(doc, at, entry, "reason", problems), _text(doc, at, entry, "source", problems)
    confidence = entry.get("confidence")
    known = [c.value for c in Confidence]
    if "confidence" in entry and confidence not in known:
        problems.append(
            ProfileError(
                f"confidence is {confidence!r}, not one of {', '.join(known)}", where=doc.where((*at, "confidence"))
            )
        )
    if len(problems) > before:
        return None
    return ProfileValue(name, value, reason, source, Confidence(confidence), doc.where((*at, "value")))


def _check_keys(
    doc: Marked, at: tuple[str, ...], given: dict[str, object], known: tuple[str, ...], problems: list[HicacheError]
) -> None:
    subject = f" of {at[-1]}" if at else ""
    for key in given:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near!r}?" if near else "known here: " + ", ".join(known)
            problems.append(ProfileError(f"unknown key {key!r}{subject}", where=doc.where((*at, key)), hint=hint))
    for key in known:
        if key not in given:
            problems.append(ProfileError(f"key {key!r}{subject} is missing", where=doc.where(at), hint=f"add {key}:"))


def _text(doc: Marked, at: tuple[str, ...], given: dict[str, object], key: str, problems: list[HicacheError]) -> str:
    text = given.get(key)
    if key in given and (not isinstance(text, str) or not text.strip()):
        problems.append(
            ProfileError(f"{key} is {text!r}, not a text", where=doc.where((*at, key)), hint="write it in a sentence")
        )
    return text.strip() if isinstance(text, str) else ""
