"""tuned as an owner: what its active profile, with those it includes, sets by [vm], [sysctl] and [sysfs]. Only reads.

Read off redhat-performance/tuned: profiles/loader.py (names, include), profiles/locator.py (folders), plugins/plugin_vm.py,
plugin_sysctl.py, plugin_sysfs.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hicachectl.tuning.host.facts import Fact, unknown
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Owner
from hicachectl.tuning.owner_texts import NO_FILE, THP, Line, matches, sections, sysctl_path, unreadable

__all__ = ["tuned"]

_ACTIVE = "/etc/tuned/active_profile"
_FOLDERS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
"""Where profiles lie, the administrator's first; with and without the folder `profiles`, which later releases have."""
_VM = {
    "transparent_hugepages": f"{THP}/enabled",
    "transparent_hugepage": f"{THP}/enabled",
    "transparent_hugepage.defrag": f"{THP}/defrag",
}
_MAX_PROFILES = 32


def tuned(root: HostRoot, paths: tuple[str, ...]) -> Iterator[tuple[str, Owner]]:
    """Yield for each path what tuned's active profile sets last. A value that is worked out (${...}) is not known."""
    asked = [path for path in paths if path.startswith(("/sys/", "/proc/"))]
    active = root.text(_ACTIVE)
    if not asked or active.reason == NO_FILE:
        return
    if active.value is None:
        yield from unreadable("tuned", active, asked)
        return
    found: dict[str, Owner] = {}
    for text, name in _profiles(root, active.value.split(), []):
        if text.value is None:
            yield from unreadable(f"tuned ({name})", text, asked)
            continue
        for path, line in _settings(list(sections(text.value, text.source)), asked):
            plain = line.value.strip("\"'")
            found[path] = Owner(f"tuned ({active.value})", line.where, None if "${" in plain else plain)
    yield from found.items()


def _profiles(root: HostRoot, names: list[str], seen: list[str]) -> Iterator[tuple[Fact[str], str]]:
    """Yield the files of profiles, an included one before the one that includes it: what comes later stands."""
    for name in names:
        wanted = name.removeprefix("-")
        if not re.fullmatch(r"[\w.-]+", wanted, re.ASCII) or len(seen) >= _MAX_PROFILES:
            continue
        text = _file(root, wanted, seen)
        if text is None:
            if wanted == name and wanted not in {path.split("/")[-2] for path in seen}:
                yield unknown(f"{_FOLDERS[0]}/{wanted}/tuned.conf and the other folders", NO_FILE), wanted
            continue
        seen.append(text.source)
        for line in sections(text.value or "", text.source):
            if (line.section, line.key) == ("main", "include"):
                yield from _profiles(root, re.split(r"\s*[,;]\s*", line.value), seen)
        yield text, wanted


def _file(root: HostRoot, name: str, seen: list[str]) -> Fact[str] | None:
    """Read the first file of that name that was not read yet: a profile may include the one it replaces."""
    for folder in _FOLDERS:
        path = f"{folder}/{name}/tuned.conf"
        text = root.text(path) if path not in seen else None
        if text is not None and text.reason != NO_FILE:
            return text
    return None


def _settings(lines: list[Line], paths: list[str]) -> Iterator[tuple[str, Line]]:
    """Pair each path with the line that sets it; a section's `type` names its plugin, else its own name does."""
    plugins = {line.section: line.value for line in lines if line.key == "type"}
    for line in lines:
        plugin = plugins.get(line.section, line.section)
        for path in paths:
            if (
                (plugin == "vm" and _VM.get(line.key) == path)
                or (plugin == "sysctl" and sysctl_path(line.key) == path)
                or (plugin == "sysfs" and matches(line.key, path))
            ):
                yield path, line
