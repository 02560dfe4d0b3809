"""Before anything is written: may each item be written here at all? The order is that of docs/facts.md#locked-down.

    capability -> writable file system -> lockdown -> somebody uses the device -> the file opens for writing

Capability version, offset and read length are checked when the plan is made again from the host, just before this.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from hicachectl.errors import HicacheError, PermissionDenied, PlanStale, Unsupported
from hicachectl.tuning.host.isolation import read_lockdown
from hicachectl.tuning.host.machine import read_capabilities
from hicachectl.tuning.host.mounts import Mount, read_mounts
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.kernel import MOUNT_FLAGS, Kernel
from hicachectl.tuning.target import Method

__all__ = ["check_reach", "check_writes"]

_NEEDS_ADMIN = frozenset((Method.PCI_CONFIG, Method.PCI_ECAP, Method.MOUNT, Method.SMN_DEBUGFS, Method.HSMP))
_NEEDS_RAWIO = frozenset((Method.MSR,))
_LOCKED = frozenset((Method.PCI_CONFIG, Method.PCI_ECAP, Method.MSR, Method.SMN_DEBUGFS, Method.HSMP))
_LOCKDOWN = "/sys/kernel/security/lockdown"


def check_writes(
    items: Sequence[Item], *, root: HostRoot, kernel: Kernel, refuse: Callable[[Item], str | None]
) -> None:
    """Raise for the first item that this host would refuse; return when all may be tried. Writes nothing.

    `refuse` says why an item must wait for whoever uses the device, or None. Raises PermissionDenied (4), Unsupported (5)
    or PlanStale (8, HC-IN-USE), each with the item, the value that decided and what to do.
    """
    check_reach(items, root=root)
    mounts = read_mounts(root).value or ()
    for item in items:
        target = item.target
        assert target is not None
        if target.method is Method.MOUNT:
            flags = next((mount.flags for mount in reversed(mounts) if mount.path == target.path), ())
            strange = [flag for flag in flags if flag not in MOUNT_FLAGS]
            if strange:
                raise Unsupported(
                    f"{item.id} would lose the mount flags {', '.join(strange)}",
                    where=target.path,
                    why="a remount clears what it does not repeat; nothing was written",
                    hint="remount it by hand, or leave it out: tune plan --only",
                )
        in_use = refuse(item)
        if in_use is not None:
            raise PlanStale(
                f"{item.id} waits: {in_use}",
                where=target.path,
                why="it must be quiet while this changes: traffic may count on the order it has; nothing was written",
                hint="stop those processes, or add --online when the vendor says it is safe",
                code="HC-IN-USE",
            )
        make = target.method is Method.MODULE_PARAM
        error = kernel.may_write(target.path, make=make) if target.method is not Method.MOUNT else None
        if error is not None:
            raise _refused(item, error)


def check_reach(items: Sequence[Item], *, root: HostRoot) -> None:
    """Raise for the first item whose way is shut to this process: capability, read-only mount, lockdown. Opens none of their files.

    Raises PermissionDenied (4) or Unsupported (5).
    """
    capabilities = read_capabilities(root)
    mounts = read_mounts(root).value or ()
    lockdown = read_lockdown(root)
    for item in items:
        target = item.target
        assert target is not None
        for needed, methods in (("cap_sys_admin", _NEEDS_ADMIN), ("cap_sys_rawio", _NEEDS_RAWIO)):
            if target.method in methods and (capabilities.value is None or needed not in capabilities.value):
                seen = capabilities.reason or "this process does not have it"
                raise _denied(item, f"{needed.upper()} is needed", seen)
        read_only = _read_only_mount(mounts, target.path) if target.method is not Method.MOUNT else None
        if read_only is not None:
            raise Unsupported(
                f"{item.id} cannot be written: {read_only} is mounted read-only",
                where=target.path,
                why="a container or a hardened host hides it; nothing was written",
                hint="run it on the host itself, outside the container",
            )
        if target.method in _LOCKED and lockdown.value not in (None, "none"):
            raise Unsupported(
                f"{item.id} cannot be written: kernel lockdown is {lockdown.value!r}",
                where=_LOCKDOWN,
                why="lockdown refuses writes to config space and MSRs (kernel_lockdown(7)); nothing was written",
                hint="boot without lockdown (Secure Boot sets it), or leave this item out: tune plan --only",
            )


def _refused(item: Item, error: OSError) -> HicacheError:
    assert item.target is not None
    if error.errno in (errno.EACCES, errno.EPERM):
        return _denied(item, "it may not be opened for writing", error.strerror or str(error))
    return Unsupported(
        f"{item.id} cannot be opened for writing: {error.strerror or error}",
        where=item.target.path,
        why="the kernel, a container or the device does not offer it; nothing was written",
        hint="make the plan again: hicachectl tune plan",
    )


def _denied(item: Item, needed: str, seen: str) -> PermissionDenied:
    return PermissionDenied(
        f"{item.id}: {needed}",
        where=None if item.target is None else item.target.path,
        why=f"{seen}; nothing was written",
        hint="sudo hicachectl tune apply PLAN",
    )


def _read_only_mount(mounts: Sequence[Mount], path: str) -> str | None:
    """Return the mount point over `path` when it is read-only."""
    best: Mount | None = None
    for mount in mounts:
        at = mount.path.rstrip("/") + "/"
        if (path + "/").startswith(at) and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best.path if best is not None and ("ro" in best.flags or "ro" in best.options) else None
