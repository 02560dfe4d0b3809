"""The `huge=` option of a tmpfs mount, changed by a remount that keeps everything else.

Remount affects pages faulted from then on; files already populated keep theirs (docs/facts.md#which-setting).
"""

from __future__ import annotations

import errno
import shlex

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.mounts import Mount, read_mounts
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import HUGE_WORDS, Target, Value

__all__ = ["MountAccess"]


class MountAccess:
    """`Target.path` is the mount point; the value is the word of huge=, never when the table shows none."""

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Read the option of the mount on top of the path; a path that is no tmpfs mount is unknown."""

        table = read_mounts(root)
        source = f"{table.source} ({target.path})"
        if table.value is None:
            return unknown(source, table.reason or "")
        mount = _on_top(table.value, target.path)
        return unknown(source, "not a tmpfs mount") if mount is None else known(mount.option("huge") or "never", source)

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Remount with the new word, keeping the mount's flags. Changes the host. Raises OSError; EINVAL for what is no word of huge=."""
        if value not in HUGE_WORDS:  # a comma would begin another option: size, mode
            raise OSError(errno.EINVAL, f"{value!r} is not a word of huge=", target.path)
        mounts = read_mounts(root)
        mount = None if mounts.value is None else _on_top(mounts.value, target.path)
        if mount is None:
            raise FileNotFoundError(2, mounts.reason or "not a tmpfs mount", target.path)
        kernel.remount(target.path, mount.flags, f"huge={value}")

    def shell(self, target: Target, value: Value) -> str:
        """Return the mount(8) line. Pure."""
        return f"mount -o remount,huge={value} {shlex.quote(target.path)}"


def _on_top(mounts: tuple[Mount, ...], path: str) -> Mount | None:
    found = [mount for mount in mounts if mount.path == path]
    return found[-1] if found and found[-1].kind == "tmpfs" else None
