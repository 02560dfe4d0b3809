"""Which processes hold an accelerator's device file, by their open files and mappings in /proc.

A change of packet order under a running engine is a change of what it was tested with, so `refusal` says no while any
process holds one. Nothing unread counts as "no holder": a process that cannot be looked at, a /proc that hides processes, and
a PID namespace from which the host's processes cannot be seen make the answer unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.kernel_text import status_fields
from hicachectl.tuning.host.mounts import read_mounts
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item

__all__ = ["Holder", "find_holders", "gate", "is_accelerator_file", "refusal"]

_NAMES = (
    r"nvidia\d+",  # NVIDIA Linux driver README, "Frequently asked questions": /dev/nvidia0, one a GPU
    r"nvidia-uvm",  # the same: CUDA's memory manager
    r"xpu\d+",  # Kunlun: opendatalab/MinerU docs, usage/acceleration_cards/Kunlunxin (/dev/xpu0 to xpu7, xpuctrl)
    r"m?kfd",  # AMD: ROCm "Running ROCm Docker containers"; Hygon: opendatalab/MinerU docs, acceleration_cards/Hygon
    r"dri/renderD\d+",  # the same pages
    r"v?davinci\d+",  # Huawei: Ascend Docker Runtime guide, "Usage on the Docker Client"
    r"ve(?:slot)?\d+",  # NEC Vector Engine: efocht/ve-dev-docker
    r"accel/accel\d+",  # Linux Documentation/accel/introduction.rst
    r"vfio/(?:noiommu-)?\d+",  # Linux Documentation/driver-api/vfio.rst: a group; what is in it is not told apart
    r"vfio/devices/(?:noiommu-)?vfio\d+",  # the same, the device's own file
)
_DEVICE_FILE = re.compile(rf"/dev/(?:{'|'.join(_NAMES)})", re.ASCII)
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ \S+ +(/dev/\S+)", re.MULTILINE | re.ASCII)
_MAX_MAPS_BYTES = 64 << 20
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_PF_KTHREAD = 0x00200000  # include/linux/sched.h; the flags are field 9 of /proc/PID/stat, proc(5)
_GONE = ("no such file", "No such process")
"""The process ended while it was looked at."""
_CAP_SYS_PTRACE = 19  # include/uapi/linux/capability.h
_SOURCE = "/proc/*/fd, /proc/*/maps"


@dataclass(frozen=True, slots=True)
class Holder:
    """One process with one accelerator file open or mapped. `user` is the name, or the number where there is no name; None when not known."""

    pid: int
    command: str | None
    device_file: str
    user: str | None


def is_accelerator_file(path: str) -> bool:
    """Say whether a path is an accelerator's device file. Control files that every monitor opens (nvidiactl, xpuctrl) are none. Pure.

    >>> is_accelerator_file("/dev/nvidia0"), is_accelerator_file("/dev/nvidiactl")
    (True, False)
    """
    return _DEVICE_FILE.fullmatch(path) is not None


def find_holders(root: HostRoot) -> Fact[tuple[Holder, ...]]:
    """List the processes that hold an accelerator's device file, by process number. Reads only.

    The empty list means that every process was looked at and none holds one. When none was found and some could not be
    looked at the answer is unknown, with their number; when some were found, `source` says how many could not.
    """
    hidden = _hidden(root)
    processes = root.names("/proc").then(lambda names: tuple(int(name) for name in names if name.isdecimal()) or None)
    if processes.value is None:
        return unknown(processes.source, processes.reason or "")
    users = _users(root)
    found: list[Holder] = []
    n_unread = 0
    for pid in sorted(processes.value):
        files = _files_of(root, pid)
        if files is None:
            n_unread += 1
            continue
        if files:
            command, user = _command(root, pid), _user(root, pid, users)
            found.extend(Holder(pid, command, path, user) for path in sorted(files))
    missed = hidden
    if n_unread:
        missed = f"{n_unread} of {len(processes.value)} processes could not be looked at (needs root)"
    if missed is not None and not found:
        return unknown(_SOURCE, missed)
    return known(tuple(found), f"{_SOURCE}, but {missed}" if missed else _SOURCE)


def gate(root: HostRoot, *, online: bool = False) -> Callable[[Item], str | None]:
    """Return the `refusal` of one host as a function of the item. The processes are looked at once, when an item first asks."""
    seen: list[Fact[tuple[Holder, ...]]] = []

    def ask(item: Item) -> str | None:
        if not item.ordering or online:
            return None
        if not seen:
            seen.append(find_holders(root))
        return refusal(seen[0], item)

    return ask


def refusal(holders: Fact[tuple[Holder, ...]], item: Item, *, online: bool = False) -> str | None:
    """Say why a change of packet order must wait, None when it may go on: no holder, or `online` was allowed. Pure.

    Changes that do not touch the order of packets are never refused. Not knowing is a refusal too.
    """
    if not item.ordering or online:
        return None
    if holders.value is None:
        return f"whether a process holds an accelerator is not known: {holders.reason}"
    if not holders.value:
        return None
    first = holders.value[0]
    others = len({holder.pid for holder in holders.value}) - 1
    more = f" and {others} more process{'es' if others > 1 else ''}" if others else ""
    holds = "hold" if others else "holds"
    return f"process {first.pid} ({first.command or '?'}){more} {holds} an accelerator ({first.device_file})"


def _files_of(root: HostRoot, pid: int) -> set[str] | None:
    """The accelerator files a process holds; None when it could not be looked at. A process that ended meanwhile holds none."""
    found: set[str] = set()
    folder = f"/proc/{pid}/fd"
    names = root.names(folder)
    if names.value is None:
        return found if names.reason in _GONE or _is_kernel_thread(root, pid) else None
    for name in names.value:
        link = root.link(f"{folder}/{name}")
        if link.value is None and link.reason not in _GONE:
            return None
        path = (link.value or "").removesuffix(" (deleted)")
        if is_accelerator_file(path):
            found.add(path)
    maps = root.data(f"/proc/{pid}/maps", _MAX_MAPS_BYTES + 1)
    if maps.value is None or len(maps.value) > _MAX_MAPS_BYTES:
        return found if found or maps.reason in _GONE else None
    found.update(path for path in _MAPPED.findall(maps.value.decode(errors="replace")) if is_accelerator_file(path))
    return found


def _is_kernel_thread(root: HostRoot, pid: int) -> bool:
    """Kernel threads have no files; their folder is closed to ordinary users all the same."""
    fields = (root.text(f"/proc/{pid}/stat").value or "").rpartition(")")[2].split()
    return len(fields) > 6 and fields[6].isdecimal() and bool(int(fields[6]) & _PF_KTHREAD)


def _hidden(root: HostRoot) -> str | None:
    """Say why processes may be missing from /proc altogether, None when it shows all."""
    namespace = root.link("/proc/self/ns/pid")
    if namespace.value is None:
        return f"which processes /proc shows is not known: {namespace.reason} ({namespace.source})"
    if namespace.value != _INITIAL_PID_NAMESPACE:
        return "the host's processes cannot be seen from this PID namespace"
    mounts = read_mounts(root)
    if mounts.value is None:
        return f"which processes /proc shows is not known: {mounts.reason} ({mounts.source})"
    hide = next((mount.option("hidepid") for mount in reversed(mounts.value) if mount.path == "/proc"), None)
    if hide in (None, "0", "off"):
        return None
    effective = (
        root.text("/proc/self/status").then(status_fields).then(lambda status: int(status.get("CapEff", ""), 16))
    )
    if effective.value is not None and effective.value >> _CAP_SYS_PTRACE & 1:
        return None
    return f"/proc hides the processes of other users (hidepid={hide}; needs root)"


def _command(root: HostRoot, pid: int) -> str | None:
    return root.text(f"/proc/{pid}/comm").value or None


def _user(root: HostRoot, pid: int, users: dict[str, str]) -> str | None:
    ids = (root.text(f"/proc/{pid}/status").then(status_fields).value or {}).get("Uid", "").split()
    return users.get(ids[1], ids[1]) if len(ids) > 1 else None


def _users(root: HostRoot) -> dict[str, str]:
    """Names by number of the local accounts; others keep their number."""
    found: dict[str, str] = {}
    for line in (root.text("/etc/passwd").value or "").splitlines():
        parts = line.split(":")
        if len(parts) > 2:
            found.setdefault(parts[2], parts[0])
    return found
