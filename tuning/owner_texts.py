"""What the files of owners have in common: folders of drop-ins by precedence, sections with lines, names of sysctls. Only reads."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hicachectl.tuning.host.facts import Fact, known
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Owner

__all__ = ["NO_FILE", "THP", "Line", "drop_ins", "matches", "sections", "sysctl_path", "unreadable"]

NO_FILE = "no such file"
THP = "/sys/kernel/mm/transparent_hugepage"


@dataclass(frozen=True, slots=True)
class Line:
    """`key = value` in a section of an ini-like file, and where: file:line."""

    section: str
    key: str
    value: str
    where: str


def drop_ins(root: HostRoot, folders: Iterable[str]) -> Iterator[Fact[str]]:
    """Read the `*.conf` files of folders, the first folder having precedence, in the order of their names (sysctl.d(5), tmpfiles.d(5)).

    Of files with one name only that of the first folder counts, and a link to /dev/null or an empty file masks the rest. The
    source of each fact is the path; a folder or file that cannot be read is one without a value.
    """
    files: dict[str, str] = {}
    for folder in folders:
        names = root.names(folder)
        if names.value is None and names.reason != NO_FILE:
            yield Fact(None, folder, names.confidence, names.reason)
        for name in names.value or ():
            if name.endswith(".conf"):
                files.setdefault(name, f"{folder}/{name}")
    for name in sorted(files):
        if root.resolve(files[name]).value == "/dev/null":
            continue
        text = root.text(files[name])
        yield text if text.value is None else known(text.value, files[name])


def sections(text: str, path: str) -> Iterator[Line]:
    """Yield the assignments of an ini-like file; lines that end in a backslash go on. Pure.

    >>> list(sections("[vm]\\ntransparent_hugepages = never # why", "f"))
    [Line(section='vm', key='transparent_hugepages', value='never', where='f:2')]
    """
    section, held, began = "", "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        began = began if held else number
        line = f"{held}{raw.strip()}"
        if line.endswith("\\"):
            held = f"{line[:-1].rstrip()} "
            continue
        held = ""
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif line and line[0] not in "#;" and "=" in line:
            key, _, value = line.partition("=")
            yield Line(section, key.strip(), value.partition(" #")[0].strip(), f"{path}:{began}")


def sysctl_path(key: str) -> str:
    """Return the file of a sysctl. A name whose first separator is a dot has dots and slashes interchanged (sysctl.d(5)). Pure.

    >>> sysctl_path("vm.zone_reclaim_mode"), sysctl_path("net/ipv4/conf/eth0.1/forwarding")
    ('/proc/sys/vm/zone_reclaim_mode', '/proc/sys/net/ipv4/conf/eth0.1/forwarding')
    """
    first = next((letter for letter in key if letter in "./"), "/")
    return f"/proc/sys/{key if first == '/' else key.translate(str.maketrans('./', '/.'))}"


def matches(pattern: str, path: str) -> bool:
    """Say whether a shell pattern names a path: `*` stops at a slash, as in glob(7). Pure."""
    parts, names = pattern.split("/"), path.split("/")
    return len(parts) == len(names) and all(
        fnmatch.fnmatchcase(name, part) for part, name in zip(parts, names, strict=True)
    )


def unreadable(name: str, fact: Fact[str], paths: Iterable[str]) -> Iterator[tuple[str, Owner]]:
    """Yield an owner without a value for every path that the file might set. Pure."""
    for path in paths:
        yield path, Owner(name, f"could not be read: {fact.source} ({fact.reason})", None)
