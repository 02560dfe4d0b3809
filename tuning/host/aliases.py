"""Names that stand for private ones in a recording, the same one for the same name, and the way back to read through them.

A control group's path tells container ids and users, a mount point tells folders of users. Readers that record see the
aliases only; the recording root asks the host for the real names.
"""

from __future__ import annotations

import re

__all__ = ["LEFT_OUT", "Aliases"]

LEFT_OUT = "left-out"

_RUN = re.compile(r"\\x[0-9a-f]{2}|[A-Za-z0-9]+")
_RUNS = re.compile(r"left-out(?:(?:[-_]|\\x2d)?(?:left-out|[0-9a-f]{4}(?![0-9A-Za-z])))+")
_HEX_ID = re.compile(r"[0-9A-Fa-f]{8,}")
_PRODUCTS = frozenset({"k8s", "k3s"})
_NAMED_BY_USERS = re.compile(r"^(machine-|lxc\.(?:payload|monitor)[.-]).*?(\.scope|\.service|)$")
_HOLDS_NAMES = frozenset({"lxc", "lxc.payload", "lxc.monitor", "user", "users", "machine", "machine.slice"})
_OPEN_NAMES = re.compile(r".*\.(?:slice|service|scope)")
_OPEN_MOUNTS = re.compile(
    r"/|/(?:dev|run|tmp|var/tmp|var/run|var/lock|run/lock|run/shm|dev/shm|dev/cpuset|mnt/huge(?:pages)?(?:_\w{1,8})?)"
    r"|/dev/hugepages[\w-]{0,8}|/(?:sys/fs/cgroup|cgroup|dev/cgroup)(?:/[\w,=]{1,40})?|/sys/(?:firmware|dev/block)"
    r"|/proc/(?:acpi|asound|kcore|keys|latency_stats|timer_list|timer_stats|sched_debug|scsi|interrupts)"
    r"|/left-out/\d{1,6}",
    re.ASCII,
)
"""Where distributions, systemd, container runtimes and DPDK mount tmpfs, hugetlbfs and control groups, and our own aliases."""


class Aliases:
    """Gives aliases and remembers what they stand for.

    >>> names = Aliases()
    >>> names.group("/user.slice/user-1000.slice"), names.real("/sys/fs/cgroup/user.slice/user-left-out.slice/memory.max")
    ('/user.slice/user-left-out.slice', '/sys/fs/cgroup/user.slice/user-1000.slice/memory.max')
    """

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}
        self._mounts: dict[str, str] = {}

    def group(self, path: str) -> str:
        """Return a control group's path without ids: what has digits, and what users name. Changes what is remembered.

        Words of services and runtimes stay. Two names that would become one get different endings.
        """
        shown, above = [], ""
        for part in path.split("/"):
            shown.append(self._alias(part, _public_part(part, above)))
            above = part
        return "/".join(shown)

    def mount(self, path: str) -> str:
        """Return a mount point that distributions use as it is, any other as `/left-out/N`. Changes what is remembered."""
        if _OPEN_MOUNTS.fullmatch(path):
            return path
        for alias, real in self._mounts.items():
            if real == path:
                return alias
        alias = f"/{LEFT_OUT}/{len(self._mounts) + 1}"
        self._mounts[alias] = path
        return alias

    def real(self, path: str) -> str:
        """Return the path on the host that a path made of aliases stands for. Does not modify."""
        if LEFT_OUT not in path:
            return path
        for alias, real in self._mounts.items():
            if path == alias or path.startswith(f"{alias}/"):
                return real + "/".join(self._parts.get(part, part) for part in path[len(alias) :].split("/"))
        return "/".join(self._parts.get(part, part) for part in path.split("/"))

    def _alias(self, part: str, shown: str) -> str:
        if LEFT_OUT not in shown:
            return shown
        while self._parts.setdefault(shown, part) != part:
            shown += "-b"
        return shown


def _public_part(part: str, above: str) -> str:
    """Return one name of a group's path without ids. Pure."""
    if LEFT_OUT in part:
        return part  # an alias already: a snapshot of a snapshot
    if above in _HOLDS_NAMES and part and not _OPEN_NAMES.fullmatch(part):
        return LEFT_OUT
    named = _NAMED_BY_USERS.match(part)
    if named:
        return f"{named[1]}{LEFT_OUT}{named[2]}"
    return _RUNS.sub(LEFT_OUT, _RUN.sub(_public_run, part))


def _public_run(found: re.Match[str]) -> str:
    run = found[0]
    if run.startswith("\\") or run in _PRODUCTS:
        return run
    if _HEX_ID.fullmatch(run):
        return LEFT_OUT
    word = re.match(r"[A-Za-z]*", run)
    kept = word[0] if word else ""
    return run if kept == run else f"{kept}{'-' if kept else ''}{LEFT_OUT}"
