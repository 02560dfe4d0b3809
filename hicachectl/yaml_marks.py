"""YAML read strictly, each value with the line it stands on.

The words are those of YAML 1.2's core schema, not of 1.1: `off` and `no` are text (`verify: off` means what it says), `1e-6` is a
number, `1:30` is text and `010` is ten. Refused, because each hides a mistake: a key given twice, a key that is not text, anchors, aliases, tags,
more than one document, and nesting past what settings need (PyYAML's time grows with its square).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hicachectl.errors import PermissionDenied, UsageError

if TYPE_CHECKING:
    import yaml

__all__ = ["MAX_DEPTH", "MAX_FILE_BYTES", "Marked", "parse_marked", "read_marked"]

MAX_FILE_BYTES = 1 << 20
"""A settings file is a few KiB; past 1 MiB it is some other file, and we say so before parsing it."""

MAX_DEPTH = 32
"""Levels of nesting; hicache.yaml has three."""

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

YamlPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """A parsed document: plain Python values, and the line (from 1) of every value by its path."""

    path: str
    value: object
    lines: Mapping[YamlPath, int]

    def where(self, at: YamlPath = ()) -> str:
        """Return `file:line` of the value at a path, or of the nearest enclosing one. Pure.

        >>> Marked("a.yaml", {"run": {"seed": 1}}, {(): 1, ("run", "seed"): 2}).where(("run", "seed"))
        'a.yaml:2'
        """
        while at and at not in self.lines:
            at = at[:-1]
        return f"{self.path}:{self.lines.get(at, 1)}"


def read_marked(path: Path, *, error: type[UsageError] = UsageError) -> Marked:
    """Read one YAML file into values and lines. Reads the file, changes nothing.

    `path` is shown in errors as given; `error` is the class to raise for what is wrong inside the file.
    Raises UsageError when the file is missing, not a file or too large, PermissionDenied when it may not be read, `error` when it is not strict
    YAML; `where` is file:line.
    """
    return parse_marked(_read(path), str(path), error=error)


def parse_marked(text: str, name: str, *, error: type[UsageError] = UsageError) -> Marked:
    """Parse YAML text; `name` stands for the file in errors. Pure.

    >>> doc = parse_marked("run:\\n  verify: off\\n", "hicache.yaml")
    >>> doc.value, doc.where(("run", "verify"))
    ({'run': {'verify': 'off'}}, 'hicache.yaml:2')
    """
    import yaml

    try:
        _refuse_tricks(text, name, error)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        raise error(
            f"not YAML: {e.problem or e.context}",
            where=f"{name}:{mark.line + 1}" if mark else name,
            hint="check indentation, quotes and colons on this line and the one above",
        ) from e
    except yaml.YAMLError as e:  # the reader's own error: a control character, with a position but no mark
        line = text.count("\n", 0, getattr(e, "position", 0)) + 1
        raise error(f"not YAML: {e}".splitlines()[0], where=f"{name}:{line}", hint="the file must be UTF-8 text") from e
    lines: dict[YamlPath, int] = {(): 1}
    value = None if root is None else _value(root, (), lines, name, error)
    return Marked(name, value, MappingProxyType(lines))


def _read(path: Path) -> str:
    try:
        if path.is_dir():
            raise UsageError("is a folder, not a file", where=str(path))
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)  # bounded also where the size is not known beforehand, as for a device
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"is larger than the {MAX_FILE_BYTES} bytes a settings file may have", where=str(path))
        return data.decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError) as e:
        raise UsageError(
            "no such file",
            where=str(path),
            hint="check the path, or leave it out to use the search order of `hicachectl config path`",
        ) from e
    except PermissionError as e:
        raise PermissionDenied(
            "cannot be read", where=str(path), why=e.strerror, hint=f"give this user read access to {path}"
        ) from e
    except UnicodeDecodeError as e:
        raise UsageError(
            f"is not UTF-8 text (byte {e.object[e.start]:#04x} at offset {e.start})", where=str(path)
        ) from e
    except OSError as e:
        raise UsageError("cannot be read", where=str(path), why=e.strerror) from e


def _refuse_tricks(text: str, name: str, error: type[UsageError]) -> None:
    import yaml

    events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
    n_documents = depth = 0
    for event in events:
        where = f"{name}:{event.start_mark.line + 1}"
        if getattr(event, "anchor", None) is not None:
            raise error(
                f"anchors and aliases are not used here ({event.anchor!r})", where=where, hint="write the value out"
            )
        if getattr(event, "tag", None) is not None:
            raise error(f"tags are not used here ({event.tag!r})", where=where, hint="write the plain value")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise error(f"nested more than {MAX_DEPTH} levels deep", where=where, hint="this is not a settings file")
        n_documents += isinstance(event, yaml.DocumentStartEvent)
        if n_documents > 1:
            raise error(
                "a second document starts here", where=where, hint="one file holds one document; remove the '---' line"
            )


def _value(node: yaml.Node, at: YamlPath, lines: dict[YamlPath, int], name: str, error: type[UsageError]) -> object:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return _scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        items = []
        for i, child in enumerate(node.value):
            here: YamlPath = (*at, i)
            lines[here] = child.start_mark.line + 1
            items.append(_value(child, here, lines, name, error))
        return items
    result: dict[Hashable, object] = {}
    for key_node, child in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or (key_node.style is None and not isinstance(_scalar(key), str)):
            raise error(f"key {_show(key_node)} is not text", where=f"{name}:{line}", hint="quote it, or use a word")
        here = (*at, key)
        if key in result:
            raise error(
                f"key {key!r} is given twice",
                where=f"{name}:{line}",
                why=f"first on line {lines[here]}",
                hint="keep one of them",
            )
        lines[here] = line
        result[key] = _value(child, here, lines, name, error)
    return result


def _show(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node.value, str) else "(a list or mapping)"


def _scalar(text: str) -> object:
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return (
            int(text) if len(text) <= 40 else text
        )  # a longer run of digits is no setting, and int() would refuse 4300 of them
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
