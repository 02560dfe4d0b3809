"""Who else sets a place, at boot or while the host runs: found in their own files, in the order in which they act. Only reads.

owners = read_owners(root, ["/proc/sys/kernel/numa_balancing", "/dev/shm"])

The later of two that set the same is the one that stands. A file that could not be read is an owner without a value, for
it may set anything; one that is not there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Owner
from hicachectl.tuning.owner_dirs import mount_units, sysctl_dirs, tmpfiles
from hicachectl.tuning.owner_texts import NO_FILE, THP, sysctl_path, unreadable
from hicachectl.tuning.owner_tuned import tuned

__all__ = ["COMMAND_LINE", "read_owners"]

COMMAND_LINE = "kernel command line"
_CMDLINE = "/proc/cmdline"
_FSTAB = "/etc/fstab"
_PARAMETERS = {
    "transparent_hugepage": f"{THP}/enabled",
    "transparent_hugepage_shmem": f"{THP}/shmem_enabled",
    "numa_balancing": "/proc/sys/kernel/numa_balancing",
}
"""Boot parameters of one place each (Linux Documentation/admin-guide/kernel-parameters.txt)."""
_BY_SIZE = {"thp_anon": "enabled", "thp_shmem": "shmem_enabled"}
_NOT_MOUNTS = ("/sys/", "/proc/")
_IRQBALANCE = (
    "/run/irqbalance",
    "/etc/systemd/system/multi-user.target.wants/irqbalance.service",
    "/usr/sbin/irqbalance",
)
"""Evidence of irqbalance, the strongest first: its socket's folder, that it is switched on, that it is installed."""


def read_owners(root: HostRoot, paths: Iterable[str]) -> Mapping[str, tuple[Owner, ...]]:
    """Find the owners of targets, by path of the target; a path without one is not in the answer. Reads the host; never raises.

    Boot parameters act first, then sysctl.d, tmpfiles.d, mounts, tuned; irqbalance acts all the time.
    """
    asked = tuple(dict.fromkeys(paths))
    found: dict[str, list[Owner]] = {}
    for reader in (_command_line, sysctl_dirs, tmpfiles, _fstab, mount_units, tuned, _irqbalance):
        for path, owner in reader(root, asked):
            found.setdefault(path, []).append(owner)
    return {path: tuple(owners) for path, owners in found.items()}


def _command_line(root: HostRoot, paths: tuple[str, ...]) -> Iterator[tuple[str, Owner]]:
    line = root.text(_CMDLINE)
    if line.value is None:
        yield from unreadable(COMMAND_LINE, line, [path for path in paths if path.startswith(_NOT_MOUNTS)])
        return
    for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', line.value):
        if word == "--":
            return
        name, equals, value = word.replace('"', "").partition("=")
        name = name.replace("-", "_")
        owner = Owner(COMMAND_LINE, f"{_CMDLINE} ({word})", value)
        for path in paths:
            if equals and _is_set_by(name, path):
                yield path, owner


def _is_set_by(parameter: str, path: str) -> bool:
    if parameter in _BY_SIZE:
        return re.fullmatch(rf"{re.escape(THP)}/hugepages-\d+kB/{_BY_SIZE[parameter]}", path) is not None
    if parameter.startswith("sysctl."):
        return sysctl_path(parameter.removeprefix("sysctl.")) == path
    return _PARAMETERS.get(parameter) == path


def _fstab(root: HostRoot, paths: tuple[str, ...]) -> Iterator[tuple[str, Owner]]:
    """Find the line of a mount; systemd-remount-fs.service(8) applies it to /dev/shm too. Fields and escapes: fstab(5)."""
    mounts = [path for path in paths if not path.startswith(_NOT_MOUNTS)]
    text = root.text(_FSTAB) if mounts else None
    if text is None or text.reason == NO_FILE:
        return
    if text.value is None:
        yield from unreadable("fstab", text, mounts)
        return
    for number, line in enumerate(text.value.splitlines(), 1):
        fields = line.split()
        if len(fields) < 4 or fields[0].startswith("#"):
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        if point in mounts and fields[2] == "tmpfs":
            huge = [option[5:] for option in fields[3].split(",") if option.startswith("huge=")]
            without = "" if huge else " (no huge=: the kernel's default at every boot)"
            yield point, Owner("fstab", f"{_FSTAB}:{number}{without}", huge[-1] if huge else None)


def _irqbalance(root: HostRoot, paths: tuple[str, ...]) -> Iterator[tuple[str, Owner]]:
    vectors = [path for path in paths if path.startswith("/proc/irq/")]
    where = next((path for path in _IRQBALANCE if vectors and root.exists(path)), None)
    if where is not None:
        yield from ((path, Owner("irqbalance", where, None)) for path in vectors)
