"""What every way to reach a target offers. Pure."""

from __future__ import annotations

from typing import Protocol

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import Target, Value

__all__ = ["Access"]


class Access(Protocol):
    """One family of methods."""

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Read the target; never raises."""

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Write the whole value with one call of `kernel`. Raises OSError."""

    def shell(self, target: Target, value: Value) -> str:
        """Return the shell line that writes the same. Pure."""
