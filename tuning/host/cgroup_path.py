"""Which control group this process is in, and where it lies: the folders from it up to the top of what is mounted. Versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hicachectl.tuning.host.facts import Confidence, Fact, known, unknown
from hicachectl.tuning.host.mounts import Mount, read_mounts
from hicachectl.tuning.host.root import NO_SUCH_FILE, HostRoot

__all__ = ["Group", "find_cpuset", "find_group", "has_controller", "no_controller"]

_PROCESS = "/proc/self/cgroup"


@dataclass(frozen=True, slots=True)
class Group:
    """This process's group in one hierarchy: `folder` below the mount point, `path` as the kernel names it."""

    version: int
    mount: str
    below: tuple[str, ...]
    path: str
    options: tuple[str, ...] = ()
    """How the hierarchy is mounted."""

    def up(self) -> Iterator[tuple[str, str]]:
        """Yield (folder, kernel path) of the group and of every group above it that can be seen, from the leaf up."""
        above = self.path.rstrip("/").split("/")
        for n in range(len(self.below), -1, -1):
            kept = len(above) - (len(self.below) - n)
            yield "/".join((self.mount.rstrip("/"), *self.below[:n])), "/".join(above[:kept]) or "/"


def find_group(root: HostRoot, controller: str) -> Fact[Group]:
    """Find the process's group for a controller: a version 1 hierarchy that has it, else the unified one."""
    text = root.text(_PROCESS)
    if text.value == "":  # no hierarchy was ever mounted
        return unknown(text.source, no_controller(controller))
    paths = text.then(_paths, why_not="names no group")
    if paths.value is None:
        return Fact(None, paths.source, paths.confidence, paths.reason)
    version = 1 if controller in paths.value else 2
    path = paths.value.get(controller, paths.value.get(""))
    if path is None or (version == 2 and _is_disabled(root, controller)):
        return unknown(paths.source, no_controller(controller))
    return _placed(read_mounts(root), version, controller, path)


def find_cpuset(root: HostRoot) -> Fact[Group]:
    """Find the cpuset's group; from /proc/self/cpuset for kernels and recordings without /proc/self/cgroup."""
    found = find_group(root, "cpuset")
    if found.is_known:
        return found
    path = root.text("/proc/self/cpuset")
    if found.reason != NO_SUCH_FILE or path.value is None or not path.value.startswith("/"):
        return found
    mounts = read_mounts(root)
    version_1 = _placed(mounts, 1, "cpuset", path.value)
    return version_1 if version_1.is_known else _placed(mounts, 2, "cpuset", path.value)


def no_controller(controller: str) -> str:
    """Return the reason where no hierarchy has a controller: then it limits nobody. Pure."""
    return f"no {controller} controller"


def has_controller(root: HostRoot, folder: str, controller: str) -> bool | None:
    """Whether a controller is on for a version 2 group; None where that cannot be read."""
    controllers = root.text(f"{folder}/cgroup.controllers").value
    return None if controllers is None else controller in controllers.split()


def _is_disabled(root: HostRoot, controller: str) -> bool:
    """Whether the kernel was started without a controller (cgroup_disable=): the last word of its line in /proc/cgroups is 0 (cgroups(7))."""
    lines = (line.split() for line in (root.text("/proc/cgroups").value or "").split("\n"))
    return any(len(words) == 4 and (words[0], words[3]) == (controller, "0") for words in lines)


def _paths(text: str) -> dict[str, str] | None:
    """Parse `id:controllers:path` lines; the unified hierarchy has no controllers."""
    found: dict[str, str] = {}
    for line in filter(None, text.split("\n")):  # a name may hold what splitlines takes for an end
        parts = line.split(":", 2)
        if len(parts) != 3 or not parts[2].startswith("/"):
            raise ValueError(f"not a group: {line[:60]!r}")
        for controller in parts[1].split(","):
            found[controller] = parts[2]
    return found or None


def _placed(mounts: Fact[tuple[Mount, ...]], version: int, controller: str, path: str) -> Fact[Group]:
    """Find the folder of a group: its path less the part above what the mount shows."""
    if mounts.value is None:
        return Fact(None, mounts.source, mounts.confidence, mounts.reason)
    reason = f"no control group version {version} is mounted"
    for mount in reversed(mounts.value):
        if mount.kind != ("cgroup2" if version == 2 else "cgroup") or (
            version == 1 and controller not in mount.options
        ):
            continue
        shown = (mount.root or "/").rstrip("/")
        if path != shown and not path.startswith(f"{shown}/"):
            reason = f"{path} is outside of what {mount.path} shows ({shown or '/'})"
            continue
        below = tuple(part for part in path[len(shown) :].split("/") if part)
        if ".." in below:
            reason = f"{path} is outside of the control group namespace"
            continue
        return known(Group(version, mount.path, below, path, mount.options), _PROCESS, Confidence.DERIVED)
    return unknown(mounts.source, reason)
