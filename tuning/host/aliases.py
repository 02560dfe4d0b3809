"""Names that stand for private ones in a recording, the same one for the same name, and the way back to read through them.

A control group's path tells container ids and users, a mount point tells folders of users. Readers that record see the
aliases only; the recording root asks the host for the real names.
"""

from __future__ import annotations

import re

__all__ = ["LEFT_OUT", "Aliases", "public_controllers"]

LEFT_OUT = "left-out"

_WORDS = frozenset({
    "init", "slice", "scope", "service", "mount", "socket", "swap", "system", "user", "users", "machine", "session",
    "background", "app", "runtime", "podruntime", "systemd", "nspawn", "machined", "dbus", "sshd", "cron", "docker",
    "containerd", "cri", "crio", "conmon", "libpod", "podman", "buildkit", "nerdctl", "moby", "garden", "k8s", "io", "k3s",
    "rke2", "kubelet", "kubepods", "guaranteed", "burstable", "besteffort", "pod", "lxc", "payload", "monitor", "pivot",
    "lxcfs", "lxd", "incus", "libvirt", "qemu", "vcpu", "emulator", "iothread", "slurm", "slurmstepd", "slurmd", "uid", "job",
    "step", "batch", "extern", "interactive", "task", "mesos", "yarn", "hadoop", "htcondor", "condor", "pbs", "torque", "lsf",
    "nomad", "actions", "left", "out", "b",
})  # fmt: skip
"""Words that systemd, container runtimes, hypervisors and schedulers make group names of, and those of aliases: all that is kept."""
_RUN = re.compile(r"\\x2d|(?:(?!\\x2d)[^-_.@:])+")
"""What lies between the separators of unit names; systemd writes a dash inside a name as \\x2d."""
_NUMBERED = re.compile(r"(pod)[0-9a-f]{8,}|([a-z]+)[0-9].*", re.ASCII | re.DOTALL)
_RUNS = re.compile(r"left-out(?:(?:[-_]|\\x2d)left-out)+")
_CONTROLLERS = (
    "cpu|cpuacct|cpuset|memory|devices|freezer|net_cls|net_prio|blkio|io|perf_event|hugetlb|pids|rdma|misc|debug|unified|systemd|"
    "elogind|openrc"
)
"""Names of control group hierarchies (Linux include/linux/cgroup_subsys.h) and of those that init systems mount."""
_HIERARCHY = re.compile(rf"(?:name=)?(?:{_CONTROLLERS})|", re.ASCII)
_SIZE = r"(?:[-_]?\d{1,4}[kKMG]i?B?)?"
_OPEN_MOUNTS = re.compile(
    rf"/|/(?:dev|run|tmp|var/tmp|var/run|var/lock|run/lock|run/shm|dev/shm|dev/cpuset)|/(?:mnt/huge(?:pages)?|dev/hugepages){_SIZE}"
    rf"|/(?:sys/fs/cgroup|cgroup|dev/cgroup)(?:/(?:{_CONTROLLERS})(?:,(?:{_CONTROLLERS}))*)?|/sys/(?:firmware|dev/block)"
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
        """Return a control group's path with the words of systemd, runtimes and schedulers alone. Changes what is remembered.

        Names of services, users and ids go. Two names that would become one get different endings.
        """
        return "/".join(self._alias(part, _public_part(part)) for part in path.split("/"))

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


def public_controllers(text: str) -> str:
    """Return the controllers of a line of /proc/PID/cgroup without names that somebody gave a hierarchy. Pure.

    >>> public_controllers("cpu,cpuacct"), public_controllers("name=acme")
    ('cpu,cpuacct', 'name=left-out')
    """
    return ",".join(_public_hierarchy(name) for name in text.split(","))


def _public_hierarchy(name: str) -> str:
    if _HIERARCHY.fullmatch(name) or name in (LEFT_OUT, f"name={LEFT_OUT}"):
        return name
    return f"name={LEFT_OUT}" if name.startswith("name=") else LEFT_OUT


def _public_part(part: str) -> str:
    """Return one name of a group's path with the well-known words alone. Pure."""
    return _RUNS.sub(LEFT_OUT, _RUN.sub(_public_run, part))


def _public_run(found: re.Match[str]) -> str:
    run = found[0]
    if run in _WORDS or run == r"\x2d":
        return run
    numbered = _NUMBERED.fullmatch(run)
    word = numbered and (numbered[1] or numbered[2])
    return f"{word}-{LEFT_OUT}" if word in _WORDS else LEFT_OUT
