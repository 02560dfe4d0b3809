"""Control groups of this process: the memory limit that leaves the least room, who sets it, and the cpuset. Versions 1 and 2."""

from __future__ import annotations

from hicachectl.tuning.host.cgroup_limits import NO_LIMIT, least_room, memory_limits
from hicachectl.tuning.host.cgroup_path import Group, find_cpuset, find_group, has_controller
from hicachectl.tuning.host.facts import Confidence, Fact, known, unknown
from hicachectl.tuning.host.kernel_text import id_list, number
from hicachectl.tuning.host.model import Cgroup
from hicachectl.tuning.host.root import NO_SUCH_FILE, HostRoot

__all__ = ["NO_LIMIT", "read_cgroup"]


def read_cgroup(root: HostRoot) -> Cgroup:
    """Read the limits that bind this process. Changes nothing; never raises for odd files."""
    memory = find_group(root, "memory")
    limit, current, file_cache, limited_by = _memory(root, memory)
    cpuset = find_cpuset(root)
    return Cgroup(
        version=memory.then(lambda group: group.version),
        path=memory.then(lambda group: group.path),
        memory_max_bytes=limit,
        memory_current_bytes=current,
        memory_file_cache_bytes=file_cache,
        memory_limited_by=limited_by,
        cpuset_mems=_cpuset(root, cpuset, ("cpuset.mems.effective",), ("cpuset.effective_mems", "cpuset.mems", "mems")),
        cpuset_cpus=_cpuset(root, cpuset, ("cpuset.cpus.effective",), ("cpuset.effective_cpus", "cpuset.cpus", "cpus")),
    )


def _memory(root: HostRoot, group: Fact[Group]) -> tuple[Fact[int], Fact[int], Fact[int], Fact[str]]:
    """Return the limit with the least room, what its group (else the process's own) uses, the cache in it, and its path.

    A group whose limit cannot be read may leave the least: then nothing is said.
    """
    limits = memory_limits(root, group)
    if group.value is None or limits.value is None:
        source, reason = group.source, group.reason or "no group"
        return unknown(source, reason), unknown(source, reason), unknown(source, reason), unknown(source, reason)
    for limit in limits.value:
        if limit.limit_bytes.value is None:
            source, reason = limit.limit_bytes.source, limit.limit_bytes.reason or "no limit was read"
            return limit.limit_bytes, unknown(source, reason), unknown(source, reason), unknown(source, reason)
    tightest = least_room(limits.value)
    if tightest is None:
        own = next(group.value.up())[0]
        name, used = (
            ("memory.max", "memory.current")
            if group.value.version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        source = f"{own}/{name} and above"
        current = root.text(f"{own}/{used}").then(number)
        return unknown(source, NO_LIMIT), current, unknown(source, NO_LIMIT), unknown(source, NO_LIMIT)
    seen = tightest.path.startswith("/")
    by = known(tightest.path, tightest.limit_bytes.source, Confidence.READ if seen else Confidence.DERIVED)
    return tightest.limit_bytes, tightest.current_bytes, tightest.file_cache_bytes, by


def _cpuset(
    root: HostRoot, group: Fact[Group], version_2: tuple[str, ...], version_1: tuple[str, ...]
) -> Fact[tuple[int, ...]]:
    """Read the nearest list from the group upwards: version 2 shows it only where the controller is on."""
    if group.value is None:
        return Fact(None, group.source, group.confidence, group.reason)
    first: Fact[tuple[int, ...]] | None = None
    for folder, _ in group.value.up():
        for name in version_2 if group.value.version == 2 else version_1:
            found = root.text(f"{folder}/{name}").then(lambda text: id_list(text) or None, why_not="not a list of ids")
            if found.reason != NO_SUCH_FILE:
                return found
            first = first or found
        if group.value.version == 1 or has_controller(root, folder, "cpuset") is not False:
            break  # every group of version 1 shows it, and of version 2 where the controller is on
    return first or unknown(group.source, NO_SUCH_FILE)
