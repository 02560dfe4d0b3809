"""The limits of control groups on memory and on reserved huge pages: one entry a limit, of this process's group and of all above it.

What is used is read of the same group as the limit: the largest limit may leave the least room. A limit that cannot be read is an
entry without a value, never left out. Sources: Linux Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files" and "HugeTLB
Interface Files"; cgroup-v1/memory.rst and hugetlb.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hicachectl.tuning.host.cgroup_path import Group, find_group, has_controller, no_controller
from hicachectl.tuning.host.facts import Confidence, Fact, known, unknown
from hicachectl.tuning.host.kernel_text import number
from hicachectl.tuning.host.root import NO_SUCH_FILE, HostRoot

__all__ = ["NO_LIMIT", "Limit", "hugetlb_limits", "least_room", "memory_limits", "used_bytes"]

NO_LIMIT = "no limit"
_V1_NO_LIMIT_BYTES = 1 << 62
"""Version 1 writes LONG_MAX rounded down to a page where there is no limit (PAGE_COUNTER_MAX, linux/page_counter.h)."""
_CHARGED = "memory_hugetlb_accounting"
_ABOVE = "a group above those that can be seen"
_Of = Callable[[HostRoot, Group, str, str], "Iterator[Limit]"]
"""Yields the limits of one group of a hierarchy, by its folder and its path."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of one group, and what that group uses, in bytes. `path` is the group as the kernel names it."""

    path: str
    limit_bytes: Fact[int]
    current_bytes: Fact[int]
    file_cache_bytes: Fact[int]
    """File cache in `current_bytes`, active or not, which the kernel gives back before it kills (0 of reserved huge pages)."""

    @property
    def file(self) -> str:
        """Name of the file that holds it, such as memory.high."""
        return self.limit_bytes.source.rpartition("/")[2]

    @property
    def used_bytes(self) -> int | None:
        """What cannot be given back; None where it cannot be read."""
        return used_bytes(self.current_bytes.value, self.file_cache_bytes.value)

    @property
    def room_bytes(self) -> int:
        """The most that may be left under it: all of it where the use is not known. 0 where the limit itself is not."""
        return max(0, (self.limit_bytes.value or 0) - (self.used_bytes or 0))


def used_bytes(current_bytes: int | None, file_cache_bytes: int | None) -> int | None:
    """Return what a group uses beside the file cache that goes first; file cache that is not known counts as used. Pure.

    >>> used_bytes(511, 480), used_bytes(511, None), used_bytes(None, 1)
    (31, 511, None)
    """
    return None if current_bytes is None else max(0, current_bytes - (file_cache_bytes or 0))


def least_room(limits: tuple[Limit, ...]) -> Limit | None:
    """Return the limit that leaves the least room, of those that are known; of equal ones the highest group, for it holds the most. Pure."""
    found: Limit | None = None
    for limit in limits:
        if limit.limit_bytes.is_known and (found is None or limit.room_bytes <= found.room_bytes):
            found = limit
    return found


def memory_limits(root: HostRoot, group: Fact[Group] | None = None) -> Fact[tuple[Limit, ...]]:
    """Read the memory limits of this process's group and those above, from the leaf up; unknown where its group cannot be found.

    Both of version 2 count: above memory.high the kernel slows a process down until nothing moves any more. A file memory.high that is not
    there is none: recordings made before it was read have none. Version 1's own answer for all groups comes last where it is tighter.
    """
    group = find_group(root, "memory") if group is None else group
    return _limits(root, group, "memory", _memory_of)


def hugetlb_limits(root: HostRoot, page_bytes: int) -> Fact[tuple[Limit, ...]]:
    """Read the limits on reserved huge pages of one size, as `memory_limits`: on pages in use, and (Linux 5.7) on reserved ones.

    A mapping is refused by the second, and its process killed by the first when it touches a page. Where version 2 is mounted with
    `memory_hugetlb_accounting`, they are memory of the group too, and its limits on memory are among those returned.
    """
    size = _size_name(page_bytes)

    def of(root: HostRoot, group: Group, folder: str, path: str) -> Iterator[Limit]:
        names = ("max", "current") if group.version == 2 else ("limit_in_bytes", "usage_in_bytes")
        for must, prefix in ((False, f"hugetlb.{size}.rsvd"), (True, f"hugetlb.{size}")):
            limit = _limit(root, f"{folder}/{prefix}.{names[0]}", group.version, folder, "hugetlb", must=must)
            if limit.reason != NO_LIMIT:
                current = root.text(f"{folder}/{prefix}.{names[1]}").then(number)
                yield Limit(path, limit, current, known(0, current.source, Confidence.DERIVED))

    found, memory = _limits(root, find_group(root, "hugetlb"), "hugetlb", of), find_group(root, "memory")
    if found.value is None or memory.value is None or _CHARGED not in memory.value.options:
        return found
    beside = memory_limits(root, memory)
    return beside if beside.value is None else known((*found.value, *beside.value), found.source)


