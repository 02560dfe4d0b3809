"""The mount table of this process: where tmpfs and the control groups are mounted, and with which options."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.root import HostRoot

__all__ = ["Mount", "plain_path", "read_mounts"]


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: `root` is the folder of the file system shown at `path`; None where the table does not say."""

    path: str
    kind: str
    options: tuple[str, ...]
    """Of the file system, such as huge=advise or a v1 controller's name."""
    root: str | None
    flags: tuple[str, ...] = ()
    """Of this mount, such as rw, nosuid, relatime: what a remount must repeat."""

    def option(self, name: str) -> str | None:
        """Return the value of `name=value`, None where it is not given. Pure."""
        for option in self.options:
            key, equals, value = option.partition("=")
            if equals and key == name:
                return value
        return None


def read_mounts(root: HostRoot) -> Fact[tuple[Mount, ...]]:
    """Read the mounts in the order they were made: mountinfo, or the older /proc/mounts where that is missing."""
    table = root.text("/proc/self/mountinfo").then(_mountinfo, why_not="not a mount table")
    if table.reason != "no such file":
        return table
    older = root.text("/proc/mounts").then(_mounts, why_not="not a mount table")
    return older if older.is_known else table


def _mountinfo(text: str) -> tuple[Mount, ...] | None:
    """Parse `id parent dev root path options [tags] - kind source options` (proc_pid_mountinfo(5))."""
    found = []
    for line in filter(None, text.split("\n")):  # a name may hold what splitlines takes for an end
        before, dash, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not dash or len(left) < 6 or len(right) < 3:
            raise ValueError(f"not a mount: {line[:60]!r}")
        options, flags = tuple(right[2].split(",")), tuple(left[5].split(","))
        found.append(Mount(plain_path(left[4]), right[0], options, plain_path(left[3]), flags))
    return tuple(found) or None


def _mounts(text: str) -> tuple[Mount, ...] | None:
    found = []
    for line in filter(None, text.split("\n")):  # a name may hold what splitlines takes for an end
        words = line.split(" ")
        if len(words) < 4:
            raise ValueError(f"not a mount: {line[:60]!r}")
        found.append(Mount(plain_path(words[1]), words[2], tuple(words[3].split(",")), None))
    return tuple(found) or None


def plain_path(path: str) -> str:
    """Undo the octal escapes of blanks and backslashes in a mount table's path. Pure."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
