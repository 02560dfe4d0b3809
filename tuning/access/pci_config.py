"""A register of PCI config space through sysfs: one aligned read, one aligned write, never buffered.

An aligned 2-byte pwrite is one config word write; access wakes a suspended device (Linux drivers/pci/pci-sysfs.c). A read
past the 64 bytes that an unprivileged opener gets comes back empty without an error. All ones are a device that is gone.
"""

from __future__ import annotations

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.pcie_caps import GONE, NEEDS_ROOT
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import Target, Value, all_ones

__all__ = ["PciConfigAccess"]


class PciConfigAccess:
    """`Target.path` is the function's config file, the register's offset counts from its start."""

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Read the register with one pread of its width."""
        register = target.register
        assert register is not None
        n_bytes = register.width // 8
        name = f"{target.path} {register.offset:#x}.{n_bytes * 8}"
        found = root.piece(target.path, register.offset, n_bytes)
        if found.value is None:
            return unknown(name, found.reason or "")
        if len(found.value) < n_bytes:
            first = root.piece(target.path, 0, 65).value or b""
            return unknown(name, NEEDS_ROOT if len(first) == 64 else "register lies outside what can be read")
        value = int.from_bytes(found.value, "little")
        return unknown(name, GONE) if all_ones(target, value) else known(value, name)

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Write the whole register with one pwrite. Changes the host. Raises OSError."""
        register = target.register
        assert register is not None
        assert isinstance(value, int)
        kernel.write_at(target.path, register.offset, (value & ~register.never).to_bytes(register.width // 8, "little"))

    def shell(self, target: Target, value: Value) -> str:
        """Return the setpci line, value:mask, so that other bits stay. Pure."""
        register = target.register
        assert register is not None
        assert isinstance(value, int)
        digits = register.width // 4
        unit = {8: "b", 16: "w", 32: "l"}[register.width]
        address = target.path.rstrip("/").split("/")[-2]
        bits = f"{value & register.mask:0{digits}x}:{register.mask:0{digits}x}"
        return f"setpci -v -s {address} {register.offset:x}.{unit}={bits}"
