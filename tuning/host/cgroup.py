"""Control groups of this process: the tightest memory limit up the tree, who sets it, and the cpuset. Versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hicachectl.tuning.host.facts import Confidence, Fact, known, unknown
from hicachectl.tuning.host.kernel_text import id_list, number
from hicachectl.tuning.host.model import Cgroup
from hicachectl.tuning.host.mounts import Mount, read_mounts
from hicachectl.tuning.host.root import HostRoot

__all__ = ["NO_LIMIT", "read_cgroup"]

NO_LIMIT = "no limit"
_V1_NO_LIMIT_BYTES = 1 << 62
"""Version 1 writes LONG_MAX rounded down to a page where there is no limit (PAGE_COUNTER_MAX, linux/page_counter.h)."""
_PROCESS = "/proc/self/cgroup"


@dataclass(frozen=True, slots=True)
class _Group:
    """This process's group in one hierarchy: `folder` below the mount point, `path` as the kernel names it."""

    version: int
    mount: str
    below: tuple[str, ...]
    path: str

    def up(self) -> Iterator[tuple[str, str]]:
        """Yield (folder, kernel path) of the group and of every group above it that can be seen, from the leaf up."""
        above = self.path.rstrip("/").split("/")
        for n in range(len(self.below), -1, -1):
            kept = len(above) - (len(self.below) - n)
            yield "/".join((self.mount.rstrip("/"), *self.below[:n])), "/".join(above[:kept]) or "/"


def read_cgroup(root: HostRoot) -> Cgroup:
    """Read the limits that bind this process. Changes nothing; never raises for odd files."""
    mounts = read_mounts(root)
    memory = _find(root, mounts, "memory")
    limit, current, limited_by = _memory(root, memory)
    cpuset = _find(root, mounts, "cpuset")
    if not cpuset.is_known:
        cpuset = _find_by_cpuset_file(root, mounts, cpuset)
    return Cgroup(
        version=memory.then(lambda group: group.version),
        path=memory.then(lambda group: group.path),
        memory_max_bytes=limit,
        memory_current_bytes=current,
        memory_limited_by=limited_by,
        cpuset_mems=_cpuset(root, cpuset, ("cpuset.mems.effective",), ("cpuset.effective_mems", "cpuset.mems", "mems")),
        cpuset_cpus=_cpuset(root, cpuset, ("cpuset.cpus.effective",), ("cpuset.effective_cpus", "cpuset.cpus", "cpus")),
    )


# -- which group, and where it is mounted -------------------------------------------------------------------------------


def _find(root: HostRoot, mounts: Fact[tuple[Mount, ...]], controller: str) -> Fact[_Group]:
    """Find the process's group for a controller: a version 1 hierarchy that has it, else the unified one."""
    paths = root.text(_PROCESS).then(_paths, why_not="names no group")
    if paths.value is None:
        return Fact(None, paths.source, paths.confidence, paths.reason)
    version = 1 if controller in paths.value else 2
    path = paths.value.get(controller, paths.value.get(""))
    if path is None:
        return unknown(paths.source, f"no {controller} controller")
    return _placed(mounts, version, controller, path)


def _find_by_cpuset_file(root: HostRoot, mounts: Fact[tuple[Mount, ...]], failed: Fact[_Group]) -> Fact[_Group]:
    """Find the cpuset's group from /proc/self/cpuset, for kernels and recordings without /proc/self/cgroup."""
    path = root.text("/proc/self/cpuset")
    if failed.reason != "no such file" or path.value is None or not path.value.startswith("/"):
        return failed
    version_1 = _placed(mounts, 1, "cpuset", path.value)
    return version_1 if version_1.is_known else _placed(mounts, 2, "cpuset", path.value)


