"""How much memory this process may still take: what the machine has, under the limit of every cgroup it is in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["MemoryRoom", "cgroup_headroom", "memory_room"]


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Bytes that can be taken now, and which of the two bounds they come from."""

    room_bytes: int
    bound: str


def memory_room(root: Path = Path("/"), *, available_bytes: int | None = None) -> MemoryRoom:
    """Return the smaller of the available memory and the room under the cgroup limit.

    Reads a few small files under `root`; `available_bytes` stands in for what the machine says (MemAvailable).
    """
    available = psutil.virtual_memory().available if available_bytes is None else available_bytes
    headroom = cgroup_headroom(root)
    if headroom is None or available <= headroom:
        return MemoryRoom(available, "available memory")
    return MemoryRoom(headroom, "room under the cgroup limit")


def cgroup_headroom(root: Path = Path("/")) -> int | None:
    """Return the bytes left under this process's memory limits (cgroup v2), the tightest of its group and all above it.

    None without a limit and where there is no cgroup v2 to read. File cache that the kernel gives back first
    (`inactive_file` of memory.stat) counts as free, as in the working set of Kubernetes. 0 when a limit is passed already.
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
    rooms = [_room(mount.joinpath(*groups[0][:depth])) for depth in range(len(groups[0]) + 1)]
    return min((room for room in rooms if room is not None), default=None)


def _room(group: Path) -> int | None:
    """Return the bytes left under one group's own limit; None when it has none or hides it."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):  # the root group has no such files; a container may hide those of groups above it
        return None
