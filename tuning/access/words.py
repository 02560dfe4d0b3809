"""Settings files that hold a word or a number: sysfs and sysctl."""

from __future__ import annotations

import shlex

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import Method, Target, Value

__all__ = ["WordAccess", "selected"]


class WordAccess:
    """Reads the selected word of `always [madvise] never`, or the whole text of a file without brackets."""

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Read the file's word."""
        return root.text(target.path).then(selected, why_not="no selected word")

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Write the word. Changes the host."""
        kernel.write_text(target.path, str(value))

    def shell(self, target: Target, value: Value) -> str:
        """Return `echo WORD > FILE`, or the sysctl line. Pure."""
        word = shlex.quote(str(value))
        if target.method is Method.SYSCTL:
            name = target.path.removeprefix("/proc/sys/")
            dotted = name if "." in name else name.replace("/", ".")  # sysctl.d(5): a name with slashes keeps its dots
            return f"sysctl -w {shlex.quote(dotted)}={word}"
        return f"echo {word} > {shlex.quote(target.path)}"


def selected(text: str) -> Value | None:
    """Return the word in brackets, or the text itself where there are none; None for an empty file or a list without a selection. Pure.

    >>> selected("always [madvise] never"), selected("0")
    ('madvise', '0')
    """
    inside = [word[1:-1] for word in text.split() if word.startswith("[") and word.endswith("]")]
    if len(inside) == 1:
        return inside[0] or None
    return None if inside or not text or len(text.split()) > 1 else text