def _limits(root: HostRoot, group: Fact[Group], controller: str, of: _Of) -> Fact[tuple[Limit, ...]]:
    if group.value is None:
        # without its file, although this is a live process's /proc: a kernel without control groups
        without = group.reason == NO_SUCH_FILE and root.text("/proc/self/stat").is_known
        if without or group.reason == no_controller(controller):
            return known((), group.source)
        return Fact(None, group.source, group.confidence, group.reason)
    found = tuple(limit for folder, path in group.value.up() for limit in of(root, group.value, folder, path))
    if controller == "memory" and group.value.version == 1:
        found = _binding(root, group.value, found)
        found += tuple(_above(root, group.value, found))
    return known(found, group.source)


def _binding(root: HostRoot, group: Group, seen: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Leave out groups above that version 1 says do not bind: before Linux 5.11 a group may have stood outside of them (use_hierarchy 0)."""
    least = _stat(root, next(group.up())[0], "hierarchical_memory_limit").value or 0
    return tuple(
        one for one in seen if one.path == group.path or one.limit_bytes.value is None or one.limit_bytes.value >= least
    )


def _memory_of(root: HostRoot, group: Group, folder: str, path: str) -> Iterator[Limit]:
    names = ("memory.high", "memory.max") if group.version == 2 else ("memory.limit_in_bytes",)
    limits = [
        _limit(root, f"{folder}/{name}", group.version, folder, "memory", must=name != "memory.high") for name in names
    ]
    bound = [limit for limit in limits if limit.reason != NO_LIMIT]
    if bound:
        use = _memory_use(root, folder, group.version)  # read once, so that both limits are held against the same
        yield from (Limit(path, limit, *use) for limit in bound)


def _memory_use(root: HostRoot, folder: str, version: int) -> tuple[Fact[int], Fact[int]]:
    """What a group uses, and the file cache in it: neither tmpfs nor locked pages are in these two lines of memory.stat."""
    used, total = ("memory.current", "") if version == 2 else ("memory.usage_in_bytes", "total_")
    active = _stat(root, folder, f"{total}active_file").value or 0  # recordings made before it was read have none
    cache = _stat(root, folder, f"{total}inactive_file").then(lambda inactive: inactive + active)
    return root.text(f"{folder}/{used}").then(number), cache


def _above(root: HostRoot, group: Group, seen: tuple[Limit, ...]) -> Iterator[Limit]:
    """Yield version 1's own answer, which counts groups above the mount too, where it is less than every limit that is seen.

    What the group above uses is not seen: at least what this one does (kernel cgroup-v1/memory.rst, memory.stat).
    """
    folder = next(group.up())[0]
    limit = _stat(root, folder, "hierarchical_memory_limit")
    known_limits = [one.limit_bytes.value for one in seen if one.limit_bytes.value is not None]
    if limit.value is not None and limit.value < min((_V1_NO_LIMIT_BYTES, *known_limits)):
        yield Limit(_ABOVE, limit, *_memory_use(root, folder, 1))


def _limit(root: HostRoot, path: str, version: int, folder: str, controller: str, *, must: bool) -> Fact[int]:
    """Read one limit. `must`: where it is not there although its controller is on, it is not known."""
    text = root.text(path)
    if text.reason == NO_SUCH_FILE and (not must or (version == 2 and _may_lack_limit(root, folder, controller))):
        return unknown(path, NO_LIMIT)
    if version == 2:
        return unknown(path, NO_LIMIT) if text.value == "max" else text.then(number)
    limit = text.then(number)
    return unknown(path, NO_LIMIT) if limit.value is not None and limit.value >= _V1_NO_LIMIT_BYTES else limit


def _may_lack_limit(root: HostRoot, folder: str, controller: str) -> bool:
    """Whether a version 2 group has no limit file by rights: the root group (no cgroup.type), or one without the controller."""
    has = has_controller(root, folder, controller)
    return has is False or (has is True and root.text(f"{folder}/cgroup.type").reason == NO_SUCH_FILE)


def _stat(root: HostRoot, folder: str, wanted: str) -> Fact[int]:
    """Read one line of a group's memory.stat."""

    def stated(text: str) -> int | None:
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == wanted:
                return number(value)
        return None

    return root.text(f"{folder}/memory.stat").then(stated, why_not=f"has no {wanted}")


def _size_name(page_bytes: int) -> str:
    """Return a page size as the files of the controller name it (mem_fmt, mm/hugetlb_cgroup.c). Pure.

    >>> _size_name(2 << 20), _size_name(1 << 30), _size_name(64 << 10)
    ('2MB', '1GB', '64KB')
    """
    for shift, unit in ((30, "GB"), (20, "MB")):
        if page_bytes >= 1 << shift:
            return f"{page_bytes >> shift}{unit}"
    return f"{page_bytes >> 10}KB"
