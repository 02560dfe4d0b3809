"""One look at the memory of the host and at what binds this process, for `runtime.memory.budget`."""

from __future__ import annotations

import re
from pathlib import Path

from hicachectl.errors import HostError
from hicachectl.runtime.memory.budget import GroupLimit, HostMemory
from hicachectl.runtime.memory.numa import free_on_node

__all__ = ["cgroup_headroom", "host_memory", "tightest_group"]

_LINE = re.compile(r"(\w+):\s+(\d+)(?: kB)?$", re.ASCII)


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Read total, available and hugetlb memory, the tightest cgroup limit and free memory by node.

    Reads a few small files under `root`. Raises HostError without MemTotal and
    MemAvailable: a sum without them would be made up. Source: Linux Documentation/filesystems/proc.rst, "meminfo".
    """
    try:
        found = _fields((root / "proc/meminfo").read_text())
        total, available = found["MemTotal"] << 10, found["MemAvailable"] << 10
    except (OSError, KeyError) as error:
        raise HostError(
            "how much memory the host has is not known",
            where=str(root / "proc/meminfo"),
            why=f"no {error}" if isinstance(error, KeyError) else str(error),
            hint="mount /proc",
        ) from error
    page = found.get("Hugepagesize", 0) << 10
    free = max(0, found.get("HugePages_Free", 0) - found.get("HugePages_Rsvd", 0))
    return HostMemory(
        total_bytes=total,
        available_bytes=available,
        hugetlb_bytes=found["Hugetlb"] << 10 if "Hugetlb" in found else found.get("HugePages_Total", 0) * page,
        hugetlb_free_bytes=free * page,
        group=tightest_group(root),
        node_free_bytes=_node_free(root),
    )


def cgroup_headroom(root: Path = Path("/")) -> int | None:
    """Return the bytes left under this process's memory limits, None where nothing limits it; see `tightest_group`."""
    group = tightest_group(root)
    return None if group is None else group.room_bytes


def tightest_group(root: Path = Path("/")) -> GroupLimit | None:
    """Return the control group (v2) that leaves this process the least room, of its own and all above it.

    None without a limit and where there is no cgroup v2 to read. File cache that the kernel gives back first
    (`inactive_file` of memory.stat) does not count as used, as in the working set of Kubernetes.
    Source: Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files".
    """
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    groups = [Path(line[3:]).parts[1:] for line in lines if line.startswith("0::/")]
    if not groups or ".." in groups[0]:  # `..`: a group above the root of this namespace, not visible from here
        return None
    own = groups[0]
    found = [_limit(mount.joinpath(*own[:depth]), "/" + "/".join(own[:depth])) for depth in range(len(own) + 1)]
    return min((limit for limit in found if limit is not None), key=lambda limit: limit.room_bytes, default=None)


def _limit(group: Path, name: str) -> GroupLimit | None:
    """Return one group's own limit; None when it has none or hides it."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return GroupLimit(int(limit), max(0, used - int(stat.get("inactive_file", 0))), f"cgroup {name}")
    except (OSError, ValueError):  # the root group has no such files; a container may hide those of groups above it
        return None


def _node_free(root: Path) -> dict[int, int]:
    """Return by node what can be had of it; nodes that do not say are left out."""
    found = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        try:
            free = free_on_node((folder / "meminfo").read_text())
        except OSError:
            continue
        if free is not None:
            found[int(folder.name[4:])] = free
    return found


def _fields(text: str) -> dict[str, int]:
    """Read `Name: 12 kB` lines. Pure."""
    return {match[1]: int(match[2]) for match in map(_LINE.match, text.splitlines()) if match}
