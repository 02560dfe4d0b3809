"""Owners in folders of systemd: sysctl.d lines, tmpfiles.d `w` lines, the options of mount units. Only reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Owner
from hicachectl.tuning.owner_texts import NO_FILE, drop_ins, matches, sections, sysctl_path, unreadable

__all__ = ["mount_units", "sysctl_dirs", "tmpfiles"]

_ROOTS = ("/etc", "/run", "/usr/local/lib", "/usr/lib")
"""Folders by precedence: a file in the first hides one of the same name in the others (sysctl.d(5))."""
_SYSCTL_CONF = "/etc/sysctl.conf"
_GLOB = re.compile(r"[*?\[]")


def sysctl_dirs(root: HostRoot, paths: tuple[str, ...]) -> Iterator[tuple[str, Owner]]:
    """Yield for each sysctl the line that stands: the last of the file names in order, an explicit one before any pattern.

    /etc/sysctl.conf is read by `sysctl --system` and not by systemd-sysctl, unless a link in sysctl.d names it: it is told
    beside. Format: sysctl.d(5), sysctl.conf(5).
    """
    asked = [path for path in paths if path.startswith("/proc/sys/")]
    if not asked:
        return
    files = list(drop_ins(root, [f"{top}/sysctl.d" for top in (*_ROOTS, "/lib")]))
    yield from _set_by(files, asked, "sysctl.d")
    linked = any(root.resolve(text.source).value == _SYSCTL_CONF for text in files)
    own = root.text(_SYSCTL_CONF)
    if own.reason != NO_FILE and not linked:
        yield from _set_by([own], asked, "sysctl.conf")


def tmpfiles(root: HostRoot, paths: tuple[str, ...]) -> Iterator[tuple[str, Owner]]:
    """Yield every `w` line that writes a path, in the order of file names. Format: tmpfiles.d(5)."""
    asked = [path for path in paths if path.startswith(("/sys/", "/proc/"))]
    for text in drop_ins(root, [f"{top}/tmpfiles.d" for top in _ROOTS]) if asked else ():
        if text.value is None:
            yield from unreadable("tmpfiles.d", text, asked)
            continue
        for number, line in enumerate(text.value.splitlines(), 1):
            fields = line.split(None, 6)
            if len(fields) < 7 or not re.fullmatch(r"w[-+!=~^$?]*", fields[0]):
                continue
            pattern = fields[1].strip("\"'").replace("%%", "%")
            value = re.sub(r"\\n$", "", fields[6].strip().strip("\"'"))
            for path in asked:
                if matches(pattern, path):
                    yield path, Owner("tmpfiles.d", f"{text.source}:{number}", value)


def mount_units(root: HostRoot, paths: tuple[str, ...]) -> Iterator[tuple[str, Owner]]:
    """Yield the `Options=` that stand for a mount: of its unit and its drop-ins the last. Format: systemd.mount(5), systemd.unit(5)."""
    for path in paths:
        if path.startswith(("/sys/", "/proc/")):
            continue
        unit = f"{_escaped(path)}.mount"
        own = [root.text(f"{top}/systemd/system/{unit}") for top in ("/etc", "/run", "/usr/local/lib", "/usr/lib")]
        texts: list[Fact[str]] = [text for text in own if text.reason != NO_FILE][:1]
        texts += drop_ins(root, [f"{top}/systemd/system/{unit}.d" for top in _ROOTS])
        found: Owner | None = None
        for text in texts:
            if text.value is None:
                yield from unreadable("mount unit", text, [path])
            for line in sections(text.value or "", text.source):
                if (line.section, line.key) == ("Mount", "Options"):
                    options = [option.strip() for option in line.value.split(",")]
                    huge = [option[5:] for option in options if option.startswith("huge=")]
                    found = Owner("mount unit", line.where, huge[-1] if huge else None)
        if found is not None:
            yield path, found


def _set_by(files: list[Fact[str]], paths: list[str], name: str) -> Iterator[tuple[str, Owner]]:
    explicit: dict[str, Owner] = {}
    patterns: list[tuple[str, Owner]] = []
    left_out: set[str] = set()
    for text in files:
        if text.value is None:
            yield from unreadable(name, text, paths)
            continue
        for number, raw in enumerate(text.value.splitlines(), 1):
            line = raw.strip()
            if not line or line[0] in "#;":
                continue
            key, equals, value = line.partition("=")
            path = sysctl_path(key.strip().removeprefix("-"))
            if not equals and line.startswith("-"):
                left_out.add(path)
            elif not equals:
                continue
            elif _GLOB.search(path):
                patterns.append((path, Owner(name, f"{text.source}:{number}", value.strip())))
            else:
                explicit[path] = Owner(name, f"{text.source}:{number}", value.strip())
    for path in paths:
        if path in explicit:
            yield path, explicit[path]
            continue
        last = next((owner for pattern, owner in reversed(patterns) if matches(pattern, path)), None)
        if last is not None and path not in left_out:
            yield path, last


def _escaped(path: str) -> str:
    """Return the unit name of a mount point (systemd.unit(5), systemd-escape --path)."""
    inner = "/".join(part for part in path.split("/") if part)
    found = "".join(
        "-"
        if letter == "/"
        else letter
        if re.fullmatch(r"[A-Za-z0-9:_.]", letter)
        else "".join(f"\\x{byte:02x}" for byte in letter.encode())
        for letter in inner
    )
    return found.replace(".", "\\x2e", 1) if found.startswith(".") else found or "-"
