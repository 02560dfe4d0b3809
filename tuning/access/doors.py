"""What stands before a write, read with the value: the words a settings file offers, and whether its mount is read-only.

A kernel before 4.12 offers no defer+madvise, and a container usually sees /sys read-only: both can be said in a plan,
before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable

from hicachectl.tuning.host.facts import Confidence, Fact, unknown
from hicachectl.tuning.host.mounts import Mount, read_mounts
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sight import Door
from hicachectl.tuning.target import Method, Target

__all__ = ["read_doors"]

_WORDS = (Method.SYSFS, Method.SYSCTL)


def read_doors(root: HostRoot, targets: Iterable[Target]) -> dict[Target, Door]:
    """Read what each target offers and whether it can be written at all. Reads the host, the mount table once; never raises."""
    mounts = read_mounts(root)
    return {target: Door(_offers(root, target), _read_only(mounts, target)) for target in targets}


def _offers(root: HostRoot, target: Target) -> Fact[tuple[str, ...]]:
    if target.method not in _WORDS:
        return unknown(target.path, "lists no words")
    return root.text(target.path).then(_listed, why_not="lists no words")


def _listed(text: str) -> tuple[str, ...] | None:
    return tuple(word.strip("[]") for word in text.split()) if "[" in text else None


def _read_only(mounts: Fact[tuple[Mount, ...]], target: Target) -> Fact[bool]:
    """Whether the mount that shows the path is read-only, itself or its file system. A remount asks nobody else."""
    if target.method is Method.MOUNT:
        return unknown(target.path, "a remount does not write to the mount")
    if mounts.value is None:
        return Fact(None, mounts.source, mounts.confidence, mounts.reason)
    above = [mount for mount in mounts.value if _holds(mount.path, target.path)]
    if not above:
        return unknown(mounts.source, "no mount shows it")
    longest = max(len(mount.path) for mount in above)
    mount = [one for one in above if len(one.path) == longest][-1]
    return Fact("ro" in mount.flags or "ro" in mount.options, f"{mounts.source} ({mount.path})", Confidence.DERIVED)


def _holds(mount: str, path: str) -> bool:
    return mount == "/" or path == mount or path.startswith(f"{mount}/")