def _paths(text: str) -> dict[str, str] | None:
    """Parse `id:controllers:path` lines; the unified hierarchy has no controllers."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or not parts[2].startswith("/"):
            raise ValueError(f"not a group: {line[:60]!r}")
        for controller in parts[1].split(","):
            found[controller] = parts[2]
    return found or None


def _placed(mounts: Fact[tuple[Mount, ...]], version: int, controller: str, path: str) -> Fact[_Group]:
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
        return known(_Group(version, mount.path, below, path), _PROCESS, Confidence.DERIVED)
    return unknown(mounts.source, reason)


# -- memory -------------------------------------------------------------------------------------------------------------


def _memory(root: HostRoot, group: Fact[_Group]) -> tuple[Fact[int], Fact[int], Fact[str]]:
    """Return the tightest limit up the tree, what the limiting group (else the process's own) uses, and its path.

    A group whose limit cannot be read may be the tightest: then nothing is said. Of equal limits the highest counts, for
    it holds the most.
    """
    if group.value is None:
        source, reason = group.source, group.reason or "no group"
        return unknown(source, reason), unknown(source, reason), unknown(source, reason)
    version = group.value.version
    name, used = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    tightest: tuple[Fact[int], str, str] | None = None
    own = next(group.value.up())[0]
    for folder, path in group.value.up():
        limit = _limit(root, f"{folder}/{name}", version, folder)
        if limit.value is None:
            if limit.reason == NO_LIMIT:
                continue
            reason = limit.reason or "no limit was read"
            return limit, unknown(limit.source, reason), unknown(limit.source, reason)
        if tightest is None or tightest[0].value is None or limit.value <= tightest[0].value:
            tightest = (limit, folder, path)
    if version == 1:
        hidden = _hierarchical_limit(root, own)
        if hidden.value is not None and (tightest is None or hidden.value < (tightest[0].value or 0)):
            above = "a group above those that can be seen"
            return hidden, _used(root, f"{own}/{used}"), known(above, hidden.source, Confidence.DERIVED)
    if tightest is None:
        none: Fact[int] = unknown(f"{own}/{name} and above", NO_LIMIT)
        return none, _used(root, f"{own}/{used}"), unknown(none.source, NO_LIMIT)
    return tightest[0], _used(root, f"{tightest[1]}/{used}"), known(tightest[2], tightest[0].source)


def _limit(root: HostRoot, path: str, version: int, folder: str) -> Fact[int]:
    text = root.text(path)
    if version == 2:
        if text.value == "max" or (text.reason == "no such file" and _may_lack_limit(root, folder)):
            return unknown(path, NO_LIMIT)
        return text.then(number)
    limit = text.then(number)
    return unknown(path, NO_LIMIT) if limit.value is not None and limit.value >= _V1_NO_LIMIT_BYTES else limit


def _may_lack_limit(root: HostRoot, folder: str) -> bool:
    """Whether a version 2 group has no limit file by rights: the root group (no cgroup.type), or one without the controller."""
    has = _has_controller(root, folder, "memory")
    return has is False or (has is True and root.text(f"{folder}/cgroup.type").reason == "no such file")


def _has_controller(root: HostRoot, folder: str, controller: str) -> bool | None:
    """Whether a controller is on for a version 2 group; None where that cannot be read."""
    controllers = root.text(f"{folder}/cgroup.controllers").value
    return None if controllers is None else controller in controllers.split()


def _hierarchical_limit(root: HostRoot, folder: str) -> Fact[int]:
    """Read version 1's own answer, which counts groups above the mount too (kernel cgroup-v1/memory.rst, memory.stat)."""

    def stated(text: str) -> int | None:
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "hierarchical_memory_limit":
                return number(value)
        return None

    limit = root.text(f"{folder}/memory.stat").then(stated)
    if limit.value is not None and limit.value >= _V1_NO_LIMIT_BYTES:
        return unknown(limit.source, NO_LIMIT)
    return limit


def _used(root: HostRoot, path: str) -> Fact[int]:
    return root.text(path).then(number)


# -- cpuset -------------------------------------------------------------------------------------------------------------


def _cpuset(
    root: HostRoot, group: Fact[_Group], version_2: tuple[str, ...], version_1: tuple[str, ...]
) -> Fact[tuple[int, ...]]:
    """Read the nearest list from the group upwards: version 2 shows it only where the controller is on."""
    if group.value is None:
        return Fact(None, group.source, group.confidence, group.reason)
    first: Fact[tuple[int, ...]] | None = None
    for folder, _ in group.value.up():
        for name in version_2 if group.value.version == 2 else version_1:
            found = root.text(f"{folder}/{name}").then(lambda text: id_list(text) or None, why_not="not a list of ids")
            if found.reason != "no such file":
                return found
            first = first or found
        if group.value.version == 1 or _has_controller(root, folder, "cpuset") is not False:
            break  # every group of version 1 shows it, and of version 2 where the controller is on
    return first or unknown(group.source, "no such file")
