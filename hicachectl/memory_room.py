"""One look at the memory of the host and at what binds this process, for `runtime.memory.budget`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hicachectl.errors import HostError
from hicachectl.runtime.memory.budget import Ask, GroupLimit, HostMemory, HugetlbRoom, ledger
from hicachectl.runtime.memory.kinds import Kind, read_hugetlb
from hicachectl.runtime.memory.numa import free_on_node
from hicachectl.runtime.memory.preflight import require_pool
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import PoolCalls
from hicachectl.tuning.host.cgroup_limits import Limit, hugetlb_limits, least_room, memory_limits
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.root import HostRoot

__all__ = ["cgroup_headroom", "host_memory", "hugetlb_room", "require_reserved", "tightest_group"]

_LINE = re.compile(r"(\w+):\s+(\d+)(?: kB)?$", re.ASCII)
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")


def host_memory(
    root: Path = Path("/"), *, of: MappingSpec | None = None, tell: Callable[[str], None] = lambda text: None
) -> HostMemory:
    """Read total and available memory, what hugetlb holds, the cgroup limit that leaves least and free memory by node.

    Reads a few small files under `root`. `of`: a mapping that is asked for; of kind hugetlb, what the pool of its page size has is read
    too. `tell` hears of a limit that could not be read. Raises HostError without MemTotal and MemAvailable: a sum without them would
    be made up; CapacityError where there is no pool of that page size. Source: Linux Documentation/filesystems/proc.rst, "meminfo".
    """
    found = _meminfo(root)
    try:
        total, available = found["MemTotal"] << 10, found["MemAvailable"] << 10
    except KeyError as error:
        raise _unknown_memory(root, f"no {error}") from error
    group, unread = _least(memory_limits(HostRoot(root)))
    hugetlb = hugetlb_room(of.hugetlb_bytes, root) if of is not None and of.kind is Kind.HUGETLB else None
    unread = "; ".join(why for why in (unread, hugetlb.unread if hugetlb else None) if why) or None
    if unread is not None:
        tell(f"a limit of a control group may leave less memory than is counted on: {unread}")
    page = found.get("Hugepagesize", 0) << 10
    return HostMemory(
        total_bytes=total,
        available_bytes=available,
        hugetlb_bytes=found["Hugetlb"] << 10 if "Hugetlb" in found else found.get("HugePages_Total", 0) * page,
        hugetlb=hugetlb,
        group=group,
        unread=unread,
        node_free_bytes=_node_free(root),
    )


def hugetlb_room(page_bytes: int | None = None, root: Path = Path("/")) -> HugetlbRoom:
    """Read what a pool of reserved pages of one size can have (None: the kernel's default size), under the control groups' limits.

    Raises CapacityError where the kernel has no pool of that size.
    """
    pool = read_hugetlb(PoolCalls(root), page_bytes, ())
    group, unread = _least(hugetlb_limits(HostRoot(root), pool.page_bytes))
    return HugetlbRoom(pool.page_bytes, pool.usable * pool.page_bytes, group, unread)


def require_reserved(spec: MappingSpec, n_bytes: int, hint: str, root: Path = Path("/")) -> None:
    """Refuse a pool of kind hugetlb that its reserved pages, or the control groups' limits on them, do not hold; nothing for other kinds.

    Raises CapacityError with the arithmetic.
    """
    if spec.kind is Kind.HUGETLB:
        require_pool(PoolCalls(root), n_bytes, spec)
        ledger(host_memory(root, of=spec), [Ask("host pool", n_bytes, hugetlb=True)], reserve_bytes=0).require(hint)


def cgroup_headroom(root: Path = Path("/")) -> int | None:
    """Return the bytes left under this process's memory limits, None where none was found; see `tightest_group`."""
    group = tightest_group(root)
    return None if group is None else group.room_bytes


def tightest_group(root: Path = Path("/")) -> GroupLimit | None:
    """Return the control group that leaves this process the least room, of its own and all above it; None where no limit was found.

    File cache, which the kernel gives back before it kills, does not count as used (docs/facts.md#cgroup-room).
    """
    return _least(memory_limits(HostRoot(root)))[0]


def _least(limits: Fact[tuple[Limit, ...]]) -> tuple[GroupLimit | None, str | None]:
    """Return the limit that leaves least, and why one that is not known may leave less. Pure."""
    if limits.value is None:
        return None, f"{limits.reason} ({limits.source})"
    least = least_room(limits.value)
    facts = [limit.limit_bytes for limit in limits.value] + [
        limit.current_bytes for limit in limits.value if limit.limit_bytes.is_known
    ]
    unread = "; ".join(f"{fact.reason} ({fact.source})" for fact in facts if not fact.is_known) or None
    return None if least is None else _group_limit(least), unread


def _group_limit(limit: Limit) -> GroupLimit:
    """Name a limit for the sum: the file where it is not the usual one, and what counts as used where that is not what cannot go."""
    name = f"cgroup {limit.path}" if limit.path.startswith("/") else limit.path
    if limit.file not in _LIMIT_FILES and limit.file != "memory.stat":
        name += f" ({limit.file})"
    used = "used under it" if limit.path.startswith("/") else "used by this group under it, others are not seen"
    if limit.current_bytes.value is None:
        used += ", not known"
    elif limit.file_cache_bytes.value is None:
        used += ", file cache counted"
    return GroupLimit(limit.limit_bytes.value or 0, limit.used_bytes or 0, name, used)


def _meminfo(root: Path) -> dict[str, int]:
    """Read the lines `Name: 12 kB` of meminfo. Raises HostError where it cannot be read."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError as error:
        raise _unknown_memory(root, str(error)) from error
    return {match[1]: int(match[2]) for match in map(_LINE.match, text.splitlines()) if match}


def _unknown_memory(root: Path, why: str) -> HostError:
    return HostError(
        "how much memory the host has is not known", where=str(root / "proc/meminfo"), why=why, hint="mount /proc"
    )


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
