"""A parameter of a kernel module, kept in a file of our own below /etc/modprobe.d: read when the module loads next.

The whole file is one value, and so is its absence (`ABSENT`): putting that back removes the file. It holds one line, one
option of one module: a file that says more is not ours, is not written over and so never has to be put back, and nothing
else is written, for modprobe runs what `install` lines say. What the running module uses is another thing, and is never
claimed to have changed.
"""

from __future__ import annotations

import errno
import re
import shlex

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import ABSENT, PARAMETER_VALUE, Target, Value

__all__ = ["ModuleParamAccess"]

_LINE = re.compile(rf"options \w+ \w+={PARAMETER_VALUE}\n", re.ASCII)
_MAX_BYTES = 64 << 10


class ModuleParamAccess:
    """`Target.path` is the file; the value its text, with the newline at its end."""

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Read the whole file, or that it is not there."""
        found = root.data(target.path, _MAX_BYTES + 1)
        if found.value is None:
            return (
                known(ABSENT, target.path)
                if found.reason == "no such file"
                else unknown(target.path, found.reason or "")
            )
        if len(found.value) > _MAX_BYTES:
            return unknown(target.path, f"longer than {_MAX_BYTES >> 10} KiB: not a file of ours")
        try:
            text = found.value.decode("utf-8")
        except UnicodeDecodeError:
            return unknown(target.path, "not UTF-8 text: not a file of ours")
        return known(text, target.path) if _LINE.fullmatch(text) else unknown(target.path, "not a file of ours")

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Replace the file whole, or remove it. Changes the host's files. Raises OSError; EINVAL for what is no line of ours."""
        if value != ABSENT and not _LINE.fullmatch(str(value)):
            raise OSError(errno.EINVAL, f"{value!r} is not one option of one module", target.path)
        kernel.write_file(target.path, None if value == ABSENT else str(value))

    def shell(self, target: Target, value: Value) -> str:
        """Return the line that writes the file, or removes it. Pure."""
        path = shlex.quote(target.path)
        return f"rm -f {path}" if value == ABSENT else f"printf %s {shlex.quote(str(value))} > {path}"
