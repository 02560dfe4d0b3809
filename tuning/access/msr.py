"""A model-specific register of one CPU, through /dev/cpu/N/msr: eight bytes at the register's number.

The `msr` module makes the files; CAP_SYS_RAWIO opens them; lockdown refuses writes alone, and a register the CPU does not
have is EIO (Linux arch/x86/kernel/msr.c). So "not available" and "failed" are told apart.
"""

from __future__ import annotations

from hicachectl.tuning.access.ways import Way
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import Target, Value

__all__ = ["MsrAccess"]

_DOOR = Way("the msr module is not loaded (sudo modprobe msr)", "it needs root (CAP_SYS_RAWIO)")
_N_BYTES = 8


class MsrAccess:
    """`Target.path` is the CPU's file, the register's offset its number, its width 64."""

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Read the register with one pread. Reads the CPU."""
        register = target.register
        assert register is not None
        name = f"{target.path} {register.offset:#x}"
        found = root.piece(target.path, register.offset, _N_BYTES)
        if found.value is None:
            return unknown(name, _DOOR.why(found.reason or ""))
        if len(found.value) < _N_BYTES:
            return unknown(name, _DOOR.failed(f"{len(found.value)} of {_N_BYTES} bytes came back"))
        return known(int.from_bytes(found.value, "little"), name)

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Write the whole register with one pwrite. Changes the CPU. Raises OSError: EPERM under lockdown, EIO for no such register."""
        register = target.register
        assert register is not None
        assert isinstance(value, int)
        kernel.write_at(target.path, register.offset, (value & ~register.never).to_bytes(_N_BYTES, "little"))

    def shell(self, target: Target, value: Value) -> str:
        """Return the wrmsr line. Pure."""
        register = target.register
        assert register is not None
        assert isinstance(value, int)
        return f"wrmsr -p {target.path.split('/')[-2]} {register.offset:#x} {value & ~register.never:#x}"
